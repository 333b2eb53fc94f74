"""recmix: accurate posterior inference for variational autoencoders.

Names are loaded on first use, so that reading run folders and showing help need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from recmix._version import __version__

if TYPE_CHECKING:
    from recmix import data
    from recmix.core import LatentModel, Method, Posterior, register
    from recmix.errors import RecmixError
    from recmix.exports import export
    from recmix.fitted import Fitted, load
    from recmix.presets import fit_preset
    from recmix.training.fit import fit, fit_many

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
    "Fitted": "recmix.fitted",
    "LatentModel": "recmix.core",
    "Method": "recmix.core",
    "Posterior": "recmix.core",
    "RecmixError": "recmix.errors",
    "export": "recmix.exports",
    "fit": "recmix.training.fit",
    "fit_many": "recmix.training.fit",
    "fit_preset": "recmix.presets",
    "load": "recmix.fitted",
    "register": "recmix.core",
}


def __getattr__(name: str) -> Any:
    if name == "data":
        return importlib.import_module("recmix.data")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'recmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
