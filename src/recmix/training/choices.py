"""Sentences about options that a user did not give: the likelihood and the learning rate."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from recmix.training.notebook import in_notebook
from recmix.training.plan import Plan
from recmix.training.request import by_stage

__all__ = ["WHY_LIKELIHOOD", "about_rate", "print_choices"]

WHY_LIKELIHOOD = {
    "binary": "all values are 0 or 1",
    "unit": "the values lie between 0 and 1",
    "counts": "all values are whole numbers of 0 or more",
    "tokens": "the examples are texts",
    "graph": "the examples are graphs",
    "real": "the values are real numbers",
}
"""Why data of each kind get their default likelihood."""
LARGE = 20_000
"""From this number of training examples on, the default learning rate after `init` is enough."""


def about_rate(rate: float, examples: int, option: str) -> str:
    """Return a sentence about the default learning rate of a training that starts from a trained model.

    Args:
        rate: the learning rate.
        examples: number of training examples.
        option: how the user gives another rate, such as ``learning_rate=``.

    >>> about_rate(1e-6, 60_000, "learning_rate=")
    'learning rate 1e-06: the default of a training that starts from a trained model'
    """
    text = f"learning rate {rate:g}: the default of a training that starts from a trained model"
    if examples >= LARGE:
        return text
    return (
        f"{text}. It is the paper's, for larger data. With {examples:,} examples little changes: try "
        f"{option}{100 * rate:g}"
    )


def print_choices(plans: Iterable[Plan], progress: bool | None) -> None:
    """Print which likelihood and learning rate were chosen, in a terminal or a notebook.

    Args:
        plans: the trainings that will be done.
        progress: as in `recmix.fit`. Nothing is printed if it is given: then it was switched off, or a
            command prints its own sentences.
    """
    if progress is None and (in_notebook() or sys.stderr.isatty()):
        for line in dict.fromkeys(line for plan in plans for line in _choices(plan)):
            print(line, file=sys.stderr, flush=True)


def _choices(plan: Plan) -> Iterator[str]:
    asked, spec = plan.request, plan.spec
    why = WHY_LIKELIHOOD.get(plan.data.kind)
    if why and not (asked.start or asked.own.likelihood or asked.model.get("likelihood")):
        name = spec.model.likelihood
        yield f"likelihood: {name}, because {why} (the argument likelihood chooses another)"
    training, usual = spec.training, asked.start is not None or asked.first is not None
    default = by_stage(type(training)(), asked.cls, continued=True).learning_rate or 0.0
    if usual and training.learning_rate == default and training.train != "curvature":
        yield about_rate(default, len(plan.data.x_train), "learning_rate=")
