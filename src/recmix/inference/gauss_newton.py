"""Damped Gauss-Newton steps that raise log p(x, z) in z, for any decoder and any likelihood.

Let m be the decoder's output at z and J its Jacobian. The decoder is linearised:
decode(z + δ) ≈ m + J δ. Then log p(x, z + δ) is approximated by a quadratic function of δ with gradient
g = Jᵀ r + ∇ log p(z) and curvature H = Jᵀ W J - ∇² log p(z). Here r is the derivative of log p(x | z)
with respect to m (the likelihood's `residual`), and W is the likelihood's Fisher information with
respect to m. For a standard normal prior, g = Jᵀ r - z and H = Jᵀ W J + I.

A step solves (H + λ I) δ = g for δ. The damping λ of each example is chosen from a few candidates: the
one whose step reaches the highest log p(x, z) is used (Levenberg-Marquardt). If no candidate raises the
log p(x, z) of an example, its z stays. So log p(x, z) never falls. No value is copied from the GPU to
the CPU.

J has D columns, one for each latent dimension. Forward-mode differentiation computes each column for
about the cost of one decoding, and no pixels-by-pixels matrix is formed. The Jacobian is the expensive
part of a step. Therefore each step can be followed by cheaper steps, which use the same H and a new
gradient (argument `reuse` of `ascend`). A new gradient costs one forward and one backward pass.

References: Levenberg 1944; Marquardt 1963; Shamanskii 1967 (reuse); Park et al., Variational Laplace
Autoencoders, ICML 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from recmix.errors import ConfigError
from recmix.model.latent import LatentModel
from recmix.model.replaceable import replaceable
from recmix.posteriors.full import cholesky

__all__ = [
    "LogJoint",
    "NormalEquations",
    "ascend",
    "check_decoder_has_jacobian",
    "damped_step",
    "decoder_jacobian",
    "is_traceable",
    "jacobian_needs_autograd",
    "make_log_joint",
    "normal_equations",
    "tangent_chunk",
    "traceable",
]

TANGENT_VALUES = 2**23
"""Most decoder output values (examples x pixels x tangents) in one chunk of tangents."""
DAMPING = 1.0
"""Damping λ of the first step. For comparison, the precision of the prior N(0, I) is 1."""
DAMPINGS = (0.0, 1.0, 10.0, 100.0, 1000.0)
"""Candidates for λ in one step, as multiples of the example's present λ. 0 means no damping."""
LENGTHS = (0.25, 0.5, 1.0, 2.0)
"""Candidate lengths of a step that reuses a curvature."""
LARGEST = 1e12
"""Upper limit of λ. With this λ a step is smaller than rounding errors."""


class NormalEquations(NamedTuple):
    """The value, gradient and Gauss-Newton curvature of log p(x, z) at latent points z (B, D).

    The curvature is the approximate negative second derivative. It is positive definite.
    """

    log_joint: Tensor  # (B,) log p(x, z)
    gradient: Tensor  # (B, D) g = Jᵀ r + ∇ log p(z)
    precision: Tensor  # (B, D, D) H = Jᵀ W J - ∇² log p(z)


