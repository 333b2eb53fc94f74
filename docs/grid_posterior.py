"""Exact quantities of models with two latent dimensions, by sums over a grid of points z.

log p(x) is the logarithm of Σ_i p(x, z_i) h², where h is the distance of neighbouring points. For a
smooth posterior the error of this sum falls very fast once h is below its smallest standard deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian

__all__ = ["LARGE", "GridPosterior", "Measured", "basins"]

LARGE = 0.05
"""Least share of the posterior's mass that a mode must hold to be counted."""


@dataclass(frozen=True)
class Measured:
    """The true posteriors of B examples on a grid of G points.

    Attributes:
        log_evidence: log p(x), (B,).
        check: the same from every second point in each direction, (B,).
        probability: p(z_i | x) h², which sums to 1, (G, B).
        basin: the index of the mode that steepest ascent from z_i reaches, (G, B).
        mass: the mass of the basin of a mode, at the index of the mode; else 0, (G, B).
        outside: the mass of the points at the edge of the grid, (B,). It should be near 0.
    """

    log_evidence: Tensor
    check: Tensor
    probability: Tensor
    basin: Tensor
    mass: Tensor
    outside: Tensor

    @property
    def modes(self) -> Tensor:
        """The number of modes that hold at least a share `LARGE` of the mass each, (B,)."""
        return (self.mass >= LARGE).sum(0)

    def found(self, index: Tensor) -> Tensor:
        """How many of the modes hold at least a share `LARGE` of the samples of a posterior q, (B,).

        Args:
            index: the grid points next to the samples, (S, B).
        """
        reached = self.basin.gather(0, index)
        share = torch.zeros_like(self.mass)
        share.scatter_add_(0, reached, torch.full_like(index, 1, dtype=share.dtype) / len(index))
        return ((self.mass >= LARGE) & (share >= LARGE)).sum(0)


class GridPosterior:
    """p(z | x) on a square grid, for a model with two latent dimensions and a Gaussian likelihood.

    The decoder is evaluated once at each point; each example then costs a product of matrices.

    Args:
        model: p(x, z).
        reach: the grid has values from -reach to reach.
        points: grid points in each direction, an odd number.
    """

    def __init__(self, model: LatentModel, *, reach: float, points: int) -> None:
        likelihood = model.likelihood
        if model.latent != 2 or not isinstance(likelihood, Gaussian) or points % 2 == 0:
            raise ValueError("a grid needs two latent dimensions, a Gaussian likelihood and odd points")
        self.model, self.reach, self.points = model, reach, points
        self.step = 2 * reach / (points - 1)
        axis = torch.linspace(-reach, reach, points)
        self.z = torch.cartesian_prod(axis, axis)  # (G, 2)
        with torch.no_grad():
            means = [model.decoder_output(part[:, None])[:, 0] for part in self.z.split(5000)]
            self.mean = torch.cat(means).flatten(1)  # (G, P)
            self.log_prior = model.prior.log_prob(self.z[:, None])[:, 0].double()
            self.variance = float(likelihood.variance)

    @torch.no_grad()
    def log_joint(self, x: Tensor) -> Tensor:
        """log p(x, z_i) at all points of the grid, (G, B), for examples x (B, *shape)."""
        seen = self.model.standardised(x).flatten(1).double()
        parts = []
        for mean in self.mean.split(20_000):
            wide = mean.double()
            parts.append(wide.square().sum(1)[:, None] - 2 * wide @ seen.t() + seen.square().sum(1))
        errors = torch.cat(parts)
        scale = seen.shape[1] * math.log(2 * math.pi * self.variance)
        return self.log_prior[:, None] - 0.5 * (errors / self.variance + scale)

    def index(self, z: Tensor) -> Tensor:
        """The indices of the grid points next to the points z (..., 2)."""
        place = ((z + self.reach) / self.step).round().long().clamp(0, self.points - 1)
        return place[..., 0] * self.points + place[..., 1]

    def measure(self, x: Tensor) -> Measured:
        """log p(x) and the modes of the posteriors of a few examples x (B, *shape)."""
        values = self.log_joint(x)
        log_evidence = values.logsumexp(0)
        probability = (values - log_evidence).exp()
        square = values.unflatten(0, (self.points, self.points))
        half = square[::2, ::2].flatten(0, 1).logsumexp(0) + 2 * math.log(2 * self.step)
        basin = basins(square)
        mass = torch.zeros_like(probability).scatter_add_(0, basin, probability)
        outside = probability[self.z.abs().amax(1) > self.reach - 2 * self.step].sum(0)
        log_evidence = log_evidence + 2 * math.log(self.step)
        return Measured(log_evidence, half, probability, basin, mass, outside)


def basins(values: Tensor) -> Tensor:
    """The index of the local maximum that steepest ascent over eight neighbours reaches, (N·N, B).

    Args:
        values: (N, N, B).
    """
    n = values.shape[0]
    padded = torch.full((n + 2, n + 2, values.shape[2]), -torch.inf, dtype=values.dtype)
    padded[1:-1, 1:-1] = values
    best, move = values.clone(), torch.zeros(values.shape, dtype=torch.long)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            other = padded[1 + down : n + 1 + down, 1 + right : n + 1 + right]
            higher = other > best
            best = torch.where(higher, other, best)
            move.masked_fill_(higher, down * n + right)
    to = torch.arange(n * n)[:, None] + move.flatten(0, 1)
    while not torch.equal(further := to.gather(0, to), to):
        to = further
    return to
