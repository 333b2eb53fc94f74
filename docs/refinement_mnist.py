"""Kinds of refinement on MNIST: ``python docs/refinement_mnist.py OUT.json [--data-root FOLDER]``.

For five splits and 20 and 50 latent dimensions: a VAE, its control VAE+ (with calibration and with
calibrated noise), a curvature network for the VAE, and, with 20 dimensions, residual corrections for
the VAE. Then test images are scored for each kind of refinement. It needs a GPU; about twelve minutes
on an H200.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import recmix

FIRST = {"learning_rate": 1e-3, "schedule": "cosine", "patience": 0, "validation_samples": 1}
LEARNED = (1, 2, 4, 5, 6, 8)


def scored(model: recmix.Model, x: Any, **about: Any) -> dict[str, Any]:
    """The mean ELBO and IWAE-100 bound of examples, with a description of the row."""
    elbo, iwae = model.bounds(x, 100)
    means = {"elbo": float(elbo.mean()), "iwae": float(iwae.mean())}
    found = about | {"inference": model.inference.key, "images": len(x)} | means
    print(found, flush=True)
    return found


def main() -> None:
    """Train and score everything; write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200, help="of the VAE")
    parser.add_argument("--curvature-epochs", type=int, default=30)
    parser.add_argument("--residual-epochs", type=int, default=40)
    parser.add_argument("--first", type=int, default=2000, help="the first test image that is scored")
    parser.add_argument("--images", type=int, default=8000, help="test images that are scored")
    parser.add_argument(
        "--vaes", type=Path, default=None, help="folder with trained runs vae_DIM_SPLIT and vaeplus_…"
    )
    given = parser.parse_args()
    sets = [recmix.data.load("mnist", root=given.data_root, seed=s) for s in range(given.splits)]
    keys = [(dim, split) for dim in (20, 50) for split in range(given.splits)]
    if given.vaes is None:
        vaes = recmix.fit_many(
            [
                {
                    "method": "vae",
                    "data": sets[s],
                    "latent": d,
                    "seed": s,
                    "epochs": given.epochs,
                    **FIRST,
                }
                for d, s in keys
            ]
        )
    else:
        vaes = [recmix.load(given.vaes / f"vae_{d}_{s}") for d, s in keys]
    starts = [{"data": sets[s], "init": vae} for (_, s), vae in zip(keys, vaes, strict=True)]
    if given.vaes is None:
        plus = recmix.fit_many(
            [{"method": "vae", "epochs": 3, "learning_rate": 1e-5, **start} for start in starts]
        )
    else:
        plus = [recmix.load(given.vaes / f"vaeplus_{d}_{s}") for d, s in keys]
    curved = recmix.fit_many(
        [{"method": "curvature", "epochs": given.curvature_epochs, **start} for start in starts]
    )
    corrected = recmix.fit_many(
        [
            {
                "method": "residual",
                "data": sets[s],
                "init": curved[s],
                "train": "encoder",
                "augment": 0.3,
                "decoder_samples": 0.3,
                "epochs": given.residual_epochs,
                "seed": s,
                **FIRST,
            }
            for s in range(given.splits)
        ]
    )
    rows: list[dict[str, Any]] = []
    for (dim, split), vae, control, model in zip(keys, vaes, plus, curved, strict=True):
        last = given.first + given.images
        x, held_out = sets[split].x_test[given.first : last], sets[split].x_val
        tried = {
            "VAE": vae,
            "VAE+": control,
            "VAE+ calibrated": control.calibrated(held_out),
            "VAE+ calibrated+noise": control.calibrated(held_out, noise=True),
            "gauss-newton 4": model.using(refine=4, reuse=0, checks=0),
            **{f"learned {k}": model.refined(k, how="learned") for k in LEARNED},
            "learned 6 calibrated": model.refined(6, how="learned").calibrated(held_out),
        }
        if not split:
            tried |= {
                "gauss-newton 2": model.using(refine=2, reuse=0, checks=0),
                "variational 4": model.refined(4, how="variational"),
                "conjugate 4": model.refined(4, how="conjugate"),
            }
        if dim == 20:
            chain = corrected[split]
            tried |= {"RESIDUAL": chain, "RESIDUAL, 5 restarts": chain.using(restarts=5)}
            tried |= {f"RESIDUAL, learned {k}": chain.refined(k, how="learned") for k in (1, 2, 4)}
            two = chain.refined(2, how="learned").calibrated(held_out)
            tried["RESIDUAL, learned 2 calibrated"] = two
        rows += [scored(m, x, dim=dim, split=split, row=name) for name, m in tried.items()]
        about = {"torch": torch.__version__, "device": str(vae.device), **vars(given)}
        about |= {"out": None, "data_root": None, "vaes": None}
        given.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
