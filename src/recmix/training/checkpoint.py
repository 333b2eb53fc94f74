"""Write and read weights and checkpoints as safetensors files.

Nothing is pickled, so loading a file runs no code. A weights file holds the parameters and buffers
of a method. A checkpoint also holds the state of the optimisers, the moving average of the weights
if there is one, and the state of the random generator. Its header holds the epoch, the batch and
the history. Both kinds of file have a format number.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from recmix.errors import RunError
from recmix.methods.method import Method, Optimizers
from recmix.runs.files import write_bytes
from recmix.runs.spec import FORMAT, check_format

__all__ = ["State", "load_checkpoint", "load_weights", "save_checkpoint", "save_weights"]


@dataclass
class State:
    """How far a training is: `epoch` epochs are done, and `step` batches of the next epoch."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_score: float = float("-inf")
    stopped: str = ""
    history: list[dict[str, float]] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)


def save_weights(path: Path, weights: dict[str, Tensor], epoch: int) -> None:
    """Write the parameters and buffers of a method to a file.

    Args:
        path: the file.
        weights: the `state_dict` of the method.
        epoch: the epoch that the weights come from.
    """
    _write(path, _contiguous(weights), {"epoch": epoch})


def load_weights(path: Path, method: nn.Module) -> int:
    """Read parameters and buffers from a file into a method; return the epoch that they come from."""
    tensors, header = _read(path)
    _load_into(method, tensors, path)
    return int(header.get("epoch", 0))


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
        path: the file.
        method: the method that is trained.
        optimizers: its optimisers.
        generator: its source of random numbers.
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
    """Read a checkpoint. Changes the method, its optimisers, the generator and the averages in place.

    Args:
        path: the file.
        method: the method that is trained.
        optimizers: its optimisers.
        generator: its source of random numbers.
        average: moving average of the weights by name; empty if there is none.

    Returns:
        How far the training is, and the `state_dict` of the best epoch so far.
    """
    tensors, header = _read(path)
    try:
        state = State(**header["state"])
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
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is not a checkpoint of this run: {error}") from error
    if len(noise) == len(generator.get_state()):
        generator.set_state(noise)
    else:  # the run moved between CPU and GPU, whose random streams differ
        generator.manual_seed(state.epoch * 1_000_003 + state.step)
    device = next(method.parameters()).device
    best = {
        k.removeprefix("best."): tensors.pop(k).to(device)
        for k in list(tensors)
        if k.startswith("best.")
    }
    _load_into(method, {k.removeprefix("method."): v for k, v in tensors.items()}, path)
    for key, value in averaged.items():
        average[key].copy_(value)
    return state, best


def _match_layout(optimizer: torch.optim.Optimizer) -> None:
    """Give each parameter's optimiser state the parameter's memory layout, as fused updates need."""
    for p, slots in optimizer.state.items():
        for name, value in slots.items():
            if value.shape == p.shape and name != "step":  # a counter with its own dtype
                slots[name] = torch.empty_like(p).copy_(value)


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies of the tensors on the CPU, as the safetensors format requires."""
    return {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}


def _write(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    metadata = {"recmix": json.dumps({"format": FORMAT, **header})}
    write_bytes(path, save_tensors(tensors, metadata))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist: the run has no weights yet") from error
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}") from error
    pickles = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
    # A safetensors file begins with the length of its header, which can have any bytes.
    if content[:2] in pickles and content[8:9] != b"{":
        raise RunError(
            f"{path} is a pickle, not safetensors. A pickle can run any code, so recmix does not read it"
        )
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])["__metadata__"]["recmix"]
        header = json.loads(header)
        tensors = load_tensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path} is damaged or not written by recmix ({len(content):,} bytes; {error}): "
            "restore it from a copy, or train again with --overwrite"
        ) from error
    check_format(header.get("format"), str(path))
    return tensors, header


def _load_into(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    own = module.state_dict()
    for key in own.keys() ^ tensors.keys():
        where = "is missing from" if key in own else "is not expected in"
        raise RunError(f"{key} {where} {path}: the file belongs to a run with other options or networks")
    for key, value in tensors.items():
        if own[key].shape != value.shape:
            raise RunError(
                f"{key} in {path} has shape {tuple(value.shape)}, expected {tuple(own[key].shape)}: "
                "the file belongs to a run with other options or networks"
            )
    module.load_state_dict(tensors)
