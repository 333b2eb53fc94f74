"""Runs as plain values, and the row and the column of the tables that each of them belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from recmix.inference import Inference
from recmix.runs.scores import ScoreKey

__all__ = [
    "CONTROL",
    "Curve",
    "Log",
    "Problem",
    "Record",
    "Row",
    "Setting",
    "StoreContent",
    "TableColumn",
    "inference_words",
    "number",
    "parsed",
    "set_title",
]

Setting = int | float | str | None
Curve = Mapping[str, Sequence[float | None]]
LARGEST = 1e100
PAPER_ORDER = ("VAE", "VAE+", "SA", "IAF", "HF", "ME", "VLAE", "RME", "BVI-ER1", "BVI-ER2")
PAPER_SETS = {
    "mnist": "MNIST",
    "omniglot": "OMNIGLOT",
    "cifar10": "CIFAR10",
    "svhn": "SVHN",
    "celeba": "CelebA",
    "binary-mnist": "Binary MNIST",
    "static-mnist": "Static MNIST",
}
TITLES = {**PAPER_SETS, "digits": "Digits"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: a method, its setting, and how its posterior is used.

    Attributes:
        label: name of the method in the tables, from the run's spec.
        setting: value of the option that the tables vary, such as the order.
        options: the options by which it differs from other rows with this label and setting.
        inference: how the posterior is used, in words; empty for the run's default.
        calibrated: whether the posterior is calibrated on validation data.

    >>> print(Row("RME", 5), Row("VAE+", options="learning_rate=0.0001"), sep=", ")
    RME(5), VAE+ [learning_rate=0.0001]
    >>> print(Row("RESIDUAL", inference="+2 steps", calibrated=True))
    RESIDUAL +2 steps, calibrated
    """

    label: str
    setting: Setting = None
    options: str = ""
    inference: str = ""
    calibrated: bool = False

    def __str__(self) -> str:
        name = self.label if self.setting is None else f"{self.label}({self.setting})"
        return f"{name} {self.use}".rstrip()

    @property
    def use(self) -> str:
        """The text after label and setting: the options, the inference, the calibration."""
        options = f"[{self.options}] " if self.options else ""
        words = ", ".join(filter(None, [self.inference, "calibrated" * self.calibrated]))
        return f"{options}{words}".strip()

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: the paper's order of methods, then label, setting, options, inference."""
        known = self.label in PAPER_ORDER
        place = (0, PAPER_ORDER.index(self.label), "") if known else (1, 0, self.label)
        if isinstance(self.setting, int | float):
            setting: tuple[int, float, str] = (1, self.setting, "")
        else:
            setting = (0 if self.setting is None else 2, 0, str(self.setting))
        return (*place, *setting, self.options, _by_number(self.inference), self.calibrated)


CONTROL = Row("VAE+")
"""The control: the VAE, continued with the same schedule. Gains are differences from it."""


def _by_number(text: str) -> list[str | int]:
    """Sort key that puts ``2 steps`` before ``10 steps``: texts and numbers in turn."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", text)]


def inference_words(used: Inference, default: Inference) -> str:
    """How an inference differs from a run's default, in words.

    Inferences that differ have different words, except for a calibration that is the default's or none.

    >>> inference_words(Inference(refine=2, restarts=3), Inference())
    '+2 steps, 3 restarts'
    >>> inference_words(Inference(refine=2, reuse=0), Inference(refine=4))
    '2 steps, reuse 0'
    """
    words = []
    if used.refine != default.refine:
        words.append(f"{'' if default.refine else '+'}{used.refine} step{'s' * (used.refine != 1)}")
    if used.refine and used.how != default.how:
        words.append(used.how)
    if used.refine and used.reuse != default.reuse:
        words.append(f"reuse {used.reuse}")
    if used.restarts != default.restarts:
        words.append(f"{used.restarts} restart{'s' * (used.restarts != 1)}")
    if used.calibrated and not _same_calibration(used, default):
        words += [f"scale {used.scale!r}", f"slope {used.slope!r}", f"reference {used.reference!r}"]
    return ", ".join(words)


def _same_calibration(one: Inference, other: Inference) -> bool:
    return (one.scale, one.slope, one.reference) == (other.scale, other.slope, other.reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """What makes scores comparable: the data, the dimension of z, the networks and the likelihood."""

    data: str
    latent: int
    network: str = "conv"
    decoder_network: str = "conv"
    likelihood: str = "gaussian"

    @property
    def title(self) -> str:
        """The data set as the paper writes it, with networks and likelihood if they are unusual.

        >>> TableColumn(data="mnist", latent=20, decoder_network="dense").title
        'MNIST, dense decoder'
        """
        words = [set_title(self.data)]
        if self.network == self.decoder_network != "conv":
            words.append(f"{self.network} networks")
        else:
            words += [f"{self.network} encoder"] * (self.network != "conv")
            words += [f"{self.decoder_network} decoder"] * (self.decoder_network != "conv")
        usual = "bernoulli" if self.data in ("binary-mnist", "static-mnist") else "gaussian"
        if self.likelihood != usual:
            words.append(self.likelihood)
        return ", ".join(words)

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: the paper's order of data sets, then title and dimension."""
        known = self.data in PAPER_SETS
        place = (0, list(PAPER_SETS).index(self.data)) if known else (1, 0)
        return (*place, self.title, self.latent)

    def __str__(self) -> str:
        return f"{self.title}, dim {self.latent}"


