"""Refinement with a learned curvature: quasi-Newton steps that cost one gradient each.

A network gives, at every latent point z, a factor L of a covariance L Lᵀ close to the inverse curvature
of -log p(x, z), see `recmix.model.curvature_network`. A step goes from z to z + t p. The direction p is
the gradient of log p(x, z), multiplied by L Lᵀ and corrected by the gradients of earlier steps (L-BFGS;
Liu and Nocedal 1989). Steps that lower log p(x, z) are not taken; their gradient still improves the next
direction. So a step needs one forward and one backward pass of the decoder, for any dimension of z.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import LogJoint, make_log_joint
from recmix.inference.restarts import best_restart, repeated, restart_scales
from recmix.model.latent import LatentModel
from recmix.model.replaceable import replaceable
from recmix.posteriors import FullGaussian, LowRankGaussian

__all__ = ["Iterate", "Pair", "advance", "check_curvature", "direction", "gaussian_at", "learned"]

FIRST_LENGTHS = (0.4, 1.0)
"""Lengths that are tried for the first step."""
MEMORY = 2
"""Number of earlier steps that correct a direction. A larger number gained nothing on MNIST."""
SHRINK = 0.5
"""Factor of the step length after a step that lowered log p(x, z)."""


def learned(
    model: LatentModel, x: Tensor, start: Tensor, *, steps: int, restarts: int = 1
) -> FullGaussian | LowRankGaussian:
    """The Gaussian N(z*, L Lᵀ), where z* is reached from `start` by quasi-Newton steps.

    L is the factor of the covariance that the model's curvature network gives at z*. The decoder's
    parameters receive the gradient of z* by dz* = L Lᵀ dg, where g is the gradient of log p(x, z) at z*
    (implicit function theorem). L carries gradients only to the curvature network.

    Args:
        model: the model p(x, z). It must have a trained curvature network.
        x: examples (B, *shape).
        start: first latent points (B, D).
        steps: number of steps. Each needs one gradient of log p(x, z).
        restarts: number of starting points for each example, see `restart_scales`. The end point with
            the highest estimate of log p(x), log p(x, z*) + log |det L|, is used.
    """
    check_curvature(model)
    with torch.no_grad():
        many = torch.cat([scale * start for scale in restart_scales(restarts)])
        joint = make_log_joint(model, repeated(x, restarts), start.dtype)
        mode, reached = _ascend(model, joint, many, steps)
        if restarts > 1:
            score = reached + gaussian_at(model, mode).entropy()
            mode = best_restart(score, mode, restarts)
    q = gaussian_at(model, mode)
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in model.decoder.parameters()):
        return q
    at = mode.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_joint(x, at[None]).sum(), at, create_graph=True)
    moved = _precondition(q, gradient)
    mean = mode + (moved - moved.detach())  # the value of z*, the derivative L Lᵀ dg
    return gaussian_at(model, mode, mean)


def check_curvature(model: LatentModel) -> None:
    """Raise an error if the model has no curvature network, which the refinement ``learned`` needs."""
    if model.curvature is None:
        raise ConfigError(
            "this model has no curvature network, which the refinement 'learned' needs: train one by "
            "recmix.fit('curvature', data, init=model) or recmix train --method curvature --init RUN"
        )


def gaussian_at(
    model: LatentModel, z: Tensor, mean: Tensor | None = None
) -> FullGaussian | LowRankGaussian:
    """The Gaussian N(mean, L Lᵀ). The model's curvature network predicts the factor L at z (B, D).

    It is a `FullGaussian` if the network has rank 0, else a `LowRankGaussian`. By default the mean is z.
    """
    assert model.curvature is not None
    parts = model.curvature(z)
    mean = z if mean is None else mean
    return FullGaussian(mean, *parts) if len(parts) == 1 else LowRankGaussian(mean, *parts)


class Iterate(NamedTuple):
    """The present point of the quasi-Newton steps, for each example.

    Attributes:
        z: latent points (B, D).
        value: log p(x, z), (B,).
        gradient: the derivative of log p(x, z) with respect to z, (B, D).
        length: factor t of the next step t p along the direction p, (B,).
    """

    z: Tensor
    value: Tensor
    gradient: Tensor
    length: Tensor


class Pair(NamedTuple):
    """A step and the change of the gradient along this step. L-BFGS computes directions from pairs.

    Attributes:
        step: the step s from one point to the next, (B, D).
        change: y, the gradient of log p(x, z) before the step minus the gradient after it, (B, D).
        inverse: 1 / sᵀy, (B, 1), or 0 where the pair is not used.
    """

    step: Tensor
    change: Tensor
    inverse: Tensor


def _ascend(model: LatentModel, joint: LogJoint, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Make quasi-Newton steps on `joint`, log p(x, z), from `start` (B, D).

    Returns:
        The last z, (B, D), and log p(x, z) at this z, (B,).
    """
    z = start.detach()
    if not steps:
        return z, joint.log_joint(z[None]).squeeze(0)
    value, gradient = joint.gradient(z)
    at = Iterate(z, value, gradient, torch.ones_like(value))
    pairs: list[Pair] = []
    for k in range(steps):
        towards = direction(gaussian_at(model, at.z), at.gradient, pairs[-MEMORY:])
        if not k:  # the start may be far away, where the curvature says little about the right length
            length, reached = _first_length(joint, at.z, towards)
            at = at._replace(length=length)
        step, there = at.length[:, None] * towards, at.gradient
        if k < steps - 1:
            reached, there = joint.gradient(at.z + step)
        elif k:  # the last point needs no gradient; `_first_length` gives the value of a single step
            reached = joint.log_joint((at.z + step)[None]).squeeze(0)
        at, pair = advance(at, step, reached, there)
        pairs.append(pair)
    return at.z, at.value


