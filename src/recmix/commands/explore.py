"""`recmix explore`: serve trained models to a browser and to programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recmix.commands.own_parts import Networks, has_own_parts, load_run
from recmix.commands.python_model import is_python_path, python_model
from recmix.commands.terminal import Root
from recmix.errors import ConfigError
from recmix.explore.serve import PORT, serve

if TYPE_CHECKING:
    from recmix.api import Model
    from recmix.data import Examples

__all__ = ["examples_for", "explore_command", "load_models", "shape_of"]


def explore_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Folders of runs, addresses such as hf://user/name, or module:function of functions "
            "that return a model; the first is the default."
        ),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="RECMIX_TOKEN",
            help="Secret that requests must give. Made and printed if it is needed and not given.",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda and so on.")] = "auto",
    batching: Annotated[
        bool, typer.Option(help="Pass requests that wait at the same time through the model together.")
    ] = True,
    data: Annotated[
        str | None,
        typer.Option(help="Name or path of data to show, if the runs had arrays in memory."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Show flat vectors as images of this shape, such as 28x28 or 3x32x32."),
    ] = None,
    networks: Networks = None,
    data_root: Root = None,
) -> None:
    """Show models in a browser, and serve them to programs over HTTP."""
    sides = None if shape is None else shape_of(shape)
    models = load_models(runs, device=device, networks=networks)
    serve(
        models,
        port=port,
        host=host,
        token=token,
        browser=browser,
        batching=batching,
        data_root=data_root,
        examples=None if data is None else examples_for(models, data, root=data_root),
        shape=sides,
    )


def shape_of(text: str) -> tuple[int, ...]:
    """Read the shape of an image, written like ``28x28`` or ``3x32x32``.

    >>> shape_of("3x32x32")
    (3, 32, 32)
    """
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) not in (2, 3) or not all(side.isdecimal() for side in sides):
        raise ConfigError(f"--shape is {text!r}, expected HxW or CxHxW, such as 28x28 or 3x32x32")
    return tuple(map(int, sides))


def examples_for(
    models: dict[str, Model], data: str, *, root: Path | None = None
) -> dict[str, Examples]:
    """Load the examples that the explorer page shows, as {model name: examples}.

    They are the test examples of `data` (a name or path), or its validation examples if it has no test
    examples.
    """
    from recmix.commands.model_and_data import check_data, data_of

    found = {}
    for name, model in models.items():
        source = data_of(model, data, root)
        shown = source.x_val if source.x_test is None else source.x_test
        check_data(model, source, [shown], name, data)
        found[name] = shown
    return found


def load_models(
    sources: Sequence[str | Path], *, device: str = "auto", networks: str | None = None
) -> dict[str, Model]:
    """Load models from folders of runs and from Python functions.

    Args:
        sources: folders of runs, and functions without arguments that return a model, written like
            ``mine:vae`` for the function ``vae`` of the module ``mine``.
        device: the device of the models. With ``auto``, runs take a GPU if there is one, and models of
            functions stay where they are.
        networks: a function, written ``module:function``, that makes the encoder and decoder of runs
            that were trained with networks of their own. None if no run was.

    Returns:
        {name: model}. The name is the name of the folder or function. If an earlier model has the same
        name, a number is added.
    """
    from recmix.runs.hub import open_run

    models: dict[str, Model] = {}
    for source in map(str, sources):
        if is_python_path(source) and not Path(source).exists():
            base, model = source.partition(":")[2], python_model(source, device)
        else:
            base = Path(source).resolve().name or "run"
            own = networks if has_own_parts(open_run(source).spec()) else None
            model = load_run(source, own, device=device)
        names = (base, *(f"{base}-{i}" for i in range(2, len(sources) + 2)))
        models[next(name for name in names if name not in models)] = model
    return models
