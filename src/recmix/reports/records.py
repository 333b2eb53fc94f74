"""Classes that hold a run as plain values, with its row and its column in the tables of results.

A run is one training of one model. A row of the tables is a method with its options, and with the
settings by which its posterior is refined and calibrated. A column is a data set with the options of
the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from recmix.inference import Inference
from recmix.model.options import ModelOptions
from recmix.runs.data_options import DATA_OPTIONS
from recmix.runs.scores import ScoreKey

__all__ = ["CONTROL", "Curve", "Record", "Row", "Setting", "StoreContent", "TableColumn"]
__all__ += ["inference_words", "more_options", "number", "parsed"]

Setting = int | float | str | None
Curve = Mapping[str, Sequence[float | None]]
LARGEST = 1e100
CALIBRATION = ("scale", "slope", "reference", "noise")
"""Options of an inference that a calibration chooses."""
IN_COLUMN = ("latent", "network", "decoder_network", "likelihood")
"""Options of a model that have their own field in a column."""
NOT_IN_COLUMN = ("curvature", "curvature_rank")
"""Options of a model that do not change p(x, z)."""
OF_VOCABULARY = ("classes", "end_token", "node_classes", "edge_classes")
"""Options of a model that the vocabulary of texts determines. They may differ between splits."""
PAPER_ORDER = ("VAE", "VAE+", "SA", "IAF", "HF", "ME", "VLAE", "RME", "BVI-ER1", "BVI-ER2")
SET_TITLES = {
    "mnist": "MNIST",
    "omniglot": "OMNIGLOT",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "celeba": "CelebA",
    "binary-mnist": "Binary MNIST",
    "static-mnist": "Static MNIST",
    "digits": "Digits",
}
"""Data sets in the paper's order."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the tables of results: a method, its setting, and how its posterior is computed.

    >>> print(Row("RME", 5), Row("VAE+", options="learning_rate=0.0001"), sep=", ")
    RME(5), VAE+ [learning_rate=0.0001]
    >>> print(Row("RESIDUAL", inference="+2 steps", calibrated=True))
    RESIDUAL +2 steps, calibrated
    >>> print(Row("VAE+", calibrated=True, noise=True))
    VAE+ calibrated with noise
    """

    label: str  # name of the method in the tables
    # value of the option that the tables vary for this method, such as the number of components of
    # RME; None if they vary no option
    setting: Setting = None
    options: str = ""  # the options by which the row differs from others with this label and setting
    # how the posterior is refined, in words. It is empty for the posterior of the encoder.
    inference: str = ""
    calibrated: bool = False  # whether the posterior is calibrated on validation data
    noise: bool = False  # whether the noise of the likelihood was changed. This changes p(x) too.

    @classmethod
    def of(cls, label: str, setting: Setting, inference: Inference) -> Row:
        """Make the table row of a run.

        Args:
            label: name of the run's method in the tables.
            setting: value of the option that the tables vary for this method, or None.
            inference: the settings of inference that the run uses by default.
        """
        noise, words = inference.noise != 1, inference_words(inference, inference)
        calibrated = inference.calibrated or noise
        return cls(label, setting, inference=words, calibrated=calibrated, noise=noise)

    def __str__(self) -> str:
        name = self.label if self.setting is None else f"{self.label}({self.setting})"
        return f"{name} {self.use}".rstrip()

    @property
    def use(self) -> str:
        """The options, refinement and calibration of the row, such as ``+2 steps, calibrated``."""
        options = f"[{self.options}] " if self.options else ""
        how = ("calibrated" + " with noise" * self.noise) * self.calibrated
        words = ", ".join(filter(None, [self.inference, how]))
        return f"{options}{words}".strip()

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: method as in the tables of Kim and Pavlovic (2020), setting, options, inference."""
        place = _place(self.label, PAPER_ORDER)
        if isinstance(self.setting, int | float):
            setting: tuple[int, float, str] = (1, self.setting, "")
        else:
            setting = (0 if self.setting is None else 2, 0, str(self.setting))
        used = (_by_number(self.inference), self.calibrated, self.noise)
        return (place, self.label, *setting, self.options, *used)


