"""Runs with parts that are their user's own objects: these are code, and are not stored."""

from __future__ import annotations

from pathlib import Path

from recmix.errors import RunError
from recmix.runs.spec import Spec

__all__ = ["check_no_own_parts"]


def check_no_own_parts(spec: Spec, folder: str | Path, advice: str) -> None:
    """Refuse a run that cannot be loaded from its folder alone.

    Args:
        spec: of the run.
        folder: of the run, for the message.
        advice: what to do instead, for the message.
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
