"""Refinement of posteriors for molecules as strings: ``python docs/zinc_refinement.py DATA OUT.json``.

A VAE with a non-autoregressive transformer decoder is trained on the SMILES strings of ZINC250k (one
string per line, gzip), with a character as a token. The ELBO and the IWAE bound of test molecules are
then measured for the encoder's posterior and for each kind of refinement.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import recmix

LENGTH, LATENT, WIDTH, HEADS, LAYERS = 110, 56, 128, 4, 3


class Block(nn.Module):
    """A transformer layer with attention written out, so that it has forward-mode derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        """Hidden states (N, T, width) -> (N, T, width)."""
        parts = self.qkv(self.first(h)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / (WIDTH // HEADS) ** 0.5).softmax(-1)
        h = h + self.out((weights @ v).transpose(1, 2).flatten(2))
        return h + self.mlp(self.second(h))


class Encoder(nn.Module):
    """Tokens (N, T) -> mean and log-variance (N, 2 · latent)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(classes, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 2 * LATENT)

    def forward(self, x: Tensor) -> Tensor:
        """The parameters of the posterior."""
        found: Tensor = self.head(self.blocks(self.tokens(x.long()) + self.places).mean(1))
        return found


class Decoder(nn.Module):
    """Latent points (N, latent) -> logits (N, T, classes)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.start = nn.Linear(LATENT, WIDTH)
        self.places = nn.Parameter(0.5 * torch.randn(LENGTH, WIDTH))
        self.mix = nn.Linear(LATENT, LENGTH * 8)
        self.widen = nn.Linear(8, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, z: Tensor) -> Tensor:
        """The logits of each token."""
        h = self.start(z)[:, None] + self.places + self.widen(self.mix(z).unflatten(-1, (LENGTH, 8)))
        found: Tensor = self.head(self.blocks(h))
        return found


def read(path: Path, count: int | None) -> tuple[np.ndarray, int]:
    """The strings as tokens (N, LENGTH), 0 after the end; and the number of different tokens."""
    with gzip.open(path, "rt") as lines:
        strings = [line.strip() for line in lines]
    strings = [string for string in strings if len(string) <= LENGTH]
    order = np.random.default_rng(0).permutation(len(strings))[:count]
    symbols = {c: i + 1 for i, c in enumerate(sorted(set("".join(strings))))}
    tokens = np.zeros((len(order), LENGTH), np.int64)
    for row, index in enumerate(order):
        tokens[row, : len(strings[index])] = [symbols[c] for c in strings[index]]
    return tokens, len(symbols) + 1


def main() -> None:
    """Train, refine and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--molecules", type=int, default=None, help="use only this many")
    parser.add_argument("--tested", type=int, default=500, help="test molecules that are scored")
    given = parser.parse_args()
    began = time.time()
    tokens, classes = read(given.data, given.molecules)
    tenth = len(tokens) // 20
    test, val, train = tokens[:tenth], tokens[tenth : 2 * tenth], tokens[2 * tenth :]
    torch.manual_seed(0)
    model = recmix.fit(
        "vae",
        recmix.data.from_arrays(train, val, test),
        encoder=Encoder(classes),
        decoder=Decoder(classes),
        likelihood="categorical",
        classes=classes,
        latent=LATENT,
        batch_size=256,
        epochs=given.epochs,
        learning_rate=1e-3,
        schedule="cosine",
        patience=0,
        validation_samples=1,
    )
    seconds = time.time() - began
    print(f"trained in {seconds:.0f} s", model.history[-1], flush=True)
    trials = {"encoder": {}}
    trials |= {f"laplace {k}": {"refine": k, "checks": 0} for k in (2, 8)}
    trials |= {"laplace 8, checked": {"refine": 8, "checks": 4}}
    trials |= {f"variational {k}": {"refine": k, "how": "variational", "checks": 4} for k in (2, 4, 8)}
    trials |= {"conjugate 4": {"refine": 4, "how": "conjugate", "checks": 4}}
    rows = []
    for name, options in trials.items():
        began = time.time()
        bounds = model.using(**options).bounds(test[: given.tested], 100)
        elbo, iwae = (value.double() for value in bounds)
        error = float(elbo.std() / len(elbo) ** 0.5)
        row = {"row": name, "elbo": float(elbo.mean()), "error": error, "iwae": float(iwae.mean())}
        rows.append(row | {"options": options, "seconds": time.time() - began})
        print(rows[-1], flush=True)
        about = {"molecules": len(train), "epochs": given.epochs, "training_seconds": seconds}
        about |= {"tested": given.tested, "torch": torch.__version__, "device": str(model.device)}
        given.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
