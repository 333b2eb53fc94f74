"""Posteriors q(z | x). Each is a `torch.distributions.Distribution` for one batch of examples."""

from recmix.posteriors.flow import Flow, Reflected
from recmix.posteriors.full import FullGaussian
from recmix.posteriors.gaussian import Gaussian
from recmix.posteriors.low_rank import LowRankGaussian
from recmix.posteriors.mixture import Mixture
from recmix.posteriors.posterior import Posterior
from recmix.posteriors.recursion import recursive_log_weights

__all__ = [
    "Flow",
    "FullGaussian",
    "Gaussian",
    "LowRankGaussian",
    "Mixture",
    "Posterior",
    "Reflected",
    "recursive_log_weights",
]
