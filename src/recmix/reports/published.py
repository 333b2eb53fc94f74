"""The figures the paper printed, to stand beside ours.

Minyoung Kim and Vladimir Pavlovic, Recursive Inference for Variational Autoencoders, NeurIPS 2020.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from recmix.errors import ConfigError, unknown
from recmix.reports.records import Column, Row, Setting

__all__ = [
    "CITATION",
    "TABLES",
    "Published",
    "best_printed",
    "figures",
    "likelihood_of",
    "published",
    "time_of",
]

CITATION = (
    "Minyoung Kim and Vladimir Pavlovic. Recursive Inference for Variational Autoencoders. "
    "Advances in Neural Information Processing Systems 33 (NeurIPS 2020)."
)
TABLES = {
    "log_likelihood": "test log-likelihood, convolutional networks (main paper and supplement)",
    "binary_mnist": "test log-likelihood on Binary MNIST, dim 50",
    "inference_ms": "inference time in milliseconds, batch 128, dim 50, RTX 2080 Ti",
    "fc_vs_conv_decoder": "test log-likelihood with fully connected decoders",
    "fc_inference_ms": "inference time in milliseconds with fully connected decoders",
}
NETWORKS = {"conv": "conv", "dense": "dense", "CNN": "conv", "FC": "dense"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One printed figure.

    Attributes:
        table: one of `TABLES`.
        data: name of the data set, as `recmix.data` has it.
        latent: dimension of z.
        row: method and setting.
        mean: what was printed (nats, or milliseconds).
        std: the superscript beside it, where there is one.
        significance: ``best``, ``p<=0.01`` …, where the table has colours.
        network: of the decoder, ``conv`` or ``dense``.
    """

    table: str
    data: str
    latent: int
    row: Row
    mean: float
    std: float | None = None
    significance: str | None = None
    network: str = "conv"


Key = tuple[str, str, int, str, Setting, str]


@cache
def _all() -> dict[Key, Published]:
    content = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    found: dict[Key, Published] = {}
    for table, lines in content["tables"].items():
        for line in lines:
            for figure in _unfold(table, line):
                row = figure.row
                key = (table, figure.data, figure.latent, row.label, row.setting, figure.network)
                found[key] = figure
    return found


def _unfold(table: str, line: list[Any]) -> Iterator[Published]:
    """The figures of one line of the file; a line of the decoder tables has two."""
    data, latent, label, setting = line[:4]
    common = {"table": table, "data": data, "latent": latent, "row": Row(label, setting)}
    if table.startswith("fc_"):
        for network, mean in zip(("dense", "conv"), line[4:], strict=True):
            if mean is not None:
                yield Published(mean=mean, network=network, **common)
    elif table == "log_likelihood":
        yield Published(mean=line[4], std=line[5], significance=line[6], **common)
    elif table == "binary_mnist":
        yield Published(mean=line[4], network=NETWORKS[line[5]], **common)
    else:
        yield Published(mean=line[4], **common)


def figures(table: str | None = None) -> list[Published]:
    """All printed figures, or those of one table.

    >>> len(figures("log_likelihood"))
    580
    """
    if table is not None and table not in TABLES:
        raise ConfigError(unknown("table", table, TABLES))
    return [figure for figure in _all().values() if table in (None, figure.table)]


def published(
    table: str, data: str, latent: int, method: str, setting: Setting = None, network: str = "conv"
) -> Published | None:
    """One printed figure, if the paper has it.

    Args:
        table: one of `TABLES`.
        data: name of the data set.
        latent: dimension of z.
        method: label of the method, such as ``RME``.
        setting: order, steps or flows.
        network: ``conv`` or ``dense`` (the decoder's).

    >>> published("log_likelihood", "mnist", 20, "RME", 4).mean
    945.2
    """
    if table not in TABLES:
        raise ConfigError(unknown("table", table, TABLES))
    return _all().get((table, data, latent, method, setting, network))


def likelihood_of(row: Row, column: Column) -> Published | None:
    """The printed log-likelihood that belongs beside a cell, if the set-ups agree."""
    networks = (column.network, column.decoder_network)
    if column.data == "binary-mnist" and column.likelihood == "bernoulli":
        if networks[0] != networks[1]:
            return None
        return published("binary_mnist", "binary-mnist", column.latent, *_key(row), networks[1])
    if column.likelihood != "gaussian":
        return None
    if networks == ("conv", "conv"):
        return published("log_likelihood", column.data, column.latent, *_key(row))
    if networks == ("conv", "dense"):
        return published("fc_vs_conv_decoder", column.data, column.latent, *_key(row), "dense")
    return None


def best_printed(column: Column) -> Published | None:
    """The highest log-likelihood the paper printed for a data set and dimension.

    >>> str(best_printed(Column(data="mnist", latent=20)).row)
    'RME(4)'
    """
    found = {likelihood_of(figure.row, column) for figure in figures()} - {None}
    return max((f for f in found if f is not None), key=lambda f: f.mean, default=None)


def time_of(row: Row, column: Column) -> Published | None:
    """The printed inference time that belongs beside a cell, if the set-ups agree."""
    if column.network != "conv" or column.likelihood != "gaussian":
        return None
    place = (column.data, column.latent, *_key(row))
    if column.decoder_network == "conv":
        return published("inference_ms", *place) or published("fc_inference_ms", *place, "conv")
    return published("fc_inference_ms", *place, column.decoder_network)


def _key(row: Row) -> tuple[str, Setting]:
    label = "BVI-ER1" if row.label == "BVI" else row.label  # the main paper's name for it
    return f"{label} {row.use}".rstrip(), row.setting  # the paper used all as they were trained
