"""Damped Gauss-Newton ascent of log p(x, z) in z, for any decoder and any likelihood.

With the decoder linearised at z, decode(z + δ) ≈ m + J δ, the log joint is a quadratic with gradient
g = Jᵀ r - z and curvature H = Jᵀ W J + I, where r and W are the likelihood's `residual` and
`precision` at m. A step solves (H + λ I) δ = g; the damping λ of each example is chosen from a few
candidates by the joint they reach (Levenberg-Marquardt), and an example that none of them lifts stays
where it is. So log p(x, z) never falls, for any example. Nothing is read back to the host.

J has D columns, and forward-mode differentiation gives each for about the price of one decoding,
whatever the decoder is made of; no pixels-by-pixels matrix
is ever formed. On a GPU, where no gradient is wanted, all of it goes through kernels of our own
(`recmix.accelerate.tangent_kernels`, `recmix.accelerate.newton_kernels`).

The Jacobian is the dear part, so the curvature of a step may serve again: a fresh gradient, which one
pass forward and one back give, and the same H (`reuse`). Our own kernels form J faster than torch goes
forward and back: with them reuse gives the same, but one more step costs no more and gives more.

References: Levenberg 1944; Marquardt 1963; Shamanskii 1967 (reuse); Park et al., Variational Laplace
Autoencoders, ICML 2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vmap

from recmix.accelerate.tangents import chain, push
from recmix.errors import ConfigError
from recmix.model.latent import LatentModel, standard_normal
from recmix.posteriors.full import cholesky, own_kernels

__all__ = ["NormalEquations", "climb", "damped_step", "jacobian", "normal_equations", "traceable"]

TANGENT_VALUES = 2**23
"""Decoder outputs (examples x pixels x tangents) that one chunk of tangents may have, by default."""
DAMPING = 1.0
"""λ of the first step, in units of the prior's precision."""
LADDER = (0.0, 1.0, 10.0, 100.0, 1000.0)
"""Dampings tried in one step, as multiples of an example's own λ; 0 is the pure Gauss-Newton step."""

LENGTHS = (0.25, 0.5, 1.0, 2.0)
"""Of the steps that are tried with a curvature that was formed somewhere else."""
LARGEST = 1e12
"""λ grows no further: a step is below rounding by then, and λ times a number stays finite."""


class NormalEquations(NamedTuple):
    """The quadratic model of log p(x, z) around z (B, D)."""

    log_joint: Tensor  # (B,) log p(x, z)
    gradient: Tensor  # (B, D) g = Jᵀ r - z
    precision: Tensor  # (B, D, D) H = Jᵀ W J + I


