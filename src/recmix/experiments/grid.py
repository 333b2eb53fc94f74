"""A grid: a TOML file that names data, methods and a protocol, and the runs that follow from it.

.. code-block:: toml

    title = "Table 1"
    [protocol]
    splits = 10            # seeds 0 to 9 of the validation split, or a list of seeds
    restarts = 3           # seeds 0 to 2 of the weights, best by validation, or a list of seeds
    samples = [100]        # K of the IWAE-K bounds of the test images
    choose_by = 100        # K of the bound of the validation images (default: the first of `samples`)
    [budget]               # training options of the two stages, as in `recmix.runs.options.Training`
    first = { epochs = 2000, patience = 50 }
    second = { epochs = 20, learning_rate = 1e-5 }
    [[columns]]            # a list is an axis
    data = ["mnist", "omniglot"]
    latent = [20, 50]      # also: likelihood, network, decoder_network, size, crop,
    methods = ["vae", "rme"]   # which of the methods (default all), first, second (over the budget)
    [[methods]]
    name = "rme"
    order = [2, 3]         # options of the method or of training; also: continued, label,
    after = "VAE+"         # the row whose runs it starts from (default: the VAE),
    refined = [2, 4]       # scored again with so many Gauss-Newton steps for every image
    calibrated = true      # and each of these again, as wide as validation images ask for

A run's name is a digest of everything that defines its result and of nothing else, so that the same
run in two grids, or in one grid twice, is one run. Methods of the second stage start from the VAE of
their column, split and restart, which is trained once. VAE+ (that VAE, continued under the same
schedule) is in every grid: a gain is a gain over it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from recmix._version import __version__
from recmix.errors import ConfigError
from recmix.experiments.parts import (
    AXES,
    Column,
    Variant,
    only,
    read_budget,
    read_columns,
    read_protocol,
    read_variants,
    table,
    tables,
    variant,
)
from recmix.runs.files import read_toml
from recmix.runs.options import CLIMBS
from recmix.runs.scores import ScoreKey

__all__ = ["Grid", "Job", "check", "digest_of", "expand", "read_grid", "told"]

FORMAT = 1
"""Enters every digest: a change of what a definition means makes new runs of all."""
DIGITS = 16
YOUNGER = {
    "reuse": 0,
    "widen": 1.0,
    "keep": "best",
    "average": 0.0,
    "distil": 0.0,
    "distil_steps": 2,
    "optimizer": "adam",
    "starts": 1,
    "widen_tilt": 0.0,
    "widen_at": 0.0,
}
"""Training options that came after the first stores, each with the value that changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a grid.

    Attributes:
        digest: its name, from `definition`.
        definition: everything that defines the result, as plain JSON values.
        label: the row of the table it belongs to: VAE, VAE+, SA, RME …
        setting: value of the option that the table varies, if there is one.
        option: the name of that option.
        split: seed of the validation split.
        restart: seed of the weights.
        depends: digest of the run it starts from, or None.
        evaluate: what is measured, see `recmix.runs.scores.ScoreKey`.
        apart: training options that are not part of the definition.
    """

    digest: str
    definition: dict[str, Any]
    label: str
    setting: Any
    option: str | None
    split: int
    restart: int
    depends: str | None
    evaluate: tuple[str, ...]
    apart: dict[str, Any] = field(default_factory=dict)

    @property
    def column(self) -> dict[str, Any]:
        """What its column of the table is: data, dimension, likelihood and networks."""
        of = self.definition
        found = {"data": of["data"]["name"], **{k: of[k] for k in AXES if k in of and k != "data"}}
        return found | {k: of["data"][k] for k in ("size", "crop") if of["data"].get(k) is not None}

    @property
    def row(self) -> str:
        """Its row of the table, such as ``RME(2)``."""
        return self.label if self.option is None else f"{self.label}({self.setting})"

    @property
    def chained(self) -> bool:
        """Whether its posterior is a chain of corrections, which may begin from several starts."""
        of = self.definition
        return bool(of["method"] == "vae" and of["options"].get("component") == "residual")

    @property
    def title(self) -> str:
        """What a person calls it."""
        of = self.column
        nets = {of["network"], of["decoder_network"]} - {"conv"}
        kind = f" {of['network']}/{of['decoder_network']}" if nets else ""
        where = f"{Path(of['data']).name} {of['latent']}{kind}"
        return f"{self.row} {where} split {self.split} restart {self.restart}"

    def to_json(self) -> dict[str, Any]:
        """For the grid's file and, with the definition, the run's."""
        return {
            "digest": self.digest,
            "label": self.label,
            "setting": self.setting,
            "option": self.option,
            **self.column,
            "split": self.split,
            "restart": self.restart,
            "continued": self.depends is not None,
            "dependency": self.depends,
            "evaluate": list(self.evaluate),
        }


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The runs of one file, in the order in which they are wanted, and what there is to say of them."""

    name: str
    title: str
    jobs: tuple[Job, ...]
    protocol: dict[str, Any]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the store."""
        return {
            "format": FORMAT,
            "recmix": __version__,
            "name": self.name,
            "title": self.title,
            "protocol": self.protocol,
            "jobs": [job.to_json() for job in self.jobs],
        }


def told(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition without the younger options that change nothing."""
    if not isinstance(training := definition.get("training"), Mapping):
        return dict(definition)
    kept = {k: v for k, v in training.items() if k not in YOUNGER or v != YOUNGER[k]}
    if not (training.get("refine") or training.get("distil")):
        for name in CLIMBS:  # no step is taken while it trains
            kept.pop(name, None)
    return {**definition, "training": kept}


