"""Read a TOML file that describes a grid: a list of runs, each of which trains and scores one model.

The results of a grid form a table. Its rows are methods, its columns are data sets with a model.

.. code-block:: toml

    title = "Table 1"
    [protocol]
    splits = 10            # seeds 0 to 9 of the validation split, or a list of seeds
    restarts = 3           # seeds 0 to 2 of the initial weights, or a list of seeds
    samples = [100]        # K of the IWAE-K bounds on test data
    choose_by = 100        # K of the IWAE-K bound on validation data (default: the first of `samples`)
    [budget]               # training options of the two stages
    first = { epochs = 2000, patience = 50 }
    second = { epochs = 20, learning_rate = 1e-5 }
    [[columns]]            # a list gives one column for each of its values
    data = ["mnist", "omniglot"]
    latent = [20, 50]      # also: all other options of the model, such as likelihood; size, crop;
                           # for texts length, vocabulary_size, graphs
    methods = ["rme"]      # the methods of these columns (default: all)
    first = { epochs = 50 }  # replaces values of the budget; also: second
    [[methods]]            # a list gives one row for each of its values
    name = "rme"
    order = [2, 3]         # options of the method, of training or of inference
    continued = true       # start from a trained model even if the method does not need one
    after = "VAE+"         # the row whose model it starts from (default: the first stage)
    label = "MINE"         # name of the row (default: `recmix.training.labels.row_label`)
    refined = [2, 4]       # also scored with this many Gauss-Newton steps
    calibrated = true      # all scores of the row are repeated with calibration on validation data;
                           # "noise": and once more, with calibration of the likelihood's noise, too

The name of a run is a digest (hash) of its definition. The definition is everything that determines
the result of the run, and nothing else. So a run that several grids contain is done once. A
definition has only options that differ from their defaults. So digests do not change when recmix
gets a new option whose default changes no result.

There are two stages of training. The first stage trains a model from random weights, usually a VAE.
The second stage starts from that model (`Method.starts_from`) with the same column, split and
restart. The model of the first stage is trained once for all methods. Every grid contains the first
stage (VAE) and the same method continued with the schedule of the second stage (VAE+). VAE+ is the
control: the gain of a method is its difference from VAE+.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recmix._version import __version__
from recmix.errors import ConfigError
from recmix.experiments.parts import GridColumn, GridRow, read_parts, read_rows, stage_training
from recmix.inference import Inference
from recmix.runs.files import read_toml
from recmix.runs.scores import ScoreKey
from recmix.runs.spec import FORMAT, Spec
from recmix.runs.training_options import Training

if TYPE_CHECKING:
    from recmix.methods.method import Method

__all__ = ["Grid", "GridJob", "check", "digest_of", "expand", "read_grid"]

DIGITS = 16  # hexadecimal digits of a digest
IMAGE = ("channels", "height", "width")  # the axes of an image
SHOWN = ("latent", "network", "decoder_network", "likelihood")
"""Options of a model that `GridJob.title` does not show as ``name=value``.

