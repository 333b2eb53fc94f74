"""A VAE of sentences: training without posterior collapse, a recursive mixture, and refinement.

python examples/text.py                  # sentences of a small grammar, under a minute
python examples/text.py --data FILE.txt  # your own sentences, one per line; more epochs, larger networks

The program prints a report of each model on test sentences, reconstructions, samples, and sentences on
the line between two posterior means.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import recmix

SCENES = {
    "sea": (["sailor", "captain", "fisher"], ["boat", "net", "fish"], ["on the sea", "in the harbour"]),
    "farm": (["farmer", "shepherd", "dog"], ["sheep", "field", "fence"], ["on the farm", "by the barn"]),
    "town": (["baker", "teacher", "driver"], ["bread", "book", "bus"], ["in the town", "at the market"]),
}
"""Subjects, objects and places that occur together."""
VERBS = {"past": ["saw", "found", "moved"], "present": ["sees", "finds", "moves"]}
TIMES = {"past": ["yesterday", "last year"], "present": ["today", "every day"]}

SMALL: dict[str, Any] = {"latent": 8, "units": 32, "heads": 2, "blocks": 1, "learning_rate": 3e-3}
LARGE: dict[str, Any] = {"latent": 32, "units": 128, "learning_rate": 1e-3}


def make_sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of a small grammar. Scene and tense decide which words occur together."""
    rng = np.random.default_rng(seed)

    def one() -> str:
        subjects, objects, places = SCENES[str(rng.choice(list(SCENES)))]
        tense = str(rng.choice(list(VERBS)))
        words = ["the", rng.choice(subjects), rng.choice(VERBS[tense]), "the", rng.choice(objects)]
        if rng.random() < 0.5:
            words.append(rng.choice(places))
        if rng.random() < 0.7:
            words.append(rng.choice(TIMES[tense]))
        return " ".join(words)

    return [one() for _ in range(count)]


def train(data: recmix.data.Data, *, epochs: int, options: dict[str, Any]) -> list[recmix.Model]:
    """A plain VAE, one with KL warm-up and free bits, and a mixture of two encoders from the latter."""
    common: dict[str, Any] = {"batch_size": 64, "device": "cpu", "seed": 0, "patience": 0}
    first = {"epochs": epochs, **options, **common}
    plain = recmix.fit("vae", data, **first)
    vae = recmix.fit("vae", data, kl_warmup=epochs // 2, free_bits=0.5, **first)
    second = {"epochs": max(2, epochs // 8), "learning_rate": options["learning_rate"] / 10}
    return [plain, vae, recmix.fit("rme", data, init=vae, order=2, bound=20.0, **second, **common)]


def report_table(rows: dict[str, recmix.Model], x: Any) -> Table:
    """The report of each model on test sentences."""
    heads = ("NLL", "perplexity", "ELBO", "KL", "mutual information", "active units", "ms per sentence")
    table = Table(title=f"\n{len(x):,} test sentences, nats per sentence")
    table.add_column("posterior")
    for head in heads:
        table.add_column(head, justify="right")
    for name, model in rows.items():
        found = model.latent_report(x, samples=20)
        start = time.perf_counter()
        model.posterior(x)
        each = 1e3 * (time.perf_counter() - start) / len(x)
        values = (found.nll, found.perplexity, found.elbo, found.kl, found.mutual_information)
        table.add_row(name, *(f"{v:.2f}" for v in values), str(found.active_units), f"{each:.1f}")
    return table


def between(model: recmix.Model, one: str, other: str, steps: int = 5) -> list[str]:
    """The most likely sentences on the line between the posterior means of two sentences."""
    first, last = model.posterior(model.encode_texts([one, other])).mean
    share = torch.linspace(0, 1, steps, device=first.device)[:, None]
    decoded = model.latent_model.decoder_output((first + share * (last - first))[None])[0]
    return model.decode_texts(model.latent_model.likelihood.most_likely(decoded))


def main() -> None:
    """Train, print reports, reconstructions, samples and an interpolation."""
    parser = argparse.ArgumentParser(description="A VAE of sentences.")
    parser.add_argument("--data", type=Path, help="a text file; else sentences of a small grammar")
    path = parser.parse_args().data
    torch.set_num_threads(1)  # the layers are small
    made = make_sentences(1200)
    try:
        data = recmix.data.load(path) if path else recmix.data.from_texts(made[100:], test=made[:100])
    except recmix.RecmixError as error:
        parser.error(str(error))
    start = time.process_time()
    plain, vae, rme = train(data, epochs=20, options=LARGE if path else SMALL)
    assert data.x_test is not None
    assert data.vocabulary is not None
    print(
        f"trained on {len(data.x_train):,} sentences, vocabulary of {data.vocabulary.classes:,} tokens: "
        f"{time.process_time() - start:.0f} s of CPU time"
    )
    x = data.x_test[: 1000 if path else 100]
    rows = {
        "vae, no option against collapse": plain,
        "vae": vae,
        "vae, refined": vae.refined(2, how="variational"),
        "rme": rme,
        "rme, refined": rme.refined(2, how="variational"),
    }
    console = Console(width=140)
    console.print(report_table(rows, x))

    sentences = vae.decode_texts(x[:4])
    console.print("\nreconstructions:")
    for given, found in zip(sentences, vae.reconstruct_texts(sentences), strict=True):
        console.print(f"  {given}  ->  {found}", highlight=False)
    console.print("\nsamples:")
    for text in vae.sample_texts(4, seed=0):
        console.print(f"  {text}", highlight=False)
    console.print(f"\nfrom '{sentences[0]}' to '{sentences[1]}':")
    for text in between(vae, sentences[0], sentences[1]):
        console.print(f"  {text}", highlight=False)


if __name__ == "__main__":
    main()
