"""Tell the user which likelihood and learning rate were chosen, if the user did not give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recmix.model.networks import TOKEN_NETWORKS
from recmix.training.plan import Plan
from recmix.training.progress import say

__all__ = ["about_rate", "print_choices"]

WHY_LIKELIHOOD = {
    "binary": "all values are 0 or 1",
    "unit": "the values lie between 0 and 1",
    "counts": "all values are whole numbers of 0 or more",
    "tokens": "the examples are texts",
    "graph": "the examples are graphs",
    "real": "the values are real numbers",
}
"""{kind of data, see `recmix.data.Data.kind`: why such data get their default likelihood}."""
LARGE = 20_000
"""With at least this many training examples, a training that starts from a trained model makes progress
with its default learning rate."""


def about_rate(rate: float, examples: int) -> str:
    """Return a text about the default learning rate of a training that starts from a trained model.

    If there are few training examples (`examples`), the text suggests a higher learning rate.

    >>> about_rate(1e-6, 60_000)
    'learning rate 1e-06: the default of a training that starts from a trained model'
    """
    text = f"learning rate {rate:g}: the default of a training that starts from a trained model"
    if examples >= LARGE:
        return text
    return (
        f"{text}. It is the paper's, for larger data. With {examples:,} examples little changes: try "
        f"the option learning_rate = {100 * rate:g}"
    )


def print_choices(plans: Iterable[Plan], progress: bool | None) -> None:
    """Print which likelihood and learning rate were chosen, if progress is shown.

    Args:
        progress: whether progress is shown. None means: only in a terminal and in a notebook.
    """
    for line in dict.fromkeys(line for plan in plans for line in _choices(plan)):
        say(line, progress)


def _choices(plan: Plan) -> Iterator[str]:
    """Yield sentences that say which likelihood and learning rate one training uses by default.

    The learning rate is mentioned only if the training starts from a trained model. Values that the user
    gave are not mentioned. A run that is continued gives no sentences.
    """
    asked, spec = plan.request, plan.spec
    if asked.resume and asked.found:
        return
    tokens = spec.model.network in TOKEN_NETWORKS and plan.data.kind != "tokens"
    why = "the network is for tokens" if tokens else WHY_LIKELIHOOD.get(plan.data.kind)
    if why and not (asked.start or asked.own.likelihood or asked.model.get("likelihood")):
        name = spec.model.likelihood
        yield f"likelihood: {name}, because {why} (the option likelihood chooses another)"
    if asked.usual_rate:
        yield about_rate(spec.training.learning_rate or 0.0, len(plan.data.x_train))
