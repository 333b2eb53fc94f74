"""Draw the figures of the concept pages: python docs/concept_figures.py (about a minute).

They are written into docs/images: concept_recursion.png, concept_amortisation.png and so on. The data
are scikit-learn's digits, and one example with a ring-shaped posterior.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

import recmix
from recmix.objectives import elbo
from recmix.posteriors import Gaussian, Mixture

IMAGES = Path(__file__).resolve().parent / "images"
BLUE, RED, GREY = "#1f4e9c", "#c0392b", "#777777"
COLOURS = [RED, BLUE, "#2e8b57", "#d98200", "#7d3c98"]


def grid(
    low: tuple[float, float], high: tuple[float, float], n: int = 161
) -> tuple[Tensor, Tensor, Tensor]:
    """Points of a rectangle of the plane, (n²,) each, and as latent points (n², 1, 2)."""
    a, b = torch.meshgrid(
        torch.linspace(low[0], high[0], n), torch.linspace(low[1], high[1], n), indexing="xy"
    )
    return a, b, torch.stack([a.flatten(), b.flatten()], 1)[:, None]


def ellipse(
    axis: plt.Axes, mean: Tensor, covariance: Tensor, colour: str, label: str | None = None
) -> None:
    """The contour of a Gaussian at two standard deviations."""
    angle = torch.linspace(0, 2 * torch.pi, 100)
    circle = torch.stack([angle.cos(), angle.sin()])
    line = mean[:, None] + 2 * torch.linalg.cholesky(covariance) @ circle
    axis.plot(*line, color=colour, lw=2, label=label)
    axis.plot(*mean, "o", color=colour, ms=4)


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(IMAGES / f"concept_{name}.png", dpi=110)
    plt.close(figure)
    print(f"wrote concept_{name}.png")


# The recursion: one example x = |z|², whose posterior is a ring.


class Radius(nn.Module):
    """The decoder of the ring: |z|²."""

    def forward(self, z: Tensor) -> Tensor:
        return z.square().sum(1, keepdim=True)


def optimised(parameters: Tensor, gain: object, steps: int = 600, rate: float = 0.03) -> Tensor:
    """The parameters that maximise `gain`, by Adam."""
    parameters = parameters.clone().requires_grad_()
    optimizer = torch.optim.Adam([parameters], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (-gain(parameters)).backward()
        optimizer.step()
    return parameters.detach()


def recursion(bound: float = 5.0) -> None:
    """Grow a mixture on the ring, one Gaussian at a time, as the method `rme` does for all examples."""
    torch.manual_seed(0)
    likelihood = recmix.likelihoods.Gaussian(0.15, learned=False)
    model = recmix.LatentModel(Radius(), likelihood, latent=2, shape=(1,))
    x = torch.full((1, 1), 2.5)
    a, b, z = grid((-2.6, -2.6), (2.6, 2.6))
    with torch.no_grad():
        log_joint = model.log_joint(x, z)[:, 0]
    cell = (5.2 / 160) ** 2
    evidence = torch.logsumexp(log_joint, 0) + torch.log(torch.tensor(cell))

    def gaussian(row: Tensor) -> Gaussian:
        return Gaussian(row[None, :2], row[None, 2:])

    def own_elbo(row: Tensor) -> Tensor:
        return elbo(model, x, gaussian(row), 64).mean()

    parts = [optimised(torch.tensor([0.5, 0.3, -2.0, -2.0]), own_elbo)]
    gates: list[Tensor] = []

    def mixture(rows: list[Tensor], gates: list[Tensor]) -> Mixture:
        log_weights = torch.zeros(1, 1)
        for gate in gates:
            before, new = logsigmoid(-gate), logsigmoid(gate)[None, None]
            log_weights = torch.cat([log_weights + before, new], 1)
        return Mixture([gaussian(row) for row in rows], log_weights)

    figure, axes = plt.subplots(1, 4, figsize=(12, 3.9), sharey=True, layout="constrained")
    for order, axis in enumerate(axes, 1):
        if order > 1:
            before = mixture(parts, gates)

            def gain(row: Tensor, before: Mixture = before) -> Tensor:
                q = gaussian(row)
                sample, log_q = q.rsample_and_log_prob(64)
                far = (log_q - before.log_prob(sample)).mean()
                return elbo(model, x, q, 64).mean() + far.clamp(max=bound)

            start = parts[-1] + 0.5 * torch.randn(4)
            parts.append(optimised(start, gain))

            def whole_elbo(gate: Tensor) -> Tensor:
                return elbo(model, x, mixture(parts, [*gates, gate]), 64).mean()

            gates.append(optimised(torch.tensor(0.0), whole_elbo, steps=200, rate=0.1))
        q = mixture(parts, gates) if order > 1 else gaussian(parts[0])
        with torch.no_grad():
            found = elbo(model, x, q, 4000).item()
        print(f"order {order}: ELBO {found:.2f}, log p(x) {evidence:.2f}")
        axis.contourf(a, b, (log_joint - log_joint.max()).exp().view_as(a), levels=8, cmap="Greys")
        for row, colour in zip(parts, COLOURS, strict=False):
            ellipse(axis, row[:2], torch.diag(row[2:].exp()), colour)
        axis.set(title=f"order {order}: ELBO {found:.2f}", aspect="equal", xlabel="$z_1$")
    axes[0].set_ylabel("$z_2$")
    figure.suptitle(f"One example with a ring-shaped posterior, log p(x) = {evidence:.2f}", fontsize=11)
    save(figure, "recursion")


# Digits with two latent dimensions


def log_joint_on(model: recmix.Model, x: Tensor, centre: Tensor, width: float):
    """log p(x, z) on a square around a point."""
    low, high = (centre - width), (centre + width)
    a, b, z = grid(tuple(low.tolist()), tuple(high.tolist()))
    return a, b, model.log_joint(x[None], z)[:, 0].view_as(a)


def digits() -> tuple[recmix.Model, Tensor]:
    data = recmix.data.load("digits")
    model = recmix.fit("vae", data, latent=2, epochs=150, device="cpu", progress=False)
    return model, torch.as_tensor(data.x_test[:])


def amortisation(model: recmix.Model, x: Tensor) -> None:
    """The encoder's Gaussian and the best one, for test digits with a typical and with large gaps."""
    found = model.gap(x[:60], samples=200, check=0)
    order = found.amortisation.argsort()
    picked = [int(order[int(part * (len(order) - 1))]) for part in (0.25, 0.6, 0.9)]
    q, better = model.posterior(x), model.refined(8).posterior(x)
    figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    for axis, i in zip(axes, picked, strict=True):
        mean, best = q.mean[i], better.mean[i]
        scale = torch.stack(
            [q.variance[i].max().sqrt(), better.variance[i].max().sqrt(), (mean - best).abs().max() / 2]
        )
        a, b, log_joint = log_joint_on(model, x[i], (mean + best) / 2, 3 * scale.max().item())
        axis.contourf(a, b, (log_joint - log_joint.max()).exp(), levels=8, cmap="Greys")
        ellipse(axis, mean, torch.diag(q.variance[i]), RED, "encoder")
        covariance = (
            better.covariance_matrix[i]
            if hasattr(better, "covariance_matrix")
            else torch.diag(better.variance[i])
        )
        ellipse(axis, best, covariance, BLUE, "optimised for this digit")
        lost = (found.amortisation[i].item(), found.approximation[i].item())
        axis.set(
            title=f"amortisation gap {lost[0]:.2f}, approximation gap {lost[1]:.2f}", xlabel="$z_1$"
        )
        axis.title.set_fontsize(10)
    axes[0].set_ylabel("$z_2$")
    axes[0].legend(loc="upper right", fontsize=9)
    figure.suptitle(
        "Three test digits: true posterior (grey), the encoder's Gaussian, the best one; gaps in nats",
        fontsize=11,
    )
    save(figure, "amortisation")


