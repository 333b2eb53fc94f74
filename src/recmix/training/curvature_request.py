"""Replace the method name ``curvature`` by the options that train a curvature network.

A curvature network predicts the posterior covariance near a latent point z.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.model.assembly import Own
from recmix.model.curvature_network import FULL_UP_TO
from recmix.training.build import load_trained

__all__ = ["CURVATURE", "VALIDATION", "without_curvature_name"]

CURVATURE = "curvature"
USUAL = {
    "epochs": 40,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "patience": 0,
    "max_gradient_norm": 10.0,
}
"""Training options for a curvature network, unless others are given."""
VALIDATION = Inference(how="learned", refine=2, checks=0)
"""How the posterior is refined in validation, while a curvature network is trained. The epoch with the
highest bound of this refined posterior is the best epoch."""


def without_curvature_name(request: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the method name ``curvature`` into arguments that `recmix.fit` can carry out.

    `fit(method="curvature", init=run)` adds a curvature network to a copy of the trained model `init`
    and trains only this network.

    Args:
        request: keyword arguments of `recmix.fit`.

    Returns:
        New keyword arguments: `method` is that of `init`, `train` is ``curvature``, and options that
        were not given come from `init` or have the defaults of this training. For all other methods,
        a copy of `request`.
    """
    if not isinstance(request["method"], str) or request["method"] != CURVATURE:
        return dict(request)
    start, given = request.get("init"), {k: v for k, v in request.items() if v is not None}
    if start is None:
        raise ConfigError(
            "the method curvature trains a network for a trained model: give it as init "
            "(--init RUN on the command line)"
        )
    if given.get("train", CURVATURE) != CURVATURE:
        raise ConfigError(f"curvature trains nothing else: leave train = {given['train']!r} out")
    if isinstance(start, str | Path):
        parts = {name: given.get(name) for name in ("encoder", "decoder", "likelihood", "prior")}
        own = Own(**{k: part for k, part in parts.items() if not isinstance(part, str)})
        start = load_trained(start, device=given.get("device", "auto"), own=own.copied())
    kind = "full" if start.spec.model.latent <= FULL_UP_TO else "low-rank"
    usual = {"curvature": kind, **USUAL, **start.spec.options}
    return usual | given | {"method": type(start.method), "train": CURVATURE}
