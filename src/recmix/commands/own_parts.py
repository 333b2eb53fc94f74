"""Load runs that have networks, a likelihood or a prior that their user wrote.

Such parts are Python code. They are not stored in the folder of the run. The user names a Python
function that makes them, with ``--networks module:function``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmix.commands.python_model import call_function, is_python_path
from recmix.errors import ConfigError, RunError, unknown
from recmix.runs.folder import Run
from recmix.runs.spec import Spec

if TYPE_CHECKING:
    from recmix.api import Model

__all__ = [
    "NETWORKS_HELP",
    "Networks",
    "check_no_own_parts",
    "has_own_parts",
    "load_run",
    "make_own_parts",
]

PARTS = ("encoder", "decoder", "likelihood", "prior")
NETWORKS_HELP = (
    "module:function, a Python function without arguments that returns your own encoder and decoder, or "
    "a dict with some of encoder, decoder, likelihood and prior."
)
Networks = Annotated[str | None, typer.Option("--networks", help=NETWORKS_HELP)]


def make_own_parts(path: str) -> dict[str, Any]:
    """Call a user's function, and return its encoder, decoder, likelihood and prior by name.

    Args:
        path: the function, as ``module:function``. It returns a pair (encoder, decoder), or a dict
            with some of the four.
    """
    if not is_python_path(path):
        raise ConfigError(f"--networks must have the form module:function, got {path!r}")
    found = call_function(path)
    if isinstance(found, tuple) and len(found) == 2:
        found = dict(zip(PARTS, found, strict=False))
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{path} returned a {type(found).__name__}; expected a pair (encoder, decoder), or a dict "
            f"with some of {', '.join(PARTS)}"
        )
    for name in found:
        if name not in PARTS:
            raise ConfigError(f"{path}: {unknown('part', str(name), PARTS)}")
    return dict(found)


def load_run(folder: str | Path, networks: str | None, *, device: str = "auto") -> Model:
    """Load the model of a run, with its user's own networks if they are given.

    Args:
        folder: the folder of the run.
        networks: the function that makes the user's own parts, as ``module:function``, or None.
        device: the device for the model.
    """
    from recmix.api import load

    spec = Run(folder).spec()
    if networks is not None:
        return load(folder, device=device, **make_own_parts(networks))
    check_no_own_parts(spec, folder, "name a function that makes them: --networks module:function")
    return load(folder, device=device)


def check_no_own_parts(spec: Spec, folder: str | Path, advice: str) -> None:
    """Raise an error if a run cannot be loaded from its folder alone.

    This is so if its networks, its likelihood or its prior are the user's own code, which is not
    stored.

    Args:
        spec: the description of the run.
        folder: the folder of the run, for the error message.
        advice: what the user can do instead, for the error message.
    """
    if own := " and ".join(_own_parts(spec)):
        raise RunError(f"{folder} has its user's own {own}, which are code and not stored: {advice}")


def has_own_parts(spec: Spec) -> bool:
    """Whether a run has networks, a likelihood or a prior that its user wrote."""
    return bool(_own_parts(spec))


def _own_parts(spec: Spec) -> list[str]:
    from recmix.model.assembly import OWN

    model = spec.model
    found = {
        "networks": OWN in (model.network, model.decoder_network),
        "likelihood": model.likelihood == OWN,
        "prior": model.prior == OWN,
    }
    return [part for part, is_own in found.items() if is_own]
