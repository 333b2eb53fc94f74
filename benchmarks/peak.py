"""Peak memory of a task: of the allocator on a GPU, of a separate process on a CPU.

As a module (``python -m benchmarks.peak``) it does one task on the CPU and prints the number of bytes by
which its process grew. Each task needs its own process, because a process cannot lower its peak.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import recmix
from benchmarks.blocks import make_method
from recmix.evaluation.bounds import bounds


def peak_bytes(device: torch.device, task: str, **sizes: Any) -> int:
    """The largest number of bytes in use during the task, less those in use before it.

    Args:
        device: where the task runs.
        task: ``iwae`` or ``laplace``.
        sizes: arguments of the function of that name.
    """
    if device.type == "cuda":
        work = TASKS[task](device, **sizes)
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    arguments = json.dumps({"task": task, "threads": torch.get_num_threads(), **sizes})
    roots = [str(Path(__file__).parents[1]), str(Path(recmix.__file__).parents[1])]
    paths = os.pathsep.join(filter(None, [*roots, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peak", arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed: {done.stderr.strip()[-500:]}")
    return int(done.stdout.split()[-1])


def iwae(
    device: torch.device,
    *,
    order: int,
    latent: int,
    shape: tuple[int, int, int],
    images: int,
    samples: int,
    memory: int,
) -> Callable[[], object]:
    """IWAE-`samples` of images under a recursive mixture, with `memory` bytes for the decoder."""
    method = make_method(device, "rme", latent, shape, {"variance": 0.1}, order=order).eval()
    x = _images(device, images, shape)
    bounds(method, x[:1], samples=2)  # memory that libraries allocate once is not counted
    return lambda: bounds(method, x, samples=samples, memory=memory)


def laplace(
    device: torch.device, *, steps: int, latent: int, shape: tuple[int, int, int], batch: int
) -> Callable[[], object]:
    """The Laplace posterior of a batch."""
    method = make_method(device, "vlae", latent, shape, {"variance": 0.1}, steps=steps).eval()
    x = _images(device, batch, shape)

    @torch.no_grad()
    def work(x: torch.Tensor = x) -> object:
        return method.posterior(x).mean

    work(x[:1])  # memory that libraries allocate once is not counted
    return work


TASKS: dict[str, Callable[..., Callable[[], object]]] = {"iwae": iwae, "laplace": laplace}


def _images(device: torch.device, count: int, shape: tuple[int, int, int]) -> torch.Tensor:
    values = np.random.default_rng(0).random((count, *shape), dtype=np.float32)
    return torch.from_numpy(values).to(device)


def status(name: str) -> int | None:
    """A number of bytes from Linux's status of this process; None on other systems."""
    path = Path("/proc/self/status")
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def resident() -> int:
    """Bytes of this process that are in memory now. Also resets the peak, where that is possible."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "utf-8")
    return status("VmRSS") or peak_resident()


def peak_resident() -> int:
    """The peak. Without Linux's status it is `ru_maxrss`, which may be the parent's."""
    unit = 1 if sys.platform == "darwin" else 1024
    return status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Do the task that is given as JSON and print the growth in bytes."""
    arguments = json.loads(sys.argv[1])
    arguments["shape"] = tuple(arguments["shape"])
    torch.set_num_threads(arguments.pop("threads"))
    work = TASKS[arguments.pop("task")](torch.device("cpu"), **arguments)
    before = resident()
    work()
    print(max(0, peak_resident() - before))


if __name__ == "__main__":
    main()
