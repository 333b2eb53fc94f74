"""Describe the posterior q(z | x) of one example in detail, for the explorer.

The module computes the components of q, densities on a plane of the latent space, and the point z
after each Gauss-Newton step from the mean of q towards the maximum of log p(x, z).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recmix.evaluation.bounds import at_once, bounds_of
from recmix.explore.answers import Moments, moments, to_array
from recmix.explore.catalogue import ExplorableModel
from recmix.explore.wire import Array
from recmix.inference.gauss_newton import ascend
from recmix.model.latent import LatentModel
from recmix.posteriors import FullGaussian, Posterior

__all__ = ["describe", "explain", "interpolate", "points_between"]

REACH = 4.0
"""The plane shows this many standard deviations of a component on each side of its mean."""
SMALL_WEIGHT = 0.01
"""A component with a smaller mixing weight does not enlarge the part of the plane that is shown."""


class Plane(NamedTuple):
    """A plane in the latent space: all points z = origin + a · axes[0] + b · axes[1].

    The real numbers (a, b) are the coordinates of the point z in the plane.
    """

    kind: str  # "latent" if it is the whole latent space, of one or two dimensions; else "slice"
    origin: Tensor  # a point of the plane, (D,), where D is the latent dimension
    axes: Tensor  # two orthonormal vectors, (2, D). The second is zero if D is 1.
    labels: list[str]  # names of the axes, for the figure

    def project(self, z: Tensor) -> Tensor:
        """Return the coordinates (a, b) of latent vectors z (..., D) in the plane, (..., 2)."""
        return (z - self.origin) @ self.axes.T

    def covariance(self, full: Tensor) -> Tensor:
        """Return covariances (..., 2, 2) of the coordinates (a, b) of random latent vectors z.

        `full` has the covariances of z, (..., D, D).
        """
        return self.axes @ full @ self.axes.T


class Described(NamedTuple):
    """A description of the posterior q(z | x) of one example x.

    The field `answer` has values for JSON. The other fields have tensors and posteriors.
    """

    # the fields {name: value} that the explorer sends for images and for texts alike
    answer: dict[str, Any]
    x: Tensor  # the example, (1, ...)
    q: Posterior  # its posterior
    found: Moments  # weights, means and covariances of q's components
    # for 0, 1, 2, … Gauss-Newton steps, the Gaussian (Laplace) approximation of p(z | x) at the point
    # z after these steps
    path: list[FullGaussian]


@torch.no_grad()
def describe(
    model: ExplorableModel,
    example: Array,
    decode: Callable[[Tensor], Any],
    *,
    steps: int,
    samples: int,
    seed: int,
) -> Described:
    """Describe the posterior q(z | x) of one example: components, bounds, and each step of refinement.

    Args:
        model: the model.
        example: the example x, (1, ...).
        decode: maps N latent vectors (N, D) to N items that the explorer shows, such as images.
        steps: number of Gauss-Newton steps on log p(x, z), which start at the mean of q.
        samples: number of samples of z for ELBO and IWAE.
        seed: seed of these samples; ELBO and IWAE after each step use the same seed.
    """
    latent_model, reuse = model.latent_model, model.spec.inference.reuse
    x = torch.from_numpy(example).to(latent_model.centre)
    q = model.posterior(example)
    found = moments(q)
    path, log_joints = [], []
    for step in range(steps + 1):  # from the start each time: damping depends on the steps before
        z, at = ascend(latent_model, x, q.mean, steps=step, reuse=reuse)
        path.append(FullGaussian.from_precision(z, at.precision))
        log_joints.append(float(at.log_joint))
    decoded = decode(torch.cat([q.mean, found.means[0], *(laplace.mean for laplace in path)]))
    count = found.means.shape[1]
    answer = {
        "mean": to_array(q.mean[0]),
        "reconstruction": decoded[0],
        "exact": found.exact,
        "components": [
            {
                "weight": float(found.weights[0, k]),
                "mean": to_array(found.means[0, k]),
                "variance": to_array(found.variances[0, k]),
                "reconstruction": decoded[1 + k],
            }
            for k in range(count)
        ],
        "bounds": {**_bounds(latent_model, x, q, samples, seed), "samples": samples, "seed": seed},
        "refinement": [
            {
                "step": step,
                "z": to_array(laplace.mean[0]),
                "reconstruction": decoded[1 + count + step],
                "log_joint": log_joints[step],
                **_bounds(latent_model, x, laplace, samples, seed),
            }
            for step, laplace in enumerate(path)
        ],
    }
    return Described(answer, x, q, found, path)


@torch.no_grad()
def explain(
    model: ExplorableModel, image: Array, *, steps: int, samples: int, grid: int, seed: int
) -> dict[str, Any]:
    """Return a description of q(z | x) of one image: the fields that `docs/explorer.md` lists.

    Args:
        model: the model.
        image: the image x, (1, ...).
        steps: number of Gauss-Newton steps on log p(x, z), which start at the mean of q.
        samples: number of samples of z for ELBO and IWAE.
        grid: number of points along each side of the plane on which densities are computed.
        seed: seed of these samples.
    """
    latent_model = model.latent_model

    def decode(z: Tensor) -> Array:
        return to_array(latent_model.decode(z))

    about = describe(model, image, decode, steps=steps, samples=samples, seed=seed)
    answer, x, q, found, path = about
    plane = _plane(q.mean[0], found)
    parts = [*answer["components"], *answer["refinement"]]
    means = torch.cat([found.means[0], *(laplace.mean for laplace in path)])
    full = torch.cat([found.full()[0], *(laplace.covariance_matrix for laplace in path)])
    for part, mean, covariance in zip(parts, means, full, strict=True):
        part["plane"] = to_array(plane.project(mean))
        part["covariance"] = to_array(plane.covariance(covariance))
    sides = _sides(plane, found, path, grid)
    return {**answer, "plane": _densities(latent_model, x, q, plane, sides)}


def _bounds(model: LatentModel, x: Tensor, q: Posterior, samples: int, seed: int) -> dict[str, float]:
    """Estimate ELBO and IWAE of one example x (1, ...) from samples of q, in nats."""
    generator = torch.Generator(x.device).manual_seed(seed)
    found = bounds_of(model, x, q, samples, generator, at_once(model))
    return {"elbo": float(found.elbo), "iwae": float(found.iwae)}


def _plane(mean: Tensor, found: Moments) -> Plane:
    """Choose the plane of the latent space that is shown.

    If the latent dimension D is at most 2, the plane is the latent space itself. Otherwise the plane
    goes through the mean of q(z | x), along the two directions in which q has the largest variance.

    Args:
        mean: the mean of q, (D,).
        found: the weights, means and covariances of the components of q.
    """
    latent = len(mean)
    if latent <= 2:
        axes = torch.eye(2, latent, dtype=mean.dtype, device=mean.device)
        return Plane("latent", torch.zeros_like(mean), axes, [f"z{i + 1}" for i in range(latent)])
    weights, offsets = found.weights[0], found.means[0] - mean
    second_moments = found.full()[0] + offsets[:, :, None] * offsets[:, None]
    covariance = (weights[:, None, None] * second_moments).sum(0)
    variances, directions = torch.linalg.eigh(covariance.double())
    axes = directions[:, [-1, -2]].T
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    axes = (axes * largest.sign()).to(mean.dtype)
    deviations = variances[[-1, -2]].clamp_min(0).sqrt().tolist()
    names = ("widest", "second widest")
    labels = [f"{name} direction (sd {sd:.3g})" for name, sd in zip(names, deviations, strict=True)]
    return Plane("slice", mean, axes, labels)


def _sides(plane: Plane, found: Moments, path: list[FullGaussian], grid: int) -> list[Array]:
    """Choose the coordinates of the grid points along both axes of the plane.

    The grid covers the components of q with a large weight and the points of all Gauss-Newton steps,
    with a margin of `REACH` standard deviations. The margin around a step is that of the Laplace
    approximation after the last step.

    `path` has the Laplace approximation after each step. The result is a list of two arrays (grid,),
    one for each axis. The second array is only one zero if the latent dimension is 1.
    """
    shown = found.weights[0] >= SMALL_WEIGHT
    shown[found.weights[0].argmax()] = True
    last = path[-1].covariance_matrix.expand(len(path), -1, -1)
    means = plane.project(torch.cat([found.means[0][shown], *(laplace.mean for laplace in path)]))
    covariances = plane.covariance(torch.cat([found.full()[0][shown], last]))
    reach = REACH * covariances.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    low, high = to_array((means - reach).amin(0).double()), to_array((means + reach).amax(0).double())
    sides = [np.linspace(low[i], high[i], grid) for i in range(2)]
    return sides if len(plane.labels) == 2 else [sides[0], np.zeros(1)]


def _densities(
    model: LatentModel, x: Tensor, q: Posterior, plane: Plane, sides: list[Array]
) -> dict[str, Any]:
    """Compute log p(x, z) and log q(z | x) at the points of a grid in the plane.

    If the plane is the whole latent space, p(z | x) and log p(x) are also computed, by quadrature.

    Args:
        model: the model p(x, z).
        x: the example, (1, ...).
        q: its posterior q(z | x).
        plane: the plane.
        sides: the coordinates of the grid points along the first and the second axis of the plane.
    """
    first, second = np.meshgrid(*sides)  # row j, column i is at (x[i], y[j])
    points = torch.from_numpy(np.stack([first.ravel(), second.ravel()], -1)).to(plane.axes)
    z = plane.origin + points @ plane.axes  # (G², D)
    parts = z[:, None].split(at_once(model))
    joint = torch.cat([model.log_joint(x, part).squeeze(1) for part in parts]).double()
    log_q = torch.cat([q.log_prob(part).squeeze(1) for part in parts]).double()
    density = evidence = None
    if plane.kind == "latent":
        cell = math.prod(float(side[1] - side[0]) for side in sides if len(side) > 1)
        evidence = float(joint.logsumexp(0)) + math.log(cell)  # log p(x) by quadrature
        density = to_array((joint - evidence).exp().view(first.shape))
    return {
        "kind": plane.kind,
        "labels": plane.labels,
        "origin": to_array(plane.origin),
        "axes": to_array(plane.axes),
        "x": sides[0],
        "y": sides[1],
        "log_joint": to_array(joint.view(first.shape)),
        "log_q": to_array(log_q.view(first.shape)),
        "density": density,
        "log_evidence": evidence,
    }


@torch.no_grad()
def interpolate(model: ExplorableModel, images: Array, *, steps: int) -> dict[str, Any]:
    """Decode `steps` points between the posterior means of two examples x (2, ...).

    Returns:
        The points ``z`` (steps, D), and ``images`` (steps, ...) decoded at them.
    """
    z = points_between(model, images, steps)
    return {"z": to_array(z), "images": to_array(model.decode(z))}


def points_between(model: ExplorableModel, x: Array, steps: int) -> Tensor:
    """Return points (steps, D) on the line between the posterior means of two examples x (2, ...)."""
    first, last = model.posterior(x).mean
    share = torch.linspace(0, 1, steps, dtype=first.dtype, device=first.device)[:, None]
    return (1 - share) * first + share * last
