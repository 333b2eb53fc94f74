"""A small model and examples for the tests of residual corrections and wider encoders."""

import torch

from recmix.model.latent import LatentModel
from recmix.model.likelihoods import LIKELIHOODS
from recmix.model.networks import make_decoder

SHAPE = (1, 12, 12)


def latent_model(likelihood="gaussian"):
    """A convolutional model with three latent dimensions."""
    torch.manual_seed(0)
    return LatentModel(make_decoder("conv", SHAPE, 3), LIKELIHOODS[likelihood](), latent=3, shape=SHAPE)


def x(n=5):
    """Random examples (n, 1, 12, 12)."""
    return torch.rand(n, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
