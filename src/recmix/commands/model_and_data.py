"""Load the model and the data that a command names, and check that they fit together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recmix.commands.own_parts import load_run
from recmix.commands.python_model import is_python_path, python_model
from recmix.errors import ConfigError, DataError, unknown

if TYPE_CHECKING:
    from recmix.api import Model
    from recmix.data import Data

__all__ = ["check_data", "data_of", "load_model", "part_of"]


def load_model(run: str, data: str | None, device: str, *, networks: str | None = None) -> Model:
    """Load a trained model from the folder of a run, or call a Python function that returns a model.

    Args:
        run: the folder, its address ``hf://user/name``, or the function as ``module:function``.
        data: name or path of the data that the user gave, or None. It is required for a function.
        networks: the function that makes the networks that the user wrote for the run, as
            ``module:function``; None if there are none.
    """
    if Path(run).exists() or not is_python_path(run):
        return load_run(run, networks, device=device)
    if networks is not None:
        raise ConfigError("--networks is for the folder of a run, and a function returns a whole model")
    if data is None:
        raise ConfigError(f"--data is missing: name the data to score {run} on")
    return python_model(run, device)


def part_of(data: Data, name: str) -> Any:
    """Return the examples of one part of the data, train, val or test.

    A `ConfigError` is raised if the data do not have this part.
    """
    parts = {"train": data.x_train, "val": data.x_val, "test": data.x_test}
    if name not in parts:
        raise ConfigError(unknown("split", name, parts))
    if parts[name] is None:
        raise ConfigError(
            f"the data {data.name} have no {name} part: give a file that has one with --data, made with "
            "numpy.savez('parts.npz', x_train=..., x_test=...); or score the validation part with "
            "--split val, without --calibrate and --how auto"
        )
    return parts[name]


def data_of(model: Model, data: str | None, root: Path | None) -> Data:
    """Load the data for a model: the data that the user named, or the data of its training.

    Args:
        data: name or path of the data; None for the data of the training.
    """
    from recmix.data import load_again, rebuild

    if data is not None:
        how: Any = {"root": root, "vocabulary": model.vocabulary, "shape": model.spec.shape}
        return load_again(data, model.spec.data, **how)
    return rebuild(model.spec.data, root=root, vocabulary=model.vocabulary)


def check_data(model: Model, data: Data, parts: list[Any], run: str, name: str) -> None:
    """Raise an error if a model cannot score the data.

    Examples must have the shape of the training examples, or the same named fields. The columns of a
    table must have the same names in the same order. The values must be possible under the model's
    likelihood.

    Args:
        parts: the parts of `data` that are used, such as its test part.
        run: name of the run, for the error message.
        name: name of the data, for the error message.
    """
    from recmix.data import check_values
    from recmix.data.columns import check_columns

    if data.columns and (columns := model.spec.data.get("columns")):
        check_columns(data.columns, columns, name, 'model.spec.data["columns"]')
    fields = model.method.model.fields
    expected = model.spec.shape if fields is None else fields.shapes
    given = data.shape if fields is None else data.fields
    if given != expected:
        raise ConfigError(
            f"{run} was trained on examples of shape {expected}, those of {name} have shape {given}: "
            "give data of the first shape, for example by resizing the examples"
        )
    likelihood = model.latent_model.likelihood
    for part in parts:
        if not (data.dynamic and part is data.x_train):  # those are binarised
            try:
                check_values(part, likelihood.requirement, likelihood.name, what="the data")
            except DataError as error:
                raise DataError(f"{name}: {error}") from error
