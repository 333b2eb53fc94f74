"""recmix: accurate posterior inference for variational autoencoders.

Names are loaded on first use, so that reading run folders and showing help need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from recmix._version import __version__

if TYPE_CHECKING:
    from recmix import data, objectives
    from recmix.api import Model, fit, fit_many, fit_preset, load
    from recmix.errors import RecmixError
    from recmix.inference import Inference
    from recmix.methods.method import Method
    from recmix.methods.registry import register
    from recmix.model.latent import LatentModel
    from recmix.posteriors import Posterior

__all__ = [
    "Inference",
    "LatentModel",
    "Method",
    "Model",
    "Posterior",
    "RecmixError",
    "__version__",
    "data",
    "fit",
    "fit_many",
    "fit_preset",
    "load",
    "objectives",
    "register",
]

_HOME = {
    "Inference": "recmix.inference",
    "LatentModel": "recmix.model.latent",
    "Method": "recmix.methods.method",
    "Model": "recmix.api",
    "Posterior": "recmix.posteriors",
    "RecmixError": "recmix.errors",
    "fit": "recmix.api",
    "fit_many": "recmix.api",
    "fit_preset": "recmix.api",
    "load": "recmix.api",
    "register": "recmix.methods.registry",
}


def __getattr__(name: str) -> Any:
    if name in ("data", "objectives"):
        return importlib.import_module(f"recmix.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'recmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
