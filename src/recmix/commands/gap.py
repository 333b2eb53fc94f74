"""The gap of a stored run: measured on its own images, printed and kept in its folder."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from recmix.api import Fitted
from recmix.data import ImageData, Images
from recmix.errors import ConfigError
from recmix.evaluation.gap import QUANTITIES, Gap
from recmix.runs.files import write_json
from recmix.training.progress import count

__all__ = ["report_gap", "table_of"]

FILE = "gap.json"


def report_gap(
    fitted: Fitted,
    data: ImageData,
    measured: Images,
    *,
    split: str,
    own: bool,
    images: int,
    samples: int,
    seed: int,
    memory: int | None,
    console: Console,
    as_json: bool,
) -> None:
    """Measure a run's gap on some images and, for comparison, on as many training images.

    Args:
        fitted: the run.
        data: where the images are from.
        measured: those to measure on.
        split: what these are called.
        own: whether the run was trained on `data`: only then training images are looked at, and the
            result is written to the run's folder.
        images: how many, at most.
        samples: importance samples for log p(x).
        seed: which images, and of all noise.
        memory: bytes for the decoder's activations.
        console: where to print.
        as_json: print JSON.
    """
    if images < 2:
        raise ConfigError(f"images is the number of images to measure, at least 2; got {images}")
    x = _some(measured, images, seed, binarise=data.dynamic and measured is data.x_train)
    train = None
    if own and measured is not data.x_train:
        train = _some(data.x_train, images, seed, binarise=data.dynamic)
    total = len(x) + (0 if train is None else len(train))
    with count(f"gap of {split}", total, show=False if as_json else None) as report:
        found = fitted.gap(
            x, train=train, name=split, samples=samples, seed=seed, memory=memory, report=report
        )
    content = {
        **fitted.method.climbs(),
        "samples": samples,
        "seed": seed,
        "device": torch.cuda.get_device_name(fitted.device) if fitted.device.type == "cuda" else "cpu",
        **found.to_json(),
    }
    if own and fitted.folder is not None:
        write_json(fitted.folder / FILE, content)
    if as_json:
        console.print_json(json.dumps(content))
        return
    console.print(table_of(found, title=f"{split}, {len(x):,} images"))
    for line in (*found.notes(), f"[bold]{found.advice}[/]"):
        console.print(line, highlight=False)


def table_of(found: Gap, title: str) -> Table:
    """The means with their standard errors."""
    parts = found.summary()
    minus = f"{found.name} - train" if found.train is not None else ""
    table = Table("nats per image", title=title)
    for name in parts:
        table.add_column(minus if name == "difference" else name, justify="right")
    for key, words in QUANTITIES.items():
        cells = [f"{part[key]['mean']:.2f} ± {part[key]['se']:.2f}" for part in parts.values()]
        table.add_row(words, *cells, end_section=key in ("log_evidence", "full"))
    return table


def _some(images: Images, most: int, seed: int, *, binarise: bool) -> np.ndarray[Any, Any]:
    """At most so many of the images, drawn by a seed; grey ones binarised where a run trains so."""
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(len(images), size=min(most, len(images)), replace=False))
    x = images[rows]
    return (random.random(x.shape) < x).astype(np.float32) if binarise else x
