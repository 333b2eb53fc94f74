"""Runs as plain values: the row and column of the tables each belongs to, and what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "Column",
    "Curve",
    "Log",
    "Problem",
    "Record",
    "Row",
    "Setting",
    "Store",
    "number",
    "set_title",
]

Setting = int | float | str | None
Curve = Mapping[str, Sequence[float | None]]
LARGEST = 1e100
PAPER_ORDER = (
    *("VAE", "VAE+", "SA", "IAF", "HF", "ME", "VLAE", "RME"),
    *("BVI", "BVI-ER1", "BVI-ER2"),
)
PAPER_SETS = ("mnist", "omniglot", "cifar10", "svhn", "celeba", "binary-mnist", "static-mnist")
TITLES = {
    "mnist": "MNIST",
    "omniglot": "OMNIGLOT",
    "cifar10": "CIFAR10",
    "svhn": "SVHN",
    "celeba": "CelebA",
    "binary-mnist": "Binary MNIST",
    "static-mnist": "Static MNIST",
    "digits": "Digits",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: a method, the setting the tables vary, and how its posterior is used.

    >>> print(Row("RME", 5), Row("RES", None, 2), Row("VAE", calibrated=True), sep=", ")
    RME(5), RES +2 steps, VAE calibrated
    """

    label: str
    setting: Setting = None
    refine: int = 0
    calibrated: bool = False

    def __str__(self) -> str:
        name = self.label if self.setting is None else f"{self.label}({self.setting})"
        return f"{name} {self.use}".rstrip()

    @property
    def use(self) -> str:
        """How the posterior is used, in words, if not as it was trained."""
        steps = f"+{self.refine} step{'s' * (self.refine > 1)}" if self.refine else ""
        return f"{steps} {'calibrated' * self.calibrated}".strip()

    @property
    def order(self) -> tuple[Any, ...]:
        """Where it stands: the paper's order, then by name, by setting, by how it is used."""
        known = self.label in PAPER_ORDER
        place = (0, PAPER_ORDER.index(self.label), "") if known else (1, 0, self.label)
        use = (self.refine, self.calibrated)
        if isinstance(self.setting, int | float):
            return (*place, 1, self.setting, "", *use)
        return (*place, 0 if self.setting is None else 2, 0, str(self.setting), *use)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What makes scores comparable: the data, the dimension of z, the networks and the likelihood."""

    data: str
    latent: int
    network: str = "conv"
    decoder_network: str = "conv"
    likelihood: str = "gaussian"

    @property
    def title(self) -> str:
        """The data set as the paper writes it, with the networks where they are not the usual ones.

        >>> Column(data="mnist", latent=20, decoder_network="dense").title
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
        """Where it stands: the paper's data sets, then by name, then by dimension."""
        known = self.data in PAPER_SETS
        place = (0, PAPER_SETS.index(self.data)) if known else (1, 0)
        return (*place, self.title, self.latent)

    def __str__(self) -> str:
        return f"{self.title}, dim {self.latent}"


@dataclass(frozen=True, slots=True)
class Log:
    """The first and last lines of a log, and how many were left out between them."""

    head: Sequence[str] = ()
    tail: Sequence[str] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run as plain values.

    Attributes:
        folder: name of its folder in the store.
        row: the line of the table it belongs to.
        column: what its scores may be compared with.
        split: which split of the data.
        restart: which seed of the training.
        continued: whether it started from another run.
        status: new, running, interrupted, failed or done.
        reason: why it stands like that.
        epochs: how many it has trained.
        best_epoch: the epoch whose weights were kept.
        validation: its best bound on the validation images, nats; the only thing that selects it.
        scores: what was measured, by ``split/samples``, ``/refine steps`` and ``/calibrated`` added.
        gap: the means that ``gap.json`` holds, if it is there.
        curve: thinned learning curves: ``epoch`` and the series of `CURVES` it has.
        spec: what was asked, as it stands in the file.
        job: the grid's entry, as it stands in the file.
        failure: what ``failed.json`` says.
        environment: the machine and versions of each start.
        log: of events.
        text: what it printed, from ``log.txt``.
    """

    folder: str
    row: Row
    column: Column
    split: int
    restart: int
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
        """A measured number, if it is there and finite."""
        return number(self.scores.get(key, {}).get(name))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one folder of the store."""

    folder: str
    message: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Everything that could be read, and a message for everything that could not."""

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
    """A finite number that can be squared, or nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            return None
        return found if abs(found) < LARGEST else None
    return None
