"""Write and read weights and checkpoints as safetensors files.

Nothing is pickled, so loading a file runs no code. A weights file holds the parameters and buffers
of a method. A checkpoint also holds the state of the optimisers, the moving average of the weights
if there is one, and the state of the random generator. Its header holds the epoch, the batch and
the history. Both kinds of file have a format number, and a SHA-256 digest of the header and the
tensors, which is checked when the file is read. Files of older versions have no digest.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from recmix.errors import RunError
from recmix.methods.method import Method, Optimizers
from recmix.runs.files import check_regular, write_bytes
from recmix.runs.spec import FORMAT, check_format

__all__ = ["State", "load_checkpoint", "load_weights", "save_checkpoint", "save_weights"]

MAX_HEADER = 100_000_000
"""Largest header of a safetensors file in bytes, as in the safetensors library."""


@dataclass
class State:
    """How far a training is, and the metrics so far.

    Attributes:
        epoch: number of epochs that are done.
        step: number of batches of the next epoch that are done.
        best_epoch: the epoch whose weights are kept.
        best_score: validation score of these weights, the IWAE bound in nats.
        stopped: why the training was stopped early; "" if it was not stopped early.
        sums: {metric: sum over the first `step` batches of the next epoch}.
    """

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_score: float = float("-inf")
    stopped: str = ""
    history: list[dict[str, float]] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write the parameters and buffers of a method to a file."""
    _write(path, _contiguous(weights), {})


def load_weights(path: Path, method: nn.Module) -> None:
    """Read parameters and buffers from a file into a method."""
    tensors, _ = _read(path)
    _load_into(method, tensors, path)


def save_checkpoint(
    path: Path,
    method: Method,
    optimizers: Optimizers,
    generator: torch.Generator,
    state: State,
    best: dict[str, Tensor],
    average: dict[str, Tensor],
) -> None:
    """Write everything that is needed to continue a training, and the best weights, to one file.

    Args:
        state: how far the training is.
        best: the `state_dict` of the best epoch so far.
        average: moving average of the weights by name; empty if there is none.
    """
    tensors = {f"method.{k}": v for k, v in method.state_dict().items()}
    tensors |= {f"best.{k}": v for k, v in best.items()}
    tensors |= {f"average.{k}": v for k, v in average.items()}
    for name, optimizer in optimizers.items():
        for index, slots in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{name}.{index}.{slot}": v for slot, v in slots.items()}
    tensors["generator"] = generator.get_state()
    _write(path, _contiguous(tensors), {"state": vars(state)})


def load_checkpoint(
    path: Path,
    method: Method,
    optimizers: Optimizers,
    generator: torch.Generator,
    average: dict[str, Tensor],
) -> tuple[State, dict[str, Tensor]]:
    """Read a checkpoint into the method, its optimisers, the generator and the averages, in place.

    Args:
        average: moving average of the weights by name; empty if there is none.

    Returns:
        How far the training is, and the `state_dict` of the best epoch so far.
    """
    tensors, header = _read(path)
    try:
        state = _read_state(header["state"])
        for name, optimizer in optimizers.items():
            found = optimizer.state_dict()
            found["state"] = {}
            for key in [k for k in tensors if k.startswith(f"optimizer.{name}.")]:
                index, slot = key.removeprefix(f"optimizer.{name}.").split(".")
                found["state"].setdefault(int(index), {})[slot] = tensors.pop(key)
            optimizer.load_state_dict(found)
            _match_layout(optimizer)
        noise = tensors.pop("generator")
        averaged = {k: tensors.pop(f"average.{k}") for k in average}
        if len(noise) == len(generator.get_state()):
            generator.set_state(noise)
        else:  # the run moved between CPU and GPU, whose random streams differ
            generator.manual_seed(state.epoch * 1_000_003 + state.step)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(
            f"{path} is damaged or not a checkpoint of this run ({error}): restore it from a copy, or "
            "train again with --overwrite"
        ) from error
    device = next(method.parameters()).device
    best = {
        k.removeprefix("best."): tensors.pop(k).to(device)
        for k in list(tensors)
        if k.startswith("best.")
    }
    if best:
        _check_fits(method.state_dict(), best, path)
    _check_fits(average, averaged, path)
    _load_into(method, {k.removeprefix("method."): v for k, v in tensors.items()}, path)
    for key, value in averaged.items():
        average[key].copy_(value)
    return state, best


