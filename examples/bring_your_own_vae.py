"""Wrap a VAE that was written and trained in plain PyTorch, and measure what its encoder loses.

python examples/bring_your_own_vae.py            # about half a minute on two cores
python examples/bring_your_own_vae.py --quick    # seconds: a smaller VAE, fewer examples

The data are scikit-learn's digits. Calibration uses validation digits, all numbers are of test digits.
"""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import recmix

VARIANCE = 0.02
"""σ² of the Gaussian likelihood, a guess, as in most code that trains a VAE with a squared error."""


# 1. A VAE of your own. Nothing in this part knows of recmix.


class VAE(nn.Module):
    """An encoder and a decoder of two hidden layers each."""

    def __init__(self, features: int, latent: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 2 * latent),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, features),
        )  # fmt: skip

    def loss(self, x: Tensor) -> Tensor:
        """The negative ELBO of x (B, features), up to a constant."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        error = (x - self.decoder(z)).square().sum(1) / (2 * VARIANCE)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return (error + kl).mean()


def train(vae: VAE, x: Tensor, epochs: int) -> None:
    """A plain training loop."""
    optimizer = torch.optim.Adam(vae.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in x[torch.randperm(len(x))].split(64):
            optimizer.zero_grad()
            vae.loss(batch).backward()
            optimizer.step()


# 2. The same VAE as a recmix model.


def milliseconds(model: recmix.Model, x: Tensor) -> float:
    """Milliseconds per example for q(z | x), in one batch: the best of ten."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        model.posterior(x)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times) / len(x)


def main() -> None:
    """Train, wrap, improve, and print a table."""
    parser = argparse.ArgumentParser(description="Wrap a VAE of your own.")
    parser.add_argument("--quick", action="store_true", help="a smaller VAE and fewer examples")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)  # faster for networks of this size
    torch.manual_seed(0)
    digits = torch.tensor(load_digits().data, dtype=torch.float32) / 16  # (1797, 64), values in [0, 1]
    digits = digits[torch.randperm(len(digits))]
    x_train, x_val, x_test = digits[:1200], digits[1200:1500], digits[1500:]
    if quick:
        x_val, x_test = x_val[:100], x_test[:100]

    vae = VAE(features=64, latent=8, hidden=64 if quick else 128)
    train(vae, x_train, epochs=20 if quick else 100)

    likelihood = recmix.likelihoods.Gaussian(VARIANCE, learned=False)
    model = recmix.wrap(vae.encoder, vae.decoder, likelihood=likelihood, example=x_train[:2])

    few = 10 if quick else 50
    print(model.gap(x_test[:few], train=x_train[:few], check=0 if quick else 20))

    refined = model.refined(2)
    rows = {
        "encoder": model,
        "encoder, calibrated": model.calibrated(x_val),
        "refined, 1 step": model.refined(1),
        "refined, 2 steps": refined,
        "encoder, noise calibrated": model.calibrated(x_val, noise=True),
        "refined, 2 steps, noise calibrated": refined.calibrated(x_val, noise=True),
    }
    table = Table(title=f"\n{len(x_test)} test digits, nats per digit")
    table.add_column("posterior")
    for head in ("ELBO", "IWAE-100", "ms per digit"):
        table.add_column(head, justify="right")
    reached = {}
    for name, used in rows.items():
        elbo, iwae = (bound.mean().item() for bound in used.bounds(x_test, samples=100))
        table.add_row(name, f"{elbo:.2f}", f"{iwae:.2f}", f"{milliseconds(used, x_test):.3f}")
        reached[name] = iwae
    Console().print(table)

    gain = reached["refined, 2 steps"] - reached["encoder"]
    noise = rows["refined, 2 steps, noise calibrated"].inference.noise
    print(
        f"The first four rows have the same p(x): two Gauss-Newton steps recover {gain:.2f} nats of "
        "IWAE-100\nthat the encoder loses on new digits, and nothing is trained for it."
    )
    print(
        "The last two rows have another p(x): validation digits prefer the variance "
        f"{noise * VARIANCE:.3f} to {VARIANCE}."
    )


if __name__ == "__main__":
    main()
