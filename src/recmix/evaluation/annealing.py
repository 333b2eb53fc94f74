"""Estimate log p(x) by annealed importance sampling, from a Gaussian q(z) to the posterior.

The path is q(z)^(1-β) p(x, z)^β, with β from 0 to 1. A chain starts with a sample of q. At every β_t
it takes a Hamiltonian Monte Carlo step that leaves the density of this β_t invariant. The log-weight of
the chain is w = Σ_t (β_t - β_{t-1}) (log p(x, z_t) - log q(z_t)), where z_t is the point before the step
at β_t. exp(w) is an unbiased estimate of p(x), for a path of any length. Plain importance sampling from
a poor q has a large error. The path makes the error smaller.

References: Neal, Annealed importance sampling, 2001; Wu et al., On the quantitative analysis of
decoder-based generative models, 2017.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recmix.model.latent import LatentModel, standard_normal
from recmix.objectives import log_mean_exp
from recmix.posteriors import FullGaussian
from recmix.posteriors.posterior import randn

__all__ = ["annealed"]

LEAPFROGS = 4
"""Gradients in one Hamiltonian step."""
ACCEPTED = 0.65
"""Target acceptance rate. Step sizes are adapted to it in a first run that is not used."""
FIRST_STEP = 0.5
"""Initial step size, in standard deviations of q."""


class _State(NamedTuple):
    """The current points of S chains for each of B examples, in coordinates u with z = μ + L u.

    μ and L are the mean and the covariance factor of the Gaussian q(z) = N(μ, L Lᵀ).
    """

    u: Tensor  # (S, B, D)
    log_joint: Tensor  # (S, B), log of p(x, z) |det L|, the joint density of x and u
    slope: Tensor  # (S, B, D), the gradient of log_joint with respect to u


def annealed(
    model: LatentModel,
    x: Tensor,
    q: FullGaussian,
    *,
    chains: int = 16,
    temperatures: int = 30,
    generator: torch.Generator,
    at_once: int,
) -> Tensor:
    """Estimate log p(x) of examples x by annealed importance sampling.

    Each chain moves along densities q(z)^(1-β) p(x, z)^β, with β from 0 to 1. A first run of a few
    chains only adapts the step size of each example. The second run, with fixed step sizes, gives the
    result.

    Args:
        x: examples (B, *shape).
        q: the Gaussian q(z) at the start of the path, one for each example.
        chains: number of chains per example; each gives one importance sample.
        temperatures: number of steps of β from 0 to 1.
        at_once: largest number of latent vectors that are decoded at a time.

    Returns:
        The estimates, (B,), in nats.
    """
    largest = max(1, at_once // len(x))  # chains of each example that run at a time
    size = torch.full_like(q.mean[:, 0], FIRST_STEP)
    few = min(chains, 4, largest)
    size = _run_chains(model, x, q, few, temperatures, size, generator, adapt=True)[1]
    parts, done = [], 0
    while done < chains:
        now = min(largest, chains - done)
        parts.append(_run_chains(model, x, q, now, temperatures, size, generator, adapt=False)[0])
        done += now
    return log_mean_exp(torch.cat(parts))


def _run_chains(
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
    """Run S = `chains` chains per example along the path from q to the posterior; see `annealed`.

    Args:
        size: step size of each example, (B,), in standard deviations of q.
        adapt: whether the step sizes are adapted to the target acceptance rate during the run. The
            caller does not use the log-weights of such a run.

    Returns:
        The log-weights of the chains, (S, B), and the step sizes, (B,).
    """
    factor = q.scale_tril
    volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def evaluate(u: Tensor) -> _State:
        with torch.enable_grad():
            leaf = u.detach().requires_grad_()
            z = q.mean + torch.einsum("bij,sbj->sbi", factor, leaf)
            log_joint = model.log_joint(x, z) + volume
            (slope,) = torch.autograd.grad(log_joint.sum(), leaf)
        return _State(u, log_joint.detach(), slope)

    here = evaluate(randn((chains, *q.mean.shape), q.mean, generator))
    log_weight = torch.zeros_like(here.log_joint)
    sizes = []
    # A cosine: small steps at both ends, where the density changes most.
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
            there = evaluate(there.u + step * momentum)
            momentum = momentum + 0.5 * step * _force(there, betas[t])
        gain = _energy(there, betas[t], momentum) - _energy(here, betas[t], kick)
        gain = gain.nan_to_num(-torch.inf)  # reject steps that are not finite
        toss = torch.rand(gain.shape, generator=generator, device=gain.device, dtype=gain.dtype).log()
        taken = toss < gain
        here = _State(
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


def _force(place: _State, beta: float) -> Tensor:
    """The gradient of the log density on the path at β with respect to u, (S, B, D), at `place`."""
    return beta * place.slope - (1 - beta) * place.u


def _energy(place: _State, beta: float, momentum: Tensor) -> Tensor:
    """The joint log density, (S, B), of the points at `place` and of their momenta (S, B, D).

    The points have the density on the path at β. The momenta are standard normal. Terms that do not
    depend on points and momenta are left out.
    """
    here = beta * place.log_joint + (1 - beta) * standard_normal(place.u)
    return here - 0.5 * momentum.square().sum(-1)
