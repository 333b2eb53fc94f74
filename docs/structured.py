"""Inference for texts and molecules: ``python docs/structured.py FOLDER --encoded FOLDER``.

For each kind of data and each split: a VAE, its control VAE+ (2 or 3 more epochs without free bits), the
methods of the paper with the same number of updates as the control, and VAE+ refined and calibrated.
Test examples are scored with the ELBO and the IWAE-100 bound. Validation decides the best epoch and the
calibration. The gap of VAE+ is measured in its two parts. The results of a kind are written to
``FOLDER/KIND.json`` after every row. Only the part ``molecules`` needs RDKit; it also runs on a CPU.

Kinds: ``text`` (sentences of WikiText-2, each word given those before it), ``strings`` (SMILES strings
of ZINC250k, each token given those before it), ``parallel`` (the same with a decoder that gives all
tokens at once) and ``graphs`` (the same molecules as graphs).

``--save`` stores all models in half precision, and ``--load`` reads them instead of training. Rows that
are already in the results are not scored again. Times are measured by the part ``times`` alone, so that
kinds can be studied side by side on one GPU before.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import recmix
from recmix.data import ArrayExamples, Data, from_texts
from recmix.evaluation.molecules import molecule_scores
from recmix.evaluation.timing import posterior_milliseconds
from recmix.model.vocabulary import vocabulary_from_json
from recmix.training.checkpoint import save_weights

SIZE = {"units": 128, "heads": 4, "blocks": 2}
KINDS: dict[str, dict[str, Any]] = {
    "text": {
        "texts": {"kind": "words", "length": 32, "vocabulary_size": 5000},
        "model": {"likelihood": "autoregressive", "latent": 32, "token_dropout": 0.3, **SIZE},
        "first": {"epochs": 12, "kl_warmup": 3, "free_bits": 0.1},
        "second": {"epochs": 2, "learning_rate": 3e-4, "batch_size": 256},
    },
    "strings": {
        "texts": {"kind": "smiles", "length": 64},
        "model": {"likelihood": "autoregressive", "latent": 56, **SIZE},
        "first": {"epochs": 18, "kl_warmup": 5, "free_bits": 0.05},
        "second": {"epochs": 2, "learning_rate": 3e-4, "batch_size": 256},
    },
    "parallel": {
        "texts": {"kind": "smiles", "length": 64},
        "model": {"likelihood": "categorical", "latent": 56, **SIZE, "blocks": 3},
        "first": {"epochs": 46, "kl_warmup": 8, "final_rate": 0.1},
        "second": {"epochs": 3, "learning_rate": 1e-4, "batch_size": 128},
    },
    "graphs": {
        "texts": {"kind": "molecule-graphs"},
        "model": {"latent": 56, "units": 128, "blocks": 3},
        "first": {"epochs": 30, "kl_warmup": 10, "free_bits": 0.1, "final_rate": 0.1},
        "second": {"epochs": 3, "learning_rate": 1e-4, "batch_size": 128},
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "VAE+": {"method": "vae"},
    "ME(2)": {"method": "me", "order": 2},
    "RME(2)": {"method": "rme", "order": 2},
    "SA(4)": {"method": "sa", "steps": 4},
    "IWAE(5)": {"method": "iwae", "samples": 5},
}
LONGER: dict[str, dict[str, Any]] = {
    "VAE+ longer": {"method": "vae"},
    "ME(2) longer": {"method": "me", "order": 2, "fresh_rate": 3},
    "RME(2) longer": {"method": "rme", "order": 2},
    "IWAE(5) longer": {"method": "iwae", "samples": 5},
}
"""Methods that continue from VAE+ for some more epochs, with a control of their own. Validation chooses
their epochs by IWAE-5: by the ELBO, the epochs of IWAE would never be better than their start."""
SLOW = "SA(4)"
"""The method that is trained last, since it takes longest."""
REFINED: dict[str, dict[str, Any]] = {
    "VAE+ refined, 2 steps": {"refine": 2, "how": "variational", "checks": 4},
    "VAE+ refined, 8 steps": {"refine": 8, "how": "variational", "checks": 4},
    "VAE+ Laplace, 4 steps": {"refine": 4, "checks": 4},
}
PARTS = ("methods", "refined", "gap", "calibrated", "slow", "reports", "times", "longer", "molecules")
"""The parts of a study in their order."""
PROTOCOL = {"encodings": 4, "decodings": 4, "samples": 2000}
"""Draws of z and of molecules with which reconstruction, validity and uniqueness are measured."""
PARTITION = ("x_train", "x_val", "x_test")
TINY = {"units": 8, "heads": 2, "blocks": 1, "latent": 2, "epochs": 1, "kl_warmup": 0, "warmup": 0}
"""Options of ``--tiny``, which shows in a minute on a CPU whether everything runs."""
COMMON = {"validation_samples": 1, "schedule": "cosine"}


def read(kind: str, split: int, given: argparse.Namespace) -> Data:
    """The data of one split, from the folder of encoded data if they are there, else from the texts."""
    stored = given.encoded / f"{kind}_{split}.npz"
    about = stored.with_suffix(".json")
    if stored.exists():
        vocabulary = vocabulary_from_json(json.loads(about.read_text()))
        with np.load(stored) as arrays:
            parts = [ArrayExamples(arrays[name].astype(np.float32)) for name in ("train", "val", "test")]
        parts[0] = ArrayExamples(np.asarray(parts[0][: given.count]))
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


class Study:
    """Trains and scores everything for one kind of data.

    Args:
        kind: the kind of data.
        given: the options of the command.
    """

    def __init__(self, kind: str, given: argparse.Namespace) -> None:
        self.kind, self.given, self.began = kind, given, time.time()
        self.out = given.out / f"{kind}.json"
        self.sets = [read(kind, split, given) for split in range(given.splits)]
        if given.tiny:
            few = {p: ArrayExamples(np.asarray(getattr(self.sets[0], p)[:32])) for p in PARTITION}
            self.sets = [replace(data, **few) for data in self.sets[:1] * given.splits]
        self.tests = [torch.as_tensor(np.asarray(data.x_test[: given.tested])) for data in self.sets]
        self.held = [torch.as_tensor(np.asarray(data.x_val[: given.held])) for data in self.sets]
        self.memory = given.memory * 2**30 if torch.cuda.is_available() else None
        self.scores: dict[tuple[str, int], Callable[[], tuple[Any, ...]]] = {}
        self.models: dict[str, list[recmix.Model]] = {}
        names = ("rows", "times", "history", "gaps", "reports", "molecules")
        self.found: dict[str, Any] = {"about": {}, "second_history": {}} | {name: [] for name in names}
        if given.load and self.out.exists():
            self.found |= json.loads(self.out.read_text())
        self.say(self.sets[0])

    def say(self, *words: Any) -> None:
        """Print a line with the kind of data and the time."""
        print(f"{self.kind} {time.time() - self.began:.0f} s:", *words, flush=True)

    def store(self) -> None:
        """Write what was found so far into the file of results."""
        about = {k: v for k, v in vars(self.given).items() if isinstance(v, int | float)}
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        first = {"torch": torch.__version__, "device": device} | about
        self.found["about"] = first | self.found["about"]  # what an earlier run said stays
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(self.found, indent=1, default=str) + "\n")

    def run(self, parts: list[str]) -> None:
        """Do these parts, the most important ones first."""
        if self.given.load:
            self.loaded()
        for name in [part for part in PARTS if part in parts]:
            getattr(self, name)()
            self.store()
            self.say(f"{name} done")

    def add(
        self,
        row: str,
        models: list[Callable[[], recmix.Model]],
        over: str = "",
        few: int | None = None,
    ) -> None:
        """Score a row in every split, and compare it with another row on the same examples.

        Args:
            row: name of the row.
            models: makes the model of each split.
            over: name of the row to compare with, which was scored or loaded before.
            few: how many test examples are scored; None means all.
        """
        done = {found["split"] for found in self.found["rows"] if found["row"] == row}
        self.remember(row, models, few)
        for split in range(len(models)):
            if split in done:
                continue
            inference, *bounds = self.scores[row, split]()
            found = {"row": row, "split": split, "examples": len(bounds[0]), "inference": inference}
            for number, (name, bound) in enumerate(zip(("elbo", "iwae"), bounds, strict=True), 1):
                found |= {name: float(bound.mean()), f"{name}_error": _error(bound)}
                if over:
                    gain = bound - self.scores[over, split]()[number]
                    found |= {f"{name}_gain": float(gain.mean()), f"{name}_gain_error": _error(gain)}
            self.found["rows"].append(found)
            self.store()
            self.say(row, split, f"{found['elbo']:.2f} {found['iwae']:.2f}", found.get("elbo_gain", ""))

    def remember(
        self, row: str, models: list[Callable[[], recmix.Model]], few: int | None = None
    ) -> None:
        """Make the bounds of a row available to `add`; they are computed when they are needed."""
        for split, make in enumerate(models):
            self.scores[row, split] = functools.cache(functools.partial(self._bounds, make, split, few))

    def _bounds(
        self, make: Callable[[], recmix.Model], split: int, few: int | None
    ) -> tuple[str, torch.Tensor, torch.Tensor]:
        """The inference of a model, and the ELBO and IWAE bound of each test example of a split."""
        model = make()
        elbo, iwae = model.bounds(self.tests[split][:few], 100, memory=self.memory)
        return model.inference.key, elbo.double(), iwae.double()

    def train(self, stage: str, requests: list[dict[str, Any]]) -> list[recmix.Model]:
        """Train models of one stage, and save them if that is wanted."""
        models = recmix.fit_many(requests, progress=False)
        if self.given.save:
            for request, model in zip(requests, models, strict=True):
                folder = self.given.save / self.kind / stage.format(**request)
                _save(model, folder / str(request["seed"]))
        self.say(stage, "trained")
        return models

    def loaded(self) -> None:
        """Load the models of an earlier run, as far as they are there."""
        stages = {"VAE": "first"} | {name: options["method"] for name, options in METHODS.items()}
        for name, stage in stages.items():
            folder = self.given.load / self.kind / stage
            if folder.exists():
                self.models[name] = [recmix.load(folder / str(s)) for s in range(len(self.sets))]
                self.remember(name, [lambda m=model: m for model in self.models[name]])

    def methods(self) -> None:
        """The VAE, and the second stage of every method, which starts from it."""
        if self.given.load:
            for name in self.models:
                self.score(name)
            return
        chosen, splits = KINDS[self.kind], list(enumerate(self.sets))
        first = {"learning_rate": 1e-3, "batch_size": 128, "warmup": 1, "patience": 6}
        first |= {**COMMON, **chosen["first"], **chosen["model"]}
        first["epochs"] = self.given.epochs or first["epochs"]
        first |= TINY if self.given.tiny else {}
        requests = [{"method": "vae", "data": data, "seed": s, **first} for s, data in splits]
        vaes = self.models["VAE"] = self.train("first", requests)
        self.found["history"] = _curves(vaes)
        self.found["about"]["first_stage"] = {k: v for k, v in first.items() if not isinstance(v, Data)}
        self.score("VAE")
        self.second([name for name in self.given.rows if name != SLOW])

    def slow(self) -> None:
        """The second stage of the method that takes longest."""
        if not self.given.load and SLOW in self.given.rows:
            self.second([SLOW])

    def second(self, names: list[str]) -> None:
        """Train and score the second stage of some methods, which starts from the VAE."""
        common = {"patience": 0, **KINDS[self.kind]["second"]}
        common["epochs"] = self.given.second or common["epochs"]
        self.found["about"]["second_stage"] = common | COMMON
        splits = list(enumerate(self.sets))
        requests = [
            {"data": data, "init": self.models["VAE"][s], "seed": s, **common, **COMMON, **METHODS[name]}
            for name in names
            for s, data in splits
        ]
        models = self.train("{method}", requests)
        for i, name in enumerate(names):
            self.models[name] = models[i * len(splits) : (i + 1) * len(splits)]
            self.found["second_history"][name] = _curves(self.models[name])
            self.score(name)

    def longer(self) -> None:
        """Some methods that continue from VAE+ at a larger learning rate, all in one training."""
        common = COMMON | {"epochs": 6, "learning_rate": 3e-4, "batch_size": 128, "patience": 0}
        common["validation_samples"] = 5
        self.found["about"]["longer"] = common
        splits = list(enumerate(self.sets))
        requests = [
            {"data": data, "init": self.best[s], "seed": s, **common, **options}
            for options in LONGER.values()
            for s, data in splits
        ]
        trained = self.train("longer_{method}", requests)
        for i, name in enumerate(LONGER):
            models = trained[i * len(splits) : (i + 1) * len(splits)]
            self.found["second_history"][name] = _curves(models)
            over = "VAE+ longer" if name != "VAE+ longer" else ""
            self.add(name, [lambda m=model: m for model in models], over)

    def score(self, name: str) -> None:
        """Score the models of one row on all test examples."""
        over = "VAE+" if name not in ("VAE", "VAE+") else ""
        self.add(name, [lambda m=model: m for model in self.models[name]], over)

    @property
    def best(self) -> list[recmix.Model]:
        """The models that are refined, calibrated and measured: VAE+, or VAE without a second stage."""
        return self.models.get("VAE+") or self.models["VAE"]

    def refined(self) -> None:
        """Refinements of VAE+ on a few examples, and VAE+ itself on the same ones."""
        few = self.given.refined
        self.add("VAE+, few examples", [lambda m=m: m for m in self.best], few=few)
        for name, options in REFINED.items():
            makers = [lambda m=m, o=options: m.using(**o) for m in self.best]
            self.add(name, makers, "VAE+, few examples", few)

    def calibrated(self) -> None:
        """VAE+ with calibrated standard deviations, with calibrated noise too, and refined."""
        pairs, how = list(zip(self.best, self.held, strict=True)), {"samples": 20, "memory": self.memory}
        self.add("VAE+ calibrated", [lambda m=m, h=h: m.calibrated(h, **how) for m, h in pairs], "VAE+")
        makers = [lambda m=m, h=h: m.calibrated(h, noise=True, **how) for m, h in pairs]
        self.add("VAE+ calibrated with noise", makers, "VAE+")
        two = REFINED["VAE+ refined, 2 steps"]
        makers = [lambda m=m, h=h: m.using(**two).calibrated(h, **how) for m, h in pairs]
        name = "VAE+ refined, 2 steps, calibrated"
        self.add(name, makers, "VAE+, few examples", self.given.refined)

    def gap(self) -> None:
        """The gap of VAE+ and its two parts, on a few examples."""
        for split in range(len(self.found["gaps"]), len(self.sets)):
            x = self.tests[split][: self.given.gap]
            measured = self.best[split].gap(x, samples=300, check=0, memory=self.memory)
            self.found["gaps"].append({"split": split, "examples": len(x), **measured.summary()["test"]})
            self.store()
            self.say("gap", split, self.found["gaps"][-1])

    def reports(self) -> None:
        """What z holds: KL, mutual information, active units and perplexity of VAE and VAE+."""
        for split, x in enumerate(self.tests):
            for name, models in [pair for pair in self.models.items() if pair[0] in ("VAE", "VAE+")]:
                if any((r["row"], r["split"]) == (name, split) for r in self.found["reports"]):
                    continue
                report = models[split].latent_report(x, 20, memory=self.memory).to_json()
                self.found["reports"].append({"row": name, "split": split, **report})
                self.store()
        self.say("report", self.found["reports"][-1])

    def times(self) -> None:
        """Microseconds for each example of a batch of 100: computing a posterior and a draw from it.

        The weights do not change these times. A method whose model was not loaded is timed with a model
        that was trained for one update.
        """
        self.found["times"] = []
        used = {
            name: (self.models.get(name) or [self.one_update(name)])[0] for name in ["VAE", *METHODS]
        }
        shortest_first = sorted(REFINED.items(), key=lambda pair: pair[1]["refine"])
        used |= {name: self.best[0].using(**options) for name, options in shortest_first}
        for name, model in used.items():
            x = self.tests[0][:100].to(model.device)
            repeats = 2 if name in REFINED else 10
            taken = posterior_milliseconds(model.method, x, model.inference, repeats=repeats)
            self.found["times"].append({"row": name, "microseconds": 1e3 * taken / len(x)})
            self.store()
            self.say(name, f"{1e3 * taken / len(x):.0f} µs for each example")

    def one_update(self, name: str) -> recmix.Model:
        """A model of one method after one update."""
        few = {p: ArrayExamples(np.asarray(getattr(self.sets[0], p)[:100])) for p in PARTITION}
        options = {"epochs": 1, "batch_size": 100, "engine": "eager"}
        options |= COMMON | METHODS.get(name, {"method": "vae"})
        return recmix.fit(
            data=replace(self.sets[0], **few), init=self.best[0], seed=0, progress=False, **options
        )

    def molecules(self) -> None:
        """Reconstruction, validity, uniqueness and novelty of VAE+, if the data are molecules."""
        if not self.sets[0].vocabulary.molecules:
            return
        for split in range(len(self.found["molecules"]), len(self.sets)):
            data = self.sets[split]
            train = data.vocabulary.decode(np.asarray(data.x_train[:]))
            scores = molecule_scores(self.best[split], self.tests[split][:250], train, **PROTOCOL)
            self.found["molecules"].append({"split": split, **scores.to_json()})
            self.store()
            self.say("molecules", split, scores)


def _save(model: recmix.Model, folder: Path) -> None:
    """Write a model into a folder, its weights in half precision."""
    state = model.method.state_dict()
    weights = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    model.save(folder, overwrite=True)
    save_weights(folder / "weights.safetensors", weights)


def _curves(models: list[recmix.Model]) -> list[list[float]]:
    """The validation bound of every model after each of its epochs."""
    return [[round(epoch["val_iwae"], 3) for epoch in model.history] for model in models]


def _error(values: torch.Tensor) -> float:
    """The standard error of a mean over examples."""
    return float(values.std() / len(values) ** 0.5)


def main() -> None:
    """Study each kind of data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--data-root", type=Path, default=None, help="folder with text/ and molecules/")
    parser.add_argument("--encoded", type=Path, required=True, help="encoded data, made if new")
    parser.add_argument("--prepare", action="store_true", help="only encode the data")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--rows", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--tiny", action="store_true", help="tiny networks on 32 examples, as a test")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--count", type=int, default=20_000, help="training texts")
    parser.add_argument("--epochs", type=int, default=0, help="of the VAE; 0: as many as KINDS says")
    parser.add_argument("--second", type=int, default=0, help="of a second stage; 0: as KINDS says")
    parser.add_argument("--tested", type=int, default=500, help="test texts")
    parser.add_argument("--held", type=int, default=100, help="validation texts for calibration")
    parser.add_argument("--refined", type=int, default=100, help="test texts that are also refined")
    parser.add_argument("--gap", type=int, default=16, help="test texts whose gap is measured")
    parser.add_argument("--memory", type=int, default=8, help="GiB of activations at a time, on a GPU")
    parser.add_argument("--save", type=Path, default=None, help="folder for all trained models")
    parser.add_argument("--load", type=Path, default=None, help="folder of models trained before")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    for kind in given.kinds:
        study = Study(kind, given)
        if not given.prepare:
            study.run(given.parts if given.load else ["methods", *given.parts])


if __name__ == "__main__":
    main()
