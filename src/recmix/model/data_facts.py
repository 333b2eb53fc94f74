"""Statistics of the training data that are needed to make a new model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Statistics"]


@dataclass(frozen=True)
class Statistics:
    """Statistics of the training data that are needed to make a new model.

    Attributes:
        centre: the mean example, with the shape of an example.
        spread: the standard deviation of each value, with the shape of an example; None if the model
            does not divide examples by it.
        variance: the variance around `centre`, averaged over all values.
        examples: a few training examples. They are the initial pseudo-examples of a VampPrior.
    """

    centre: np.ndarray | None = None
    spread: np.ndarray | None = None
    variance: float = 1.0
    examples: np.ndarray | None = None
