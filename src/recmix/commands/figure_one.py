"""`recmix figure1`: draw how a second component is learned in a two-dimensional latent space.

This is Figure 1 of the paper on recursive mixtures (Kim and Pavlovic, NeurIPS 2020). It starts from a
trained VAE with the posterior q_0(z | x), whose decoder is fixed. In the upper row q_0 is fixed too, and
a recursive mixture trains a second component q_1, which starts from q_0. In the lower row a mixture
trains both components together, and the second starts from random weights. The contours are the true
posterior p(z | x), computed by quadrature on a grid.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recmix.api import Model, fit
from recmix.data import Data
from recmix.errors import ConfigError
from recmix.methods.blind_mixture import BlindMixture
from recmix.methods.method import Method, Optimizers
from recmix.methods.recursive import RecursiveMixture
from recmix.posteriors import Gaussian, Mixture
from recmix.reports.posterior_figure import FigureStage, Instance, posterior_animation, posterior_stages
from recmix.runs.files import make_folder
from recmix.runs.spec import Spec
from recmix.training.batches import Batches
from recmix.training.build import build
from recmix.training.progress import watch

__all__ = ["figure_one", "true_posterior"]

GRID = 121
SHOWN = (0, 1, 4, 16)
"""The PNG and SVG figures show the components after these epochs; the animation shows every epoch."""
CANDIDATES = 300
WIDE, COARSE = 4.0, 81
"""Size of the latent grid on which `_least_gaussian` compares images.

WIDE is half the length of a side, COARSE is the number of points on a side.
"""


def figure_one(
    data: Data,
    out: Path,
    *,
    vae_epochs: int = 100,
    epochs: int = 16,
    learning_rate: float = 5e-4,
    bound: float = 5.0,
    eps_max: float = 0.1,
    component: str = "gaussian",
    seed: int = 0,
    init: Model | None = None,
    progress: bool | None = None,
) -> list[Path]:
    """Draw the paper's Figure 1: how a mixture of two components is learned from a VAE.

    The figure compares a recursive mixture, which only trains the second component, with a mixture
    that trains both components together. It shows two of the first 300 test images: the two whose
    true posterior p(z | x) is least like a Gaussian. These two only illustrate; nothing is measured
    on them.

    Args:
        out: folder for the figures.
        epochs: epochs in which the mixtures are trained.
        bound: C in the paper. Training rewards a large KL of the second component to the first, up to
            this value. With the paper's C = 500 the second component leaves the picture.
        eps_max: largest mixing weight of the second component of the recursion.
        component: kind of the second component of the recursion, such as ``residual``.
        init: a trained VAE with two latent dimensions.

    Returns:
        The paths of the PNG, the SVG and the animated GIF.
    """
    if data.x_test is None:
        raise ConfigError(f"the data {data.name} have no test images")
    make_folder(out)
    vae = init or fit("vae", data, latent=2, epochs=vae_epochs, seed=seed, progress=progress)
    if vae.spec.model.latent != 2:
        raise ConfigError(f"Figure 1 needs two latent dimensions, init has {vae.spec.model.latent}")
    x = _least_gaussian(vae, data)
    learned: list[list[list[FigureStage]]] = []  # the stages of each image, for both mixtures
    with watch("learning the second component", 2 * epochs, show=progress) as report:
        both: list[tuple[type[Method], dict[str, Any]]] = [
            (RecursiveMixture, {"bound": bound, "eps_max": eps_max, "component": component}),
            (BlindMixture, {}),
        ]
        for number, (kind, options) in enumerate(both):
            how = (kind, options, epochs, learning_rate, seed)
            learned.append(_learn(vae, data, x, *how, lambda e, n=number: report(n * epochs + e)))
    instances = []
    for i, (recursive, blind) in enumerate(zip(*learned, strict=True)):
        image = x[i : i + 1]
        (across, up), density = true_posterior(vae, image, *_window(recursive + blind, vae, image))
        name = f"instance {i + 1}"
        instances.append(
            Instance(name=name, x=across, y=up, density=density, recursive=recursive, blind=blind)
        )
    still = [_only(instance, [e for e in SHOWN if e <= epochs]) for instance in instances]
    posterior_stages(still, out / "figure1.png")
    posterior_stages(still, out / "figure1.svg")
    posterior_animation(instances, out / "figure1.gif")
    return [out / f"figure1.{kind}" for kind in ("png", "svg", "gif")]


@torch.no_grad()
def true_posterior(
    vae: Model, x: Tensor, low: np.ndarray, high: np.ndarray, grid: int = GRID
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Compute the true posterior p(z | x) of one image on a grid of the latent plane.

    The density is normalised so that its integral over the grid is 1.

    Args:
        vae: a model with two latent dimensions.
        low: the lower left corner of the grid, (2,).
        high: the upper right corner of the grid, (2,).
        grid: number of points G along each side.

    Returns:
        The coordinates of the grid along the first and the second latent dimension, (G,) each, and
        the density (G, G). Row j, column i of the density belongs to coordinate i of the first
        dimension and coordinate j of the second.
    """
    first, second = (np.linspace(low[d], high[d], grid) for d in range(2))
    across, up = np.meshgrid(first, second)
    z = torch.from_numpy(np.stack([across.ravel(), up.ravel()], -1)).to(vae.latent_model.centre)
    parts = [vae.latent_model.log_joint(x, part[:, None]).squeeze(1) for part in z.split(4096)]
    log_joint = torch.cat(parts).double().cpu().numpy()
    density = np.exp(log_joint - log_joint.max()).reshape(grid, grid)
    cell = (first[1] - first[0]) * (second[1] - second[0])
    return (first, second), density / (density.sum() * cell)


