"""recmix: accurate posterior inference for variational autoencoders.

Names are loaded on first use, so that reading run folders and showing help need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from recmix._version import __version__

if TYPE_CHECKING:
    from recmix import adapters, data, methods, objectives, posteriors
    from recmix.api import Model, fit, fit_many, fit_preset, load, wrap
    from recmix.errors import RecmixError
    from recmix.inference import Inference
    from recmix.methods.method import Method
    from recmix.methods.registry import register
    from recmix.model import likelihoods, priors
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
    "adapters",
    "data",
    "fit",
    "fit_many",
    "fit_preset",
    "likelihoods",
    "load",
    "methods",
    "objectives",
    "posteriors",
    "priors",
    "register",
    "wrap",
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
    "wrap": "recmix.api",
    "register": "recmix.methods.registry",
}

_MODULES = {
    "adapters": "recmix.adapters",
    "data": "recmix.data",
    "likelihoods": "recmix.model.likelihoods",
    "methods": "recmix.methods",
    "objectives": "recmix.objectives",
    "posteriors": "recmix.posteriors",
    "priors": "recmix.model.priors",
    "sklearn": "recmix.sklearn",  # not in __all__: `import *` must not hide scikit-learn
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'recmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
