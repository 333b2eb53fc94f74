"""When does the recursion pay? Two latent dimensions, where log p(x) and the modes are exact, or twenty.

    python docs/recursion_study.py digits --out DIR
    python docs/recursion_study.py folds --out DIR
    python docs/recursion_study.py mnist --out DIR --data-root ROOT --splits 5
    python docs/recursion_study.py mnist20 --out DIR --data-root ROOT --splits 5 --device cuda

For each split one decoder is fixed, and only encoders are trained, with the same number of updates for
every row. The rates of what starts anew, C and how C applies are chosen on validation examples of split
0. When all is trained, test examples are scored once, and docs/results/recursion_NAME.json is written.
Stop the command at any time; give it again to go on. It runs on one CPU core: ten splits of ``digits``
or ``folds`` take about half an hour each. With twenty dimensions log p(x) is estimated from 1,000
samples around the best full Gaussian of each example, and modes are not counted. This study has ten
times as many updates and needs a GPU, where all rows of all splits are trained together.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from grid_posterior import GridPosterior
from recursion_scores import SAMPLES, measured, summarised
from study import Clock, Folder, read_json, say, write
from torch import Tensor, nn

import recmix
from recmix.data import Data
from recmix.evaluation.score import device_name
from recmix.methods.component import Component
from recmix.methods.registry import register_component
from recmix.methods.residual import CorrectionComponent, ResidualComponent
from recmix.model.latent import LatentModel
from recmix.training.plan import make_plan

Options = dict[str, Any]
RESULTS = Path(__file__).resolve().parent / "results"

NOISE = 0.3
"""Standard deviation of the noise of ``folds``."""


class Fold(nn.Module):
    """The true decoder of ``folds``: z -> (z_1², z_2²), turned into eight dimensions.

    The signs of z are lost, so a posterior has up to four modes: one if both z² are near 0, else two or
    four.
    """

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        turn = torch.linalg.qr(torch.randn(8, 2, generator=generator)).Q.t()
        self.register_buffer("turn", turn.contiguous())

    def forward(self, z: Tensor) -> Tensor:
        """The mean of x (B, 8) for z (B, 2)."""
        turn: Any = self.turn
        return z.square() @ turn


@dataclass(frozen=True)
class Setting:
    """A data set and the sizes of its study.

    Attributes:
        sizes: training, validation and test examples.
        widths: hidden layers of encoder and decoder.
        first: epochs of the first encoder, and of the decoder if it is learned.
        second: epochs of every other row.
        rate: learning rate of the first stage.
        reach: the grid has values from -reach to reach.
        points: grid points in each direction.
        near: share of a batch that are varied images, and of decoder samples near the data.
        own: the true decoder and likelihood, if they are known.
        few: splits of the rows of `EXTRA`, 0 for none; the other rows have all splits.
        checked: splits in which the rows of `CHECKED` are also trained longer, 0 for none.
        times: how many times as many updates this takes.
        latent: latent dimensions; there is a grid only for two.
        warmup: epochs in which the weight of the KL divergence rises, in the first stage. Without it
            most of twenty dimensions stay at the prior.
    """

    sizes: tuple[int, int, int]
    widths: tuple[int, ...]
    first: int
    second: int
    rate: float
    reach: float
    points: int
    near: float = 0.3
    own: bool = False
    few: int = 5
    checked: int = 10
    times: int = 2
    latent: int = 2
    warmup: int = 0

    @property
    def exact(self) -> bool:
        """Whether log p(x) and the modes are sums over a grid."""
        return self.latent == 2

    def parts(self) -> Options:
        """The true decoder and likelihood as arguments of `recmix.fit` and `recmix.load`."""
        if not self.own:
            return {}
        return {
            "decoder": Fold(),
            "likelihood": recmix.likelihoods.Gaussian(NOISE**2, learned=False),
        }


SETTINGS = {
    "digits": Setting((1197, 300, 300), (64, 64), 200, 50, 3e-3, 5.0, 501),
    "folds": Setting((2000, 300, 300), (64, 64), 60, 30, 3e-3, 4.5, 301, near=0.0, own=True, times=3),
    "mnist": Setting((5000, 500, 250), (128, 128), 60, 20, 2e-3, 6.0, 401),
    "mnist20": Setting(
        (10000, 1000, 300), (256, 256), 100, 60, 1e-3, 0.0, 0, checked=5, latent=20, warmup=10
    ),
}
SECOND: Options = {
    "train": "encoder",
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "patience": 0,
    "validation_samples": 1,
    "batch_size": 200,
    "checkpoint_every": 1000,
}
NARROW = 0.25
"""Width of the correctors. The default width is meant for larger encoders than those of this study."""


@register_component
class NarrowResidual(ResidualComponent):
    """Residual components of a recursion with small networks."""

    kind = "narrow-residual"

    @classmethod
    def for_recursion(
        cls, encoder: nn.Module, model: LatentModel, count: int, setting: int | None = None
    ) -> list[Component]:
        """A Gaussian from the encoder, and components that correct the one before them."""
        first, *_ = super().for_recursion(encoder, model, 1, setting)
        return [
            first,
            *(CorrectionComponent(model, width=NARROW, like=encoder) for _ in range(count - 1)),
        ]


PAPER: Options = {"method": "rme", "order": 4, "bound": 500.0, "eps_max": 0.1}
FREE: Options = {"method": "rme", "order": 4, "bound": 1.0, "eps_max": 0.99}
BOUNDS = (0.1, 1.0, 5.0, 50.0)
TUNED: dict[str, tuple[Options, tuple[float, ...]]] = {
    "WIDE": ({"method": "wide"}, (1.0, 3.0)),
    "ME(4)": ({"method": "me", "order": 4}, (3.0, 10.0)),
    "IAF(2)": ({"method": "iaf", "flows": 2}, (1.0, 3.0)),
    "RME(4), paper": (PAPER, (10.0, 30.0)),
    "RME(4), free": (FREE, (10.0, 30.0)),
    "RME(4), residual": (FREE | {"component": "narrow-residual"}, (1.0, 3.0)),
    "RESIDUAL": ({"method": "residual", "corrections": 3, "width": NARROW}, (1.0, 2.0)),
}
"""Rows with parts that start anew: their options, and the relative rates that are tried for these."""
BATCH, INSTANCE = "RME(4), C per batch", "RME(4), C per example"
EXTRA = ("IAF(2)", "RME(2)", "RME(8)", "RME(4), full covariance")
"""Rows that are trained in fewer splits."""
CONTROL = "VAE+"
REFINED = 4
"""Gauss-Newton steps of the refined control."""
CHECKED = (CONTROL, "ME(4)", BATCH, INSTANCE)
"""Rows that are also trained longer."""
AT_ONCE = {True: 10, False: 100}
"""Test examples that are measured together, with a grid and without one."""


def examples(name: str, split: int, root: Path | None, sizes: tuple[int, int, int]) -> Data:
    """The data of one split: a new division of the data set, or new draws of ``folds``.

    Args:
        name: one of `SETTINGS`.
        split: its seed.
        root: folder of the data sets.
        sizes: training, validation and test examples.
    """
    many = sum(sizes)
    if name == "folds":
        generator = torch.Generator().manual_seed(split)
        mean = Fold()(torch.randn(many, 2, generator=generator))
        x = (mean + NOISE * torch.randn(mean.shape, generator=generator)).numpy()
    else:
        data = recmix.data.load(name.removesuffix("20"), root=root, seed=0)
        every = [np.asarray(getattr(data, f"x_{part}")) for part in ("train", "val", "test")]
        order = np.random.default_rng(split).permutation(sum(map(len, every)))
        x = np.concatenate(every)[order[:many]]
    train, val, test = np.split(x, np.cumsum(sizes)[:2])
    return recmix.data.from_arrays(train, val, test, name=name)


class Study:
    """Trains, chooses and scores all rows for one data set.

    Args:
        given: the options of the command.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.setting = given.setting
        if self.setting.exact and given.device != "cpu":
            raise SystemExit("the grid of two latent dimensions needs --device cpu")
        self.clock = Clock(given.seconds)
        self.place = given.out / f"recursion_{given.dataset}"
        self.folder = Folder(
            self.place, self.clock, lambda: {"device": given.device, **self.setting.parts()}
        )
        self.splits = range(given.splits)
        self._sets: dict[int, Data] = {}

    def run(self) -> bool:
        """Do everything that is not done yet; whether everything is done."""
        chosen = self.choose()
        if chosen is None:
            return False
        rows = self.rows(chosen)
        jobs = [(row, s, rows[row], 1) for s in self.splits for row in self._of(s, rows)]
        longer, times = self._longer(rows), self.setting.times
        checked = self.splits[: self.setting.checked]
        jobs += [(name, s, rows[row], times) for s in checked for row, name in longer.items()]
        if not self._train(jobs):
            return False
        for s in self.splits:
            wanted = [*self._of(s, rows), *(longer.values() if s in checked else [])]
            if not self._scored(s).issuperset(wanted):
                if self.clock.left() < 120:
                    return False
                self._score(s, wanted)
        self._write(rows, chosen)
        return True

    def _scored(self, s: int) -> set[str]:
        """The rows of one split whose test examples were measured."""
        if not self._scores(s).exists():
            return set()
        with np.load(self._scores(s)) as found:
            return {name.partition("|")[0] for name in found.files}

    def _of(self, s: int, rows: dict[str, Options]) -> list[str]:
        """The rows of one split."""
        return [row for row in rows if s < self.setting.few or row not in EXTRA]

    def _longer(self, rows: dict[str, Options]) -> dict[str, str]:
        """The names of the rows that are trained longer."""
        if not self.setting.checked:
            return {}
        return {row: f"{row}, {self.setting.times} times the updates" for row in CHECKED if row in rows}

    def choose(self) -> Options | None:
        """Rates, C and how C applies, by the validation ELBO of split 0.

        Returns:
            What was chosen, and all trials; None if not everything is trained.
        """
        path = self.place / "chosen.json"
        known: Options = read_json(path)
        if known:
            return known
        trials = self._try(
            {
                row: {f"try {row} {rate:g}": options | {"fresh_rate": rate} for rate in rates}
                for row, (options, rates) in TUNED.items()
            }
        )
        if not trials:
            return None
        rates = {row: best_of(trials, row)["options"]["fresh_rate"] for row in TUNED}
        start = FREE | {"fresh_rate": rates["RME(4), free"]}
        bounds = self._try(
            {
                row: {f"try {row} {c:g}": start | {"bound": c, "per_instance": each} for c in BOUNDS}
                for row, each in ((BATCH, False), (INSTANCE, True))
            }
        )
        if not bounds:
            return None
        found = [best_of(bounds, row) for row in (BATCH, INSTANCE)]
        batch, instance = (one["options"] for one in found)
        better = max(found, key=lambda one: one["elbo"])["options"]
        content = {"rates": rates, "batch": batch, "instance": instance, "better": better}
        content |= {"trials": trials + bounds}
        write(path, content)
        return content

    def _try(self, variants: dict[str, dict[str, Options]]) -> list[Options]:
        """Train some variants of each row on split 0; all trials, none if the time is over."""
        tried = {name: options for of_row in variants.values() for name, options in of_row.items()}
        if not self._train([(name, 0, options, 1) for name, options in tried.items()]):
            return []
        trials = [
            {"row": row, "options": options, "elbo": self._validation(name, 0)}
            for row, of_row in variants.items()
            for name, options in of_row.items()
        ]
        for name, trial in zip(tried, trials, strict=True):
            say(name, f"validation ELBO {trial['elbo']:.3f}")
        return trials

    def rows(self, chosen: Options) -> dict[str, Options]:
        """The rows that are trained, with their options."""
        own = {
            row: options | {"fresh_rate": chosen["rates"][row]} for row, (options, _) in TUNED.items()
        }
        better, residual = chosen["better"], own.pop("RME(4), residual")
        own.pop("RME(4), free")
        rows = {
            CONTROL: {"method": "vae"},
            **own,
            BATCH: chosen["batch"],
            INSTANCE: chosen["instance"],
            "RME(2)": better | {"order": 2},
            "RME(8)": better | {"order": 8},
            "RME(4), full covariance": better | {"component": "full"},
            "RME(4), residual": residual,
        }
        wanted = [CONTROL, *self.given.rows] if self.given.rows else rows
        return {row: options for row, options in rows.items() if row in wanted}

    def _data(self, s: int) -> Data:
        if s not in self._sets:
            self._sets[s] = examples(self.given.dataset, s, self.given.data_root, self.setting.sizes)
        return self._sets[s]

    def _first(self) -> bool:
        """Train the first encoder of each split, with a decoder unless the true one is known."""
        request: Options = {
            "method": "vae",
            "latent": self.setting.latent,
            "network": "mlp",
            "widths": self.setting.widths,
            "epochs": self.setting.first,
            **SECOND,
            "learning_rate": self.setting.rate,
            "validation_samples": 5,
            "train": "encoder" if self.setting.own else "all",
            "kl_warmup": self.setting.warmup,
            **({"standardise": "none"} if self.setting.own else {}),
            **self.setting.parts(),
        }
        return self._together(
            {("VAE", s): {"data": self._train_part(s), "seed": s, **request} for s in self.splits}
        )

    def _train_part(self, s: int) -> Data:
        """The data without the test examples, which are not read while anything is chosen."""
        return replace(self._data(s), x_test=None)

    def _train(self, jobs: list[tuple[str, int, Options, int]]) -> bool:
        """Train some rows.

        Args:
            jobs: for each its name, split, options, and how many times the usual updates.

        Returns:
            Whether all are trained; False if the time is over.
        """
        if not self._first():
            return False
        starts = {s: self.folder.load("VAE", s) for s in self.splits}
        near = {"augment": self.setting.near, "decoder_samples": self.setting.near}
        requests = {}
        for row, s, options, times in jobs:
            data = self._train_part(s)
            request = {"data": data, "init": starts[s], "seed": s, **SECOND, **near, **options}
            if options["method"] == "wide":
                request["width"] = equal_width(starts[s], data)
            requests[row, s] = request | {"epochs": self.setting.second * times}
        return self._together(requests)

    def _together(self, requests: dict[tuple[str, int], Options]) -> bool:
        """Train these models, on a GPU in one call, on a CPU one after the other with the time left."""
        requests = {k: v | {"device": self.given.device} for k, v in requests.items()}
        if self.given.device != "cpu":
            return self.folder.train(requests)
        left = sum(not self.folder.done(*key) for key in requests)
        began, done = time.time(), 0
        for key, request in requests.items():
            new = not self.folder.done(*key)  # those that are done are checked by the folder
            if not self.folder.train({key: request}):
                return False
            if new:
                done += 1
                minutes = (left - done) * (time.time() - began) / done / 60
                say(f"{left - done} trainings are left, about {minutes:.0f} minutes")
        return True

    def _validation(self, row: str, s: int) -> float:
        """The ELBO of validation examples."""
        return float(self.folder.load(row, s).elbo(self._data(s).x_val, 200).mean())

    def _scores(self, s: int) -> Path:
        return self.place / f"scores_{s}.npz"

    def _score(self, s: int, rows: list[str]) -> None:
        """Measure the test examples of one split for all rows."""
        began, data = time.time(), self._data(s)
        parts = (data.x_test, data.x_val)
        x, held_out = (torch.as_tensor(part[: len(part)]).to(self.given.device) for part in parts)
        models = {row: self.folder.load(row, s) for row in ["VAE", *rows]}
        models["VAE+ calibrated width"] = models[CONTROL].calibrated(held_out)
        models[f"VAE+ refined, {REFINED} steps"] = models[CONTROL].refined(REFINED)
        grid = None
        if self.setting.exact:
            size = {"reach": self.setting.reach, "points": self.setting.points}
            grid = GridPosterior(models["VAE"].latent_model, **size)
        kept: dict[str, list[Tensor]] = {}
        at_once = AT_ONCE[grid is not None]
        for start in range(0, len(x), at_once):
            part, truth = x[start : start + at_once], None
            if grid:
                truth = grid.measure(part)
                for name in ("log_evidence", "check", "modes", "outside"):
                    kept.setdefault(name, []).append(getattr(truth, name))
            for row, model in models.items():
                for name, value in measured(model, part, grid, truth, seed=start).items():
                    kept.setdefault(f"{row}|{name}", []).append(value)
        gap = models[CONTROL].gap(x, samples=2 if grid else SAMPLES, check=0)
        kept["diagonal"], kept["full"] = [gap.diagonal], [gap.full]
        kept.setdefault("log_evidence", [gap.log_evidence])
        arrays = {name: torch.cat(values).float().cpu().numpy() for name, values in kept.items()}
        arrays["log_evidence"] = torch.cat(kept["log_evidence"]).cpu().numpy()
        np.savez(self._scores(s), **arrays)
        say(f"scored split {s} in {time.time() - began:.0f} s")

    def _command(self) -> str:
        """The command, without its folders."""
        device = "" if self.given.device == "cpu" else f" --device {self.given.device}"
        return (
            f"python docs/recursion_study.py {self.given.dataset} --splits {self.given.splits}{device}"
        )

    def _write(self, rows: dict[str, Options], chosen: Options) -> None:
        """Write the JSON of the study: means over the test examples of each split."""
        arrays = []
        for s in self.splits:
            with np.load(self._scores(s)) as found:
                arrays.append({name: found[name].astype(np.float64) for name in found.files})
        summary = summarised(arrays)
        for row in summary["rows"]:
            name = row["row"]
            if name in self._of(0, rows):
                runs = [self.folder.run(name, s) for s in self.splits if name in self._of(s, rows)]
                curves = [[h["val_elbo"] for h in run.history()] for run in runs]
                row["options"] = rows[name]
                row["last fifth"] = [last_fifth(curve) for curve in curves]
                row["best epoch"] = [run.status().get("best_epoch") for run in runs]
                model = self.folder.load(name, 0)
                encoders = set(model.method.parameters()) - set(model.latent_model.parameters())
                row["parameters"] = sum(p.numel() for p in encoders)
        content = {
            "command": self._command(),
            "device": device_name(torch.device(self.given.device)),
            "setting": vars(self.setting),
            "second stage": SECOND,
            "splits": len(self.splits),
            "chosen": chosen,
            "longer": self._longer(rows),
            **summary,
        }
        # The published file always has all rows.
        folder = self.place if self.given.rows or self.given.only_main else self.given.results
        write(folder / f"recursion_{self.given.dataset}.json", rounded(content))


