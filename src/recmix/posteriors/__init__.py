"""Posteriors: densities over z for one batch, each able to sample and to score."""

from recmix.posteriors.gaussian import Gaussian
from recmix.posteriors.mixture import Mixture, recursive_log_weights

__all__ = ["Gaussian", "Mixture", "recursive_log_weights"]