def jacobian(model: LatentModel, z: Tensor, *, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """The decoder's output (B, C, H, W) and its Jacobian J (B, P, D) at z (B, D), P = C·H·W.

    The D unit vectors are pushed through the decoder together with one pass of the whole batch. Both
    results carry gradients to the decoder's parameters and to z where the caller has them enabled;
    it works under `torch.no_grad` as well.

    Args:
        model: whose decoder.
        z: latent points.
        chunk: tangents at a time; by default as many as keep the memory moderate.

    >>> from recmix.model.likelihoods import Gaussian
    >>> decoder = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Unflatten(1, (1, 8, 8)))
    >>> model = LatentModel(decoder, Gaussian(), latent=2, shape=(1, 8, 8))
    >>> decoded, slope = jacobian(model, torch.zeros(3, 2))
    >>> torch.equal(slope[0], decoder[0].weight)
    True
    """
    return _jacobian(model, z, chunk, _packed(model, z))


def _jacobian(model: LatentModel, z: Tensor, chunk: int | None, packed: Any) -> tuple[Tensor, Tensor]:
    """`jacobian`, with the decoder as `_packed` gives it."""
    if chunk is not None and chunk < 1:
        raise ConfigError(f"chunk is the number of tangents at a time, at least 1; got {chunk}")
    batch, latent = z.shape
    layers = chain(model.decoder)
    if _traceable:
        if layers is None:
            return _by_reverse_mode(model, z)
        chunk = latent
    if chunk is None:
        values = max(1, batch * model.centre.numel())
        chunk = max(1, min(latent, TANGENT_VALUES // values))
    if packed and _kernels(z):
        from recmix.accelerate import tangent_kernels

        pushed = tangent_kernels.push(packed, z, chunk)
        if pushed is not None:
            return pushed
    units = torch.eye(latent, dtype=z.dtype, device=z.device)
    if layers is not None:
        parts = [push(layers, z, part) for part in units.split(chunk)]
    else:
        parts = [_forward_mode(model, z, part) for part in units.split(chunk)]
    decoded = parts[0][0]  # the same for every tangent
    moved = [part[1] for part in parts]
    columns = torch.cat(moved) if len(moved) > 1 else moved[0]  # (D, B, C, H, W)
    return decoded, columns.flatten(2).permute(1, 2, 0)


def _kernels(z: Tensor) -> Any:
    """Our own kernels where they are to be tried, see `own_kernels`."""
    return None if _traceable else own_kernels(z)


def _packed(model: LatentModel, z: Tensor) -> Any:
    """The decoder as our own kernels read it, its weights as they are now; None where they cannot."""
    layers = chain(model.decoder) if _kernels(z) else None
    if layers is None:
        return None
    from recmix.accelerate import tangent_kernels

    return tangent_kernels.pack(layers, z)


def _forward_mode(model: LatentModel, z: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    """The decoder at z (B, D) and its derivative along tangents (T, D), (T, B, C, H, W): any decoder."""

    def along(tangent: Tensor) -> tuple[Tensor, Tensor]:
        pushed: tuple[Tensor, Tensor] = jvp(model.decoder, (z,), (tangent,))  # type: ignore[assignment]
        return pushed

    wide = tangents[:, None].expand(-1, len(z), -1)
    decoded, moved = vmap(along, randomness="same")(wide)
    return decoded[0], moved


_traceable = False


@contextmanager
def traceable() -> Iterator[None]:
    """In here Jacobians are formed in a way that a tracer can follow for any batch size.

    It cannot follow forward mode, nor a number of chunks that depends on the batch.
    """
    global _traceable  # noqa: PLW0603  (one switch for the process, as `fusing` is)
    before, _traceable = _traceable, True
    try:
        yield
    finally:
        _traceable = before


def _by_reverse_mode(model: LatentModel, z: Tensor) -> tuple[Tensor, Tensor]:
    """What `jacobian` gives, without gradients, from reverse mode alone.

    Jᵀ u is linear in u, and its derivative in u along a tangent t is J t. All D tangents go together:
    the batch is repeated for each.
    """
    batch, latent = z.shape
    unit = torch.eye(latent, dtype=z.dtype, device=z.device)
    tangents = unit[:, None].expand(latent, batch, latent).reshape(latent * batch, latent)
    with torch.enable_grad():
        wide = z.detach().repeat(latent, 1).requires_grad_()
        decoded: Tensor = model.decoder(wide)
        u = torch.zeros_like(decoded).requires_grad_()
        (pulled,) = torch.autograd.grad(decoded, wide, u, create_graph=True)
        (pushed,) = torch.autograd.grad(pulled, u, tangents)
    columns = pushed.detach().reshape(latent, batch, -1)
    return decoded.detach()[:batch], columns.permute(1, 2, 0)


def normal_equations(
    model: LatentModel, x: Tensor, z: Tensor, *, chunk: int | None = None
) -> NormalEquations:
    """Value, gradient and Gauss-Newton curvature of log p(x, z) at z (B, D), for images (B, C, H, W)."""
    given = _Climb(model, model.centred(x.to(z.dtype)), _packed(model, z), chunk)
    return _normal_equations(given, z)


class _Climb(NamedTuple):
    """What stays the same from step to step."""

    model: LatentModel
    image: Tensor  # (B, C, H, W), what the likelihood reads
    packed: Any  # the decoder as our own kernels read it, or None
    chunk: int | None


def _normal_equations(given: _Climb, z: Tensor) -> NormalEquations:
    """`normal_equations` at z (B, D)."""
    likelihood, image, ours = given.model.likelihood, given.image, _kernels(z)
    decoded, slope = _jacobian(given.model, z, given.chunk, given.packed)
    scored: tuple[Tensor, Tensor, Tensor] | None = ours and ours.score(
        likelihood, image, decoded[None], z[None], slopes=True
    )
    if scored is not None:
        at, residual, weight = (t.squeeze(0) for t in scored)
    else:
        residual = likelihood.residual(image, decoded).flatten(1)  # (B, P)
        weight = likelihood.precision(decoded).flatten(1)  # (B, P)
        at = likelihood.log_prob(image, decoded[None]).squeeze(0) + standard_normal(z)
    made: tuple[Tensor, Tensor] | None = ours and ours.equations(slope, weight, residual, z)
    if made is not None:
        return NormalEquations(at, *made)
    gradient = (slope.mT @ residual[..., None]).squeeze(-1) - z
    identity = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    curvature = slope.mT @ (weight[..., None] * slope) + identity
    return NormalEquations(at, gradient, curvature)


def _log_joint(given: _Climb, z: Tensor) -> Tensor:
    """log p(x, z) of points z (T, B, D): (T, B)."""
    likelihood, ours = given.model.likelihood, _kernels(z)
    decoded = _decoded(given, z)
    scored: tuple[Tensor, Tensor, Tensor] | None = ours and ours.score(
        likelihood, given.image, decoded, z, slopes=False
    )
    if scored is not None:
        return scored[0]
    return likelihood.log_prob(given.image, decoded) + standard_normal(z)


def _decoded(given: _Climb, z: Tensor) -> Tensor:
    """The decoder's output for z (T, B, D): (T, B, C, H, W)."""
    if given.packed:
        from recmix.accelerate import tangent_kernels

        decoded = tangent_kernels.values(given.packed, z.flatten(0, 1))
        if decoded is not None:
            return decoded.view(*z.shape[:2], *decoded.shape[1:])
    return given.model.decoded(z)


def damped_step(gradient: Tensor, precision: Tensor, damping: Tensor) -> Tensor:
    """δ = (H + λ I)⁻¹ g: (..., D), (..., D, D), λ (...) -> (..., D)."""
    ours = _kernels(gradient)
    solved: Tensor | None = ours and ours.solve(gradient, precision, damping)
    if solved is not None:
        return solved
    shape = gradient.shape
    identity = torch.eye(shape[-1], dtype=gradient.dtype, device=gradient.device)
    matrix = (precision + damping[..., None, None] * identity).flatten(0, -3)
    factor = cholesky(matrix)
    half = torch.linalg.solve_triangular(factor, gradient.reshape(-1, shape[-1], 1), upper=False)
    step: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return step.reshape(shape)


def climb(
    model: LatentModel,
    x: Tensor,
    start: Tensor,
    *,
    steps: int,
    damping: float = DAMPING,
    chunk: int | None = None,
    reuse: int = 0,
) -> tuple[Tensor, NormalEquations]:
    """Where damped Gauss-Newton steps up log p(x, z) lead: z (B, D), and the equations there.

    Every step tries the dampings 0, λ, 10 λ, 100 λ and 1000 λ and takes, for each example, the one that
    reaches the highest joint, or none. Then λ becomes a tenth of what was taken, or moves beyond the
    largest after a refusal. With a linear decoder and a Gaussian likelihood the first step is exact.

    z carries no gradient. The equations at it do, to the decoder and the likelihood, where gradients
    are enabled: H for the covariance, and g for the mode, which moves by H⁻¹ dg when the decoder moves
    (the implicit function theorem).

    Args:
        model: p(x, z).
        x: images (B, C, H, W).
        start: latent points.
        steps: number of steps.
        damping: λ at the start.
        chunk: see `jacobian`.
        reuse: how often each step is followed by one with a gradient of its own but the same curvature.
    """
    z = start.detach().contiguous()
    image = model.centred(x.to(z.dtype))
    level = torch.full_like(z[:, 0], damping)  # λ, (B,)
    with torch.no_grad():
        given = _Climb(model, image, _packed(model, z), chunk)
        for _ in range(steps):
            here = _normal_equations(given, z)
            tried = _tries(level)  # (T, B)
            wide = (len(LADDER), *here.precision.shape)
            step = damped_step(here.gradient.expand(wide[:-1]), here.precision.expand(wide), tried)
            reached = _log_joint(given, z + step)  # (T, B)
            z, level = _choose(reached, here.log_joint, z, step, tried, level, damping)
            for _ in range(reuse):
                z = _again(given, z, here.precision, level)
    return z, _normal_equations(given, z)


def _again(given: _Climb, z: Tensor, precision: Tensor, level: Tensor) -> Tensor:
    """Where a step from z with this curvature leads, at the length that is best; or z."""
    joint, gradient = _ascent(given, z)
    step = damped_step(gradient[None], precision[None], level[None])  # (1, B, D)
    tried = torch.cat([length * step for length in LENGTHS])
    best, which = _best(_log_joint(given, z + tried))
    return torch.where((best > joint)[:, None], z + _pick(tried, which), z)


def _ascent(given: _Climb, z: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x, z) and its derivative in z, (B,) and (B, D)."""
    unable = _traceable or torch.is_inference_mode_enabled()  # neither goes with reverse mode
    if unable or (given.packed and _kernels(z)):  # our own kernels take less time for all of J
        here = _normal_equations(given, z)
        return here.log_joint, here.gradient
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        joint = _log_joint(given, at[None]).squeeze(0)
        (gradient,) = torch.autograd.grad(joint.sum(), at)
    return joint.detach(), gradient


def _best(reached: Tensor) -> tuple[Tensor, Tensor]:
    """The highest of (T, B) that is a finite number, and which it is, (B,) each."""
    best, which = reached.nan_to_num(-torch.inf, posinf=-torch.inf).max(0)
    return best, which


def _tries(level: Tensor) -> Tensor:
    """The dampings of one step, (T, B), from λ (B,)."""
    ours = _kernels(level)
    tried: Tensor = ours.tries(level, LADDER) if ours else torch.stack([r * level for r in LADDER])
    return tried


def _choose(
    reached: Tensor,
    joint: Tensor,
    z: Tensor,
    step: Tensor,
    tried: Tensor,
    level: Tensor,
    damping: float,
) -> tuple[Tensor, Tensor]:
    """The next z (B, D) and λ (B,), given what each step reached, (T, B)."""
    beyond, limits = 10 * LADDER[-1], (0.1 * damping, LARGEST)
    ours, given = _kernels(z), (reached, joint, z, step, tried, level)
    chosen: tuple[Tensor, Tensor] | None = ours and ours.choose(*given, beyond=beyond, limits=limits)
    if chosen is not None:
        return chosen
    best, which = _best(reached)
    rose = best > joint
    taken = _pick(tried[..., None], which).squeeze(-1)
    level = torch.where(rose, 0.1 * taken, beyond * level)
    return torch.where(rose[:, None], z + _pick(step, which), z), level.clamp(*limits)


def _pick(values: Tensor, which: Tensor) -> Tensor:
    """values[which[b], b]: (T, B, N), (B,) -> (B, N)."""
    return values.gather(0, which[None, :, None].expand(1, *values.shape[1:])).squeeze(0)
