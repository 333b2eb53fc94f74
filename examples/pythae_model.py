"""Train a VAE with pythae, read it with recmix, and refine its posterior.

python examples/pythae_model.py            # half a minute on one core
python examples/pythae_model.py --quick    # seconds: fewer epochs and examples

pythae is not a dependency of recmix: ``pip install pythae==0.1.2``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import recmix

SAMPLES = 100
LATENT = 8


def train(x_train: Tensor, x_val: Tensor, epochs: int) -> Any:
    """A VAE of pythae, trained by pythae."""
    logging.disable(logging.INFO)
    from pythae.models import VAE, VAEConfig
    from pythae.models.base.base_utils import ModelOutput
    from pythae.models.nn import BaseDecoder
    from pythae.pipelines import TrainingPipeline
    from pythae.trainers import BaseTrainerConfig

    class Decoder(BaseDecoder):  # pythae's own ends in a sigmoid, for values in [0, 1]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(LATENT, 512), nn.ReLU(), nn.Linear(512, 64))

        def forward(self, z: Tensor) -> ModelOutput:
            return ModelOutput(reconstruction=self.layers(z).view(-1, 1, 8, 8))

    config = VAEConfig(input_dim=(1, 8, 8), latent_dim=LATENT, reconstruction_loss="mse")
    vae = VAE(config, decoder=Decoder())
    with tempfile.TemporaryDirectory() as folder:
        settings = BaseTrainerConfig(
            output_dir=folder, num_epochs=epochs, learning_rate=1e-3, no_cuda=True
        )
        TrainingPipeline(model=vae, training_config=settings)(train_data=x_train, eval_data=x_val)
    return vae


def main() -> None:
    """Train, compare the estimates of both libraries, refine."""
    parser = argparse.ArgumentParser(description="A VAE of pythae in recmix.")
    parser.add_argument("--quick", action="store_true", help="fewer epochs and examples")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)  # faster for networks of this size
    torch.manual_seed(0)
    # pythae's squared error means a variance of 1. So the values are from 0 to 8, not from 0 to 1.
    digits = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 2  # (1797, 1, 8, 8)
    digits = digits[torch.randperm(len(digits))]
    x_train, x_val, x_test = digits[:1200], digits[1200:1500], digits[1500 : 1550 if quick else None]
    try:
        theirs = train(x_train, x_val, epochs=5 if quick else 50)
    except ModuleNotFoundError as error:
        sys.exit(f"this example needs pythae ({error}): pip install pythae==0.1.2")
    model = recmix.adapters.pythae(theirs)

    table = Table(title=f"\n{len(x_test)} test digits, nats per digit")
    table.add_column("estimate")
    for head in ("ELBO", f"IWAE-{SAMPLES}"):
        table.add_column(head, justify="right")
    # get_nll returns an estimate of log p(x), in spite of its name.
    own = theirs.get_nll(x_test, n_samples=SAMPLES, batch_size=SAMPLES)
    table.add_row("pythae, get_nll", "", f"{own:.2f}")
    rows = {"recmix, encoder": model, "recmix, refined, 2 steps": model.refined(2)}
    for name, used in rows.items():
        bounds = used.bounds(x_test, samples=SAMPLES)
        table.add_row(name, *(f"{bound.mean().item():.2f}" for bound in bounds))
    Console().print(table)
    print(
        "The first two rows estimate the same bound from different samples.\n"
        "The third row has the same p(x) and another posterior, refined for each digit."
    )


if __name__ == "__main__":
    main()
