"""One column of the paper's tables, by the protocol of docs/protocol.md.

    python docs/columns.py mnist 20 --out DIR --data-root ROOT --seconds 540
    python docs/columns.py mnist 20 --out DIR --data-root ROOT --seconds 540 --score

The first command trains all methods, all splits of a method at once; give it again until it says that
everything is trained (until then its exit status is 75). It reads no test images. The second one scores
the test images once and writes ``rows.json``; ``--merge docs/results/columns.json`` also puts the rows
there. ``--time`` measures the times of posteriors, while nothing else uses the GPU. ``--pack FOLDER``
writes the weights with half precision, as parts of a tar file. ``--decoder dense`` runs the rows of the
paper's table of fully connected decoders. A column needs a GPU; one of OMNIGLOT with a fully connected
decoder and 10 dimensions takes about two hours on two CPU cores. docs/many_columns.py runs several
columns at once.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import subprocess
import sys
import time
import warnings
from bisect import bisect_left
from pathlib import Path
from typing import Any

import torch
from study import MEMORY, Clock, Folder, pack, read, read_json, say, write

import recmix
from recmix.errors import RecmixError
from recmix.evaluation import bounds
from recmix.evaluation.score import TIMED_BATCH, device_name, kind_of_inference
from recmix.evaluation.timing import posterior_milliseconds
from recmix.inference import Inference
from recmix.methods.method import Method, infer
from recmix.training.plan import make_plan

UNFINISHED = 75
"""Exit status if the time ended before everything was trained or scored."""
AT_ONCE = 1000
"""Test images whose posteriors are computed together."""

Options = dict[str, Any]

FIRST: Options = {"learning_rate": 1e-3, "schedule": "cosine", "patience": 0, "validation_samples": 1}
FIRST_EPOCHS = {
    "mnist": 100,
    "binary-mnist": 100,
    "omniglot": 60,
    "svhn": 100,
    "cifar10": 80,
    "celeba": 100,
}
"""Epochs of the VAE; the rate decays over all of them, and the best on validation images is kept."""
WARMUP = 4
"""Epochs in which the weight of the KL divergence rises to 1, for a fully connected decoder.

Without it the posterior stays at the prior: on OMNIGLOT 10 the bound of the validation images is 96
after 8 epochs, with it 255.
"""
SECOND: Options = {"schedule": "cosine", "patience": 0, "batch_size": 128}
RATE: Options = {"learning_rate": 1e-4}
ENCODER: Options = {
    "train": "encoder",
    "augment": 0.3,
    "decoder_samples": 0.3,
    "learning_rate": 1e-4,
    "fresh_rate": 5,
}
"""Encoder-only training with a fixed decoder."""
FREE: Options = {"component": "residual", "bound": 1.0, "eps_max": 0.99}
"""The recursion's best: residual components, gates up to 0.99, C = 1."""
RATES = Path(__file__).resolve().parent / "results" / "rates.json"
"""The rates that ``--pilot`` chose, by row. A row that is not there has the rates of `GROUPS`."""

