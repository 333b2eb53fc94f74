"""Variational refinement: natural-gradient steps that raise the ELBO of a Gaussian posterior.

A Laplace approximation takes the curvature of -log p(x, z) at the mode. Where the curvature changes
within the width of the posterior, as with categorical outputs, this can be far from the best Gaussian.
Here the curvature H and the gradient g of log p(x, z) are averaged over points of q = N(μ, P⁻¹). A step
of length ρ is

    P <- (1 - ρ) P + ρ E_q[H],    μ <- μ + ρ P⁻¹ E_q[g],

a natural-gradient step on the ELBO (Khan and Rue, The Bayesian Learning Rule, 2021) with the
Gauss-Newton curvature in the place of the second derivative. The length ρ with the highest ELBO is
taken for each example; all lengths are compared at the same noise, and ρ = 0 is one of them.

Each step has its own noise. The first `FULL` steps may have length 1, so that the mean can move far.
Later lengths are at most 1/2, 1/3, ..., so that P becomes an average of the curvatures of these steps.
With the same few noise vectors in all steps, the Gaussian would be fitted to these vectors, and more
steps would lower the ELBO.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import LogJoint, check_decoder_has_jacobian, make_log_joint
from recmix.inference.restarts import repeated
from recmix.inference.safeguard import common_noise
from recmix.model.latent import LatentModel
from recmix.posteriors import FullGaussian, Gaussian
from recmix.posteriors.full import cholesky

__all__ = ["variational"]

PAIRS = 2
"""Pairs ±ε of noise vectors at which gradient, curvature and ELBO are averaged."""
LARGEST = 512
"""Largest latent dimension; above, the matrices would not fit into memory for a usual batch."""
LENGTHS = (1.0, 0.5, 0.2, 0.05)
"""Candidate lengths ρ of the first steps."""
FULL = 3
"""Number of steps that use `LENGTHS` unchanged. Later steps use `LENGTHS` divided by 2, 3, ..."""


class _State(NamedTuple):
    """A Gaussian for each example: mean (B, D), precision (B, D, D) and its estimated ELBO (B,)."""

    mean: Tensor
    precision: Tensor
    elbo: Tensor


def variational(
    model: LatentModel, x: Tensor, start: FullGaussian | Gaussian, *, steps: int, reuse: int = 0
) -> FullGaussian:
    """The Gaussian that natural-gradient steps on the ELBO reach from the Gaussian `start`.

    Within a step, every estimate of the ELBO uses the same noise. No step lowers the estimated ELBO of
    an example.

    Args:
        model: the model p(x, z).
        x: examples (B, *shape).
        start: the first Gaussian, for B examples.
        steps: number of steps. Each needs the decoder's Jacobian at 2 · `PAIRS` points per example.
        reuse: number of further steps after each step. They change only the mean, with a new gradient
            and the same curvature.
    """
    check_decoder_has_jacobian(model)
    if start.mean.shape[-1] > LARGEST:
        raise ConfigError(
            f"variational refinement forms a matrix of the latent dimension, {start.mean.shape[-1]}: it "
            f"is for at most {LARGEST}. Use how = 'conjugate' or 'learned', which form none"
        )
    with torch.no_grad():
        noise = common_noise(PAIRS * max(1, steps), start.mean).unflatten(0, (2, -1, PAIRS))
        wide = make_log_joint(model, repeated(x, 2 * PAIRS), start.mean.dtype)
        joint = make_log_joint(model, x, start.mean.dtype)
        mean, precision = start.mean, _precision(start)
        for step in range(steps):
            own = noise[:, step].flatten(0, 1)  # (S, 1, D)
            lengths = [length / max(1, step + 2 - FULL) for length in LENGTHS]
            z, log_q = FullGaussian.from_precision(mean, precision).from_noise(own)  # (S, B, D)
            at = wide.equations(z.flatten(0, 1))
            log_joint, gradient, curvature = (part.unflatten(0, z.shape[:2]) for part in at)
            state = _State(mean, precision, (log_joint - log_q).mean(0))
            state = _best_step(joint, own, state, gradient.mean(0), curvature.mean(0), lengths)
            for _ in range(reuse):
                z, _ = FullGaussian.from_precision(state.mean, state.precision).from_noise(own)
                _, gradient = wide.gradient(z.flatten(0, 1))
                gradient = gradient.unflatten(0, z.shape[:2]).mean(0)
                state = _best_step(joint, own, state, gradient, state.precision, lengths[:2])
            mean, precision, _ = state
    return FullGaussian.from_precision(mean, precision)


def _best_step(
    joint: LogJoint,
    noise: Tensor,
    state: _State,
    gradient: Tensor,
    curvature: Tensor,
    lengths: Sequence[float],
) -> _State:
    """Try steps of several lengths, and return for each example the Gaussian with the highest ELBO.

    An example keeps its Gaussian in `state` if no length raises its ELBO.

    Args:
        joint: log p(x, z) of the examples.
        noise: the S noise vectors for all estimates of the ELBO, (S, 1, D).
        state: the Gaussian before the step.
        gradient: E_q[g], the mean gradient of log p(x, z), (B, D).
        curvature: E_q[H], the mean curvature of -log p(x, z), (B, D, D).
        lengths: candidate lengths ρ.
    """
    best = state
    for length in lengths:
        precision = torch.lerp(state.precision, curvature, length)
        factor = cholesky(precision)
        half = torch.linalg.solve_triangular(factor, gradient[..., None], upper=False)
        step = torch.linalg.solve_triangular(factor.mT, half, upper=True).squeeze(-1)
        mean = state.mean + length * step
        z, log_q = FullGaussian.from_precision(mean, precision).from_noise(noise)
        elbo = (joint.log_joint(z) - log_q).mean(0)
        rose = elbo > best.elbo  # false where the ELBO is not a number
        best = _State(
            torch.where(rose[:, None], mean, best.mean),
            torch.where(rose[:, None, None], precision, best.precision),
            torch.where(rose, elbo, best.elbo),
        )
    return best


def _precision(q: FullGaussian | Gaussian) -> Tensor:
    """The precision matrix of a Gaussian, (B, D, D)."""
    if isinstance(q, Gaussian):
        return q.log_variance.neg().exp().diag_embed()
    root = q.precision_factor
    return root.mT @ root
