"""Reports that `recmix evaluate --report NAME` adds to the scores of a model.

A report is a function from a model and examples to a result with the methods `to_json`, for the run
folder, and `rows`, for the printed table. To add a report, register it in `REPORTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from recmix.errors import ConfigError, unknown

if TYPE_CHECKING:
    from recmix.api import Model
    from recmix.data import Data, Examples
    from recmix.evaluation.latent_report import LatentReport
    from recmix.evaluation.molecules import MoleculeScores

__all__ = ["REPORTS", "ExtraReport", "Measured", "check_reports", "measure_reports", "print_reports"]

MOLECULES, SAMPLES = 1000, 10_000
"""How many test molecules the report `molecules` reconstructs, and how many samples it draws."""


class Measured(NamedTuple):
    """The input of a report of `recmix evaluate --report`: the model and the examples to measure.

    Attributes:
        samples: number of samples of q(z | x) per example.
        memory: bytes that the decoder's activations may use at a time; None for the default.
    """

    model: Model
    data: Data
    examples: Examples
    samples: int
    seed: int
    memory: int | None


class ExtraReport(NamedTuple):
    """A report of `recmix evaluate --report`.

    Attributes:
        help: what the report measures, a short phrase for the help text of the flag.
        measure: function that takes a `Measured` and returns the result. Its method `to_json` returns
            {name: value}, and its method `rows` the rows (name, value) of the printed table.
        check: function that takes the model and raises an error if the report has no meaning for it.
            It is called before `measure`.
    """

    help: str
    measure: Callable[[Measured], Any]
    check: Callable[[Model], None] = lambda model: None


def check_reports(names: Sequence[str], model: Model | None = None) -> None:
    """Raise an error if one of the named reports does not exist, or cannot be computed for the model.

    For example, the report `molecules` cannot be computed for a model of images. If `model` is None,
    only the names are checked.

    >>> check_reports(["latin"])
    Traceback (most recent call last):
        ...
    recmix.errors.ConfigError: unknown report 'latin': did you mean 'latent'? ...
    """
    for name in names:
        if name not in REPORTS:
            raise ConfigError(unknown("report", name, REPORTS))
        if model is not None:
            REPORTS[name].check(model)


def measure_reports(names: Sequence[str], on: Measured) -> dict[str, Any]:
    """Compute the named reports of `recmix evaluate --report`, as {report name: result}."""
    return {name: REPORTS[name].measure(on) for name in names}


def print_reports(found: Mapping[str, Any]) -> None:
    """Print a table for each report; `found` is {report name: result} from `measure_reports`."""
    from rich.table import Table

    from recmix.commands.terminal import out

    for name, result in found.items():
        table = Table("", "", title=f"report {name}", show_header=False)
        for row in result.rows():
            table.add_row(*row)
        out.print(table)


def _latent(on: Measured) -> LatentReport:
    return on.model.latent_report(on.examples, on.samples, seed=on.seed, memory=on.memory)


def _molecules(on: Measured) -> MoleculeScores:
    import numpy as np

    from recmix.evaluation.molecules import molecule_scores
    from recmix.training.progress import watch

    test = on.examples[:MOLECULES]
    train = on.model.vocabulary.decode(np.asarray(on.data.x_train)) if on.model.vocabulary else None
    with watch("scoring molecules", len(test) + SAMPLES) as report:
        return molecule_scores(
            on.model, test, train, samples=SAMPLES, seed=on.seed, memory=on.memory, report=report
        )


def _check_molecules(model: Model) -> None:
    from recmix.model.graph_vocabulary import require_rdkit

    require_rdkit()
    if model.vocabulary is None or not model.vocabulary.molecules:
        raise ConfigError("the report 'molecules' is for models of molecules: leave it out")


REPORTS: dict[str, ExtraReport] = {
    "latent": ExtraReport("KL, mutual information, active units, and the perplexity of texts", _latent),
    "molecules": ExtraReport(
        "reconstruction, validity, uniqueness and novelty of molecules; needs RDKit",
        _molecules,
        _check_molecules,
    ),
}
"""All reports by name."""