def _read_state(stored: dict[str, Any]) -> State:
    """Make a `State` from the header of a checkpoint; raise a ValueError if a value is wrong."""
    state = State(**stored)
    for name in ("epoch", "step", "best_epoch"):
        value = getattr(state, name)
        if type(value) is not int or not 0 <= value < 2**31:
            raise ValueError(f"{name} is {value!r:.80}, expected a whole number from 0")
    rows = state.history
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("history is not a list with an object for each epoch")
    if state.epoch != len(rows) or state.best_epoch > state.epoch:
        raise ValueError(
            f"epoch is {state.epoch} and the best epoch is {state.best_epoch}, but the history has "
            f"{len(rows)} epochs"
        )
    if not isinstance(state.best_score, float) or math.isnan(state.best_score):
        raise ValueError(f"best_score is {state.best_score!r:.80}, expected a number")
    if not isinstance(state.stopped, str) or not isinstance(state.sums, dict):
        raise ValueError("stopped is not a text, or sums is not an object")
    return state


def _match_layout(optimizer: torch.optim.Optimizer) -> None:
    """Convert the optimiser state of each parameter to the parameter's memory layout.

    Fused updates need equal layouts.
    """
    for p, slots in optimizer.state.items():
        for name, value in slots.items():
            if value.shape == p.shape and name != "step":  # a counter with its own dtype
                slots[name] = torch.empty_like(p).copy_(value)


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies of the tensors on the CPU, as the safetensors format requires."""
    return {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}


def _write(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    header = {"format": FORMAT, **header}
    header["sha256"] = _digest(tensors, header)
    write_bytes(path, save_tensors(tensors, {"recmix": json.dumps(header)}))


def _digest(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Return the SHA-256 digest of the tensors and of the header without its field ``sha256``."""
    rest = {name: value for name, value in header.items() if name != "sha256"}
    found = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        size = check_regular(path)
        with path.open("rb") as file:
            start = file.read(9)
            pickles = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
            # A safetensors file begins with the length of its header, which can have any bytes.
            if start[:2] in pickles and start[8:] != b"{":
                raise RunError(
                    f"{path} is a pickle, not safetensors. A pickle can run any code, so recmix does "
                    "not read it"
                )
            head = _read_header(file, size)
            file.seek(0)
            tensors = load_tensors(file.read(size))
        header = json.loads(head["__metadata__"]["recmix"])
        if not isinstance(header, dict):
            raise TypeError("its metadata are not an object")
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist: the run has no weights yet") from error
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError, MemoryError) as error:
        raise RunError(
            f"{path} is damaged or not written by recmix ({size:,} bytes; {error}): "
            "restore it from a copy, or train again with --overwrite"
        ) from error
    check_format(header.get("format"), str(path))
    if "sha256" in header and header["sha256"] != _digest(tensors, header):
        raise RunError(
            f"{path} is damaged: its content does not match its SHA-256 digest. Restore it from a copy, "
            "or train again with --overwrite"
        )
    return tensors, header


def _read_header(file: BinaryIO, size: int) -> Any:
    """Return the header of a safetensors file of `size` bytes.

    Raise a ValueError if the size is not the one that the header states. So a file of a wrong size is
    found before its tensors are read.
    """
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size - 8, MAX_HEADER):
        raise ValueError("its header has no valid length")
    head = json.loads(file.read(length))
    if not isinstance(head, dict):
        raise TypeError("its header is not an object")
    ends = [about["data_offsets"][1] for name, about in head.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ValueError(f"its header states {expected:,} bytes")
    return head


def _load_into(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    _check_fits(module.state_dict(), tensors, path)
    module.load_state_dict(tensors)


def _check_fits(own: dict[str, Tensor], tensors: dict[str, Tensor], path: Path) -> None:
    """Raise a RunError unless the tensors read from `path` have the same names and shapes as `own`."""
    for key in own.keys() ^ tensors.keys():
        where = "is missing from" if key in own else "is not expected in"
        raise RunError(f"{key} {where} {path}: the file belongs to a run with other options or networks")
    for key, value in tensors.items():
        if own[key].shape != value.shape:
            raise RunError(
                f"{key} in {path} has shape {tuple(value.shape)}, expected {tuple(own[key].shape)}: "
                "the file belongs to a run with other options or networks"
            )
