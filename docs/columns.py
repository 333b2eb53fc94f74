"""One column of the paper's tables, by the protocol of docs/protocol.md.

    python docs/columns.py mnist 20 --out DIR --data-root ROOT --seconds 540
    python docs/columns.py mnist 20 --out DIR --data-root ROOT --seconds 540 --score

The first command trains all methods, all splits of a method at once; give it again until it says that
everything is trained. It reads no test images. The second one scores the test images once and writes
``rows.json``; ``--merge docs/results/columns.json`` also puts the rows there. ``--pack FOLDER`` writes
the weights with half precision, as parts of a tar file. It needs a GPU.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from study import MEMORY, Clock, Folder, pack, read, read_json, say, write

import recmix
from recmix.evaluation.score import score
from recmix.inference import Inference
from recmix.training.plan import make_plan

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

GROUPS: list[dict[str, Options]] = [
    {
        "VAE+": {"method": "vae", **RATE},
        "IAF(2)": {"method": "iaf", "flows": 2, **RATE, "fresh_rate": 10},
        "IAF(4)": {"method": "iaf", "flows": 4, **RATE, "fresh_rate": 10},
        "HF(4)": {"method": "hf", "flows": 4, **RATE, "fresh_rate": 30},
        "IWAE(5)": {"method": "iwae", "samples": 5, "learning_rate": 3e-4},
    },
    {
        "RME(2)": {"method": "rme", "order": 2, **RATE, "fresh_rate": 10},
        "RME(5)": {"method": "rme", "order": 5, **RATE, "fresh_rate": 10},
        "ME(2)": {"method": "me", "order": 2, **RATE, "fresh_rate": 5},
        "ME(5)": {"method": "me", "order": 5, **RATE, "fresh_rate": 5},
    },
    {
        "RME RESIDUAL(4)": {"method": "rme", "order": 4, **FREE, **ENCODER},
        "RESIDUAL": {"method": "residual", "corrections": 3, **ENCODER},
    },
    {"SA(4)": {"method": "sa", "steps": 4, **RATE}},
    {"CURVATURE": {"method": "curvature", "learning_rate": 1e-3}},
    {"REFINED": {"method": "vae", "refine": 4, "reuse": 0, "learning_rate": 3e-4}},
    {"VLAE(2)": {"method": "vlae", "steps": 2, **RATE}},
    {
        "BVI-ER1(3)": {"method": "bvi-er1", "order": 3, **RATE, "fresh_rate": 1},
        "BVI-ER2(3)": {"method": "bvi-er2", "order": 3, **RATE, "fresh_rate": 1},
    },
    {"WIDE": {"method": "wide", **RATE, "fresh_rate": 3}},
]
"""The second stage: groups of rows that are trained together, with their options."""
ROWS: dict[str, Options] = {row: options for group in GROUPS for row, options in group.items()}

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

PILOT: dict[str, list[Options]] = {
    "start": [{"method": "vae", "learning_rate": 1e-12}],
    "control": [
        *({"method": "vae", "learning_rate": rate} for rate in (1e-4, 3e-4)),
        *({"method": "wide", **RATE, "fresh_rate": fresh} for fresh in (1, 3, 10)),
    ],
    "gates, flows and components": [
        *({"method": "iaf", "flows": 2, **RATE, "fresh_rate": fresh} for fresh in (3, 10, 30)),
        *({"method": "hf", "flows": 4, **RATE, "fresh_rate": fresh} for fresh in (10, 30)),
        *({"method": "me", "order": 3, **RATE, "fresh_rate": fresh} for fresh in (2, 5, 10)),
        *({"method": "rme", "order": 4, **RATE, "fresh_rate": fresh} for fresh in (1, 10)),
    ],
    "IWAE": [{"method": "iwae", "learning_rate": rate} for rate in (1e-5, 1e-4, 3e-4)],
    "iterative": [
        *({"method": "sa", "steps": 4, "learning_rate": rate} for rate in (1e-5, 1e-4, 3e-4)),
        *({"method": "curvature", "learning_rate": rate} for rate in (3e-4, 1e-3)),
    ],
    "Gauss-Newton": [
        *({"method": "vlae", "steps": 2, "learning_rate": rate} for rate in (1e-5, 1e-4, 3e-4)),
        *({"method": "vae", "refine": 4, "reuse": 0, "learning_rate": rate} for rate in (1e-4, 3e-4)),
    ],
    "boosted": [
        {"method": name, "order": 3, **RATE, "fresh_rate": fresh}
        for name in ("bvi-er1", "bvi-er2")
        for fresh in (1, 10)
    ],
}
"""Rates that ``--pilot FILE`` tries on validation images of split 0. The first row is the start."""


class Column:
    """Trains and scores all rows for one data set and dimension.

    Args:
        given: the options of the command.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.clock = Clock(given.seconds)
        self.place = given.out / f"{given.dataset}_{given.dim}"
        self.folder = Folder(self.place, self.clock)
        self.splits = range(given.splits)
        self.epochs = given.epochs or FIRST_EPOCHS.get(given.dataset, 100)
        rows = given.rows or list(ROWS)
        self.rows = [row for row in ROWS if row in rows]

    def train(self) -> bool:
        """Train what is not trained yet; whether everything is."""
        given = self.given
        sets = self._sets(test=False)
        first = {"method": "vae", "latent": given.dim, "epochs": self.epochs, **FIRST}
        requests = {
            ("VAE", s): {"data": sets[s], "seed": s, "checkpoint_every": 20, **first}
            for s in self.splits
        }
        if not self.folder.train(["VAE"], requests):
            return False
        starts = [self.folder.load("VAE", s) for s in self.splits]
        for group in GROUPS:
            rows = {row: dict(options) for row, options in group.items() if row in self.rows}
            if "WIDE" in rows:
                large = [ROWS[row] for row in ("RME(5)", "RESIDUAL", "RME RESIDUAL(4)")]
                rows["WIDE"]["width"] = wide_width(starts[0], sets[0], large)
            how = {"epochs": given.second, "checkpoint_every": 4, **SECOND}
            requests = {
                (row, s): {"data": sets[s], "init": starts[s], "seed": s, **how, **options}
                for row, options in rows.items()
                for s in self.splits
            }
            if not self.folder.train(list(rows), requests):
                return False
        return True

    def _sets(self, *, test: bool) -> list[Any]:
        given = self.given
        found = [
            read(given.dataset, s, given.data_root, test=test, most=given.images) for s in self.splits
        ]
        say(found[0])
        return found

    def score(self) -> bool:
        """Score what is trained and not scored yet, on test images; whether everything is scored."""
        path = self.place / "scores.json"
        scores = read_json(path)
        todo = [
            (row, s)
            for row, (trained, _) in SCORED.items()
            for s in self.splits
            if f"{row}/{s}" not in scores and self.folder.done(trained, s)
        ]
        sets = self._sets(test=True) if todo else []
        longest = 5.0
        for row, s in todo:
            if self.clock.left() < 2 * longest:
                self._write_rows(scores)
                return False
            began = time.time()
            scores[f"{row}/{s}"] = found = self._score(row, s, sets[s])
            write(path, scores)
            longest = max(longest, time.time() - began)
            say(
                f"{row}/{s}",
                f"IWAE {found['iwae']:.2f}, ELBO {found['elbo']:.2f}, {time.time() - began:.1f} s",
            )
        self._write_rows(scores)
        return True

    def _score(self, row: str, s: int, data: Any) -> Options:
        """Bounds of the test images, with a calibration on validation images where the row has one."""
        given = self.given
        trained, options = SCORED[row]
        model = self.folder.load(trained, s)
        used = {k: v for k, v in options.items() if k != "calibrated"}
        model = model.using(**used) if used else model
        if "calibrated" in options:
            model = model.calibrated(
                torch.as_tensor(data.x_val[:1000]), given.samples, **options["calibrated"]
            )
        memory = MEMORY if model.device.type == "cuda" else None
        x = data.x_test
        found = score(model.method, x, model.inference, samples=given.samples, memory=memory)
        some = x.subset(range(min(given.many_images, len(x))))
        if given.many:
            more = score(model.method, some, model.inference, samples=given.many, memory=memory)
            found["many"] = {k: more[k] for k in ("samples", "images", "iwae", "iwae_se")}
        return found | {"alone": not given.shared, "torch": torch.__version__}

    def _write_rows(self, scores: Options) -> None:
        """Write the rows of the column, each over its splits, and merge them where asked."""
        rows = [row for name in SCORED if (row := self._row(name, scores))]
        write(self.place / "rows.json", {"rows": rows})
        if self.given.merge:
            merge(rows, self.given.merge)

    def _row(self, name: str, scores: Options) -> Options | None:
        splits = [s for s in self.splits if f"{name}/{s}" in scores]
        if not splits:
            return None
        found = [scores[f"{name}/{s}"] for s in splits]
        trained = SCORED[name][0]
        runs = [self.folder.run(trained, s) for s in splits]
        histories = [run.history() for run in runs]
        label, setting = named(name)
        times = read_json(self.folder.times).get(trained, {})
        values = [one["iwae"] for one in found]
        return {
            "dataset": self.given.dataset,
            "dim": self.given.dim,
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
            "milliseconds": statistics.median(one["milliseconds"] for one in found),
            "alone": all(one["alone"] for one in found),
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
            "torch": found[0]["torch"],
            "command": self._command(),
        }

    def _command(self) -> str:
        """The command that trains and scores the column again, without its folders."""
        given = self.given
        words = ["python", "docs/columns.py", given.dataset, given.dim, "--splits", given.splits]
        words += ["--epochs", self.epochs, "--second", given.second]
        return shlex.join(str(word) for word in words)

    def pack(self, out: Path) -> None:
        """Write the weights of all trained rows, or of those that were named, in parts."""
        given = self.given
        rows = given.rows or ["VAE", *ROWS]
        runs = [
            self.folder.run(row, s)
            for row in rows
            for s in (given.packed_splits or self.splits)
            if self.folder.done(row, s)
        ]
        paths = pack(runs, out, f"{given.dataset}_{given.dim}")
        first, last = given.parts
        for path in paths[:first] + paths[last:]:
            path.unlink()
        say(f"{len(paths)} parts in all; kept", *(path.name for path in paths[first:last]))

    def pilot(self, path: Path) -> bool:
        """Try rates on validation images of split 0, and write them in the form of docs/pilot.py."""
        given = self.given
        data = self._sets(test=False)[0]
        start = self.folder.load("VAE", 0)
        content = read_json(path) or {"rows": []}
        x = torch.as_tensor(data.x_val[:1000])
        for group, candidates in PILOT.items():
            left = [c for c in candidates if c not in [row["options"] for row in content["rows"]]]
            if not left:
                continue
            if self.clock.left() < 30:
                return False
            common = {"data": data, "init": start, "epochs": given.second, **SECOND}
            models = recmix.fit_many([common | one for one in left])
            for one, model in zip(left, models, strict=True):
                used = model.refined(4, how="learned") if one["method"] == "curvature" else model
                elbo, iwae = (float(bound.mean()) for bound in used.bounds(x, 100))
                best = max(model.history, key=lambda row: row["val_iwae"])
                first = content["rows"][0] if content["rows"] else {"best_val_iwae": best["val_iwae"]}
                content["rows"].append(
                    {
                        "group": group,
                        "row": model.spec.label,
                        "options": one,
                        "start": first["best_val_iwae"],
                        "best_val_iwae": best["val_iwae"],
                        "best_epoch": best["epoch"],
                        "val_elbo100": elbo,
                        "val_iwae100": iwae,
                        "weights": used.posterior(x[:500]).weights.mean(0).tolist(),
                        "curve": [round(row["val_iwae"], 2) for row in model.history],
                    }
                )
                say(model.spec.label, one, f"{iwae:.2f}")
            write(path, content)
        return True