def refinement(model: recmix.Model, x: Tensor) -> None:
    """The path of Gauss-Newton steps for one digit, and the mean ELBO against the number of steps."""
    steps = [0, 1, 2, 3, 4, 6, 8]
    used = {n: model.using(refine=n, reuse=0) for n in steps}
    means = torch.stack([used[n].posterior(x).mean for n in steps])  # (steps, B, 2)
    distance = (means[0] - means[-1]).norm(dim=1)
    i = int(distance.argsort()[int(0.9 * len(x))])
    path = means[:, i]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    a, b, log_joint = log_joint_on(model, x[i], path.mean(0), 0.9 * distance[i].item() + 0.05)
    levels = log_joint.max() - torch.tensor([64, 32, 16, 8, 4, 2, 1, 0.5, 0.0])
    left.contourf(a, b, log_joint, levels=levels.tolist(), cmap="Greys", extend="min")
    left.plot(*path.T, "o-", color=BLUE, lw=1.5, label="Gauss-Newton steps")
    left.plot(*path[0], "o", color=RED, ms=8, label="encoder's mean")
    left.set(title="One test digit: log p(x, z)", xlabel="$z_1$", ylabel="$z_2$")
    left.legend(loc="best", fontsize=9)
    bounds = [[part.mean().item() for part in used[n].bounds(x, 100)] for n in steps]
    right.plot(steps, [both[1] for both in bounds], "o-", color=BLUE, label="IWAE-100")
    right.plot(steps, [both[0] for both in bounds], "o-", color=RED, label="ELBO")
    right.set(title=f"Mean of {len(x)} test digits", xlabel="steps for each digit", ylabel="nats")
    right.grid(alpha=0.3)
    right.legend(fontsize=9)
    for n, both in zip(steps, bounds, strict=True):
        print(f"{n} steps: ELBO {both[0]:.2f}, IWAE-100 {both[1]:.2f}")
    save(figure, "refinement")


