"""When does the recursion pay? One frozen decoder, many ways to form the posterior.

    python docs/recursion_study.py mnist 20 --out DIR --data-root ROOT --seconds 540
    python docs/recursion_study.py mnist 20 --out DIR --data-root ROOT --seconds 540 --score test

A VAE is trained first (or that of docs/columns.py in the same DIR is used). Then only encoders are
trained, with the same number of updates for every row. The first command also measures each row on
validation images, which choose the best recursion. ``--score test`` measures test images once, at the
end. Give a command again to go on. With two latent dimensions (``mnist 2``) the modes of the true
posterior are counted. It needs a GPU.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from columns import FIRST, FIRST_EPOCHS, SECOND, Options, wide_width
from study import MEMORY, Clock, Folder, read, read_json, say, write
from torch import Tensor

import recmix
from recmix.evaluation.bounds import bounds_of
from recmix.inference import Inference
from recmix.methods.method import infer_no_grad
from recmix.posteriors import Mixture, Posterior

BASE: Options = {"train": "encoder", "augment": 0.3, "decoder_samples": 0.3, "learning_rate": 1e-4}
"""All rows: the decoder is fixed, and a part of each batch are images near the data."""
GAUSSIAN: Options = {"method": "rme", "order": 4, "bound": 1.0, "eps_max": 0.99, "fresh_rate": 10}
RESIDUAL: Options = {**GAUSSIAN, "component": "residual", "fresh_rate": 5}
PAPER: Options = {"bound": 500.0, "eps_max": 0.1}


def _varied(name: str, start: Options, changes: dict[str, list[Any]]) -> dict[str, Options]:
    """Rows that differ from a start in one option each."""
    return {
        f"{name} {option}={value}": {**start, option: value}
        for option, values in changes.items()
        for value in values
    }


GROUPS: list[dict[str, Options]] = [
    {
        "VAE+": {"method": "vae"},
        "RESIDUAL": {"method": "residual", "corrections": 3, "fresh_rate": 5},
        "ME(4)": {"method": "me", "order": 4, "fresh_rate": 5},
        "WIDE": {"method": "wide", "fresh_rate": 5},
    },
    {
        "RME residual": RESIDUAL,
        "RME gaussian": GAUSSIAN,
        "RME full": {**GAUSSIAN, "component": "full"},
        "RME gaussian, paper": {**GAUSSIAN, **PAPER},
        "RME residual, paper": {**RESIDUAL, **PAPER},
    },
    _varied("RME residual", RESIDUAL, {"bound": [0.1, 5.0, 50.0, 500.0], "per_instance": [True]}),
    _varied("RME residual", RESIDUAL, {"eps_max": [0.1, 0.5], "fresh_rate": [1, 20], "jitter": [0.1]}),
    _varied("RME residual", RESIDUAL, {"order": [2, 3, 6, 8]}),
    _varied("RME gaussian", GAUSSIAN, {"bound": [5.0, 50.0, 500.0], "per_instance": [True]}),
    _varied("RME gaussian", GAUSSIAN, {"eps_max": [0.1], "fresh_rate": [1, 100], "jitter": [0.1]}),
    _varied("RME gaussian", GAUSSIAN, {"order": [2, 8]}),
]
"""Rows that are trained together, with their options."""
ROWS: dict[str, Options] = {row: options for group in GROUPS for row, options in group.items()}
SAMPLES = (1, 10, 100, 1000)
"""K of the IWAE-K curve."""


class Study:
    """Trains and measures all rows for one data set and dimension.

    Args:
        given: the options of the command.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.clock = Clock(given.seconds)
        name = f"{given.dataset}_{given.dim}"
        self.place = given.out / f"recursion_{name}"
        self.folder = Folder(self.place, self.clock)
        shared = Folder(given.out / name, self.clock)
        self.splits = range(given.splits)
        found = all(shared.done("VAE", s) for s in self.splits)
        self.first = shared if found else self.folder
        self.rows = [row for row in ROWS if row in (given.rows or ROWS)]

    def train(self) -> bool:
        """Train what is not trained yet, and measure validation images; whether everything is done."""
        given = self.given
        sets = self._sets(test=False)
        epochs = given.epochs or FIRST_EPOCHS.get(given.dataset, 100)
        first = {"method": "vae", "latent": given.dim, "epochs": epochs, **FIRST}
        requests = {
            ("VAE", s): {"data": sets[s], "seed": s, "checkpoint_every": 20, **first}
            for s in self.splits
        }
        if not self.first.train(requests):
            return False
        starts = {s: self.first.load("VAE", s) for s in self.splits if self.first.done("VAE", s)}
        for group in GROUPS:
            rows = {row: dict(options) for row, options in group.items() if row in self.rows}
            if "WIDE" in rows and starts:
                largest, some = [RESIDUAL, ROWS["RESIDUAL"]], next(iter(starts))
                rows["WIDE"]["width"] = wide_width(starts[some], sets[some], largest)
            how = {"epochs": given.second, "checkpoint_every": 4, **SECOND, **BASE}
            requests = {
                (row, s): {"data": sets[s], "init": start, "seed": s, **how, **options}
                for row, options in rows.items()
                for s, start in starts.items()
            }
            if not self.folder.train(requests) or not self.score("val"):
                return False
        return True

    def _sets(self, *, test: bool) -> list[Any]:
        given = self.given
        found = [
            read(given.dataset, s, given.data_root, test=test, most=given.images) for s in self.splits
        ]
        say(found[0])
        return found

    def score(self, part: str) -> bool:
        """Measure what is trained and not measured yet; whether everything is measured.

        Args:
            part: ``val`` or ``test``.
        """
        path = self.place / f"{part}.json"
        content = read_json(path) or {"rows": []}
        known = {(row["row"], row["split"]) for row in content["rows"]}
        todo = [
            (row, s)
            for row in ["VAE", *self.rows]
            for s in self.splits
            if (row, s) not in known and self._folder(row).done(row, s)
        ]
        sets = self._sets(test=part == "test") if todo else []
        longest = 5.0
        for row, s in todo:
            if self.clock.left() < 2 * longest:
                return False
            began = time.time()
            content["rows"].append(self._measure(row, s, sets[s], part))
            content["chosen"] = self._chosen(content["rows"]) if part == "val" else self._by_validation()
            write(path, content)
            longest = max(longest, time.time() - began)
            found = content["rows"][-1]
            say(f"{row}/{s} IWAE {found['iwae']:.2f}, ELBO {found['elbo']:.2f}", found["wins"])
        return True

    def _folder(self, row: str) -> Folder:
        return self.first if row == "VAE" else self.folder

    def _measure(self, row: str, s: int, data: Any, part: str) -> Options:
        """Bounds, calibrated bounds and the share of each component, for one row and split."""
        given = self.given
        model = self._folder(row).load(row, s)
        every = data.x_val if part == "val" else data.x_test
        # The first 1,000 validation images are for the calibration.
        start = min(1000, len(every) // 2) if part == "val" else 0
        x = torch.as_tensor(every[start : start + given.scored]).to(model.device)
        few = x[: given.many_images]
        held_out = torch.as_tensor(data.x_val[:1000])
        memory = MEMORY if model.device.type == "cuda" else None
        elbo, iwae = (float(b.mean()) for b in model.bounds(x, 100, memory=memory))
        calibrated = model.calibrated(held_out, 100 if x.is_cuda else 10)
        wide_elbo, wide = (float(b.mean()) for b in calibrated.bounds(x, 100, memory=memory))
        curve = [float(model.bounds(few, k, memory=memory)[1].mean()) for k in SAMPLES]
        run = self._folder(row).run(row, s)
        found: Options = {
            "dataset": given.dataset,
            "dim": given.dim,
            "row": row,
            "split": s,
            "part": part,
            "options": ROWS.get(row, {}),
            "images": len(x),
            "elbo": elbo,
            "iwae": iwae,
            "calibrated": {"elbo": wide_elbo, "iwae": wide} | calibrated.inference.changed(),
            "curve": {"images": len(few), "samples": SAMPLES, "iwae": curve},
            "best epoch": run.status().get("best_epoch"),
            "validation": [round(h["val_iwae"], 2) for h in run.history()],
            "parameters": sum(p.numel() for p in model.method.parameters()),
            **components(model, x[:2000]),
        }
        if given.gap:
            found["gap"] = model.gap(x[: given.gap], samples=300, check=0).summary()
        if given.dim == 2 and row == "VAE":
            found["modes"] = modes(model, few[:100])
        return found

    @staticmethod
    def _chosen(rows: list[Options]) -> str | None:
        """The recursion with the best mean validation bound over splits."""
        by_row: dict[str, list[float]] = {}
        for row in rows:
            if row["row"].startswith("RME"):
                by_row.setdefault(row["row"], []).append(row["iwae"])
        means = {row: sum(values) / len(values) for row, values in by_row.items()}
        return max(means, key=lambda row: means[row], default=None)

    def _by_validation(self) -> str | None:
        """What validation images chose, from the file that the measurement of them wrote."""
        chosen: str | None = read_json(self.place / "val.json").get("chosen")
        return chosen


@torch.no_grad()
def components(model: recmix.Model, x: Tensor, samples: int = 20) -> Options:
    """What each component of a posterior is worth, for examples x (B, ...).

    Args:
        model: the model.
        x: examples on the model's device.
        samples: samples of each component for its ELBO.

    Returns:
        The mean ELBO of each component; the share of examples each one wins (``wins``); the mean of the
        best component's ELBO (``best``) and of the ELBO of the one with the largest weight
        (``picked``); the mean weights and their mean entropy; and the largest gain over the first
        component that a mixture could have, Σ α ELBO + H(α) (``bound``).
    """
    elbos, weights = [], []
    for part in x.split(500):
        q = infer_no_grad(model.method, part, Inference())
        elbos.append(_component_elbos(model, part, q, samples))
        weights.append(q.weights.double())
    elbo, weight = torch.cat(elbos).double(), torch.cat(weights)  # (B, K)
    entropy = -(weight * weight.clamp_min(1e-30).log()).sum(-1)
    wins = torch.bincount(elbo.argmax(-1), minlength=elbo.shape[1]).double() / len(elbo)
    picked = elbo.gather(1, weight.argmax(-1, keepdim=True))
    return {
        "components": [round(v, 3) for v in elbo.mean(0).tolist()],
        "wins": [round(v, 4) for v in wins.tolist()],
        "best": float(elbo.max(-1).values.mean()),
        "picked": float(picked.mean()),
        "bound": float(((weight * elbo).sum(-1) + entropy).mean()),
        "weights": [round(v, 4) for v in weight.mean(0).tolist()],
        "entropy": float(entropy.mean()),
    }


def _component_elbos(model: recmix.Model, x: Tensor, q: Posterior, samples: int) -> Tensor:
    """The ELBO of each component of q, (B, K)."""
    parts = q.components if isinstance(q, Mixture) else [q]
    generator = torch.Generator(x.device).manual_seed(0)
    found = [bounds_of(model.latent_model, x, part, samples, generator, 50_000).elbo for part in parts]
    return torch.stack(found, -1)


@torch.no_grad()
def modes(model: recmix.Model, x: Tensor, points: int = 161, reach: float = 4.0) -> Options:
    """Count the modes of the true posterior p(z | x) on a grid, for z with two dimensions.

    A mode is a grid point whose log p(x, z) is above that of its eight neighbours and at most five nats
    below the highest.

    Args:
        model: a model with two latent dimensions.
        x: examples.
        points: grid points in each direction.
        reach: the grid has values from -reach to reach.
    """
    axis = torch.linspace(-reach, reach, points, device=x.device)
    z = torch.cartesian_prod(axis, axis)
    counts = []
    for one in x.split(1):
        parts = [model.latent_model.log_joint(one, p[:, None]) for p in z.split(5000)]
        values = torch.cat(parts).view(1, points, points)
        highest = torch.nn.functional.max_pool2d(values, 3, 1, 1) == values
        counts.append(int((highest & (values > values.max() - 5)).sum()))
    several = sum(count > 1 for count in counts) / len(counts)
    return {"images": len(counts), "mean": sum(counts) / len(counts), "several": several}


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="mnist, binary-mnist, cifar10 and so on")
    parser.add_argument("dim", type=int, help="latent dimension")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study's folder")
    parser.add_argument("--data-root", type=Path, default=None, help="folder of the data sets")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop before this time")
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=None, help="of the VAE, as in docs/columns.py")
    parser.add_argument("--second", type=int, default=8, help="epochs of every other row")
    parser.add_argument("--rows", nargs="+", default=None, choices=list(ROWS), metavar="ROW")
    parser.add_argument(
        "--images", type=int, default=None, help="only so many of each part, for a trial"
    )
    parser.add_argument(
        "--score", choices=["test"], default=None, help="measure test images; train nothing"
    )
    parser.add_argument("--scored", type=int, default=5000, help="images that are measured")
    parser.add_argument("--many-images", type=int, default=1000, help="images of the IWAE-K curve")
    parser.add_argument("--gap", type=int, default=0, help="images whose gap is measured; takes long")
    return parser


def main() -> None:
    """Train and measure validation images, or measure test images."""
    given = options().parse_args()
    warnings.simplefilter("ignore")
    study = Study(given)
    done = study.score(given.score) if given.score else study.train()
    say("everything is done" if done else "not everything is done yet: give the command again")


if __name__ == "__main__":
    main()