def _first_length(joint: LogJoint, z: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
    """The length of the first step from z along the direction `towards` (B, D), for each example, (B,).

    It is the one of `FIRST_LENGTHS` that reaches the higher log p(x, z). The second result is this
    log p(x, z), (B,).
    """
    short, full = FIRST_LENGTHS
    reached = joint.log_joint(torch.stack([z + short * towards, z + full * towards]))  # (2, B)
    further = reached[1] > reached[0]
    return torch.where(further, full, short).to(z.dtype), torch.where(further, reached[1], reached[0])


@replaceable
def direction(q: FullGaussian | LowRankGaussian, gradient: Tensor, pairs: Sequence[Pair]) -> Tensor:
    """The direction of the next quasi-Newton step, (B, D).

    It is the gradient times an inverse curvature: L Lᵀ, corrected by earlier steps (L-BFGS). Where
    log p(x, z) would fall along this direction, L Lᵀ times the gradient is used instead.

    Args:
        q: a Gaussian with the covariance L Lᵀ at z.
        gradient: the gradient of log p(x, z) at z, (B, D).
        pairs: earlier steps, the oldest first.
    """
    rest, shares = gradient, []
    for pair in reversed(pairs):
        share = pair.inverse * (pair.step * rest).sum(-1, keepdim=True)
        shares.append(share)
        rest = rest - share * pair.change
    found = _precondition(q, rest)
    for pair, share in zip(pairs, reversed(shares), strict=True):
        back = pair.inverse * (pair.change * found).sum(-1, keepdim=True)
        found = found + (share - back) * pair.step
    rises = (found * gradient).sum(-1, keepdim=True) > 0
    return torch.where(rises, found, _precondition(q, gradient)) if pairs else found


def _precondition(q: FullGaussian | LowRankGaussian, vector: Tensor) -> Tensor:
    """The product of the covariance L Lᵀ of q and a vector (B, D)."""
    return q.multiply(q.multiply_transposed(vector))


@replaceable
def advance(at: Iterate, step: Tensor, reached: Tensor, gradient: Tensor) -> tuple[Iterate, Pair]:
    """Accept the step of an example if the step raises log p(x, z); otherwise halve its next step.

    Args:
        at: the present point of each example, with log p(x, z) and its gradient.
        step: the step of each example, (B, D).
        reached: log p(x, z) after the step, (B,).
        gradient: the derivative of log p(x, z) with respect to z after the step, (B, D).

    Returns:
        The next point, and the pair that `direction` needs. The pair is zero where the curvature along
        the step is not positive and finite.
    """
    change = at.gradient - gradient
    product = (step * change).sum(-1, keepdim=True)
    smallest = torch.finfo(step.dtype).eps * change.square().sum(-1, keepdim=True)
    good = (product > smallest) & product.isfinite()
    zero = torch.zeros_like(step)
    inverse = torch.where(good, 1 / torch.where(good, product, torch.ones_like(product)), zero[:, :1])
    pair = Pair(torch.where(good, step, zero), torch.where(good, change, zero), inverse)
    rose = reached > at.value  # false where the value is not a number
    following = Iterate(
        torch.where(rose[:, None], at.z + step, at.z),
        torch.where(rose, reached, at.value),
        torch.where(rose[:, None], gradient, at.gradient),
        torch.where(rose, torch.ones_like(at.length), SHRINK * at.length),
    )
    return following, pair
