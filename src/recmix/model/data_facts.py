"""`Statistics`: what a new model needs to know of the training data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Statistics"]


@dataclass(frozen=True)
class Statistics:
    """What a new model needs to know of the training data.

    Attributes:
        centre: the mean, of the shape of an example.
        spread: the standard deviation of each value, of the same shape, if it is asked for.
        variance: around the mean, over all values.
        examples: a few examples, where pseudo-examples start.
    """

    centre: np.ndarray | None = None
    spread: np.ndarray | None = None
    variance: float = 1.0
    examples: np.ndarray | None = None
