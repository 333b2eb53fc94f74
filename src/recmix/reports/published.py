"""Look up the numbers in the tables of the paper: Kim and Pavlovic, NeurIPS 2020, see `CITATION`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from recmix.reports.records import Row, Setting, TableColumn

__all__ = ["CITATION", "Published", "best_printed", "figures", "likelihood_of"]
__all__ += ["published", "time_of"]

CITATION = (
    "Minyoung Kim and Vladimir Pavlovic. Recursive Inference for Variational Autoencoders. "
    "Advances in Neural Information Processing Systems 33 (NeurIPS 2020)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One number from a table of the paper by Kim and Pavlovic (NeurIPS 2020), see `CITATION`."""

    table: str  # name of a table in ``published.json``, such as ``log_likelihood``
    data: str  # name of the data set, as in `recmix.data`
    latent: int  # dimension of z
    row: Row  # the method, and the value of the option that the table varies, such as RME(5)
    mean: float  # the number, in nats or milliseconds
    std: float | None = None  # its standard deviation; None if the paper does not print one
    # meaning of its colour in the paper, such as ``best`` or ``p<=0.01``
    significance: str | None = None
    network: str = "conv"  # network of the decoder, ``conv`` or ``dense``


@cache
def _all() -> dict[tuple[str, str, int, str, Setting, str], Published]:
    content = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    tables = content["tables"].items()
    found = (figure for table, lines in tables for line in lines for figure in _unfold(table, line))
    return {(f.table, f.data, f.latent, f.row.label, f.row.setting, f.network): f for f in found}


def _unfold(table: str, line: list[Any]) -> Iterator[Published]:
    """Yield the numbers of one line of ``published.json``.

    A line of a table that compares decoders has two numbers: one for the dense decoder and one for the
    convolutional decoder.
    """
    data, latent, label, setting = line[:4]
    common = {"table": table, "data": data, "latent": latent, "row": Row(label, setting)}
    if table.startswith("fc_"):
        for network, mean in zip(("dense", "conv"), line[4:], strict=True):
            if mean is not None:
                yield Published(mean=mean, network=network, **common)
    elif table == "binary_mnist":
        yield Published(mean=line[4], network={"CNN": "conv", "FC": "dense"}[line[5]], **common)
    else:
        names = ("mean", "std", "significance")
        yield Published(**common, **dict(zip(names, line[4:], strict=False)))


def figures() -> Collection[Published]:
    """Return all numbers in the tables of the paper by Kim and Pavlovic (NeurIPS 2020)."""
    return _all().values()


def published(
    table: str, data: str, latent: int, method: str, setting: Setting = None, network: str = "conv"
) -> Published | None:
    """Return one number from the tables of Kim and Pavlovic (NeurIPS 2020), or None if it is missing.

    Args:
        table: name of a table in ``published.json``, such as ``log_likelihood``.
        data: name of the data set.
        latent: dimension of z.
        method: label of the method in the paper, such as ``RME``.
        setting: value of the option that the paper varies for this method, such as the number of
            components of RME; None if the paper varies no option.
        network: network of the decoder, ``conv`` or ``dense``.

    >>> published("log_likelihood", "mnist", 20, "RME", 4).mean
    945.2
    """
    return _all().get((table, data, latent, method, setting, network))


def likelihood_of(row: Row, column: TableColumn) -> Published | None:
    """Return the log-likelihood that Kim and Pavlovic (2020) report for one cell of our tables.

    The result is None if the paper has no number for the same data, model, method and inference.
    """
    networks = (column.network, column.decoder_network)
    table = None
    if row.use or column.more:  # the paper has no other inference than a run's default
        return None
    if column.data == "binary-mnist" and column.likelihood == "bernoulli":
        table = "binary_mnist" if networks[0] == networks[1] else None
    elif column.likelihood == "gaussian":
        tables = {("conv", "conv"): "log_likelihood", ("conv", "dense"): "fc_vs_conv_decoder"}
        table = tables.get(networks)
    place = (column.data, column.latent, row.label, row.setting, column.decoder_network)
    return None if table is None else published(table, *place)


def best_printed(column: TableColumn) -> Published | None:
    """Return the highest log-likelihood that Kim and Pavlovic (2020) report for one table column.

    A column is a data set with the options of a model.

    >>> str(best_printed(TableColumn(data="mnist", latent=20)).row)
    'RME(4)'
    """
    found = (likelihood_of(figure.row, column) for figure in figures())
    return max((f for f in found if f is not None), key=lambda f: f.mean, default=None)


def time_of(row: Row, column: TableColumn) -> Published | None:
    """Return the inference time in milliseconds that Kim and Pavlovic (2020) report for a table cell.

    The result is None if the paper has no number for the same data, model, method and inference.
    """
    if row.use or column.more or column.network != "conv" or column.likelihood != "gaussian":
        return None
    place = (column.data, column.latent, row.label, row.setting, column.decoder_network)
    return published("inference_ms", *place) or published("fc_inference_ms", *place)