def best_of(trials: list[Options], row: str) -> Options:
    """The trial of a row with the best validation ELBO."""
    return max((one for one in trials if one["row"] == row), key=lambda one: float(one["elbo"]))


def rounded(content: Any) -> Any:
    """The content with numbers of six digits."""
    if isinstance(content, dict):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content


def equal_width(start: recmix.Model, data: Data) -> float:
    """The width of the added encoder with which WIDE has as many parameters as RME(4)."""

    def size(**options: Any) -> int:
        made = make_plan(data=data, init=start, **options).method
        return sum(p.numel() for p in made.parameters())

    most = size(**FREE)
    widths = [w / 20 for w in range(1, 100)]
    return next((w for w in widths if size(method="wide", width=w) >= most), widths[-1])


def last_fifth(curve: list[float]) -> float:
    """What the last fifth of the epochs adds to the best validation bound."""
    before = curve[: max(1, len(curve) * 4 // 5)]
    return max(curve) - max(before)


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=list(SETTINGS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the study's folder")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--data-root", type=Path, default=None, help="folder of the data sets")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop before this time")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument(
        "--rows", nargs="+", default=None, metavar="ROW", help="only these rows; the results go to --out"
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for twenty dimensions")
    parser.add_argument(
        "--only-main",
        action="store_true",
        help="leave out rows of few splits and longer trainings; the results go to --out",
    )
    return parser


def main() -> None:
    """Do what is not done yet."""
    given = options().parse_args()
    given.setting = SETTINGS[given.dataset]
    if given.only_main:
        given.setting = replace(given.setting, few=0, checked=0)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done = Study(given).run()
    say("everything is done" if done else "not everything is done yet: give the command again")


if __name__ == "__main__":
    main()
