"""What docs/recursion_study.py measures on test examples, and means over them and over groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from grid_posterior import GridPosterior, Measured
from torch import Tensor

import recmix
from recmix.evaluation.bounds import bounds_of
from recmix.methods.method import infer_no_grad
from recmix.posteriors import Posterior

__all__ = ["CURVE", "SAMPLES", "component_elbos", "grouped", "measured", "summarised"]

Options = dict[str, Any]
SAMPLES = 1000
"""Samples of each posterior for its bounds."""
CURVE = (1, 10, 100, 1000)
"""K of the IWAE-K curve."""


@torch.no_grad()
def measured(
    model: recmix.Model, x: Tensor, grid: GridPosterior | None, truth: Measured | None, *, seed: int
) -> dict[str, Tensor]:
    """The bounds of a posterior, the ELBO of its components, and how many modes it finds, per example.

    Args:
        model: the model.
        x: examples (B, ...).
        grid: the grid of the true posterior; None if there is none, then no modes are counted.
        truth: the true posteriors of these examples on the grid.
        seed: seed of all samples.
    """
    q = infer_no_grad(model.method, x, model.inference)
    generator = torch.Generator(x.device).manual_seed(seed)
    z, log_q = q.rsample_and_log_prob(SAMPLES, generator=generator)
    log_w = (model.latent_model.log_joint(x, z) - log_q).double()  # (S, B)
    found = {"elbo": log_w.mean(0)}
    for k in CURVE:
        groups = log_w.unflatten(0, (-1, k)).logsumexp(1) - math.log(k)
        found[f"iwae {k}"] = groups.mean(0)
    parts = component_elbos(model, x, q)
    found |= {"components": parts, "weights": q.weights.double()}
    return found | {"found": truth.found(grid.index(z))} if grid and truth else found


def component_elbos(model: recmix.Model, x: Tensor, q: Posterior, samples: int = 200) -> Tensor:
    """The ELBO of each component of q, (B, K), with the same noise for all components.

    Args:
        model: the model.
        x: examples (B, ...).
        q: their posterior.
        samples: samples of each component.
    """
    found = []
    for part in q.components:
        generator = torch.Generator(x.device).manual_seed(0)
        found.append(bounds_of(model.latent_model, x, part, samples, generator, 50_000).elbo)
    return torch.stack(found, -1).double()


Arrays = dict[str, np.ndarray]


def summarised(splits: list[Arrays]) -> Options:
    """Means over the test examples of each split, for all rows and for groups of examples.

    Args:
        splits: for each split the values of its test examples, by name. The names of a row's values
            begin with the row and ``|``. A row may be missing in the last splits.
    """
    names = [name.split("|")[0] for name in splits[0] if name.endswith("|elbo")]
    groups = [grouped(arrays) for arrays in splits]
    rows = [_row(name, splits, groups) for name in names]
    truth = [{name: a[name] for name in ("log_evidence", "diagonal")} for a in splits]
    exact = {} if "modes" not in splits[0] else _exact(splits)
    return {
        "examples": len(splits[0]["log_evidence"]),
        "log_evidence": [float(a["log_evidence"].mean()) for a in splits],
        "diagonal": [float(a["diagonal"].mean()) for a in splits],
        "full": [float(a["full"].mean()) for a in splits],
        **exact,
        "groups": by_group(truth, groups),
        "rows": rows,
    }


def _exact(splits: list[Arrays]) -> Options:
    """How exact the sums over the grid are, and how many examples have how many modes."""
    errors = np.concatenate([abs(a["log_evidence"] - a["check"]) for a in splits])
    return {
        "quadrature": {
            "largest difference": float(errors.max()),
            "mean difference": float(errors.mean()),
            "largest mass at the edge": max(float(a["outside"].max()) for a in splits),
        },
        "modes": np.bincount(np.concatenate([a["modes"] for a in splits]).astype(int)).tolist(),
    }


Groups = dict[str, dict[str, np.ndarray]]
"""Kind of a division of test examples -> group -> whether an example is in it."""


def _row(row: str, splits: list[Arrays], groups: list[Groups]) -> Options:
    """The means of one row, over the test examples of each split that has it."""
    here, divided, modes = [], [], []
    for arrays, division in zip(splits, groups, strict=True):
        if f"{row}|elbo" in arrays:
            here.append({k.split("|")[1]: v for k, v in arrays.items() if k.startswith(f"{row}|")})
            divided.append(division)
            modes.append(arrays.get("modes"))
    weights = [v["weights"] for v in here]
    count = weights[0].shape[1]
    wins = [np.bincount(v["components"].argmax(1), minlength=count) / len(v["elbo"]) for v in here]
    entropies = [-(w * np.log(w.clip(1e-30))).sum(1) for w in weights]
    sums = [(v["weights"] * v["components"]).sum(1) for v in here]
    values = [{"elbo": v["elbo"]} for v in here]
    for one, v, many in zip(values, here, modes, strict=True):
        if many is not None:
            one["found"] = v["found"] / many
    return {
        "row": row,
        "elbo": [float(v["elbo"].mean()) for v in here],
        "curve": {str(k): [float(v[f"iwae {k}"].mean()) for v in here] for k in CURVE},
        "best": [float(v["components"].max(1).mean()) for v in here],
        # E_Q[log p(x, z) - log Q] is at most Σ α ELBO + H(α).
        "bound": [float((a + b).mean()) for a, b in zip(sums, entropies, strict=True)],
        "wins": np.mean(wins, 0).tolist(),
        "weights": np.mean([w.mean(0) for w in weights], 0).tolist(),
        "entropy": [float(entropy.mean()) for entropy in entropies],
        "found": [float(one["found"].mean()) for one in values if "found" in one],
        "groups": by_group(values, divided),
    }


def grouped(arrays: Arrays) -> Groups:
    """Groups of the test examples of one split: kind of the division -> group -> whether it is in it.

    They are divided by the number of modes, if that is known; by thirds of the gap that the best
    Gaussian leaves; and by thirds of what the first encoder loses against the best Gaussian.
    """
    left = arrays["log_evidence"] - arrays["diagonal"]
    lost = arrays["diagonal"] - arrays["VAE|elbo"]
    found: Groups = {}
    if (modes := arrays.get("modes")) is not None:
        found["modes"] = {"1": modes == 1, "2": modes == 2, "3 or more": modes >= 3}
    return found | {
        "approximation": _thirds(left),
        "amortisation": _thirds(lost),
    }


def by_group(splits: list[Arrays], groups: list[Groups]) -> Options:
    """Means of some values over the examples of each group, by kind, group, and split.

    Args:
        splits: for each split the values, by name.
        groups: for each split its groups.
    """
    return {
        kind: {
            group: [
                {
                    "images": int(g[kind][group].sum()),
                    **{name: _mean(v, g[kind][group]) for name, v in values.items()},
                }
                for values, g in zip(splits, groups, strict=True)
            ]
            for group in groups[0][kind]
        }
        for kind in groups[0]
    }


def _thirds(values: np.ndarray) -> dict[str, np.ndarray]:
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    return {"low": values <= low, "middle": (values > low) & (values <= high), "high": values > high}


def _mean(values: np.ndarray, chosen: np.ndarray) -> float | None:
    """The mean of some values; None if there are none."""
    return float(values[chosen].mean()) if chosen.any() else None