def wide_width(start: recmix.Model, data: Any, largest: list[Options]) -> float:
    """The width of the added encoder with which WIDE has as many parameters as other methods.

    Args:
        start: the trained VAE.
        data: the training data.
        largest: options of the methods with the most parameters.
    """
    most = max(_size(start, data, **options) for options in largest)
    widths = (w / 2 for w in range(4, 40))
    return next(w for w in widths if _size(start, data, method="wide", width=w) >= most)


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
    """Put the rows of one column into a file of rows, in place of the column's old ones."""
    content = read_json(path) or {"rows": []}
    here = {(row["dataset"], row["dim"], row["row"]) for row in rows}
    kept = [r for r in content["rows"] if (r["dataset"], r["dim"], r["row"]) not in here]
    write(path, {"rows": kept + rows})


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
    parser.add_argument(
        "--epochs", type=int, default=None, help=f"of the VAE; by default {FIRST_EPOCHS}"
    )
    parser.add_argument("--second", type=int, default=8, help="epochs of the second stage")
    parser.add_argument("--rows", nargs="+", default=None, choices=["VAE", *ROWS], metavar="ROW")
    parser.add_argument(
        "--images", type=int, default=None, help="only so many of each part, for a trial"
    )
    parser.add_argument("--score", action="store_true", help="score test images; train nothing")
    parser.add_argument("--samples", type=int, default=100, help="K of the IWAE bound")
    parser.add_argument("--many", type=int, default=1000, help="K of a second bound; 0 for none")
    parser.add_argument("--many-images", type=int, default=1000, help="test images of the second bound")
    parser.add_argument("--shared", action="store_true", help="other programs use the GPU")
    parser.add_argument("--merge", type=Path, default=None, help="file of rows to put the rows into")
    parser.add_argument(
        "--pack", type=Path, default=None, help="only write the weights into this folder"
    )
    parser.add_argument(
        "--parts", type=_parts, default=(0, sys.maxsize), help="parts to keep, such as 0:8"
    )
    parser.add_argument("--packed-splits", type=int, nargs="+", default=None, help="splits to pack")
    parser.add_argument("--pilot", type=Path, default=None, help="only try rates; write this file")
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
        done, what = column.pilot(given.pilot), "tried"
    elif given.score:
        done, what = column.score(), "scored"
    else:
        done, what = column.train(), "trained"
    end = f"everything is {what}" if done else f"not everything is {what} yet: give the command again"
    say(f"{name}: {end}")


if __name__ == "__main__":
    main()
