"""Data whose parts disagree, test examples that cannot be read, and a model that is wrong on one side.

The decoder is x = z + noise for six values x and one number z. The encoder gives the exact posterior
of an example with a negative z, and a posterior with mean 0 of an example with a positive z. So every
choice about inference differs between examples of `easy` and of `hard`.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

import recmix
from recmix.data import ArrayExamples, Data, Examples, check_values
from recmix.data.examples import rows
from recmix.evaluation.score import score

VALUES = 6
VARIANCE = 0.5
PRECISION = 1 + VALUES / VARIANCE


class SealedExamples(Examples):
    """Test examples that raise an error when they are read, unless `is_open` is set."""

    in_memory = True

    def __init__(self, array):
        self.array = np.asarray(array, np.float32)
        self.is_open = False

    @property
    def shape(self):
        return self.array.shape

    def take(self, index):
        assert self.is_open, "test examples were read before the final score"
        return self.array[rows(index, len(self.array))]

    def subset(self, index):
        return SealedExamples(self.array[rows(index, len(self.array))])

    def fingerprint(self):
        """A constant: the hash that identifies the data chooses nothing."""
        return "0" * 64


class Repeat(nn.Module):
    """The decoder: z (N, 1) -> (N, 6)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, VALUES, dtype=torch.float64))

    def forward(self, z):
        return z @ self.weight


class OneSidedEncoder(nn.Module):
    """The exact posterior where its mean is negative; elsewhere a mean of 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((VALUES, 1), 1 / VARIANCE / PRECISION).double())
        self.log_variance = nn.Parameter(torch.full((1, 1), PRECISION).log().neg().double())

    def forward(self, x):
        mean = (x @ self.weight).clamp(max=0)
        return torch.cat([mean, self.log_variance.expand_as(mean)], -1)


def one_sided_model():
    """A model whose encoder is right for `easy` examples and wrong for `hard` ones."""
    example = torch.zeros(2, VALUES, dtype=torch.float64)
    likelihood = recmix.likelihoods.Gaussian(VARIANCE)
    return recmix.wrap(OneSidedEncoder(), Repeat(), likelihood=likelihood, example=example)


def _examples(low, high, n, seed, noise):
    rng = np.random.default_rng(seed)
    z = rng.uniform(low, high, (n, 1))
    return (z + noise * VARIANCE**0.5 * rng.normal(size=(n, VALUES))).astype(np.float32)


def easy(n=60, seed=0, noise=1.0):
    """Examples (n, 6) for which the encoder gives the exact posterior."""
    return _examples(-2.0, -1.5, n, seed, noise)


def hard(n=60, seed=0, noise=1.0):
    """Examples (n, 6) for which the encoder's mean is wrong."""
    return _examples(1.0, 1.5, n, seed, noise)


def data_of(train, val, test, *, sealed=False):
    """The data with these parts, each an array; `sealed` test examples cannot be read."""
    examples = SealedExamples(test) if sealed else ArrayExamples(test)
    return Data("parts", ArrayExamples(train), ArrayExamples(val), examples)


def seal(monkeypatch):
    """Let the check of value ranges leave out sealed examples: it chooses nothing."""

    def check(data, *rest, **more):
        if isinstance(data, Data):
            data = replace(data, x_test=None)
        if not isinstance(data, SealedExamples):
            check_values(data, *rest, **more)

    monkeypatch.setattr("recmix.training.plan.check_values", check)
    monkeypatch.setattr("recmix.data.check_values", check)


def seal_until_scored(monkeypatch):
    """Open sealed examples only while they are scored; return the list of these scores' inferences."""
    asked = []

    def scored(method, examples, inference=None, **more):
        if not isinstance(examples, SealedExamples):
            return score(method, examples, inference, **more)
        asked.append(inference)
        examples.is_open = True
        try:
            return score(method, examples, inference, **more)
        finally:
            examples.is_open = False

    seal(monkeypatch)
    monkeypatch.setattr("recmix.evaluation.score.score", scored)
    return asked
