"""A topic model of bags of words: a VAE with a multinomial likelihood, and better inference for it.

python examples/counts.py                   # a small synthetic corpus, under a minute
python examples/counts.py --data FOLDER     # 20 Newsgroups, about five minutes on one core

FOLDER has the corpus of the ProdLDA paper (Srivastava & Sutton 2017): `20news_clean.vocab.txt` with one
word per line, and `20news_clean.train.bow.gz` and `20news_clean.test.bow.gz` with one document per line
as `index:count` pairs. Settings and calibration were chosen on validation documents, a tenth of the
training documents.
"""

from __future__ import annotations

import argparse
import gzip
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import sparse
from torch import Tensor, nn

import recmix

PUBLISHED = {
    "NVDM": (769.5, "github.com/YongfeiYan/Neural-Document-Modeling, data/nvdm.out"),
    "ProdLDA": (1152.9, "github.com/hyqneuron/pytorch-avitm, README.md"),
}
"""Test perplexities of 50 topics on the same documents, by the same formula with the ELBO."""


class Settings(NamedTuple):
    """Sizes of the networks, of training and of evaluation."""

    topics: int
    hidden: int
    epochs: int
    calibration: int  # validation documents
    documents: int  # test documents
    gap: int  # test documents whose gap is measured


SYNTHETIC = Settings(topics=8, hidden=64, epochs=30, calibration=100, documents=100, gap=10)
NEWSGROUPS = Settings(topics=50, hidden=200, epochs=120, calibration=300, documents=1000, gap=20)


def read_corpus(folder: Path) -> tuple[Any, Any]:
    """Training and test documents of 20 Newsgroups, sparse (documents, words)."""
    words = len((folder / "20news_clean.vocab.txt").read_text().split())
    return tuple(_read_bags(folder / f"20news_clean.{part}.bow.gz", words) for part in ("train", "test"))


def _read_bags(path: Path, words: int) -> Any:
    with gzip.open(path, "rt") as lines:
        bags = [[pair.split(":") for pair in line.split()] for line in lines]
    row = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    pairs = np.array([pair for bag in bags for pair in bag], dtype=np.int64)
    return sparse.csr_array((pairs[:, 1], (row, pairs[:, 0])), shape=(len(bags), words))


def make_corpus() -> tuple[Any, Any]:
    """A synthetic corpus of 1,000 + 200 documents with 200 words and 8 topics."""
    rng = np.random.default_rng(0)
    topics = rng.normal(size=(8, 200)) * 1.5
    logits = rng.normal(size=(1200, 8)) @ topics + rng.normal(size=200)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    lengths = 5 + rng.poisson(rng.gamma(2.0, 20.0, size=1200))
    counts = rng.multinomial(lengths, shares / shares.sum(1, keepdims=True))
    return sparse.csr_array(counts[:1000]), sparse.csr_array(counts[1000:])


class Encoder(nn.Module):
    """Counts (B, words) to means and log-variances of the topics. It sees log(1 + count)."""

    def __init__(self, words: int, hidden: int, topics: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(words, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(hidden, 2 * topics),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(B, 2 topics)."""
        return self.layers(x.log1p())


def make_decoder(counts: Any, hidden: int, topics: int) -> nn.Module:
    """Topics (N, topics) to logits of the words; it starts at the frequencies of the words."""
    head = nn.Linear(hidden, counts.shape[1])
    with torch.no_grad():
        head.bias.copy_(torch.from_numpy(np.log(1.0 + counts.sum(0))))
    return nn.Sequential(nn.Linear(topics, hidden), nn.ReLU(), head)


def train(data: recmix.data.Data, counts: Any, settings: Settings) -> recmix.Model:
    """A VAE of the best validation epoch."""
    torch.manual_seed(0)
    return recmix.fit(
        "vae",
        data,
        latent=settings.topics,
        encoder=Encoder(counts.shape[1], settings.hidden, settings.topics),
        decoder=make_decoder(counts, settings.hidden, settings.topics),
        likelihood=recmix.likelihoods.Multinomial(coefficient=False),
        epochs=settings.epochs,
        learning_rate=3e-3,
        schedule="cosine",
        batch_size=200,
        max_gradient_norm=100,
        patience=0,
        device="cpu",
    )


def perplexity(bound: Tensor, counts: Tensor) -> float:
    """exp(-(1/D) Σ_d log p(d) / N_d), for a bound of log p(d) and the numbers of words N_d."""
    return math.exp(-(bound.double() / counts).mean().item())


def main() -> None:
    """Train, improve the inference, and print a table of perplexities."""
    parser = argparse.ArgumentParser(description="A topic model of bags of words.")
    parser.add_argument("--data", type=Path, help="folder with 20 Newsgroups; else a synthetic corpus")
    folder = parser.parse_args().data
    torch.set_num_threads(1)  # the layers are small
    settings = NEWSGROUPS if folder else SYNTHETIC
    train_counts, test_counts = read_corpus(folder) if folder else make_corpus()
    data = recmix.data.from_arrays(
        train_counts, x_test=test_counts, name="20-newsgroups" if folder else "synthetic"
    )
    start = time.process_time()
    model = train(data, train_counts, settings)
    print(
        f"trained on {len(data.x_train):,} documents with {train_counts.shape[1]:,} words for "
        f"{settings.epochs} epochs: {time.process_time() - start:.0f} s of CPU time"
    )

    x_val, x_test = data.x_val[: settings.calibration], data.x_test[: settings.documents]
    rows = {
        "encoder": model,
        "encoder, calibrated": model.calibrated(x_val),
        "encoder, noise calibrated": model.calibrated(x_val, noise=True),
        "refined, 1 step": model.refined(1),
        "refined, 2 steps": model.refined(2),
        "refined, 4 steps": model.refined(4),
        "refined, 2 steps, calibrated": model.refined(2).calibrated(x_val),
    }
    table = Table(title=f"\nperplexity of {len(x_test):,} test documents")
    for head in ("posterior", "ELBO", "IWAE-100", "ms per document"):
        table.add_column(head, justify="left" if head == "posterior" else "right")
    counts = torch.from_numpy(x_test.sum(1)).double()
    for name, used in rows.items():
        bounds = used.bounds(x_test, samples=100)
        start = time.perf_counter()
        used.posterior(x_test)
        each = 1e3 * (time.perf_counter() - start) / len(x_test)
        table.add_row(name, *(f"{perplexity(bound, counts):.1f}" for bound in bounds), f"{each:.2f}")
    Console().print(table)
    print(f"noise chosen on validation documents: {rows['encoder, noise calibrated'].inference.noise:g}")

    few = settings.gap
    print(f"\ngap of {few} documents:")
    print(model.gap(x_test[:few], train=data.x_train[:few], check=few // 2))
    if folder:
        everything = torch.from_numpy(test_counts.sum(1)).double()
        elbo, iwae = (perplexity(bound, everything) for bound in model.bounds(data.x_test, samples=100))
        print(f"\nall {len(everything):,} test documents, encoder: ELBO {elbo:.1f}, IWAE-100 {iwae:.1f}")
        for name, (value, source) in PUBLISHED.items():
            print(f"{name}, ELBO {value} ({source})")


if __name__ == "__main__":
    main()
