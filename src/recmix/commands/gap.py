"""Measure, print and store the gap between log p(x) and the ELBO of a trained run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from recmix.api import Model
from recmix.commands.inference_words import changes
from recmix.commands.stored_scores import GAP, scored_data
from recmix.data import Data, Examples
from recmix.errors import ConfigError
from recmix.evaluation.gap import QUANTITIES, Gap, with_error
from recmix.evaluation.score import device_name
from recmix.runs.files import finite, write_json
from recmix.training.progress import watch

__all__ = ["report_gap", "table_of"]


def report_gap(
    model: Model,
    data: Data,
    measured: Examples,
    *,
    split: str,
    own: bool,
    folder: Path | None,
    count: int,
    samples: int,
    seed: int,
    memory: int | None,
    console: Console,
    as_json: bool,
) -> None:
    """Measure the gap between log p(x) and the ELBO of a trained model, print it and store it.

    The gap is measured on some examples and, for comparison, on the same number of training examples.

    Args:
        measured: the part of `data` to measure on, for example its test part.
        own: whether the model was trained on `data`. Only then training examples are measured too.
        folder: folder of the model's run, where the result is stored; None does not store it.
        count: largest number of examples to measure on.
    """
    if count < 2:
        raise ConfigError(f"--examples must be at least 2, got {count}")
    x = _some(measured, count, seed, binarise=data.dynamic and measured is data.x_train)
    train = None
    if own and measured is not data.x_train:
        train = _some(data.x_train, count, seed, binarise=data.dynamic)
    total = len(x) + (0 if train is None else len(train))
    with watch(f"gap of {split}", total, show=False if as_json else None) as report:
        found = model.gap(
            x, train=train, name=split, samples=samples, seed=seed, memory=memory, report=report
        )
    content = {
        "inference": model.inference.to_json(),
        "samples": samples,
        "seed": seed,
        "device": device_name(model.device),
        **found.to_json(),
        "advice": found.advice_for("--refine 2", _how_to_measure_training(model)),
    }
    if folder is not None:
        write_json(folder / GAP, content | scored_data(model, data))
    if as_json:
        console.print_json(json.dumps(finite(content)))
        return
    title = " ".join([f"{split}, {len(x):,} examples", *changes(model.inference)])
    console.print(table_of(found, title=title))
    for line in (*found.notes(), f"[bold]{content['advice']}[/]"):
        console.print(line, highlight=False)


def _how_to_measure_training(model: Model) -> str:
    """Tell the user how to measure the gap on training examples too, if it was measured without them."""
    if not model.spec.data:  # it was trained elsewhere
        return "in Python: model.gap(x, train=...)"
    if model.spec.data.get("kind") in ("named", "path"):
        return "leave --data out"
    return "name the run's own data with --data"


def table_of(found: Gap, title: str) -> Table:
    """Make a table of the gap between log p(x) and the ELBO, and of the parts of this gap.

    Each cell has a mean over the examples and its standard error.
    """
    parts = found.summary()
    minus = f"{found.name} - train" if found.train is not None else ""
    table = Table("nats per example", title=title)
    for name in parts:
        table.add_column(minus if name == "difference" else name, justify="right")
    for key, words in QUANTITIES.items():
        cells = [with_error(part[key]["mean"], part[key]["se"]) for part in parts.values()]
        table.add_row(words, *cells, end_section=key in ("log_evidence", "full"))
    return table


def _some(examples: Examples, most: int, seed: int, *, binarise: bool) -> np.ndarray[Any, Any]:
    """Select at most `most` examples at random, with this seed.

    With `binarise`, each value v between 0 and 1 is replaced by 1 with the probability v, else by 0.
    """
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(len(examples), size=min(most, len(examples)), replace=False))
    x = examples[rows]
    return (random.random(x.shape) < x).astype(np.float32) if binarise else x
