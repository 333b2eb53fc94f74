"""recmix: accurate posterior inference for variational autoencoders.

Names are loaded on first use, so that reading run folders and showing help need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from recmix._version import __version__

if TYPE_CHECKING:
    from recmix import data
    from recmix.api import Fitted, load
    from recmix.errors import RecmixError
    from recmix.exports import export
    from recmix.methods.method import Method
    from recmix.methods.registry import register
    from recmix.model.latent import LatentModel
    from recmix.posteriors.posterior import Posterior
    from recmix.training.fit import fit, fit_many
    from recmix.training.presets import fit_preset

__all__ = [
    "Fitted",
    "LatentModel",
    "Method",
    "Posterior",
    "RecmixError",
    "__version__",
    "data",
    "export",
    "fit",
    "fit_many",
    "fit_preset",
    "load",
    "register",
]

_HOME = {
    "Fitted": "recmix.api",
    "LatentModel": "recmix.model.latent",
    "Method": "recmix.methods.method",
    "Posterior": "recmix.posteriors.posterior",
    "RecmixError": "recmix.errors",
    "export": "recmix.exports",
    "fit": "recmix.training.fit",
    "fit_many": "recmix.training.fit",
    "fit_preset": "recmix.training.presets",
    "load": "recmix.api",
    "register": "recmix.methods.registry",
}


def __getattr__(name: str) -> Any:
    if name == "data":
        return importlib.import_module("recmix.data")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'recmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
