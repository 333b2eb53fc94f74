"""Check before the capture of a CUDA graph whether it can work, and clean up after a failed capture."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_host_sync", "recover_generators"]


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Context in which an operation that makes the CPU wait for the GPU raises a `RuntimeError`.

    A CUDA graph cannot capture such an operation. A failed capture makes torch's random generators
    unusable. Use this context for the last warm-up run before a capture, to find the error early.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # torch warns that it does not detect every such operation
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def recover_generators(device: torch.device, *generators: torch.Generator) -> None:
    """Make random generators usable again after the capture of a CUDA graph failed.

    After a failed capture a generator can draw random numbers only inside a capture. A copy of its state
    does not have this limit, so it replaces the state. The device's default generator is recovered too.
    """
    if device.type != "cuda":
        return
    with torch.cuda.device(device):
        default = torch.cuda.default_generators[torch.cuda.current_device()]
    for generator in (default, *generators):
        generator.graphsafe_set_state(generator.clone_state())
