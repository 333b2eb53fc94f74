"""Show a model in the browser from Python: `recmix.Model.explore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recmix.data import ArrayExamples, Data, Examples, load_again
from recmix.explore.serve import serve

if TYPE_CHECKING:
    from recmix.api.model import Model

__all__ = ["explore"]


def explore(model: Model, data: Any = None, **how: Any) -> None:
    """Show a model on a page in the browser, with a local web server that runs until Ctrl-C.

    Args:
        model: the model to show.
        data: examples to show, as in `recmix.Model.explore`.
        **how: further arguments of `recmix.explore.serve.serve`.
    """
    name = model.spec.label or model.spec.method
    if isinstance(data, str | Path):
        data = load_again(data, model.spec.data, vocabulary=model.vocabulary, shape=model.spec.shape)
    if isinstance(data, Data):
        data = data.x_val if data.x_test is None else data.x_test
    if data is not None and not isinstance(data, Examples):
        data = ArrayExamples(model._examples(data).float().numpy(force=True))
    serve({name: model}, **{"browser": True, **how}, examples=None if data is None else {name: data})