The latent dimension and the networks have their own place in the title. The likelihood is not shown.
"""


@dataclass(frozen=True, kw_only=True)
class GridJob:
    """One run of a grid: one model to train, and the scores to compute for it.

    In the table of results, the run has a row (its method) and a column (its data set and model).
    """

    digest: str = ""  # name of the run, from `definition`
    definition: dict[str, Any]  # everything that defines the result, as plain JSON values
    column: dict[str, Any]  # data, latent dimension, likelihood and networks
    label: str  # name of its row in the table, such as ``RME``
    setting: Any  # value of the option that the table varies, if there is one
    option: str | None  # name of that option
    split: int = 0  # seed of the validation split
    restart: int = 0  # seed of the initial weights
    depends: str | None = None  # digest of the run it starts from, or None
    evaluate: tuple[str, ...]  # names of its scores, see `recmix.runs.scores.ScoreKey`
    extra: dict[str, Any]  # options that are not part of the definition

    @property
    def row(self) -> str:
        """The name of the run's row in the table, such as ``RME(2)``."""
        return self.label if self.option is None else f"{self.label}({self.setting})"

    @property
    def title(self) -> str:
        """A description of the run in words: its row, data, model, split and restart."""
        of = self.column
        words = [Path(of["data"]).name, str(of["latent"])]
        if {of["network"], of["decoder_network"]} - {"conv", "auto"}:
            words.append(f"{of['network']}/{of['decoder_network']}")
        changed = {k: v for k, v in self.definition["model"].items() if k not in SHOWN}
        words += [f"{name}={str(value).replace(' ', '')}" for name, value in changed.items()]
        return f"{self.row} {' '.join(words)} split {self.split} restart {self.restart}"

    def to_json(self) -> dict[str, Any]:
        """Return the attributes of the run as JSON values, without its definition.

        The files ``grid-NAME.json`` and ``job.json`` hold these values.
        """
        names = ("digest", "label", "setting", "option", "split", "restart")
        return {
            **{name: getattr(self, name) for name in names},
            **self.column,
            "continued": self.depends is not None,
            "dependency": self.depends,
            "evaluate": list(self.evaluate),
        }


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All runs that one TOML file describes. A run trains and scores one model."""

    name: str  # from the name of the file
    title: str  # title of the table of results
    jobs: tuple[GridJob, ...]  # the runs, in the order in which they are done
    protocol: dict[str, Any]  # seeds of splits and of initial weights, and K of the IWAE-K scores
    notes: tuple[str, ...] = ()  # messages for the user about the grid

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file ``grid-NAME.json``."""
        about = {"name": self.name, "title": self.title, "protocol": self.protocol}
        jobs = [job.to_json() for job in self.jobs]
        return {"format": FORMAT, "recmix": __version__, **about, "jobs": jobs}