def digest_of(definition: Mapping[str, Any]) -> str:
    """The name of a run: the SHA-256 of its definition, whatever the order of the keys.

    A training option that is younger than the first stores counts only where it changes something, so
    that what was done before is still known.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    >>> digest_of({"training": {"keep": "best", "optimizer": "adam"}}) == digest_of({"training": {}})
    True
    """
    canonical = json.dumps(told(definition), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGITS]


def read_grid(file: Path) -> Grid:
    """The grid that a TOML file describes."""
    content = read_toml(file)
    try:
        return expand(content, file.stem)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def expand(content: Mapping[str, Any], name: str) -> Grid:
    """The grid of a file's content.

    >>> grid = expand({"columns": [{"data": "digits", "latent": 2}],
    ...                "methods": [{"name": "rme", "order": [2, 3]}],
    ...                "protocol": {"splits": 1, "restarts": 1}}, "small")
    >>> [job.row for job in grid.jobs]
    ['VAE', 'VAE+', 'RME(2)', 'RME(3)']

    Args:
        content: what TOML gave.
        name: what the grid is called.
    """
    only(content, ("title", "protocol", "budget", "columns", "methods"), "table")
    protocol = read_protocol(table(content, "protocol"))
    budget = read_budget(table(content, "budget"), "[budget]")
    methods = [row for entry in tables(content, "methods") for row in read_variants(entry)]
    names = sorted({row.name for row in methods})
    columns = [
        column for entry in tables(content, "columns") for column in read_columns(entry, budget, names)
    ]
    notes = []
    rows = []
    for control, why in (
        (variant("vae", {}, continued=False), "the others start from it"),
        (variant("vae", {}, continued=True), "a gain is a gain over it"),
    ):
        own = next((m for m in methods if m.same(control)), None)
        rows.append(own or control)
        if own is None:
            notes.append(f"{control.label} is not in the file and was added: {why}")
    rows += [m for m in methods if not any(m.same(row) for row in rows[:2])]

    found: dict[str, Job] = {}
    repeated = 0
    for split, restart, column in itertools.product(protocol["splits"], protocol["restarts"], columns):
        made: dict[str, Job] = {}
        for row in rows:
            if row.name not in ("vae", *column.methods):
                continue
            job = _job(row, column, split, restart, _start(row, made), protocol)
            made[job.row] = job
            if (before := found.get(job.digest)) is not None:
                repeated += 1
                job = _both(before, job)
            found[job.digest] = job
    if repeated:
        notes.append(f"{repeated} runs were asked for more than once and are one each")
    _distinct(found.values())
    title = content.get("title", name)
    if not isinstance(title, str):
        raise ConfigError(f"title must be text, got {title!r}")
    return Grid(
        name=name, title=title, jobs=tuple(found.values()), protocol=protocol, notes=tuple(notes)
    )


def _start(row: Variant, made: Mapping[str, Job]) -> Job | None:
    """The run that a row starts from, among those of the rows before it; the VAE is the first."""
    if not row.after:
        return next(iter(made.values()), None)
    if row.after not in made:
        raise ConfigError(
            f"{row.label} is to start after {row.after!r}, which is no row before it: "
            f"there are {', '.join(made)}"
        )
    return made[row.after]


