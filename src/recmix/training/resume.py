"""Check whether a run folder holds the requested run, and whether this run is complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recmix.errors import RunError
from recmix.model.assembly import OWN
from recmix.runs.files import write_json
from recmix.runs.folder import Run
from recmix.runs.spec import Spec
from recmix.training.world import World

__all__ = ["IGNORED_ON_RESUME", "how_to_resume", "is_complete"]

IGNORED_ON_RESUME = {"epochs", "device", "checkpoint_every", "tensorboard", "root", "engine"}
"""Options that may differ when a run is resumed."""


def how_to_resume(run: Run) -> str:
    """Return a text for the user that says how to continue the run in a folder.

    The text names a ``recmix train`` command if possible. If the user wrote the networks, the command
    needs ``--networks``. If the data were in memory, the text names two ways: repeat the call in Python
    with ``resume=True``, or save the data in a file and use the command.
    """
    spec = run.spec()
    model = spec.model
    command = f"recmix train --resume --out {run.folder}"
    if OWN in (model.network, model.decoder_network, model.likelihood, model.prior):
        command += " --networks module:function"
    if spec.data.get("kind") in ("named", "path"):
        return command
    return (
        "the same call in Python, with resume=True; or save the data in a file (numpy.savez) and use "
        f"{command} --data FILE"
    )


def is_complete(run: Run, spec: Spec, group: World) -> bool:
    """Return whether the run in the folder is complete, so that `spec` needs no more training.

    If it is not complete, prepare the folder for more training: reserve the folder, wait until all
    processes have read the old ``spec.json``, and write the new one.

    Args:
        spec: the requested run.
        group: the processes that train the model together.

    Raises:
        RunError: the options of the run in the folder differ from those of `spec`.
    """
    stored = run.spec()
    for name, theirs, ours in _differences(stored, spec):
        advice = "resume it with the same options, or give another folder, or overwrite it"
        if _has_test(spec) and not _has_test(stored):
            advice = (
                "the run has no test examples, so make the data without them, for example with "
                "recmix.data.from_arrays(x, hold_out_test=False)"
            )
        raise RunError(f"{run.folder} holds a run with {name} = {theirs!r}, not {ours!r}: {advice}")
    if spec.auto and stored.training.epochs != spec.training.epochs:
        raise RunError(
            f"{run.folder} chose its order with {stored.training.epochs} epochs per step, not "
            f"{spec.training.epochs}: another number may give another order; give another folder"
        )
    enough = (stored.training.epochs or 0) >= (spec.training.epochs or 0)
    if enough and run.status()["status"] == "done":
        return True
    group.wait()
    if group.writer:
        run.lock()
        write_json(run.folder / "spec.json", spec.to_json())
    return False


def _differences(stored: Spec, spec: Spec) -> Iterator[tuple[str, Any, Any]]:
    one, two = stored.to_json(), spec.to_json()
    one["options"], two["options"] = _requested(stored), _requested(spec)
    for found in (one, two):
        del found["auto"], found["recmix"], found["label"]
        found["init"] = (found["init"] or {}).get("weights")
        trained_with = spec.inference.refine or stored.inference.refine or spec.training.distil
        if not trained_with:  # it says how the posterior is used, not how it is trained
            found["inference"] = {}
    if one["data"].get("fingerprint") == two["data"].get("fingerprint"):  # the same examples
        one["data"], two["data"] = ({"dynamic": d.get("dynamic")} for d in (one["data"], two["data"]))
    for name, theirs in one.items():
        ours = two[name]
        if isinstance(theirs, dict):
            keys = (k for k in theirs | ours if k not in IGNORED_ON_RESUME)
            yield from ((k, theirs.get(k), ours.get(k)) for k in keys if theirs.get(k) != ours.get(k))
        elif theirs != ours:
            yield name, theirs, ours


def _has_test(spec: Spec) -> bool:
    """Whether the data of a run have test examples."""
    return (spec.data.get("counts") or {}).get("test") is not None


def _requested(spec: Spec) -> dict[str, Any]:
    """Return the method's options as the user gave them; ``order`` may be ``auto``."""
    return spec.options | {k: v for k, v in (spec.auto or {}).items() if k != "why"}
