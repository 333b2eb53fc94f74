"""One image, looked at closely: its components, a plane of its posterior, what refinement changes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recmix.api import Fitted
from recmix.evaluation.bounds import at_once, bounds_of
from recmix.explore.answers import Moments, moments, plain
from recmix.explore.wire import Array
from recmix.inference.gauss_newton import climb
from recmix.model.latent import LatentModel
from recmix.posteriors.full import FullGaussian
from recmix.posteriors.posterior import Posterior

__all__ = ["explain", "interpolate"]

WIDE = 4.0
"""Standard deviations of a component that the plane shows around its mean."""
LIGHT = 0.01
"""Components of less weight do not decide how much of the plane is shown."""


class Plane(NamedTuple):
    """z = origin + a · axes[0] + b · axes[1]."""

    kind: str  # "latent": the whole latent space, of one or two dimensions; "slice": a plane in it
    origin: Tensor  # (D,)
    axes: Tensor  # (2, D), orthonormal; the second is zero in one dimension
    labels: list[str]

    def project(self, z: Tensor) -> Tensor:
        """(..., D) -> (..., 2)."""
        return (z - self.origin) @ self.axes.T


class Refined(NamedTuple):
    """Where some Gauss-Newton steps lead, and Laplace's Gaussian there."""

    z: Tensor  # (1, D)
    log_joint: Tensor  # (1,)
    laplace: FullGaussian


@torch.no_grad()
def explain(
    fitted: Fitted, image: Array, *, steps: int = 4, samples: int = 100, grid: int = 80, seed: int = 0
) -> dict[str, Any]:
    """What the model makes of one image; `docs/explorer.md` has the shape of the answer.

    Args:
        fitted: the model.
        image: (1, C, H, W) in [0, 1].
        steps: Gauss-Newton steps from the posterior mean.
        samples: K of the bounds.
        grid: points along each side of the plane.
        seed: of the samples, the same for every step.
    """
    model = fitted.model
    x = torch.from_numpy(image).to(model.centre)
    q = fitted.posterior(image)
    found = moments(q)
    reuse = fitted.method.reuse
    path = [_refine(model, x, q.mean, step, reuse) for step in range(steps + 1)]
    plane = _plane(q.mean[0], found)
    decoded = plain(model.decode(torch.cat([q.mean, found.means[0], *(at.z for at in path)])))
    count = found.means.shape[1]
    across = plane.axes @ found.full()[0] @ plane.axes.T  # (K, 2, 2)
    middles = plane.project(found.means[0])
    elbo, iwae = _bounds(model, x, q, samples, seed)
    refinement = []
    for step, at in enumerate(path):
        low, high = _bounds(model, x, at.laplace, samples, seed)
        refinement.append(
            {
                "step": step,
                "z": plain(at.z[0]),
                "plane": plain(plane.project(at.z[0])),
                "covariance": plain(plane.axes @ at.laplace.covariance[0] @ plane.axes.T),
                "reconstruction": decoded[1 + count + step],
                "log_joint": float(at.log_joint),
                "elbo": low,
                "iwae": high,
            }
        )
    return {
        "mean": plain(q.mean[0]),
        "reconstruction": decoded[0],
        "exact": found.exact,
        "components": [
            {
                "weight": float(found.weights[0, k]),
                "mean": plain(found.means[0, k]),
                "variance": plain(found.variances[0, k]),
                "reconstruction": decoded[1 + k],
                "plane": plain(middles[k]),
                "covariance": plain(across[k]),
            }
            for k in range(count)
        ],
        "plane": _look(fitted, x, q, plane, _window(plane, found, path), grid),
        "bounds": {"elbo": elbo, "iwae": iwae, "samples": samples, "seed": seed},
        "refinement": refinement,
    }


def _refine(model: LatentModel, x: Tensor, start: Tensor, steps: int, reuse: int) -> Refined:
    """Begun anew each time: the damping of a climb is part of its state."""
    z, at = climb(model, x, start, steps=steps, reuse=reuse)
    return Refined(z, at.log_joint, FullGaussian.from_precision(z, at.precision))


def _bounds(model: LatentModel, x: Tensor, q: Posterior, samples: int, seed: int) -> tuple[float, float]:
    generator = torch.Generator(x.device).manual_seed(seed)
    found = bounds_of(model, x, q, samples, generator, at_once(model))
    return float(found.elbo), float(found.iwae)


