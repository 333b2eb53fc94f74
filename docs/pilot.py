"""Pilot: rates, gate ranges and the bound C of the second stage, on validation images of MNIST.

python docs/pilot.py OUT [DATA_ROOT]. It needs a GPU and takes about five minutes on an H200. A VAE
with 20 latent dimensions is trained for 80 epochs; all other models start from it. Nothing is measured
on test images. Writes JSON for docs/results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import recmix

SLOW = {"learning_rate": 1e-5}
NEAR = {"train": "encoder", "augment": 0.3, "decoder_samples": 0.3}
ALONE = {"learning_rate": 1e-4, "fresh_rate": 5, **NEAR}
RESIDUAL = {"method": "rme", "order": 4, "component": "residual"}
GROUPS = {
    "second stage, all trained": [
        *({"method": "vae", "learning_rate": rate} for rate in (1e-5, 1e-4)),
        *({"method": "iaf", "flows": 2, **SLOW, "fresh_rate": f} for f in (1, 30, 100, 300)),
        *({"method": "hf", "flows": 4, **SLOW, "fresh_rate": f} for f in (1, 30, 100, 300)),
        *({"method": "full", **SLOW, "fresh_rate": f} for f in (1, 30, 100)),
        *({"method": "me", "order": 3, **SLOW, "fresh_rate": f} for f in (50, 500)),
    ],
    "rme gaussian, all trained": [
        {"method": "rme", "order": 4, "bound": bound, "eps_max": eps, **SLOW, "fresh_rate": f}
        for bound in (500.0, 5.0, 1.0)
        for eps in (0.1, 0.99)
        for f in (1, 100)
    ],
    "residual, all trained": [
        *(
            {**RESIDUAL, "bound": bound, "eps_max": eps, **SLOW, "fresh_rate": 100}
            for bound in (500.0, 5.0, 1.0)
            for eps in (0.1, 0.99)
        ),
        *({**RESIDUAL, "bound": 1.0, "eps_max": 0.99, **SLOW, "fresh_rate": f} for f in (30, 300)),
        *({"method": "residual", **SLOW, "fresh_rate": f} for f in (30, 100, 300)),
        *({"method": "wide", **SLOW, "fresh_rate": f} for f in (30, 100)),
    ],
    "encoder only": [
        *({**RESIDUAL, "bound": b, "eps_max": e, **ALONE} for b in (500.0, 1.0) for e in (0.1, 0.99)),
        {"method": "residual", **ALONE},
        {"method": "wide", **ALONE},
        {"method": "vae", "learning_rate": 1e-4, **NEAR},
    ],
}


def main(out: str, root: str | None = None) -> None:
    data = recmix.data.load("mnist", root=root)
    first = {"latent": 20, "epochs": 80, "learning_rate": 1e-3, "schedule": "cosine"}
    vae = recmix.fit("vae", data, **first)
    common = {"data": data, "init": vae, "epochs": 8, "patience": 0, "schedule": "cosine"}
    x, rows = data.x_val[:1000], []
    for group, options in GROUPS.items():
        models = recmix.fit_many([common | one for one in options])
        for one, model in zip(options, models, strict=True):
            best = max(model.history, key=lambda row: row["val_iwae"])
            elbo, iwae = (float(bound.mean()) for bound in model.bounds(x, 100))
            rows.append(
                {
                    "group": group,
                    "row": model.spec.label,
                    "options": one,
                    "best_val_iwae": best["val_iwae"],
                    "best_epoch": best["epoch"],
                    "val_elbo100": elbo,
                    "val_iwae100": iwae,
                    "weights": model.posterior(x).weights.mean(0).tolist(),
                    "curve": [round(row["val_iwae"], 2) for row in model.history],
                }
            )
            print(model.spec.label, one, f"{iwae:.2f}", flush=True)
    Path(out).write_text(json.dumps({"rows": rows}, indent=0) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
