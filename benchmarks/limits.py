"""Time and peak memory of one call, with a limit for each; a call over a limit is ended.

On a CPU the call runs in a process of its own, because a process cannot lower its peak and a call cannot
be interrupted. A server process, which has imported everything, starts these processes quickly. On a GPU
the call runs in this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from benchmarks.peak import peak_resident, resident, status
from recmix.errors import RecmixError

Work = Callable[[], object]
Make = Callable[..., Work]
"""A function in a module that makes the work from a device and arguments."""

GIB = 2**30
START = 120.0
"""Most seconds in which a process must be ready for its call."""
GRACE = 1.0
"""Seconds that a call in another process may last longer than its limit, before it is ended."""
COMPILE = 10.0
"""The first call on a GPU compiles kernels. It may last so many times as long as the limit."""


class Cost(NamedTuple):
    """Seconds of one call, and by how many bytes the memory in use grew at most."""

    seconds: float
    bytes: int


def cost_of_call(
    device: torch.device, make: Make, arguments: dict[str, Any], *, seconds: float, memory: int
) -> Cost | str:
    """The cost of one call of ``make(device, **arguments)``, or why there is none.

    Args:
        device: where the call runs.
        make: makes the work. It must be a function of a module, and may warm up with a small call.
        arguments: arguments of `make`.
        seconds: most seconds of the call.
        memory: most bytes by which the memory in use may grow.

    Returns:
        The cost, or a text that starts with ``skipped:``.
    """
    measure = _on_gpu if device.type == "cuda" else _in_process
    cost = measure(device, make, arguments, seconds, memory)
    if isinstance(cost, str):
        return cost
    if cost.seconds > seconds:
        return too_long(seconds)
    return too_large(memory) if cost.bytes > memory else cost


def too_long(seconds: float) -> str:
    """The text for a call over the limit of time."""
    return f"skipped: over {seconds:g} s"


def too_large(memory: int) -> str:
    """The text for a call over the limit of memory."""
    return f"skipped: over {memory / GIB:.3g} GiB"


def _on_gpu(
    device: torch.device, make: Make, arguments: dict[str, Any], seconds: float, memory: int
) -> Cost | str:
    """The cost on a GPU: memory of the first call and, unless that was very long, time of the second."""
    try:
        work = make(device, **arguments)
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        first = _time(work, device)
        used = torch.cuda.max_memory_allocated(device) - before
        return Cost(first if first > COMPILE * seconds else _time(work, device), used)
    except torch.OutOfMemoryError:
        return "skipped: more memory than the GPU has"
    except (RuntimeError, RecmixError) as error:
        return _failed(error)
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _time(work: Work, device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _in_process(
    device: torch.device, make: Make, arguments: dict[str, Any], seconds: float, memory: int
) -> Cost | str:
    """The cost on a CPU, of a process of its own."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["benchmarks.measures"])
    ours, theirs = processes.Pipe()
    given = (theirs, make, arguments, memory, torch.get_num_threads())
    process = processes.Process(target=_serve_call, args=given, daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(START):
            return f"skipped: not ready after {START:g} s"
        answer = ours.recv()
        if answer == "ready":
            answer = ours.recv() if ours.poll(seconds + GRACE) else too_long(seconds)
        return answer
    except EOFError:
        process.join()
        return f"skipped: the process ended with exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()
        ours.close()


def _serve_call(
    pipe: Connection, make: Make, arguments: dict[str, Any], memory: int, threads: int
) -> None:
    """In the other process: send ``ready``, then the cost of the call or why there is none."""
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    try:
        work = make(device, **arguments)
        _limit_memory(memory)
        pipe.send("ready")
        _release_memory()
        before = resident()
        seconds = _time(work, device)
        pipe.send(Cost(seconds, max(0, peak_resident() - before)))
    except (MemoryError, RuntimeError, RecmixError) as error:
        pipe.send(too_large(memory) if _is_memory(error) else _failed(error))


def _release_memory() -> None:
    """Give unused memory back to the system, where the C library can; `make` may have used much."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _limit_memory(memory: int) -> None:
    """Let this process allocate at most so many bytes more, where the system can limit that."""
    used = status("VmData")
    if used is not None:
        with contextlib.suppress(ValueError, OSError):
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (used + memory, hard))


def _is_memory(error: Exception) -> bool:
    words = ("allocate memory", "bad_alloc", "out of memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _failed(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"skipped: {type(error).__name__}: {first[:200]}"