@torch.no_grad()
def _least_gaussian(vae: Model, data: Data) -> Tensor:
    """Choose the two test images whose true posteriors p(z | x) are least like a Gaussian.

    The criterion is KL(p(z | x) || g), where g is the Gaussian with the mean and the covariance of
    p(z | x). It is computed on the same grid for all images. It is large if p(z | x) has two modes.
    It does not depend on the encoder.
    """
    assert data.x_test is not None
    model = vae.latent_model
    shown = torch.from_numpy(data.x_test[:CANDIDATES]).to(model.centre)
    side = torch.linspace(-WIDE, WIDE, COARSE).to(shown)
    z = torch.cartesian_prod(side, side)  # (G, 2)
    parts = []
    for part in z.split(64):
        decoded = model.decoder(part)[:, None]  # once for all images
        wide = decoded.expand(-1, len(shown), *model.shape)
        log_likelihood = model.log_density(model.observed(shown), wide)
        parts.append(log_likelihood + model.prior.log_prob(part)[:, None])
    share = torch.cat(parts).double().softmax(0)  # (G, N)
    z = z.double()
    mean = share.T @ z  # (N, 2)
    covariance = torch.einsum("gn,gi,gj->nij", share, z, z) - mean[:, :, None] * mean[:, None]
    cell = (2 * WIDE / (COARSE - 1)) ** 2
    entropy = torch.special.entr(share / cell).sum(0) * cell
    covariance = covariance + cell * torch.eye(2).to(covariance)  # at least the resolution of the grid
    matched = 0.5 * torch.logdet(2 * torch.pi * torch.e * covariance)
    return shown[(matched - entropy).topk(2).indices]


def _learn(
    vae: Model,
    data: Data,
    x: Tensor,
    kind: type[Method],
    options: dict[str, Any],
    epochs: int,
    learning_rate: float,
    seed: int,
    report: Any,
) -> list[list[FigureStage]]:
    """Train a mixture of two components with the fixed decoder of `vae`.

    Args:
        x: images whose posteriors are returned.
        kind: the class of the mixture.
        options: options of this class.
        report: function that is called with the number of finished epochs.

    Returns:
        For each image of x its posteriors, before the training and after each epoch.
    """
    spec = Spec(
        method=kind.name,
        shape=vae.spec.shape,
        model=vae.spec.model,
        options={"order": 2, **options},
        training=vae.spec.training,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        method = build(spec)
        method.start_from(vae.method)
    optimizers = method.optimizers(learning_rate)
    _freeze(method, optimizers, also_first=kind is RecursiveMixture)
    centre = vae.latent_model.centre
    batches = Batches(data.x_train, device=centre.device, dtype=centre.dtype, binarise=data.dynamic)
    generator = torch.Generator(centre.device).manual_seed(seed)
    seen = [_look(method, x, 0)]
    for epoch in range(epochs):
        for values in batches.read(batches.order(128, seed=seed, epoch=epoch)):
            batch = torch.bernoulli(values, generator=generator) if data.dynamic else values
            method.step(batch, optimizers, generator=generator)
        seen.append(_look(method, x, epoch + 1))
        report(epoch + 1)
    return [list(stages) for stages in zip(*seen, strict=True)]


def _freeze(method: Method, optimizers: Optimizers, *, also_first: bool) -> None:
    held = {id(p) for p in method.model.parameters()}
    if also_first:
        held |= {id(p) for p in method.base_encoder.parameters()}
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            if any(id(p) in held for p in group["params"]):
                group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0


@torch.no_grad()
def _look(method: Method, x: Tensor, epoch: int) -> list[FigureStage]:
    """Return the posterior of each of the images x, which is a mixture of Gaussians."""
    q = method.posterior(x)
    assert isinstance(q, Mixture)
    parts = [c for c in q.components if isinstance(c, Gaussian)]
    means = torch.stack([c.mean for c in parts], 1).double().cpu().numpy()  # (B, K, 2)
    variances = torch.stack([c.log_variance.exp() for c in parts], 1).double().cpu().numpy()
    weights = q.weights.double().cpu().numpy()  # (B, K)
    return [
        FigureStage(name=f"epoch {epoch}", means=m, variances=v, weights=w)
        for m, v, w in zip(means, variances, weights, strict=True)
    ]


def _window(stages: list[FigureStage], vae: Model, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Choose the square of the latent plane that is plotted for the image x (1, ...).

    The centre of the square is the mean of the VAE's posterior. The square contains the component means
    of all mixtures in `stages`, except means that are far from the centre: by more than 12 times the
    largest standard deviation of the VAE's posterior.
    """
    q = vae.posterior(x)
    assert isinstance(q, Gaussian)
    centre, spread = (t.double().cpu().numpy()[0] for t in (q.mean, q.stddev))
    means = np.concatenate([stage.means for stage in stages])
    near = means[(np.abs(means - centre) < 12 * spread.max()).all(-1)]
    reach = np.maximum(4 * spread.max(), np.abs(near - centre).max() + 2.5 * spread.max())
    return centre - reach, centre + reach


def _only(instance: Instance, epochs: list[int]) -> Instance:
    return dataclasses.replace(
        instance,
        recursive=[instance.recursive[e] for e in epochs],
        blind=[instance.blind[e] for e in epochs],
    )
