"""The numbers that the paper printed, for comparison with ours.

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
from recmix.reports.records import Row, Setting, TableColumn

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
    """One printed number.

    Attributes:
        table: one of `TABLES`.
        data: name of the data set, as `recmix.data` has it.
        latent: dimension of z.
        row: method and setting.
        mean: the printed number (nats, or milliseconds).
        std: the printed standard deviation, if there is one.
        significance: ``best``, ``p<=0.01`` and so on, if the table has colours.
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
    tables = content["tables"].items()
    found = (figure for table, lines in tables for line in lines for figure in _unfold(table, line))
    return {(f.table, f.data, f.latent, f.row.label, f.row.setting, f.network): f for f in found}


def _unfold(table: str, line: list[Any]) -> Iterator[Published]:
    """The numbers of one line of the file; a line of the decoder tables has two."""
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
    """All printed numbers, or those of one table.

    >>> len(figures("log_likelihood"))
    580
    """
    if table is not None and table not in TABLES:
        raise ConfigError(unknown("table", table, TABLES))
    return [figure for figure in _all().values() if table in (None, figure.table)]


def published(
    table: str, data: str, latent: int, method: str, setting: Setting = None, network: str = "conv"
) -> Published | None:
    """One printed number, if the paper has it.

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


def likelihood_of(row: Row, column: TableColumn) -> Published | None:
    """The printed log-likelihood for a cell, if the paper has one for the same set-up."""
    networks = (column.network, column.decoder_network)
    place = (column.latent, row.label, row.setting, column.decoder_network)
    found = None
    if row.use:  # the paper has no other inference than a run's default
        return None
    if column.data == "binary-mnist" and column.likelihood == "bernoulli":
        found = "binary_mnist" if networks[0] == networks[1] else None
    elif column.likelihood == "gaussian":
        tables = {("conv", "conv"): "log_likelihood", ("conv", "dense"): "fc_vs_conv_decoder"}
        found = tables.get(networks)
    return None if found is None else published(found, column.data, *place)


def best_printed(column: TableColumn) -> Published | None:
    """The highest log-likelihood the paper printed for a data set and dimension.

    >>> str(best_printed(TableColumn(data="mnist", latent=20)).row)
    'RME(4)'
    """
    found = {likelihood_of(figure.row, column) for figure in figures()} - {None}
    return max((f for f in found if f is not None), key=lambda f: f.mean, default=None)


def time_of(row: Row, column: TableColumn) -> Published | None:
    """The printed inference time for a cell, if the paper has one for the same set-up."""
    if row.use or column.network != "conv" or column.likelihood != "gaussian":
        return None
    place = (column.data, column.latent, row.label, row.setting)
    if column.decoder_network == "conv":
        return published("inference_ms", *place) or published("fc_inference_ms", *place, "conv")
    return published("fc_inference_ms", *place, column.decoder_network)
