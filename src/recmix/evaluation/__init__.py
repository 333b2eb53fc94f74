"""Bounds, timing and scores: they know only `posterior` and `log_joint`, never which method it is."""

from recmix.evaluation.bounds import Bounds, bounds
from recmix.evaluation.timing import posterior_milliseconds

__all__ = ["Bounds", "bounds", "posterior_milliseconds"]
