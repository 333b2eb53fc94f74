"""Inference for texts and molecules: ``python docs/structured.py OUT.json --data-root FOLDER``.

For each kind of data and each split: a VAE, its control VAE+ (also calibrated, and with calibrated
noise), the methods of the paper with the same budget of updates, and refinements of the VAE. Test
examples are scored once, with the ELBO and the IWAE-100 bound. Validation decides the best epoch and
the calibration. The gap of the VAE is measured in its two parts. It needs a GPU and RDKit.

Kinds: ``text`` (sentences of WikiText-2, each word given those before it), ``strings`` (SMILES strings
of ZINC250k, each token given those before it), ``parallel`` (the same with a decoder that gives all
tokens at once) and ``graphs`` (the same molecules as graphs).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import recmix
from recmix.data import ArrayExamples, Data, from_texts
from recmix.evaluation.molecules import molecule_scores
from recmix.evaluation.timing import posterior_milliseconds
from recmix.model.vocabulary import vocabulary_from_json

SIZE = {"units": 128, "heads": 4, "blocks": 2}
KINDS: dict[str, dict[str, Any]] = {
    "text": {
        "texts": {"kind": "words", "length": 32, "vocabulary_size": 5000},
        "model": {"likelihood": "autoregressive", "latent": 32, "token_dropout": 0.3, **SIZE},
        "first": {"kl_warmup": 3, "free_bits": 0.1},
    },
    "strings": {
        "texts": {"kind": "smiles", "length": 64},
        "model": {"likelihood": "autoregressive", "latent": 56, **SIZE},
        "first": {"kl_warmup": 5, "free_bits": 0.05},
    },
    "parallel": {
        "texts": {"kind": "smiles", "length": 64},
        "model": {"likelihood": "categorical", "latent": 56, **SIZE, "blocks": 3},
        "first": {},
    },
    "graphs": {
        "texts": {"kind": "molecule-graphs"},
        "model": {"latent": 56, "units": 128, "blocks": 3},
        "first": {"kl_warmup": 5, "free_bits": 0.05},
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "VAE+": {"method": "vae"},
    "ME(2)": {"method": "me", "order": 2},
    "RME(2)": {"method": "rme", "order": 2},
    "SA(4)": {"method": "sa", "steps": 4},
    "IWAE(5)": {"method": "iwae", "samples": 5},
}
REFINED: dict[str, dict[str, Any]] = {
    "variational 8": {"refine": 8, "how": "variational", "checks": 4},
    "variational 2": {"refine": 2, "how": "variational", "checks": 4},
    "laplace 4, unchecked": {"refine": 4, "checks": 0},
    "laplace 4": {"refine": 4, "checks": 4},
}
PROTOCOL = {"encodings": 4, "decodings": 4, "samples": 2000}
"""Draws of z and of molecules with which reconstruction, validity and uniqueness are measured."""


def read(kind: str, split: int, given: argparse.Namespace) -> Data:
    """The data of one split, from the folder of encoded data if they are there, else from the texts."""
    stored = given.encoded / f"{kind}_{split}.npz"
    about = stored.with_suffix(".json")
    if stored.exists():
        vocabulary = vocabulary_from_json(json.loads(about.read_text()))
        with np.load(stored) as arrays:
            parts = [ArrayExamples(arrays[name].astype(np.float32)) for name in ("train", "val", "test")]
        return Data("texts", *parts, seed=split, fields=vocabulary.fields, vocabulary=vocabulary)
    data = _from_texts(kind, split, given)
    given.encoded.mkdir(parents=True, exist_ok=True)
    about.write_text(json.dumps(data.vocabulary.describe()))
    parts = {"train": data.x_train, "val": data.x_val, "test": data.x_test}
    np.savez_compressed(stored, **{name: np.asarray(x[:]).astype(np.int16) for name, x in parts.items()})
    return data


def _from_texts(kind: str, split: int, given: argparse.Namespace) -> Data:
    """Training, validation and test texts, drawn by the number of the split."""
    options = KINDS[kind]["texts"]
    rng = np.random.default_rng(split)
    if options["kind"] == "words":
        files = [f"wikitext2_sentences.{part}.txt.gz" for part in ("train", "valid", "test")]
        parts = [_lines(given.data_root / "text" / name) for name in files]
        short = [[text for text in part if len(text.split()) < options["length"]] for part in parts]
        train, val, test = ([part[i] for i in rng.permutation(len(part))] for part in short)
        return from_texts(train[: given.count], val[:2000], test[:2000], **options, seed=split)
    texts = _lines(given.data_root / "molecules" / "zinc250k.smi.gz")
    drawn = [texts[i] for i in rng.permutation(len(texts))[: given.count + 4000]]
    return from_texts(drawn[4000:], drawn[2000:4000], drawn[:2000], **options, seed=split)


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [line.strip() for line in lines if line.strip()]


def scored(model: recmix.Model, x: torch.Tensor, **about: Any) -> dict[str, Any]:
    """The bounds of examples with their standard errors, and the time of a posterior."""
    elbo, iwae = (bound.double() for bound in model.bounds(x, 100))
    found = {**about, "inference": model.inference.key, "examples": len(x)}
    for name, bound in (("elbo", elbo), ("iwae", iwae)):
        found |= {name: float(bound.mean()), f"{name}_error": float(bound.std() / len(x) ** 0.5)}
    batch = x[:100].to(model.device)
    found["milliseconds"] = posterior_milliseconds(model.method, batch, model.inference, repeats=3)
    return found


class Study:
    """Trains and scores everything for one kind of data.

    Args:
        kind: the kind of data.
        given: the options of the command.
    """

    def __init__(self, kind: str, given: argparse.Namespace) -> None:
        self.kind, self.given, self.began = kind, given, time.time()
        self.sets = [read(kind, split, given) for split in range(given.splits)]
        self.tests = [torch.as_tensor(np.asarray(data.x_test[: given.tested])) for data in self.sets]
        self.held = [torch.as_tensor(np.asarray(data.x_val[:100])) for data in self.sets]
        self.found: dict[str, Any] = {
            "rows": [],
            "skipped": [],
            "gaps": [],
            "reports": [],
            "molecules": [],
        }
        self.say(self.sets[0])

    def say(self, *words: Any) -> None:
        """Print a line with the kind of data and the time."""
        print(f"{self.kind} {time.time() - self.began:.0f} s:", *words, flush=True)

    def add(self, name: str, models: Callable[[], list[recmix.Model]], count: int | None = None) -> None:
        """Add a row for each split, unless the time is over.

        Args:
            name: name of the row.
            models: makes the models of all splits.
            count: how many test examples are scored; None means all.
        """
        if time.time() - self.began > self.given.seconds:
            self.found["skipped"].append(name)
            return
        rows = [
            scored(model, x[:count], split=split, row=name)
            for split, (model, x) in enumerate(zip(models(), self.tests, strict=True))
        ]
        self.found["rows"] += rows
        self.store()
        self.say(name, *(f"{row['elbo']:.2f} {row['iwae']:.2f}" for row in rows))

    def store(self) -> None:
        """Write what was found so far into the file of results."""
        out = self.given.out
        found = json.loads(out.read_text()) if out.exists() else {}
        options = {k: v for k, v in vars(self.given).items() if isinstance(v, int | float)}
        about = {"torch": torch.__version__, **options, "seconds": time.time() - self.began}
        found[self.kind] = {"about": about, **self.found}
        out.write_text(json.dumps(found, indent=1, default=str) + "\n")

    def run(self) -> None:
        """Train, score and store."""
        given, sets = self.given, self.sets
        chosen = KINDS[self.kind]
        common = {"batch_size": 256, "validation_samples": 1, "patience": 0, "schedule": "cosine"}
        first = {"learning_rate": 1e-3, **common, **chosen["first"], **chosen["model"]}
        vaes = recmix.fit_many(
            [
                {"method": "vae", "data": data, "seed": s, "epochs": given.epochs, **first}
                for s, data in enumerate(sets)
            ],
            progress=False,
        )
        self.say("VAE trained", [round(max(h["val_iwae"] for h in vae.history), 2) for vae in vaes])
        if given.save:
            for split, vae in enumerate(vaes):
                vae.save(given.save / f"{self.kind}_{split}")
        self.add("VAE", lambda: vaes)
        self.found["reports"] = [
            v.latent_report(x).to_json() for v, x in zip(vaes, self.tests, strict=True)
        ]
        self.say("report", self.found["reports"][0])
        if given.second:
            self._second_stage(vaes, {"epochs": given.second, "learning_rate": 3e-4, **common})
        few = given.refined
        self.add("VAE, refined examples", lambda: vaes, few)
        for name, options in REFINED.items():
            self.add(name, lambda options=options: [vae.using(**options) for vae in vaes], few)
        self.found["gaps"] = [self._gap(vae, x) for vae, x in zip(vaes, self.tests, strict=True)]
        self.say("gap", self.found["gaps"][0])
        if sets[0].vocabulary.molecules:
            for vae, x in zip(vaes, self.tests, strict=True):
                if time.time() - self.began < given.seconds:
                    self.found["molecules"].append(
                        molecule_scores(vae, x[:250], None, **PROTOCOL).to_json()
                    )
            self.say("molecules", self.found["molecules"][:1])
        self.store()

    def _gap(self, vae: recmix.Model, x: torch.Tensor) -> dict[str, Any]:
        if time.time() - self.began > self.given.seconds:
            return {}
        return vae.gap(x[: self.given.gap], samples=300, check=0).summary()

    def _second_stage(self, vaes: list[recmix.Model], second: dict[str, Any]) -> None:
        """Train all methods from the VAEs with the same number of updates, and score them."""
        requests = [
            {"data": data, "init": vae, "seed": s, **second, **options}
            for options in METHODS.values()
            for s, (data, vae) in enumerate(zip(self.sets, vaes, strict=True))
        ]
        models = recmix.fit_many(requests, progress=False)
        self.say("second stage trained")
        by_name = {name: models[i * len(vaes) : (i + 1) * len(vaes)] for i, name in enumerate(METHODS)}
        for name, some in by_name.items():
            self.add(name, lambda some=some: some)
        plus = list(zip(by_name["VAE+"], self.held, strict=True))
        self.add("VAE+ calibrated", lambda: [m.calibrated(h, 20) for m, h in plus])
        self.add("VAE+ calibrated+noise", lambda: [m.calibrated(h, 20, noise=True) for m, h in plus])


def main() -> None:
    """Study each kind of data and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-root", type=Path, default=None, help="folder with text/ and molecules/")
    parser.add_argument(
        "--encoded", type=Path, required=True, help="folder of encoded data, made if new"
    )
    parser.add_argument("--prepare", action="store_true", help="only encode the data")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--count", type=int, default=20_000, help="training texts")
    parser.add_argument("--epochs", type=int, default=30, help="of the VAE")
    parser.add_argument("--second", type=int, default=3, help="epochs of every second stage")
    parser.add_argument("--tested", type=int, default=500, help="test texts")
    parser.add_argument("--refined", type=int, default=100, help="test texts that are also refined")
    parser.add_argument("--gap", type=int, default=32, help="test texts whose gap is measured")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no new row after this time")
    parser.add_argument("--save", type=Path, default=None, help="folder for the trained VAEs")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    for kind in given.kinds:
        study = Study(kind, given)
        if not given.prepare:
            study.run()


if __name__ == "__main__":
    main()
