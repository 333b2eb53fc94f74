"""Use VAEs of other libraries as a `recmix.Model`, without training.

The other library is imported only when its adapter is called.
"""

from recmix.adapters.diffusers_model import diffusers
from recmix.adapters.pythae_model import pythae
from recmix.adapters.scvi_model import scvi

__all__ = ["diffusers", "pythae", "scvi"]