def _plane(mean: Tensor, found: Moments) -> Plane:
    """The latent space itself in one or two dimensions, else its two widest directions at the mean."""
    latent = len(mean)
    if latent <= 2:
        axes = torch.eye(2, latent, dtype=mean.dtype, device=mean.device)
        return Plane("latent", torch.zeros_like(mean), axes, [f"z{i + 1}" for i in range(latent)])
    weights, apart = found.weights[0], found.means[0] - mean
    covariance = (weights[:, None, None] * (found.full()[0] + apart[:, :, None] * apart[:, None])).sum(0)
    spread, directions = torch.linalg.eigh(covariance.double())
    axes = directions[:, [-1, -2]].T
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    axes = (axes * largest.sign()).to(mean.dtype)
    deviations = spread[[-1, -2]].clamp_min(0).sqrt().tolist()
    names = ("widest", "second widest")
    labels = [f"{name} direction (sd {sd:.3g})" for name, sd in zip(names, deviations, strict=True)]
    return Plane("slice", mean, axes, labels)


def _window(plane: Plane, found: Moments, path: list[Refined]) -> tuple[Tensor, Tensor]:
    """Corners (2,) that show the components, where refinement goes and Laplace's Gaussian at its end."""
    seen = found.weights[0] >= LIGHT
    seen[found.weights[0].argmax()] = True
    middles = [*plane.project(found.means[0][seen]), *(plane.project(at.z[0]) for at in path)]
    spreads = [*found.full()[0][seen], *(path[-1].laplace.covariance[0] for _ in path)]
    low, high = [], []
    for middle, covariance in zip(middles, spreads, strict=True):
        reach = WIDE * (plane.axes @ covariance @ plane.axes.T).diagonal().clamp_min(0).sqrt()
        low.append(middle - reach)
        high.append(middle + reach)
    return torch.stack(low).amin(0), torch.stack(high).amax(0)


def _look(
    fitted: Fitted, x: Tensor, q: Posterior, plane: Plane, window: tuple[Tensor, Tensor], grid: int
) -> dict[str, Any]:
    """log p(x, z) and log q(z | x) on a grid; where that is all of the latent space, also p(z | x)."""
    low, high = (corner.double().tolist() for corner in window)
    sides = [np.linspace(low[i], high[i], grid) for i in range(len(plane.labels))]
    if len(sides) == 1:
        sides.append(np.zeros(1))
    across, up = np.meshgrid(*sides)  # row j, column i is at (x[i], y[j])
    spots = torch.from_numpy(np.stack([across.ravel(), up.ravel()], -1)).to(plane.axes)
    z = plane.origin + spots @ plane.axes  # (G², D)
    parts = z[:, None].split(at_once(fitted.model))
    joint = torch.cat([fitted.model.log_joint(x, part).squeeze(1) for part in parts]).double()
    log_q = torch.cat([q.log_prob(part).squeeze(1) for part in parts]).double()
    found: dict[str, Any] = {
        "kind": plane.kind,
        "labels": plane.labels,
        "origin": plain(plane.origin),
        "axes": plain(plane.axes),
        "x": sides[0],
        "y": sides[1],
        "log_joint": plain(joint.view(across.shape)),
        "log_q": plain(log_q.view(across.shape)),
        "density": None,
        "log_evidence": None,
    }
    if plane.kind == "latent":
        cell = math.prod(float(side[1] - side[0]) for side in sides if len(side) > 1)
        evidence = float(joint.logsumexp(0)) + math.log(cell)  # log p(x), by quadrature
        found["log_evidence"] = evidence
        found["density"] = plain((joint - evidence).exp().view(across.shape))
    return found


@torch.no_grad()
def interpolate(fitted: Fitted, images: Array, *, steps: int = 9) -> dict[str, Any]:
    """Images along the line from one posterior mean to another.

    Args:
        fitted: the model.
        images: two images (2, C, H, W).
        steps: images on the line, both ends included.
    """
    first, last = fitted.posterior(images).mean
    share = torch.linspace(0, 1, steps, dtype=first.dtype, device=first.device)[:, None]
    z = (1 - share) * first + share * last
    return {"z": plain(z), "images": plain(fitted.model.decode(z))}
