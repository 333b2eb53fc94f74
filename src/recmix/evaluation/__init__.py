"""Bounds, timing and scores. They use only `posterior` and `log_joint`: any method can be scored."""

from recmix.evaluation.bounds import Bounds, bounds
from recmix.evaluation.timing import posterior_milliseconds

__all__ = ["Bounds", "bounds", "posterior_milliseconds"]
