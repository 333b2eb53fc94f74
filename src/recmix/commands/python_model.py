"""Call a function in a user's own Python module, which returns a model or networks.

The command line names the function as ``module:function``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from recmix.errors import ConfigError, RecmixError, unknown

if TYPE_CHECKING:
    from recmix.api import Model

__all__ = ["call_function", "is_python_path", "python_model"]

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_python_path(text: str) -> bool:
    """Whether a text has the form ``module:function``, which names a Python function.

    >>> is_python_path("mine.models:vae"), is_python_path("runs/vae")
    (True, False)
    """
    return PATH.fullmatch(text) is not None


def python_model(path: str, device: str) -> Model:
    """Import the function `path` (``module:function``) and return the model that it makes.

    The model is moved to `device`. With ``auto`` it stays where the function put it.
    """
    from recmix.api import Model
    from recmix.training.build import pick_device

    found = call_function(path)
    if not isinstance(found, Model):
        raise ConfigError(
            f"{path} returned a {type(found).__name__}; expected a recmix.Model, which recmix.wrap, "
            "recmix.fit and recmix.load return"
        )
    return found.eval() if device == "auto" else found.eval().to(pick_device(device))


def call_function(path: str) -> Any:
    """Import a user's function, call it without arguments and return its result.

    Modules in the current directory can be imported, as with ``python -m``.
    """
    name, _, function = path.partition(":")
    make = _function(_module(name), function)
    try:
        return make()
    except RecmixError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"{path} failed: {_in_one_line(error)}") from error


def _module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # `name` itself or a package that contains it, and not a module that it imports
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            hint = f": leave .py out, {name.removesuffix('.py')}:..." if name.endswith(".py") else ""
            raise ConfigError(
                f"there is no module {error.name!r} in {here} or among the installed packages{hint}"
            ) from error
        raise ConfigError(f"importing {name} failed: {error}") from error
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"importing {name} failed: {_in_one_line(error)}") from error


def _function(module: ModuleType, name: str) -> Callable[[], Any]:
    from torch import nn

    found = getattr(module, name, None)
    if found is None:
        functions = [n for n, f in vars(module).items() if callable(f) and not n.startswith("_")]
        raise ConfigError(unknown(f"function of {module.__name__}", name, functions))
    if not callable(found) or isinstance(found, nn.Module):
        raise ConfigError(
            f"{module.__name__}:{name} is a {type(found).__name__}; expected a function without "
            "arguments that returns a recmix.Model"
        )
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # some functions of extension modules have no signature
        return found
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in VARIADIC]
    if needed:
        raise ConfigError(
            f"{module.__name__}:{name} needs the arguments {', '.join(needed)}, but is called without "
            "any: give them defaults"
        )
    return found


def _in_one_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
