"""Check whether a run has networks, a likelihood or a prior that its user wrote.

Such parts are Python code. They are not stored in the folder of the run.
"""

from __future__ import annotations

from pathlib import Path

from recmix.errors import RunError
from recmix.runs.spec import Spec

__all__ = ["check_no_own_parts"]


def check_no_own_parts(spec: Spec, folder: str | Path, advice: str) -> None:
    """Raise an error if a run cannot be loaded from its folder alone.

    This is so if its networks, its likelihood or its prior are the user's own code, which is not
    stored.

    Args:
        spec: the description of the run.
        folder: the folder of the run, for the error message.
        advice: what the user can do instead, for the error message.
    """
    from recmix.model.assembly import OWN

    model = spec.model
    found = {
        "networks": OWN in (model.network, model.decoder_network),
        "likelihood": model.likelihood == OWN,
        "prior": model.prior == OWN,
    }
    own = " and ".join(part for part, is_own in found.items() if is_own)
    if own:
        raise RunError(f"{folder} has its user's own {own}, which are code and not stored: {advice}")