def digest_of(definition: Mapping[str, Any]) -> str:
    """Return the name of a run: the first 16 hexadecimal digits of the SHA-256 of its definition.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    canonical = json.dumps(definition, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGITS]


def read_grid(file: Path) -> Grid:
    """Read a TOML file, and return the `Grid` (the list of runs) that the file describes."""
    content = read_toml(file)
    try:
        return expand(content, file.stem)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def expand(content: Mapping[str, Any], name: str) -> Grid:
    """Make the `Grid` (the list of runs) that the content of a TOML file describes.

    `name` is the name of the file without its suffix.

    >>> grid = expand({"columns": [{"data": "digits", "latent": 2}],
    ...                "methods": [{"name": "rme", "order": [2, 3]}],
    ...                "protocol": {"splits": 1, "restarts": 1}}, "small")
    >>> [job.row for job in grid.jobs]
    ['VAE', 'VAE+', 'RME(2)', 'RME(3)']
    """
    title, protocol, columns, entries = read_parts(content, name)
    rows, notes = _with_controls(entries)
    templates = [_templates(rows, column, protocol) for column in columns]
    found: dict[str, GridJob] = {}
    repeated = 0
    seeds = itertools.product(protocol["splits"], protocol["restarts"])
    for (split, restart), of_column in itertools.product(seeds, templates):
        here: list[GridJob] = []
        for template, start in of_column:
            own = {"split": split, "restart": restart}
            depends = None if start is None else here[start].digest
            definition = {**template.definition, **own, "init": depends}
            digest = digest_of(definition)
            job = replace(template, digest=digest, definition=definition, depends=depends, **own)
            here.append(job)
            if before := found.get(job.digest):
                repeated += 1
                job = replace(before, evaluate=tuple(dict.fromkeys([*before.evaluate, *job.evaluate])))
            found[job.digest] = job
    if repeated:
        notes.append(f"runs that are in the file more than once are done once (repeated: {repeated})")
    _check_rows_differ(found.values())
    jobs = tuple(found.values())
    return Grid(name=name, title=title, jobs=jobs, protocol=protocol, notes=tuple(notes))


def _with_controls(entries: list[GridRow]) -> tuple[list[GridRow], list[str]]:
    """Return all rows of the table, and notes on rows that were added.

    The first rows are the models from which other rows start (VAE), and the controls (VAE+): the same
    models, trained longer.
    """
    rows: list[GridRow] = []
    notes: list[str] = []

    def add(first: type[Method]) -> None:
        (plain,) = read_rows({"name": first.name})
        (control,) = read_rows({"name": first.name, "continued": True})
        if plain.second:  # this first stage has a first stage itself
            add(plain.first)
        for row, name, why in (
            (plain, first.name.upper(), "other rows start from it"),
            (replace(control, first=first), f"{first.name.upper()}+", "it is the control"),
        ):
            given = next((entry for entry in entries if entry.same_training(row)), row)
            if given not in rows:
                rows.append(given)
                if given is row:
                    notes.append(f"{name} is not in the file and was added: {why}")

    for first in dict.fromkeys(row.first for row in entries):
        add(first)
        for row in entries:
            own = [*row.training, *(["refine"] if row.inference.refine else [])]
            if row.method is first and not row.second and own:
                raise ConfigError(
                    f"{first.name}, which other rows start from, takes no options of its own "
                    f"({', '.join(own)}): put training options into first of [budget], or give a row "
                    "that continues it (continued = true)"
                )
    return rows + [row for row in entries if row not in rows], notes


def _templates(
    rows: list[GridRow], column: GridColumn, protocol: Mapping[str, Any]
) -> list[tuple[GridJob, int | None]]:
    """Return the runs of one column as pairs (run, start), without split and restart.

    `start` is the index in this list of the run whose trained model is the initial model, or None for
    random weights.
    """
    names = {*column.methods, *(row.first.name for row in rows)}
    found: list[tuple[GridJob, int | None]] = []
    places: dict[str, int] = {}  # by row
    first_stages: dict[str, int] = {}  # by method
    for row in rows:
        if row.method.name not in names:
            continue
        start = None
        if row.after and row.after not in places:
            raise ConfigError(
                f"{row.label or row.method.name.upper()} starts after {row.after!r}, but there is no "
                f"such row before it: there are {', '.join(places)}"
            )
        if row.second:
            start = places[row.after] if row.after else first_stages[row.first.name]
        first_stages.setdefault(row.method.name, len(found))
        job = _template(row, column, protocol, None if start is None else found[start][0])
        places.setdefault(job.row, len(found))
        found.append((job, start))
    return found


def _template(
    row: GridRow, column: GridColumn, protocol: Mapping[str, Any], start: GridJob | None
) -> GridJob:
    from recmix.methods.method_options import method_options
    from recmix.training.resume import IGNORED_ON_RESUME

    training, inference = stage_training(column.budget, row), row.inference
    if not inference.refine and not training.distil:  # drop options that have no effect
        inference = Inference(restarts=inference.restarts if row.method.can_restart else 1)
    trained_with = inference.changed() if inference.refine or training.distil else {}
    defaults = {name: one.default for name, one in method_options(row.method).items()}
    changed = training.changed()
    ignored = {k: v for k, v in changed.items() if k in IGNORED_ON_RESUME and k != "epochs"}
    return GridJob(
        definition={
            "format": FORMAT,
            "method": row.method.name,
            "options": {k: v for k, v in row.options.items() if k not in defaults or v != defaults[k]},
            "training": {k: v for k, v in changed.items() if k not in ignored},
            "inference": trained_with,
            "model": column.model.changed(),
            "data": column.data,
        },
        column=column.to_json(),
        label=_label(row, training, inference, start),
        setting=row.options[row.method.setting] if row.method.setting else None,
        option=row.method.setting,
        evaluate=tuple(_score_keys(row, inference, protocol)),
        extra=ignored | ({} if trained_with else inference.changed()),
    )


def _score_keys(row: GridRow, default: Inference, protocol: Mapping[str, Any]) -> list[str]:
    """Return the names of all scores of a run of this row. Calibrated scores are on test data only.

    `default` has the inference options of the row. There are further scores for each number of
    Gauss-Newton steps in ``row.refined``.
    """
    used = [default, *(replace(row.inference, refine=steps) for steps in row.refined)]
    plain = [ScoreKey("test", samples, how) for samples in protocol["samples"] for how in used]
    keys = list(plain)
    if row.calibrated:
        keys += [key._replace(calibrated=True) for key in plain]
    if row.noise:
        keys += [key._replace(calibrated=True, noise=True) for key in plain]
    keys += [ScoreKey("val", protocol["choose_by"], how) for how in used]
    return list(dict.fromkeys(map(str, keys)))


def _label(row: GridRow, training: Training, inference: Inference, start: GridJob | None) -> str:
    """Return the label of a row, such as ``RME``, with the options that the TOML file gives as lists.

    If the file has no label for the row, the label is made from the method and its options. `start` is
    the run from which the runs of this row start, or None.
    """
    from recmix.training.labels import row_label

    init = None
    if start:
        init = Spec(method=start.definition["method"], label=start.label, shape=(1, 1, 1))
    label = row.label or row_label(row.method, training, inference, init)
    shown = {word.partition("=")[0] for word in label.split()}
    return " ".join([label, *(word for word in row.varied if word.partition("=")[0] not in shown)])


def check(jobs: Iterable[GridJob]) -> None:
    """Raise a ConfigError if the options of a run are not valid, before any run is trained.

    The model of each kind of run is built once for this. Runs on texts or on a user's own data are not
    checked, because the shape of an example is not known before the data are loaded.
    """
    import torch

    from recmix.data import SETS
    from recmix.model.options import ModelOptions
    from recmix.training.arguments import split_auto
    from recmix.training.build import build

    seen = set()
    with torch.random.fork_rng():
        for job in jobs:
            of, data = job.definition, job.definition["data"]
            if data["name"] not in SETS or len(SETS[data["name"]].shape) != len(IMAGE):
                continue  # its shape is known when it is loaded
            channels, height, width = SETS[data["name"]].shape
            spec = Spec(
                method=of["method"],
                options=split_auto(of["options"])[0],
                model=ModelOptions(**of["model"]),
                shape=(channels, data.get("size", height), data.get("size", width)),
                training=Training(device="cpu"),
            )
            keys = [key for key in map(ScoreKey.parse, job.evaluate) if key is not None]
            calibrated, noise = any(key.calibrated for key in keys), any(key.noise for key in keys)
            kind = digest_of({**spec.to_json(), "calibrated": calibrated, "noise": noise})
            if kind in seen:
                continue
            seen.add(kind)
            try:
                method = build(spec).eval()
                if calibrated:
                    method.posterior(torch.zeros(1, *spec.shape)).scaled(1.0)
                if noise and not method.model.likelihood.can_temper:
                    raise ConfigError(
                        f"the {method.model.likelihood.name} likelihood has no noise that can be "
                        "calibrated: use calibrated = true"
                    )
            except ConfigError as error:
                raise ConfigError(f"{job.title}: {error}") from error


def _check_rows_differ(jobs: Iterable[GridJob]) -> None:
    """Raise a ConfigError if two different runs have the same row, column, split and restart."""
    names = Counter(json.dumps([j.row, j.column, j.split, j.restart], sort_keys=True) for j in jobs)
    name, count = names.most_common(1)[0]
    if count > 1:
        row, column, *_ = json.loads(name)
        raise ConfigError(
            f"{count} different runs are all {row} of the column {column}: give each of these methods "
            "its own label, or split the columns over two files"
        )