@dataclass(frozen=True, slots=True)
class Log:
    """The first and last lines of a log, and the number of lines left out between them."""

    head: Sequence[str] = ()
    tail: Sequence[str] = ()
    left_out: int = 0


parsed = cache(ScoreKey.parse)
"""`ScoreKey.parse`, which is called for the same few names in every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run as plain values.

    Attributes:
        folder: name of its folder in the store.
        row: its row in the tables, for the run's default inference.
        column: its column in the tables.
        split: which split of the data.
        restart: seed of the training.
        inference: the run's default inference.
        continued: whether it started from another run.
        status: new, running, interrupted, failed or done.
        reason: why it has this status.
        epochs: number of epochs trained.
        best_epoch: the epoch whose weights were kept.
        validation: best bound on the validation data, in nats. Runs are selected by it alone.
        scores: measured numbers, by `ScoreKey`.
        gap: means from ``gap.json``, if it exists.
        curve: thinned learning curves: ``epoch`` and the series of `CURVES` that the run has.
        spec: content of ``spec.json``.
        job: content of ``job.json``.
        failure: content of ``failed.json``.
        environment: machine and versions at each start.
        log: events, from ``log.jsonl``.
        text: printed output, from ``log.txt``.
    """

    folder: str
    row: Row
    column: TableColumn
    split: int
    restart: int
    inference: Inference = field(default_factory=Inference)
    continued: bool = False
    status: str = "new"
    reason: str = ""
    epochs: int = 0
    best_epoch: int | None = None
    validation: float | None = None
    scores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gap: Mapping[str, Any] | None = None
    curve: Curve = field(default_factory=dict)
    spec: Mapping[str, Any] | None = None
    job: Mapping[str, Any] | None = None
    failure: Any = None
    environment: Sequence[Mapping[str, Any]] = ()
    log: Log = Log()
    text: Log = Log()

    def score(self, key: str, name: str) -> float | None:
        """A measured number, if it exists and is finite."""
        return number(self.scores.get(key, {}).get(name))

    def key(self, part: str, samples: int) -> str:
        """Name of the score for the run's default inference."""
        return str(ScoreKey(part, samples, self.inference))

    def keys(self, part: str, samples: int) -> dict[Row, str]:
        """The name of the score for each row that the run has a score for, and for its default row.

        Args:
            part: of the data.
            samples: K of IWAE-K.
        """
        found = {self.row: self.key(part, samples)}
        for name in self.scores:
            key = parsed(name)
            if key is None or (key.part, key.samples) != (part, samples) or str(key) != name:
                continue
            used = key.inference
            by_default = used.calibrated and _same_calibration(used, self.inference)
            words = inference_words(used, self.inference)
            row = replace(self.row, inference=words, calibrated=key.calibrated or by_default)
            found.setdefault(row, name)
        return found


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one folder of the store."""

    folder: str
    message: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContent:
    """Everything that was read from a store, and a message for everything that could not be read."""

    folder: Path
    records: Sequence[Record]
    problems: Sequence[Problem]
    figures: Sequence[Path] = ()


def set_title(data: str) -> str:
    """A data set as the paper writes it.

    >>> set_title("celeba")
    'CelebA'
    """
    return TITLES.get(data, data)


def number(value: Any) -> float | None:
    """A finite number that can be squared, or None."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            return None
        return found if abs(found) < LARGEST else None
    return None