def tangent_chunk(model: LatentModel, z: Tensor) -> int:
    """How many columns of the Jacobian to compute in one pass, to limit memory, for z (B, D)."""
    if is_traceable():  # a tracer cannot follow a number that depends on the batch
        return z.shape[1]
    values = max(1, len(z) * math.prod(model.likelihood.output_shape(model.shape)))
    return max(1, min(z.shape[1], TANGENT_VALUES // values))


@replaceable
def decoder_jacobian(decoder: nn.Module, z: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """A decoder's output (B, *output) and its Jacobian (B, P, D), by forward-mode differentiation.

    P is the number of output values for one example. In the context `traceable`, reverse-mode
    differentiation is used instead.

    Args:
        decoder: the network.
        z: latent points (B, D).
        chunk: number of columns of the Jacobian that are computed in one pass.
    """
    if is_traceable():
        return _by_reverse_mode(decoder, z)

    def along(tangent: Tensor) -> tuple[Tensor, Tensor]:
        pushed: tuple[Tensor, Tensor] = jvp(decoder, (z,), (tangent,))  # type: ignore[assignment]
        return pushed

    units = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    parts = []
    for tangents in units.split(chunk):
        wide = tangents[:, None].expand(-1, len(z), -1)
        parts.append(vmap(along, randomness="same")(wide))
    columns = torch.cat([moved for _, moved in parts])  # (D, B, C, H, W)
    return parts[0][0][0], columns.flatten(2).permute(1, 2, 0)


@replaceable
def jacobian_needs_autograd(decoder: nn.Module) -> bool:
    """Whether `decoder_jacobian` uses automatic differentiation, which some exporters cannot trace."""
    return True


_traceable = False


@contextmanager
def traceable() -> Iterator[None]:
    """Context in which a tracer such as `torch.export` can record the Jacobian of a decoder.

    A tracer cannot record forward-mode differentiation, nor a loop whose length depends on the batch
    size. In this context the library uses neither of them, so the traced graph is valid for any batch
    size.
    """
    global _traceable  # noqa: PLW0603  (one switch for the process)
    before, _traceable = _traceable, True
    try:
        yield
    finally:
        _traceable = before


def is_traceable() -> bool:
    """Whether the context `traceable` is active: a tracer can then record what is computed."""
    return _traceable


def _by_reverse_mode(decoder: nn.Module, z: Tensor) -> tuple[Tensor, Tensor]:
    """The result of `decoder_jacobian` without gradients, by reverse-mode differentiation only.

    The batch is repeated once for each of the D columns of the Jacobian.
    """
    batch, latent = z.shape
    unit = torch.eye(latent, dtype=z.dtype, device=z.device)
    tangents = unit[:, None].expand(latent, batch, latent).reshape(latent * batch, latent)
    decoded, pushed = torch.autograd.functional.jvp(decoder, z.repeat(latent, 1), tangents)
    return decoded[:batch], pushed.reshape(latent, batch, -1).permute(1, 2, 0)


class LogJoint:
    """log p(x, z) for one batch of examples x, as a function of z.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        dtype: data type of z.
    """

    def __init__(self, model: LatentModel, x: Tensor, dtype: torch.dtype) -> None:
        self.model = model
        self.observed = model.observed(x.to(dtype))

    def log_joint(self, z: Tensor) -> Tensor:
        """log p(x, z), (T, B), of T latent points for each of the B examples: z (T, B, D)."""
        decoded = self.model.decoder_output(z)
        return self.model.log_density(self.observed, decoded) + self.model.prior.log_prob(z)

    def equations(self, z: Tensor) -> NormalEquations:
        """The value, gradient and Gauss-Newton curvature of log p(x, z) at z (B, D)."""
        decoded, slope = self.linearise(z)
        return self.assemble(z, decoded, slope)

    def linearise(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's output (B, *output) and its Jacobian (B, P, D) at z (B, D).

        P is the number of output values for one example.
        """
        return decoder_jacobian(self.model.decoder, z, tangent_chunk(self.model, z))

    def assemble(self, z: Tensor, decoded: Tensor, slope: Tensor) -> NormalEquations:
        """The value, gradient and curvature of log p(x, z), from the decoder's output and Jacobian.

        Args:
            z: latent points (B, D).
            decoded: the decoder's output at z, (B, *output).
            slope: the decoder's Jacobian at z, (B, P, D), for P output values per example.
        """
        model, observed = self.model, self.observed
        residual = model.likelihood.residual(observed, decoded).flatten(1)  # (B, P)
        at = model.log_density(observed, decoded[None]).squeeze(0) + model.prior.log_prob(z)
        of_prior, curvature = model.prior.gradient_and_curvature(z)
        gradient = (slope.mT @ residual[..., None]).squeeze(-1) + of_prior
        weighted = model.likelihood.fisher(observed, decoded, slope)  # W J
        return NormalEquations(at, gradient, slope.mT @ weighted + curvature)

    def gradient(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """log p(x, z), (B,), and its derivative with respect to z, (B, D), at z (B, D).

        It needs one forward and one backward pass, and no Jacobian.
        """
        if is_traceable() or torch.is_inference_mode_enabled():  # no reverse mode there
            here = self.equations(z)
            return here.log_joint, here.gradient
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            joint = LogJoint.log_joint(self, at[None]).squeeze(0)
            (gradient,) = torch.autograd.grad(joint.sum(), at)
        return joint.detach(), gradient

    def dampings(self, level: Tensor) -> Tensor:
        """The T candidates for the damping of one step, (T, B): multiples of `level`, (B,)."""
        return torch.stack([multiple * level for multiple in DAMPINGS])

    def choose(
        self,
        reached: Tensor,
        here: NormalEquations,
        z: Tensor,
        step: Tensor,
        tried: Tensor,
        level: Tensor,
        least: float,
    ) -> tuple[Tensor, Tensor]:
        """Select the best candidate step of each example; return the next z (B, D) and damping λ (B,).

        The next λ is a tenth of the damping of the chosen step. If no candidate increased log p(x, z), z
        stays, and the next λ is ten times the largest candidate.

        Args:
            reached: log p(x, z + step) for each of the T candidate steps, (T, B).
            here: value, gradient and curvature of log p(x, z) at z.
            z: latent points (B, D).
            step: candidate steps (T, B, D).
            tried: the dampings of the candidate steps, (T, B).
            level: the present damping λ (B,).
            least: lower limit of the next λ.
        """
        best, which = _best(reached)
        rose = best > here.log_joint
        taken = _pick(tried[..., None], which).squeeze(-1)
        level = torch.where(rose, 0.1 * taken, 10 * DAMPINGS[-1] * level)
        return torch.where(rose[:, None], z + _pick(step, which), z), level.clamp(least, LARGEST)


@replaceable
def make_log_joint(model: LatentModel, x: Tensor, dtype: torch.dtype) -> LogJoint:
    """Make the `LogJoint` of one batch: log p(x, z) as a function of z.

    `recmix.accelerate` may return a faster subclass.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        dtype: data type of z.
    """
    return LogJoint(model, x, dtype)


def normal_equations(model: LatentModel, x: Tensor, z: Tensor) -> NormalEquations:
    """The value, gradient and Gauss-Newton curvature of log p(x, z) at z.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        z: latent points (B, D).
    """
    return make_log_joint(model, x, z.dtype).equations(z)


@replaceable
def damped_step(gradient: Tensor, precision: Tensor, damping: Tensor) -> Tensor:
    """The damped Gauss-Newton step δ = (H + λ I)⁻¹ g, (..., D).

    Args:
        gradient: g, the gradient of log p(x, z), (..., D).
        precision: H, the Gauss-Newton curvature of -log p(x, z), (..., D, D).
        damping: λ, (...).
    """
    shape = gradient.shape
    identity = torch.eye(shape[-1], dtype=gradient.dtype, device=gradient.device)
    matrix = (precision + damping[..., None, None] * identity).flatten(0, -3)
    factor = cholesky(matrix)
    half = torch.linalg.solve_triangular(factor, gradient.reshape(-1, shape[-1], 1), upper=False)
    step: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return step.reshape(shape)


def ascend(
    model: LatentModel,
    x: Tensor,
    start: Tensor,
    *,
    steps: int,
    damping: float = DAMPING,
    reuse: int = 0,
) -> tuple[Tensor, NormalEquations]:
    """Make damped Gauss-Newton steps that increase log p(x, z), starting at `start`.

    Every step tries the dampings 0, λ, 10 λ, 100 λ and 1000 λ. For each example it uses the one that
    reaches the highest log p(x, z). If none increases log p(x, z), z stays. With a linear decoder and a
    Gaussian likelihood the first step reaches the maximum exactly.

    The returned z carries no gradient. Where gradients are enabled, the returned gradient g and
    curvature H carry gradients to the parameters of the decoder and of the likelihood. A caller can use
    H as the precision of a Gaussian, and g to differentiate the maximum itself: when g changes by dg,
    the maximum moves by H⁻¹ dg (implicit function theorem).

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        start: first latent points (B, D).
        steps: number of Gauss-Newton steps.
        damping: the first λ. For comparison, the precision of the prior N(0, I) is 1.
        reuse: number of further steps after each Gauss-Newton step, with a new gradient and the same
            curvature.

    Returns:
        The last z (B, D), and the value, gradient and curvature of log p(x, z) at this z.
    """
    z = start.detach().contiguous()
    level = torch.full_like(z[:, 0], damping)  # λ, (B,)
    with torch.no_grad():
        joint = make_log_joint(model, x, z.dtype)
        for _ in range(steps):
            here = joint.equations(z)
            tried = joint.dampings(level)  # (T, B)
            wide = (len(DAMPINGS), *here.precision.shape)
            step = damped_step(here.gradient.expand(wide[:-1]), here.precision.expand(wide), tried)
            reached = joint.log_joint(z + step)  # (T, B)
            z, level = joint.choose(reached, here, z, step, tried, level, 0.1 * damping)
            for _ in range(reuse):
                z = _reuse_curvature(joint, z, here.precision, level)
    return z, joint.equations(z)


def _reuse_curvature(joint: LogJoint, z: Tensor, precision: Tensor, level: Tensor) -> Tensor:
    """Make one step from z with the gradient at z and the curvature of an earlier point.

    For each example, the step length in `LENGTHS` with the highest log p(x, z) is taken. If no length
    increases log p(x, z), z does not change.

    Args:
        joint: log p(x, z) of the examples.
        z: latent points (B, D).
        precision: the curvature that was computed at an earlier point, (B, D, D).
        level: the damping λ of the step, (B,).
    """
    before, gradient = joint.gradient(z)
    step = damped_step(gradient[None], precision[None], level[None])  # (1, B, D)
    tried = torch.cat([length * step for length in LENGTHS])
    best, which = _best(joint.log_joint(z + tried))
    return torch.where((best > before)[:, None], z + _pick(tried, which), z)


def _best(reached: Tensor) -> tuple[Tensor, Tensor]:
    """For each example, the highest finite value of T candidates (T, B), and its index."""
    best, which = reached.nan_to_num(-torch.inf, posinf=-torch.inf).max(0)
    return best, which


def _pick(values: Tensor, which: Tensor) -> Tensor:
    """For each example b, the entry values[which[b], b]: values (T, B, N), which (B,) -> (B, N)."""
    return values.gather(0, which[None, :, None].expand(1, *values.shape[1:])).squeeze(0)


def check_decoder_has_jacobian(model: LatentModel) -> None:
    """Raise a `ConfigError` if the decoder's output for one example depends on the rest of its batch.

    Such a decoder has no Jacobian for each single example.
    """
    for part in model.decoder.modules():
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
            raise ConfigError(
                "the decoder has batch normalisation in training mode, or without running statistics: "
                "its output for one example depends on the rest of the batch, so it has no Jacobian "
                "per example. Call model.eval() first, or use nn.GroupNorm or nn.LayerNorm instead"
            )
