"""The public functions `fit`, `fit_many`, `fit_preset`, `wrap`, `load`, and the class `Model`."""

from recmix.api.functions import fit, fit_many, fit_preset, load, wrap
from recmix.api.model import Model

__all__ = ["Model", "fit", "fit_many", "fit_preset", "load", "wrap"]