CONTROL = Row("VAE+")
"""The control: the VAE, continued with the same schedule. Gains are differences from it."""


def _place(name: str, names: Sequence[str]) -> int:
    """Return the index of a name, or the number of names if it is not among them."""
    return names.index(name) if name in names else len(names)


def _by_number(text: str) -> list[str | int]:
    """Return a sort key that puts ``2 steps`` before ``10 steps``."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", text)]


def inference_words(used: Inference, default: Inference) -> str:
    """Describe in words how the posterior of a run is refined.

    The usual values are not named: no refinement, Gauss-Newton steps, one restart. Options other than
    steps, kind and restarts are named only if they differ from the default settings of the run.

    Args:
        used: the settings with which the run is used.
        default: the default settings of the run.

    >>> inference_words(Inference(refine=2, restarts=3), Inference())
    '+2 steps, 3 restarts'
    >>> inference_words(Inference(refine=4, how="variational"), Inference(refine=4, how="variational"))
    '+4 steps, variational'
    >>> inference_words(Inference(refine=2, reuse=0), Inference(refine=4))
    '+2 steps, reuse 0'
    >>> inference_words(Inference(noise=1.3), Inference())
    'noise 1.3'
    """
    words = []
    if used.refine:
        words.append(f"+{used.refine} step{'s' * (used.refine != 1)}")
        words += [used.how] * (used.how != Inference.how)
        words += [f"reuse {used.reuse}"] * (used.reuse != default.reuse)
        words += [f"{used.checks} checks"] * (used.checks != default.checks)
    words += [f"{used.restarts} restarts"] * (used.restarts != 1)
    if not _same_calibration(used, default):
        if used.calibrated:
            words += [f"{name} {getattr(used, name)!r}" for name in ("scale", "slope", "reference")]
        if used.noise != 1:
            words.append(f"noise {used.noise!r}")
    return ", ".join(words)


def _same_calibration(one: Inference, other: Inference) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in CALIBRATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of the tables: a data set and all options of the model.

    Only scores in the same column can be compared.
    """

    data: str  # name of the data set
    latent: int  # dimension of z
    network: str = "conv"  # of the encoder
    decoder_network: str = "conv"
    likelihood: str = "gaussian"
    more: str = ""  # other options of data and model that differ from their defaults, see `more_options`

    @property
    def title(self) -> str:
        """The name of the data set, and the unusual options of the model.

        >>> TableColumn(data="mnist", latent=20, decoder_network="dense").title
        'MNIST, dense decoder'
        >>> TableColumn(data="mnist", latent=20, more="prior=mixture").title
        'MNIST, prior=mixture'
        """
        words = [SET_TITLES.get(self.data, self.data)]
        if self.network == self.decoder_network != "conv":
            words.append(f"{self.network} networks")
        else:
            words += [f"{self.network} encoder"] * (self.network != "conv")
            words += [f"{self.decoder_network} decoder"] * (self.decoder_network != "conv")
        usual = "bernoulli" if self.data in ("binary-mnist", "static-mnist") else "gaussian"
        if self.likelihood != usual:
            words.append(self.likelihood)
        return ", ".join(filter(None, [*words, self.more]))

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: data set in the order of Kim and Pavlovic (2020), title, latent dimension."""
        return (_place(self.data, list(SET_TITLES)), self.title, self.latent)

    def __str__(self) -> str:
        return f"{self.title}, dim {self.latent}"


def more_options(model: ModelOptions, data: Mapping[str, Any], *, texts: bool = False) -> str:
    """Return the options of data and model that differ from their defaults, as one text.

    Options that are fields of `TableColumn`, such as the latent dimension, are left out.

    Args:
        model: the options of the model.
        data: the options with which the data were read, see `DATA_OPTIONS`.
        texts: whether the data are texts. Their vocabulary determines some options, which are left out.

    >>> more_options(ModelOptions(latent=5, prior="mixture", widths=(64, 32)), {"size": 16})
    'size=16, prior=mixture, widths=64,32'
    """
    found = {name: data[name] for name in DATA_OPTIONS if data.get(name) is not None}
    known = IN_COLUMN + NOT_IN_COLUMN + (OF_VOCABULARY if texts else ())
    found |= {name: value for name, value in model.changed().items() if name not in known}
    return ", ".join(f"{name}={_plain(value)}" for name, value in found.items())


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


parsed = cache(ScoreKey.parse)
"""`ScoreKey.parse`, which is called for the same few names in every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run as plain values: its row and column in the tables, state, scores and learning curves."""

    folder: str  # name of its folder in the store
    row: Row  # its row in the tables, for the run's default inference
    column: TableColumn  # its column in the tables
    split: int  # which split of the data
    restart: int  # seed of the training
    inference: Inference = field(default_factory=Inference)  # the run's default inference
    continued: bool = False  # whether it started from another run
    status: str = "new"  # new, running, interrupted, failed or done
    reason: str = ""  # why it has this status
    epochs: int = 0  # number of epochs trained
    best_epoch: int | None = None  # the epoch whose weights were kept
    # best bound on the validation data, in nats. Runs are selected by it alone.
    validation: float | None = None
    # measured numbers, by `ScoreKey`
    scores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gap: Mapping[str, Any] | None = None  # means from ``gap.json``, if it exists
    # thinned learning curves: ``epoch`` and the series of `CURVES` that the run has
    curve: Curve = field(default_factory=dict)
    spec: Mapping[str, Any] | None = None  # content of ``spec.json``
    job: Mapping[str, Any] | None = None  # content of ``job.json``
    failure: Any = None  # content of ``failed.json``
    environment: Sequence[Mapping[str, Any]] = ()  # machine and versions at each start
    log: Sequence[str] = ()  # first and last events, from ``log.jsonl``
    text: Sequence[str] = ()  # first and last lines of the printed output, from ``log.txt``

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: column and row as in the tables, then split, restart and folder."""
        return (self.column.order, self.row.order, self.split, self.restart, self.folder)

    def score(self, key: str, name: str) -> float | None:
        """Return a number of one score of the run, or None if it is missing or not finite.

        Args:
            key: name of the score, see `recmix.runs.scores.ScoreKey`.
            name: name of the number, such as ``iwae`` or ``milliseconds``.
        """
        return number(self.scores.get(key, {}).get(name))

    @property
    def tested(self) -> set[int]:
        """Every K for which the run has an IWAE-K test score."""
        return {
            key.samples
            for name in self.scores
            if (key := parsed(name)) and key.part == "test" and self.score(name, "iwae") is not None
        }

    def rows(self) -> set[Row]:
        """Return all table rows in which the run has a test score."""
        return {row for samples in self.tested for row in self.keys(samples)}

    def keys(self, samples: int) -> dict[Row, str]:
        """Return the names of the IWAE-K test scores of the run for K = `samples`, {table row: name}.

        A run has one row for each way of refining and calibrating its posterior. The first key is the
        row of the run's default settings, even if these were not scored.
        """
        found = {self.row: str(ScoreKey("test", samples, self.inference))}
        for name in self.scores:
            key = parsed(name)
            if key is None or (key.part, key.samples) != ("test", samples) or str(key) != name:
                continue
            used = key.inference
            noise = used.noise != 1
            by_default = (used.calibrated or noise) and _same_calibration(used, self.inference)
            row = replace(
                self.row,
                inference=inference_words(used, self.inference),
                calibrated=key.calibrated or by_default,
                noise=key.noise or noise,
            )
            found.setdefault(row, name)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContent:
    """Everything that was read from a store, the folder of run folders."""

    folder: Path  # the store
    records: Sequence[Record]  # the runs that could be read
    problems: Sequence[str]  # one message for each folder or file that could not be read
    figures: Sequence[Path] = ()  # paths of the images in the folder ``figures`` of the store


def number(value: Any) -> float | None:
    """Return a value as a float; None if it is not a finite number, or too large to be squared."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST:
        return float(value)
    return None
