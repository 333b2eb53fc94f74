"""Annealed importance sampling: log p(x) along a path from a Gaussian to the posterior.

The path is q(z)^(1-β) p(x, z)^β, β from 0 to 1. A chain begins with a draw from q, and at every β
takes a Hamiltonian step that keeps the density of that β; the weights it gathers on the way,
Σ_t (β_t - β_{t-1}) (log p(x, z_t) - log q(z_t)), are those of an importance sample of p(x), however
short the path is. It corrects where q is poor, which plain importance sampling from q cannot.

References: Neal, Annealed importance sampling, 2001; Wu et al., On the quantitative analysis of
decoder-based generative models, 2017.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recmix.evaluation.evidence import Evidence, evidence_of
from recmix.model.latent import LatentModel, standard_normal
from recmix.posteriors.full import FullGaussian
from recmix.posteriors.gaussian import randn

__all__ = ["annealed"]

LEAPFROGS = 4
"""Gradients in one Hamiltonian step."""
ACCEPTED = 0.65
"""Share of steps to be accepted, to which step sizes are adapted before anything is counted."""
FIRST_STEP = 0.5
"""Step size in standard deviations of q, at first."""


class _Place(NamedTuple):
    """Points u with z = μ + L u, and the joint there."""

    u: Tensor  # (S, B, D)
    log_joint: Tensor  # (S, B), of u: with log det L
    slope: Tensor  # (S, B, D), its gradient


def annealed(
    model: LatentModel,
    x: Tensor,
    q: FullGaussian,
    *,
    chains: int = 16,
    temperatures: int = 30,
    generator: torch.Generator,
    at_once: int,
) -> Evidence:
    """log p(x) of images x (B, C, H, W) by chains from q, with its standard error over the chains.

    A first journey of a few chains along the path only adapts the step size of each image; the second
    one counts, with step sizes that are fixed.

    Args:
        model: p(x, z).
        x: images.
        q: where the path begins.
        chains: importance samples of each image.
        temperatures: β's on the path.
        generator: of the noise, on the model's device.
        at_once: latent vectors decoded at a time.
    """
    size = torch.full_like(q.mean[:, 0], FIRST_STEP)
    size = _journey(model, x, q, min(chains, 4), temperatures, size, generator, adapt=True)[1]
    parts, done = [], 0
    while done < chains:
        now = min(max(1, at_once // len(x)), chains - done)
        parts.append(_journey(model, x, q, now, temperatures, size, generator, adapt=False)[0])
        done += now
    return evidence_of(torch.cat(parts))


def _journey(
    model: LatentModel,
    x: Tensor,
    q: FullGaussian,
    chains: int,
    temperatures: int,
    size: Tensor,
    generator: torch.Generator,
    *,
    adapt: bool,
) -> tuple[Tensor, Tensor]:
    """Log-weights (S, B) of chains along the path, and step sizes (B,), adapted or as they were."""
    factor = q.scale_tril
    volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def look(u: Tensor) -> _Place:
        with torch.enable_grad():
            leaf = u.detach().requires_grad_()
            z = q.mean + torch.einsum("bij,sbj->sbi", factor, leaf)
            log_joint = model.log_joint(x, z) + volume
            (slope,) = torch.autograd.grad(log_joint.sum(), leaf)
        return _Place(u, log_joint.detach(), slope)

    here = look(randn((chains, *q.mean.shape), q.mean, generator))
    log_weight = torch.zeros_like(here.log_joint)
    sizes = []
    # Small steps at both ends, where the density changes most: a cosine.
    betas = (
        0.5 - 0.5 * torch.linspace(0, torch.pi, temperatures + 1, dtype=torch.float64).cos()
    ).tolist()
    for t in range(1, temperatures + 1):
        log_weight += (betas[t] - betas[t - 1]) * (here.log_joint - standard_normal(here.u))
        if t == temperatures and not adapt:
            break
        kick = randn(here.u.shape, here.u, generator)
        there, momentum = here, kick
        step = size[:, None]
        for _ in range(LEAPFROGS):
            momentum = momentum + 0.5 * step * _force(there, betas[t])
            there = look(there.u + step * momentum)
            momentum = momentum + 0.5 * step * _force(there, betas[t])
        gain = _energy(there, betas[t], momentum) - _energy(here, betas[t], kick)
        gain = gain.nan_to_num(-torch.inf)  # a step that left the numbers is refused
        toss = torch.rand(gain.shape, generator=generator, device=gain.device, dtype=gain.dtype).log()
        taken = toss < gain
        here = _Place(
            torch.where(taken[..., None], there.u, here.u),
            torch.where(taken, there.log_joint, here.log_joint),
            torch.where(taken[..., None], there.slope, here.slope),
        )
        if adapt:
            rate = gain.clamp_max(0).exp().mean(0)
            size = (size.log() + (rate - ACCEPTED) * t**-0.5).exp()
            sizes.append(size)
    if sizes:
        size = torch.stack(sizes[len(sizes) // 2 :]).log().mean(0).exp()
    return log_weight, size


def _force(place: _Place, beta: float) -> Tensor:
    """Gradient of the density of β."""
    return beta * place.slope - (1 - beta) * place.u


def _energy(place: _Place, beta: float, momentum: Tensor) -> Tensor:
    """Log-density of a place and its momentum, (S, B)."""
    here = beta * place.log_joint + (1 - beta) * standard_normal(place.u)
    return here - 0.5 * momentum.square().sum(-1)
