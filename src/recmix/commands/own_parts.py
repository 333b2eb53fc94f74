"""Load runs that have networks, a likelihood or a prior that the user wrote.

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
from recmix.runs.hub import open_run
from recmix.runs.spec import Spec

if TYPE_CHECKING:
    from recmix.api import Model

__all__ = [
    "NETWORKS_HELP",
    "Networks",
    "check_can_load",
    "check_no_own_parts",
    "has_own_parts",
    "load_run",
    "make_own_parts",
]

PARTS = ("encoder", "decoder", "likelihood", "prior")
NETWORKS_HELP = (
    "module:function, a Python function without arguments that returns your own encoder and decoder, "
    "one module with encode and decode, or a dict with some of encoder, decoder, likelihood and prior."
)
NAME_THEM = "name a function that makes them: --networks module:function"
Networks = Annotated[str | None, typer.Option("--networks", help=NETWORKS_HELP)]


def make_own_parts(path: str) -> dict[str, Any]:
    """Call a user's function that makes an encoder, a decoder, a likelihood or a prior.

    Args:
        path: the function, as ``module:function``. It returns a module with the methods `encode` and
            `decode`, a pair (encoder, decoder), or a dict with some of the keys encoder, decoder,
            likelihood and prior.

    Returns:
        A dict with some of these keys.
    """
    if not is_python_path(path):
        raise ConfigError(f"--networks must have the form module:function, got {path!r}")
    found = call_function(path)
    if all(callable(getattr(found, name, None)) for name in ("encode", "decode")):
        found = (found.encode, found.decode)
    if isinstance(found, tuple) and len(found) == 2:
        found = dict(zip(PARTS, found, strict=False))
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{path} returned a {type(found).__name__}; expected a module with encode and decode, "
            f"a pair (encoder, decoder), or a dict with some of {', '.join(PARTS)}"
        )
    for name in found:
        if name not in PARTS:
            raise ConfigError(f"{path}: {unknown('part', str(name), PARTS)}")
    return dict(found)


def load_run(folder: str | Path, networks: str | None, *, device: str = "auto") -> Model:
    """Load the model of a run, with the networks, likelihood and prior that its user wrote, if any.

    Args:
        networks: the function that makes the parts that the user wrote, as ``module:function``; None
            if there are no such parts.
    """
    from recmix.api import load

    check_can_load(folder, own=networks is not None)
    if networks is not None:
        return load(folder, device=device, **make_own_parts(networks))
    return load(folder, device=device)


def check_can_load(folder: str | Path, *, own: bool) -> None:
    """Raise a RunError if the folder is not a run, or if parts of its model are missing.

    Parts that the user wrote are missing if `own` is False. `own` says whether the user named a function
    that makes them.
    """
    if is_python_path(str(folder)) and not Path(folder).exists():
        raise RunError(
            f"{folder} names a Python function; only the commands evaluate, tune and explore take one. "
            "Save its model in Python with model.save('runs/mine'), and give this folder"
        )
    spec = open_run(folder).spec()
    if not own:
        check_no_own_parts(spec, folder, NAME_THEM)


def check_no_own_parts(spec: Spec, folder: str | Path, advice: str) -> None:
    """Raise an error if a run has networks, a likelihood or a prior that its user wrote.

    They are Python code, which the folder of the run does not store. The error ends with `advice`.
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
