"""Use a refined posterior only for the examples whose ELBO does not become lower.

The other examples keep the posterior that they had before the refinement.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from recmix.inference.gauss_newton import LogJoint, make_log_joint
from recmix.model.latent import LatentModel
from recmix.posteriors import FullGaussian, Gaussian, Posterior
from recmix.posteriors.choice import choose

__all__ = ["common_noise", "elbo_at_noise", "never_worse"]


def never_worse(
    model: LatentModel, x: Tensor, start: Posterior, refined: Posterior, pairs: int
) -> Posterior:
    """Choose for each example the posterior with the higher ELBO: `refined` or `start`.

    `start` is the posterior before the refinement. Both ELBOs are estimated from the same fixed noise
    vectors, which are `pairs` pairs (ε, -ε). So the same example always gives the same result. If both
    posteriors are Gaussians, a control variate reduces the error of the estimated ELBO of `start`, see
    `_elbo_before`.
    """
    with torch.no_grad():
        noise = common_noise(pairs, refined.mean)
        joint = make_log_joint(model, x, refined.mean.dtype)
        before = _elbo_before(joint, start, refined, noise)
        better = elbo_at_noise(joint, refined, noise) >= before
    return choose(better, refined, start)


def _elbo_before(joint: LogJoint, start: Posterior, refined: Posterior, noise: Tensor) -> Tensor:
    """An estimate of the ELBO of `start` for each example, (B,), from S noise vectors (S, 1, D).

    If both posteriors are Gaussians, log r(z) is a control variate, where r is the refined posterior.
    Let f(z) = log p(x, z), and let z_1 … z_S be the samples of `start` for one example. Compared with
    the value at the mean of `start`, the mean of f(z_s) over the samples is lower by a, and the mean of
    log r(z_s) is lower by b. The expectation E[b] has a closed form. So the estimate of E[f] is the mean
    of f(z_s), minus c (E[b] - b). If f and log r differ only by a constant, c = 1 removes the whole
    error. Far from the mode, f may be much flatter than log r. So each example has its own c, which is
    a / b, limited to the range from 0 to 1. Because c comes from the same samples, the estimate has a
    small bias. It is unreliable if the covariance of the refined posterior is far from right.
    """
    gaussians = (Gaussian, FullGaussian)
    if not (isinstance(start, gaussians) and isinstance(refined, gaussians)):
        return elbo_at_noise(joint, start, noise)
    if isinstance(refined, Gaussian):
        spread = (start.variance / refined.variance).sum(-1)
    elif isinstance(start, Gaussian):
        spread = (refined.precision_factor * start.stddev[..., None, :]).square().sum((-2, -1))
    else:
        spread = (refined.precision_factor @ start.scale_tril).square().sum((-2, -1))
    z, log_q = start.from_noise(noise)
    values = joint.log_joint(torch.cat([start.mean[None], z]))  # (1 + S, B)
    reached = values[1:].mean(0)
    # b is above 0, because the noise comes in pairs ±ε and log r is concave.
    fall = refined.log_prob(start.mean) - refined.log_prob(z).mean(0)
    tiny = torch.finfo(fall.dtype).tiny
    share = ((values[0] - reached) / fall.clamp(min=tiny)).nan_to_num(0).clamp(0, 1)
    return reached - share * (0.5 * spread - fall) - log_q.mean(0)


def elbo_at_noise(joint: LogJoint, q: Posterior, noise: Tensor) -> Tensor:
    """An estimate of the ELBO of q for each example, (B,), from the S noise vectors `noise` (S, 1, D).

    Each component of q uses the same noise vectors. `joint` is log p(x, z) of the examples.
    """
    parts = q.components
    drawn = [part.from_noise(noise) for part in parts]
    z = torch.cat([point for point, _ in drawn])  # (K·S, B, D)
    log_q = drawn[0][1] if len(parts) == 1 else q.log_prob(z)
    weights = joint.log_joint(z) - log_q
    return (weights.unflatten(0, (len(parts), -1)).mean(1) * q.weights.t()).sum(0)


def common_noise(pairs: int, like: Tensor) -> Tensor:
    """Fixed noise vectors in pairs ε, -ε, each with the norm √D: (2 · pairs, 1, D).

    They are the same in every call. With this norm, log q of a Gaussian sample is minus the entropy of
    q, so log q adds no error to an estimate of the ELBO.

    Args:
        pairs: number of pairs.
        like: a tensor (..., D) with the wanted device and dtype.

    >>> noise = common_noise(2, torch.zeros(5, 3))
    >>> noise.shape, torch.equal(noise[:2], -noise[2:])
    (torch.Size([4, 1, 3]), True)
    """
    return _noise(pairs, int(like.shape[-1]), like.dtype, like.device)


@functools.lru_cache(maxsize=32)  # a constant of a captured CUDA graph must not be copied from the host
def _noise(pairs: int, latent: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    drawn = np.random.default_rng(0).standard_normal((pairs, 1, latent))
    unit = drawn * (latent**0.5 / np.linalg.norm(drawn, axis=-1, keepdims=True))
    with torch.inference_mode(False):  # from numpy: a tracer would record torch's random numbers
        return torch.tensor(np.concatenate([unit, -unit]), dtype=dtype, device=device)