GROUPS: list[dict[str, Options]] = [
    {
        "VAE+": {"method": "vae", **RATE},
        "VAE+ at rate 1e-4": {"method": "vae", **RATE},
        "IAF(2)": {"method": "iaf", "flows": 2, **RATE, "fresh_rate": 10},
        "IAF(4)": {"method": "iaf", "flows": 4, **RATE, "fresh_rate": 10},
        "HF(4)": {"method": "hf", "flows": 4, **RATE, "fresh_rate": 30},
        "IWAE(5)": {"method": "iwae", "samples": 5, "learning_rate": 3e-4},
        "ME(2)": {"method": "me", "order": 2, **RATE, "fresh_rate": 5},
        "ME(5)": {"method": "me", "order": 5, **RATE, "fresh_rate": 5},
    },
    {
        "RME(2)": {"method": "rme", "order": 2, **RATE, "fresh_rate": 10},
        "RME(5)": {"method": "rme", "order": 5, **RATE, "fresh_rate": 10},
        "BVI-ER1(3)": {"method": "bvi-er1", "order": 3, **RATE, "fresh_rate": 1},
        "BVI-ER2(3)": {"method": "bvi-er2", "order": 3, **RATE, "fresh_rate": 1},
    },
    {
        "RESIDUAL": {"method": "residual", "corrections": 3, **ENCODER},
        "RME RESIDUAL(4)": {"method": "rme", "order": 4, **FREE, **ENCODER},
        "WIDE": {"method": "wide", **RATE, "fresh_rate": 3},
    },
    {
        "SA(4)": {"method": "sa", "steps": 4, **RATE},
        "VLAE(2)": {"method": "vlae", "steps": 2, **RATE},
        "REFINED": {"method": "vae", "refine": 4, "reuse": 0, "learning_rate": 3e-4},
    },
    {"CURVATURE": {"method": "curvature", "learning_rate": 1e-3}},
]
"""The second stage: groups of rows that are trained together, with their options.

A group has several rows, because eight or more models in one CUDA graph use the GPU best.
"""
FIXED = ("VAE+ at rate 1e-4",)
"""Rows whose rate the pilot does not choose.

This one is the control at the rate of ME and RME. Where the rate that was chosen for VAE+ is too high
for a data set, VAE+ is too weak a control.
"""
ROWS: dict[str, Options] = {row: options for group in GROUPS for row, options in group.items()}
DENSE: dict[str, Options] = {
    "VAE+": ROWS["VAE+"],
    **{f"SA({steps})": ROWS["SA(4)"] | {"steps": steps} for steps in (1, 2, 4, 8)},
    **{f"RME({order})": ROWS["RME(5)"] | {"order": order} for order in (2, 3, 4, 5)},
    **{f"VLAE({steps})": ROWS["VLAE(2)"] | {"steps": steps} for steps in (1, 2, 4, 8)},
}
"""The second stage with a fully connected decoder: the rows of the paper's table 5, and VAE+."""


def rows_with_rates(path: Path = RATES) -> dict[str, Options]:
    """The options of each row, with the rates that the pilot chose for its method."""
    chosen = read_json(path).get("rates", {})
    options = {row: options | chosen.get(row, {}) for row, options in ROWS.items()}
    for row, of_row in DENSE.items():
        same = next(name for name in ROWS if alike(ROWS[name], of_row))
        options.setdefault(row, of_row | chosen.get(same, {}))
    return options


SCORED: dict[str, tuple[str, Options]] = {
    "VAE": ("VAE", {}),
    "VAE+": ("VAE+", {}),
    "VAE+ calibrated width": ("VAE+", {"calibrated": {}}),
    "VAE+ calibrated noise": ("VAE+", {"calibrated": {"noise": True}}),
    "VAE+ 4 Gauss-Newton steps": ("VAE+", {"refine": 4, "reuse": 0}),
    **{row: (row, {}) for row in ROWS if row not in ("VAE+", "CURVATURE")},
    "CURVATURE(4)": ("CURVATURE", {"refine": 4, "how": "learned"}),
}
"""The rows of the table: the trained row, and the inference with which it is scored."""
DENSE_SCORED: dict[str, tuple[str, Options]] = {
    **{row: scored for row, scored in SCORED.items() if scored[0] in ("VAE", "VAE+")},
    **{row: (row, {}) for row in DENSE if row != "VAE+"},
}
"""The rows of the table of a fully connected decoder."""

