"""Mistakes in the argument `example` of `recmix.wrap`."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import recmix
from recmix.errors import RecmixError

X = torch.rand(8, 1, 4, 5, generator=torch.Generator().manual_seed(0))
LOADER = DataLoader(TensorDataset(X, torch.arange(8)), batch_size=4)


def wrapped(example):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(20, 4))
    decoder = nn.Sequential(nn.Linear(2, 20), nn.Unflatten(1, (1, 4, 5)))
    return recmix.wrap(encoder, decoder, likelihood="bernoulli", example=example)


def with_nan():
    x = X.clone()
    x[3, 0, 1, 2] = torch.nan
    x[1] += 0.001
    return x


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (LOADER, r"example is a DataLoader; .*next\(iter\(example\)\)"),
        (next(iter(LOADER)), r"example is a list of .* with labels; .*: give example\[0\]"),
        ([X], r"example is a list of tensors; .*: give example\[0\] if"),
        ([X[0], X[1]], r"torch\.stack\(example\)"),
        (with_nan(), r"example has the value NaN in example 3: remove"),
        ("images.npy", "example is a str; expected numbers"),
    ],
)
def test_mistakes_in_the_example_are_explained(example, message):
    with pytest.raises(RecmixError, match=message):
        wrapped(example)


def test_a_batch_of_a_loader_and_nested_lists_are_accepted():
    for example in (next(iter(LOADER))[0], X.numpy(), X.tolist()):
        assert wrapped(example).spec.shape == (1, 4, 5)


def test_examples_of_another_shape_are_explained():
    model = wrapped(X)
    with pytest.raises(RecmixError, match=r"two axes seem to be swapped, use x\.swapaxes\(2, 3\)"):
        model.elbo(X.transpose(2, 3))
    for wrong in (next(iter(LOADER)), [X]):
        with pytest.raises(RecmixError, match=r"looks like a batch .*: give x\[0\]$"):
            model.elbo(wrong)