def calibration() -> None:
    """The bounds of new digits against the factor of the standard deviations."""
    data = recmix.data.load("digits")
    model = recmix.fit("vae", data, latent=8, epochs=100, device="cpu", progress=False)
    scales = [2 ** (k / 4) for k in range(-4, 7)]
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    chosen = model.calibrated(data.x_val, samples=100).inference
    for name, x, colour in (("training", data.x_train[:300], GREY), ("test", data.x_test[:], BLUE)):
        bounds = torch.tensor(
            [[p.mean().item() for p in model.using(scale=s).bounds(x, 100)] for s in scales]
        )
        for axis, row, title in zip(axes, bounds.T.flip(0), ("IWAE-100", "ELBO"), strict=True):
            axis.plot(scales, row, "o-", color=colour, label=f"{name} digits")
            axis.set(
                title=title, xlabel="factor of the standard deviations", xscale="log", ylabel="nats"
            )
    for axis in axes:
        axis.axvline(
            chosen.scale, color=RED, ls="--", label=f"chosen on validation digits: {chosen.scale:.2f}"
        )
        axis.set_xticks([0.5, 1, 2], labels=["0.5", "1", "2"], minor=False)
        axis.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=9)
    both = {"encoder": model, "calibrated": model.calibrated(data.x_val, samples=100)}
    for name, used in both.items():
        found = [part.mean().item() for part in used.bounds(data.x_test, 100)]
        print(f"{name}: ELBO {found[0]:.2f}, IWAE-100 {found[1]:.2f}")
    save(figure, "calibration")


if __name__ == "__main__":
    torch.set_num_threads(1)
    recursion()
    model, x = digits()
    amortisation(model, x)
    refinement(model, x)
    calibration()