START: Options = {"method": "vae", "learning_rate": 1e-12}
"""A trial that changes nothing: its bound is that of the start."""
PILOT: list[list[Options]] = [
    [
        START,
        *({"method": "vae", "learning_rate": rate} for rate in (1e-4, 3e-4)),
        *({"method": "iwae", "learning_rate": rate} for rate in (1e-5, 1e-4, 3e-4)),
        *(
            {"method": "iaf", "flows": 2, "learning_rate": rate, "fresh_rate": fresh}
            for rate, fresh in ((1e-4, 10), (1e-4, 30), (3e-4, 3), (3e-4, 10))
        ),
        *(
            {"method": "hf", "flows": 4, "learning_rate": rate, "fresh_rate": fresh}
            for rate, fresh in ((1e-4, 10), (1e-4, 30), (3e-4, 10))
        ),
        *(
            {"method": "me", "order": 3, "learning_rate": rate, "fresh_rate": fresh}
            for rate, fresh in ((1e-4, 5), (1e-4, 10), (3e-4, 2))
        ),
        *(
            {"method": "rme", "order": 4, "learning_rate": rate, "fresh_rate": fresh}
            for rate, fresh in ((1e-4, 1), (1e-4, 10), (3e-4, 3))
        ),
    ],
    [
        *(
            {"method": "wide", "learning_rate": rate, "fresh_rate": fresh}
            for rate, fresh in ((1e-4, 3), (1e-4, 10), (3e-4, 3))
        ),
        *(
            {"method": "bvi-er1", "order": 3, "learning_rate": rate, "fresh_rate": fresh}
            for rate, fresh in ((1e-4, 1), (1e-4, 10), (3e-4, 3))
        ),
        *({"method": "sa", "steps": 4, "learning_rate": rate} for rate in (1e-5, 1e-4, 3e-4)),
        *({"method": "vlae", "steps": 2, "learning_rate": rate} for rate in (1e-5, 1e-4, 3e-4)),
        *({"method": "vae", "refine": 4, "reuse": 0, "learning_rate": r} for r in (1e-4, 3e-4)),
    ],
    [{"method": "curvature", "learning_rate": rate} for rate in (3e-4, 1e-3)],
]
"""Rates that ``--pilot FILE`` tries on validation images of split 0, each list in one CUDA graph."""
SAME = ("component", "bound", "eps_max")
"""Options of a mixture that must agree for a trial to be of the same method."""
PAPER: Options = {"component": "gaussian", "bound": 500.0, "eps_max": 0.1}


def alike(one: Options, two: Options) -> bool:
    """Whether two sets of options are of the same method, with any rates, orders and steps."""
    names = {options["method"].replace("bvi-er2", "bvi-er1") for options in (one, two)}
    if len(names) > 1 or bool(one.get("refine")) != bool(two.get("refine")):
        return False
    return names != {"rme"} or all(one.get(k, PAPER[k]) == two.get(k, PAPER[k]) for k in SAME)


def choose(trials: list[Options]) -> dict[str, Options]:
    """The rates of each row: those of the trial with the best validation bound.

    Args:
        trials: rows of the file that ``--pilot`` writes. All have the same start.

    Returns:
        ``learning_rate`` and, where a trial has it, ``fresh_rate``, by row. A row without a trial is
        left out.
    """
    chosen = {}
    for row, options in ROWS.items():
        if row in FIXED:
            continue
        found = [
            trial
            for trial in trials
            if alike(trial["options"], options)
            and trial["options"].get("train") == options.get("train")
            and math.isfinite(trial["best_val_iwae"])
            and trial["options"] != START
        ]
        if found:
            best = max(found, key=lambda trial: float(trial["best_val_iwae"]))["options"]
            chosen[row] = {k: best[k] for k in ("learning_rate", "fresh_rate") if k in best}
    return chosen