def check(jobs: Iterable[Job]) -> None:
    """Make the networks of each kind of run once, so that an impossible option is found before hours."""
    import torch

    from recmix.data import SETS
    from recmix.runs.options import Training
    from recmix.runs.spec import Spec
    from recmix.training.build import build
    from recmix.training.options import split_auto

    seen = set()
    with torch.random.fork_rng():
        for job in jobs:
            of = job.definition
            if of["data"]["name"] not in SETS:
                continue  # its shape is known when it is loaded
            channels, height, width = SETS[of["data"]["name"]].shape
            side = of["data"]["size"]
            spec = Spec(
                method=of["method"],
                options=split_auto(of["options"])[0],
                latent=of["latent"],
                likelihood=of["likelihood"],
                network=of["network"],
                decoder_network=of["decoder_network"],
                shape=(channels, side or height, side or width),
                training=Training(device="cpu"),
            )
            calibrated = any("calibrated" in key for key in job.evaluate)
            kind = digest_of({**spec.to_json(), "calibrated": calibrated})
            if kind not in seen:
                seen.add(kind)
                try:
                    method = build(spec).eval()
                    if calibrated:  # a posterior without a width says so here
                        method.posterior(torch.zeros(1, *spec.shape)).widened(1.0)
                except ConfigError as error:
                    raise ConfigError(f"{job.title}: {error}") from error


def _job(
    row: Variant,
    column: Column,
    split: int,
    restart: int,
    base: Job | None,
    protocol: Mapping[str, Any],
) -> Job:
    from recmix.training.fit import IGNORED_ON_RESUME

    training = _training(column.budget, row) | {"seed": restart}
    apart = {k: training.pop(k) for k in list(training) if k in IGNORED_ON_RESUME and k != "epochs"}
    depends = base.digest if row.second and base else None
    definition = {
        "format": FORMAT,
        "method": row.name,
        "options": row.options,
        "training": training,
        "split": split,
        "init": depends,
        **column.definition,
    }
    tested = [ScoreKey("test", samples) for samples in protocol["samples"]]
    tested += [key._replace(refine=steps) for key in list(tested) for steps in row.refined]
    tested += [key._replace(calibrated=True) for key in list(tested) if row.calibrated]
    validated = [ScoreKey("val", protocol["choose_by"], steps) for steps in (None, *row.refined)]
    return Job(
        digest=digest_of(definition),
        definition=definition,
        label=row.label,
        setting=row.options[row.option] if row.option else None,
        option=row.option,
        split=split,
        restart=restart,
        depends=depends,
        evaluate=tuple(map(str, tested + validated)),
        apart={k: v for k, v in apart.items() if k != "device"},
    )


def _training(budget: Mapping[str, Mapping[str, Any]], row: Variant) -> dict[str, Any]:
    """All training options: the stage's usual ones, the budget's, then the method's own.

    A method that asks for a share of the usual learning rate gets that share of the budget's too.
    """
    from recmix.runs.options import Training
    from recmix.training.fit import FIRST_STAGE, SECOND_STAGE

    stage, usual = ("second", SECOND_STAGE) if row.second else ("first", FIRST_STAGE)
    found: dict[str, Any] = {**usual, **budget[stage]}
    found["learning_rate"] *= row.factor
    return asdict(Training(**{**found, **row.training}))


def _both(one: Job, two: Job) -> Job:
    """The first of two that are one training, with all that is to be measured of either."""
    climbed = [j for j in (one, two) if any("refine" in key for key in j.evaluate)]
    told = {"reuse": climbed, "starts": [one, two] if one.chained else climbed}
    if any(len({j.definition["training"][name] for j in told[name]}) > 1 for name in CLIMBS):
        raise ConfigError(
            f"{one.title} and {two.title} are one training, to be scored with different "
            f"{' or '.join(CLIMBS)}: a run has one such score, so use another store for the other"
        )
    definition = climbed[0].definition if climbed else one.definition
    evaluate = tuple(dict.fromkeys([*one.evaluate, *two.evaluate]))
    return replace(one, definition=definition, evaluate=evaluate)


def _distinct(jobs: Iterable[Job]) -> None:
    """Refuse two runs that a table could not tell apart."""
    names = Counter(json.dumps([j.row, j.column, j.split, j.restart], sort_keys=True) for j in jobs)
    name, count = names.most_common(1)[0]
    if count > 1:
        row, column, *_ = json.loads(name)
        raise ConfigError(
            f"{count} different runs are all {row} of the column {column}: give each of these methods "
            "its own label, or split the columns over two files"
        )
