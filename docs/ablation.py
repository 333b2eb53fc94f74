"""The gain from each part of the residual corrections, on validation images.

python docs/ablation.py RUN OUT, where RUN is a trained VAE (MNIST, 20 dimensions, in docs/ablations.md).
The variants start from it and are trained together on a GPU. Writes JSON for docs/results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import recmix

RESIDUAL = {"method": "residual", "corrections": 3, "width": 2.0}
NEAR = {"augment": 0.3, "decoder_samples": 0.3}
ENCODERS = {
    "one pass, data alone": {},
    "one pass": NEAR,
    "1 correction": {**RESIDUAL, **NEAR, "corrections": 1},
    "3 corrections, one corrector": {**RESIDUAL, **NEAR},
    "3 corrections, decoder samples only": {**RESIDUAL, "decoder_samples": 0.6},
    "3 corrections, augmented only": {**RESIDUAL, "augment": 0.6},
    "3 corrections, a corrector each": {**RESIDUAL, **NEAR, "shared": False},
    "3 corrections, no data as they are": {**RESIDUAL, "augment": 0.5, "decoder_samples": 0.5},
    "3 corrections, one corrector, rate 1e-3": {**RESIDUAL, **NEAR, "learning_rate": 1e-3},
}
DECODERS = {
    "refine 2, rate 1e-5": {"learning_rate": 1e-5, "schedule": "constant"},
    "refine 2, rate 1e-4, cosine": {"learning_rate": 1e-4},
    "refine 2, rate 3e-4, cosine": {"learning_rate": 3e-4},
}


REFINED = "3 corrections, one corrector"


def by_steps(model: recmix.Model, data: recmix.data.Data) -> dict[str, float]:
    """IWAE-100 of the first 1,000 validation images, by the number of refinement steps."""
    images = data.x_val[:1000]
    return {str(n): float(model.refined(n).log_likelihood(images).mean()) for n in (0, 1, 2, 4)}


def main(run: str, out: str) -> None:
    vae = recmix.load(run)
    data = recmix.data.rebuild(vae.spec.data)
    common = {"method": "vae", "data": data, "init": vae, "schedule": "cosine", "patience": 0}
    encoders = common | {"train": "encoder", "epochs": 8, "learning_rate": 5e-4, "fresh_rate": 1.0}
    decoders = common | {"refine": 2, "epochs": 4}
    rows, refined = [], {}
    for request, variants in ((encoders, ENCODERS), (decoders, DECODERS)):
        models = recmix.fit_many([request | variant for variant in variants.values()])
        for name, model in zip(variants, models, strict=True):
            best = max(model.history, key=lambda row: row["val_iwae"])
            rows.append({"variant": name, "iwae": best["val_iwae"], "elbo": best["val_elbo"]})
            print(f"{name}: {best['val_iwae']:.2f}")
            if name == REFINED:
                refined = {title: by_steps(m, data) for title, m in (("VAE", vae), (name, model))}
    content = {"run": vae.spec.to_json(), "rows": rows, "refined": refined}
    Path(out).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