class Column:
    """Trains and scores all rows for one data set and dimension.

    Args:
        given: the options of the command.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.clock = Clock(given.seconds)
        dense = given.decoder == "dense"
        self.place = given.out / f"{given.dataset}_{given.dim}{'_dense' if dense else ''}"
        self.folder = Folder(self.place, self.clock)
        self.splits = given.only or range(given.splits)
        self.epochs = given.epochs or FIRST_EPOCHS.get(given.dataset, 100)
        self.options = rows_with_rates()
        self.groups = [DENSE] if dense else GROUPS
        self.scored = DENSE_SCORED if dense else SCORED
        here = [row for group in self.groups for row in group]
        if wrong := [row for row in given.rows or [] if row not in ["VAE", *here]]:
            raise SystemExit(f"no such row with a {given.decoder} decoder: {', '.join(wrong)}")
        self.rows = given.rows or here

    def train(self) -> bool:
        """Train what is not trained yet; whether everything is."""
        given = self.given
        sets = self._sets(test=False)
        engine = {"engine": given.engine}
        first = {"method": "vae", "latent": given.dim, "epochs": self.epochs, **FIRST}
        if given.decoder != "conv":
            first |= {"decoder_network": given.decoder, "kl_warmup": WARMUP}
        requests = {
            ("VAE", s): {"data": sets[s], "seed": s, "checkpoint_every": 20, **first, **engine}
            for s in self.splits
        }
        if not self.folder.train(requests):
            return False
        starts = {s: self.folder.load("VAE", s) for s in self.splits if self.folder.done("VAE", s)}
        for group in self.groups:
            rows = {row: dict(self.options[row]) for row in group if row in self.rows}
            if "WIDE" in rows and starts:
                large = [ROWS[row] for row in ("RME(5)", "RESIDUAL", "RME RESIDUAL(4)")]
                some = next(iter(starts))
                rows["WIDE"]["width"] = wide_width(starts[some], sets[some], large)
            how = {"epochs": given.second, "checkpoint_every": 4, **SECOND, **engine}
            requests = {
                (row, s): {"data": sets[s], "init": start, "seed": s, **how, **options}
                for row, options in rows.items()
                for s, start in starts.items()
            }
            if not self.folder.train(requests):
                return False
        return True

    def _sets(self, *, test: bool) -> dict[int, Any]:
        given = self.given
        found = {
            s: read(given.dataset, s, given.data_root, test=test, most=given.images) for s in self.splits
        }
        say(next(iter(found.values())))
        return found

    def score(self) -> bool:
        """Score what is trained and not scored yet, on test images; whether everything is scored.

        The bound with many samples comes last, so that a lack of time costs that one first.
        """
        path = self.place / "scores.json"
        scores = read_json(path)
        keys = [
            (row, s)
            for row, (trained, _) in self.scored.items()
            for s in self.splits
            if self.folder.done(trained, s)
        ]
        todo = [(row, s, False) for row, s in keys if f"{row}/{s}" not in scores]
        if self.given.many:
            todo += [(row, s, True) for row, s in keys if "many" not in scores.get(f"{row}/{s}", {})]
        sets = self._sets(test=True) if todo else {}
        longest = 3.0
        for row, s, many in todo:
            if self.clock.left() < 2 * longest:
                self._write_rows(scores)
                return False
            began, key = time.time(), f"{row}/{s}"
            try:
                found = self._score(row, s, sets[s], scores.get(key, {}), many=many)
            except (RecmixError, RuntimeError) as error:
                say(f"{key} cannot be scored:", str(error)[:300])
                continue
            scores[key] = found
            write(path, scores)
            longest = max(longest, time.time() - began)
            now = found["many"] if many else found
            say(f"{key}, IWAE-{now['samples']} {now['iwae']:.2f}, {time.time() - began:.1f} s")
        self._write_rows(scores)
        return True

    def _score(self, row: str, s: int, data: Any, before: Options, *, many: bool) -> Options:
        """Bounds of the test images, with a calibration on validation images where the row has one.

        Args:
            row: the row.
            s: the split.
            data: the data of the split.
            before: what is known already.
            many: whether to add the bound with many samples of fewer images.
        """
        given = self.given
        trained, options = self.scored[row]
        model = self.folder.load(trained, s)
        if before:
            used = Inference(**before["inference"])
        else:
            plain = {k: v for k, v in options.items() if k != "calibrated"}
            model = model.using(**plain) if plain else model
            if "calibrated" in options:
                held_out = torch.as_tensor(data.x_val[:1000])
                model = model.calibrated(held_out, given.samples, **options["calibrated"])
            used = model.inference
        if many:
            count = min(given.many_images, len(data.x_test))
            found = measured(model.method, data.x_test, used, given.many, count)
            return before | {"many": found | {"samples": given.many, "images": count}}
        found = measured(model.method, data.x_test, used, given.samples, len(data.x_test))
        some = torch.as_tensor(data.x_test[:500]).to(model.device)
        with torch.no_grad():
            weights = infer(model.method, some, used).weights.double().mean(0).tolist()
        return {
            **found,
            **kind_of_inference(model.method, used),
            "samples": given.samples,
            "images": len(data.x_test),
            "inference": used.to_json(),
            "weights": weights,
            "device": device_name(model.device),
            "torch": torch.__version__,
        }

    def time(self) -> bool:
        """Measure the time of a posterior of each scored row, for the first split."""
        path = self.place / "posterior_times.json"
        times, scores = read_json(path), read_json(self.place / "scores.json")
        data = read(self.given.dataset, 0, self.given.data_root, test=False, most=self.given.images)
        x = torch.as_tensor(data.x_val[:TIMED_BATCH])
        for row, (trained, _) in self.scored.items():
            if row in times or f"{row}/0" not in scores:
                continue
            if self.clock.left() < 5:
                return False
            model = self.folder.load(trained, 0)
            used = Inference(**scores[f"{row}/0"]["inference"])
            x = x.to(model.device)
            taken = min(posterior_milliseconds(model.method, x, used, repeats=50) for _ in range(3))
            times[row] = {"milliseconds": taken, "batch": len(x), "alone": not self.given.shared}
            write(path, times)
            say(f"{row} {taken:.3f} ms for {len(x)} images")
        self._write_rows(scores)
        return True

    def _write_rows(self, scores: Options) -> None:
        """Write the rows of the column, each over its splits, and merge them where asked."""
        rows = [row for name in self.scored if (row := self._row(name, scores))]
        write(self.place / "rows.json", {"rows": rows})
        if self.given.merge:
            merge(rows, self.given.merge)

    def _row(self, name: str, scores: Options) -> Options | None:
        splits = sorted(int(key.rpartition("/")[2]) for key in scores if key.rpartition("/")[0] == name)
        if not splits:
            return None
        found = [scores[f"{name}/{s}"] for s in splits]
        trained = self.scored[name][0]
        runs = [self.folder.run(trained, s) for s in splits]
        histories = [run.history() for run in runs]
        label, setting = named(name)
        times = read_json(self.folder.times).get(trained, {})
        taken = read_json(self.place / "posterior_times.json").get(name, {})
        values = [one["iwae"] for one in found]
        return {
            "dataset": self.given.dataset,
            "dim": self.given.dim,
            "decoder": self.given.decoder,
            "row": name,
            "method": label,
            "setting": setting,
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else None,
            "splits": len(values),
            "split numbers": splits,
            "values": values,
            "elbo": statistics.fmean(one["elbo"] for one in found),
            "elbos": [one["elbo"] for one in found],
            "samples": found[0]["samples"],
            "images": found[0]["images"],
            "many": _mean_many(found),
            "inference": [Inference(**one["inference"]).changed() for one in found],
            "kind": found[0]["kind"],
            "milliseconds": taken.get("milliseconds"),
            "alone": taken.get("alone"),
            "weights": [round(w, 4) for w in found[0]["weights"]],
            "seconds of training": times.get("seconds"),
            "models together": times.get("models together"),
            "epochs": [len(history) for history in histories],
            "best epoch": [run.status().get("best_epoch") for run in runs],
            "curve": _curve(histories, "val_iwae"),
            "elbo curve": _curve(histories, "val_elbo"),
            "options": {k: v for k, v in runs[0].spec().training.changed().items() if k != "seed"},
            "method options": runs[0].spec().options,
            "device": found[0]["device"],
            "recmix": recmix.__version__,
            "commit": self.given.commit,
            "torch": found[0]["torch"],
            "command": self._command(),
        }

    def _command(self) -> str:
        """The command that trains and scores the column again, without its folders."""
        given = self.given
        words = ["python", "docs/columns.py", given.dataset, given.dim]
        words += ["--only", *given.only] if given.only else ["--splits", given.splits]
        words += ["--epochs", self.epochs, "--second", given.second]
        words += ["--decoder", given.decoder] if given.decoder != "conv" else []
        return shlex.join(str(word) for word in words)

    def pack(self, out: Path) -> None:
        """Write the weights of all trained rows, or of those that were named, in parts."""
        given = self.given
        rows = given.rows or ["VAE", *(row for group in self.groups for row in group)]
        runs = [
            self.folder.run(row, s)
            for row in rows
            for s in (given.packed_splits or self.splits)
            if self.folder.done(row, s)
        ]
        paths = pack(runs, out, self.place.name)
        first, last = given.parts
        for path in paths[:first] + paths[last:]:
            path.unlink()
        say(f"{len(paths)} parts in all; kept", *(path.name for path in paths[first:last]))

    def pilot(self, path: Path) -> bool:
        """Try rates on validation images of split 0, and write them and what they choose.

        Trials that are in the file already are not repeated: they must have the same start.
        """
        given = self.given
        data = self._sets(test=False)[0]
        start = self.folder.load("VAE", 0)
        content = read_json(path) or {"rows": []}
        complete = True
        for group in PILOT:
            left = [c for c in group if c not in [row["options"] for row in content["rows"]]]
            if left and self.clock.left() < 30:
                complete = False
                break
            common = {"data": data, "init": start, "epochs": given.second, **SECOND}
            models = recmix.fit_many([common | one for one in left])
            for one, model in zip(left, models, strict=True):
                content["rows"].append(_trial(model, one))
                say(model.spec.label, one, f"{content['rows'][-1]['best_val_iwae']:.2f}")
            first = next(row["best_val_iwae"] for row in content["rows"] if row["options"] == START)
            content["rows"] = [row | {"start": first} for row in content["rows"]]
            write(path, content)
        write(RATES, {"rates": choose(content["rows"])})
        return complete


def _trial(model: recmix.Model, options: Options) -> Options:
    """What the pilot stores about one trial."""
    best = max(model.history, key=lambda row: row["val_iwae"])
    return {
        "row": model.spec.label,
        "options": options,
        "best_val_iwae": best["val_iwae"],
        "best_epoch": best["epoch"],
        "curve": [round(row["val_iwae"], 2) for row in model.history],
        "elbo curve": [round(row["val_elbo"], 2) for row in model.history],
    }


@torch.no_grad()
def measured(method: Method, examples: Any, used: Inference, samples: int, count: int) -> Options:
    """The mean ELBO and IWAE bound of the first examples, with standard errors.

    Args:
        method: a trained method.
        examples: the examples.
        used: refinement and calibration of the posterior.
        samples: K of the IWAE bound.
        count: number of examples.
    """
    centre = method.model.centre
    generator = torch.Generator(centre.device).manual_seed(0)
    memory = MEMORY if centre.device.type == "cuda" else None
    parts = []
    for start in range(0, count, AT_ONCE):
        x = torch.as_tensor(examples[start : min(start + AT_ONCE, count)]).to(centre)
        parts.append(bounds(method, x, used, samples=samples, generator=generator, memory=memory))
    found: Options = {}
    for name, values in zip(("elbo", "iwae"), zip(*parts, strict=True), strict=True):
        whole = torch.cat(values).double()
        found |= {name: float(whole.mean()), f"{name}_se": float(whole.std()) / len(whole) ** 0.5}
    return found


def wide_width(start: recmix.Model, data: Any, largest: list[Options]) -> float:
    """The width of the added encoder with which WIDE has as many parameters as other methods.

    Args:
        start: the trained VAE.
        data: the training data.
        largest: options of the methods with the most parameters.
    """
    most = max(_size(start, data, **options) for options in largest)
    widths = [w / 2 for w in range(4, 40)]
    return widths[bisect_left(widths, most, key=lambda w: _size(start, data, method="wide", width=w))]


def _size(start: recmix.Model, data: Any, **options: Any) -> int:
    """Parameters of the method that these options make."""
    made = make_plan(data=data, init=start, **options).method
    return sum(p.numel() for p in made.parameters())


def _mean_many(found: list[Options]) -> Options | None:
    """The bound with many samples of fewer images, over splits."""
    if any("many" not in one for one in found):
        return None
    values = [one["many"]["iwae"] for one in found]
    few = {k: found[0]["many"][k] for k in ("samples", "images")}
    return few | {"mean": statistics.fmean(values), "values": values}


def _curve(histories: list[list[dict[str, float]]], name: str) -> list[float]:
    """The mean of a validation bound over splits, after each epoch."""
    length = min(len(history) for history in histories)
    return [round(statistics.fmean(h[i][name] for h in histories), 3) for i in range(length)]


def named(row: str) -> tuple[str, int | None]:
    """The label and the setting of a row, such as ("RME", 5).

    >>> named("RME(5)"), named("VAE+ calibrated width")
    (('RME', 5), ('VAE+ calibrated width', None))
    """
    head, _, tail = row.rpartition("(")
    return (head, int(tail[:-1])) if tail[:-1].isdigit() and head else (row, None)


def merge(rows: list[Options], path: Path) -> None:
    """Put the rows of one column into a file of rows, in place of the column's old ones.

    A row is not replaced by one with fewer splits.
    """
    content = read_json(path) or {"rows": []}
    known = {_place(row): row["splits"] for row in content["rows"]}
    if fewer := [row["row"] for row in rows if row["splits"] < known.get(_place(row), 0)]:
        raise SystemExit(f"{path} has more splits of {', '.join(fewer)}: nothing is changed")
    here = {_place(row) for row in rows}
    kept = [row for row in content["rows"] if _place(row) not in here]
    write(path, {"rows": kept + rows})


def _place(row: Options) -> tuple[Any, ...]:
    """What tells a row from all others."""
    return row["dataset"], row["dim"], row.get("decoder", "conv"), row["row"]


def commit() -> str | None:
    """The commit of the source; None in a copy without git."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def _parts(text: str) -> tuple[int, int]:
    first, last = text.split(":")
    return int(first or 0), int(last or sys.maxsize)


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", help="mnist, binary-mnist, omniglot, svhn, cifar10, celeba")
    parser.add_argument("dim", type=int, help="latent dimension")
    parser.add_argument("--out", type=Path, required=True, help="folder of the column's folder")
    parser.add_argument("--data-root", type=Path, default=None, help="folder of the data sets")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop before this time")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", type=int, nargs="+", default=None, help="only these splits")
    parser.add_argument(
        "--decoder", default="conv", choices=["conv", "dense"], help="dense: fully connected"
    )
    parser.add_argument(
        "--epochs", type=int, default=None, help=f"of the VAE; by default {FIRST_EPOCHS}"
    )
    parser.add_argument("--second", type=int, default=8, help="epochs of the second stage")
    parser.add_argument("--rows", nargs="+", default=None, choices=["VAE", *ROWS, *DENSE], metavar="ROW")
    parser.add_argument(
        "--images", type=int, default=None, help="only so many of each part, for a trial"
    )
    parser.add_argument(
        "--engine", default="auto", choices=["auto", "eager", "graph", "compile"], help="of the training"
    )
    parser.add_argument("--score", action="store_true", help="score test images; train nothing")
    parser.add_argument("--samples", type=int, default=100, help="K of the IWAE bound")
    parser.add_argument("--many", type=int, default=1000, help="K of a second bound; 0 for none")
    parser.add_argument("--many-images", type=int, default=1000, help="test images of the second bound")
    parser.add_argument("--time", action="store_true", help="only measure the times of posteriors")
    parser.add_argument("--shared", action="store_true", help="other programs use the GPU")
    parser.add_argument(
        "--commit", default=commit(), help="commit of the source, for the rows; by default git's"
    )
    parser.add_argument("--merge", type=Path, default=None, help="file of rows to put the rows into")
    parser.add_argument(
        "--pack", type=Path, default=None, help="only write the weights into this folder"
    )
    parser.add_argument(
        "--parts", type=_parts, default=(0, sys.maxsize), help="parts to keep, such as 0:8"
    )
    parser.add_argument("--packed-splits", type=int, nargs="+", default=None, help="splits to pack")
    parser.add_argument(
        "--pilot", type=Path, default=None, help=f"only try rates; write this file and {RATES.name}"
    )
    return parser


def main() -> None:
    """Train, score, pack or try rates, as the options say."""
    given = options().parse_args()
    warnings.simplefilter("ignore")
    column = Column(given)
    if given.pack:
        column.pack(given.pack)
        return
    name = f"{given.dataset} {given.dim}"
    if given.pilot:
        if given.decoder != "conv" or 0 not in column.splits:
            raise SystemExit("the pilot is for split 0 with the decoder conv")
        done, what = column.pilot(given.pilot), "tried"
    elif given.time:
        done, what = column.time(), "timed"
    elif given.score:
        done, what = column.score(), "scored"
    else:
        done, what = column.train(), "trained"
    end = f"everything is {what}" if done else f"not everything is {what} yet: give the command again"
    say(f"{name}: {end}")
    sys.exit(0 if done else UNFINISHED)


if __name__ == "__main__":
    main()
