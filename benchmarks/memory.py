"""Peak memory of a piece of work: of the allocator on a GPU, of a process of its own on a CPU.

As a script it does one piece of work on the CPU and prints the bytes that its process grew by; a peak
cannot be taken back, so every one needs a process.
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


def peak_bytes(device: torch.device, task: str, **sizes: Any) -> int:
    """Bytes beyond what was there before, at the worst moment of the task.

    Args:
        device: where it is done.
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
    order = json.dumps({"task": task, "threads": torch.get_num_threads(), **sizes})
    package = str(Path(sys.modules["recmix"].__path__[0]).parent)
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, __file__, order],
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
    """IWAE-`samples` of images under a recursive mixture, with so many bytes for the decoder."""
    from recmix.evaluation.bounds import bounds

    method = _method("rme", device, latent, shape, order=order)
    x = _images(device, images, shape)
    bounds(method, x[:1], samples=2)  # what libraries allocate once
    return lambda: bounds(method, x, samples=samples, memory=memory)


def laplace(
    device: torch.device, *, steps: int, latent: int, shape: tuple[int, int, int], batch: int
) -> Callable[[], object]:
    """The Laplace posterior of a batch."""
    method = _method("vlae", device, latent, shape, steps=steps)
    x = _images(device, batch, shape)

    def work() -> object:
        with torch.no_grad():
            return method.posterior(x).mean

    with torch.no_grad():
        method.posterior(x[:1])  # what libraries allocate once
    return work


TASKS: dict[str, Callable[..., Callable[[], object]]] = {"iwae": iwae, "laplace": laplace}


def _method(
    name: str, device: torch.device, latent: int, shape: tuple[int, int, int], **options: Any
) -> Any:
    from recmix.runs.options import Training
    from recmix.runs.spec import Spec
    from recmix.training.build import build

    torch.manual_seed(0)
    training = Training(device=str(device))
    spec = Spec(
        method=name,
        latent=latent,
        likelihood="gaussian",
        shape=shape,
        options=options,
        training=training,
    )
    return build(spec, variance=0.1).eval()


def _images(device: torch.device, count: int, shape: tuple[int, int, int]) -> torch.Tensor:
    pixels = np.random.default_rng(0).random((count, *shape), dtype=np.float32)
    return torch.from_numpy(pixels).to(device)


def _status(name: str) -> int | None:
    """A number of bytes from what Linux says of this process."""
    path = Path("/proc/self/status")
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _resident() -> int:
    """Bytes of this process that are in memory now, and forget the most there were so far."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "utf-8")
    return _status("VmRSS") or _most_resident()


def _most_resident() -> int:
    """The most there were; `ru_maxrss`, where there is nothing else, may be the parent's."""
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Do the task given as JSON and print the growth in bytes."""
    order = json.loads(sys.argv[1])
    order["shape"] = tuple(order["shape"])
    torch.set_num_threads(order.pop("threads"))
    work = TASKS[order.pop("task")](torch.device("cpu"), **order)
    before = _resident()
    work()
    print(max(0, _most_resident() - before))


if __name__ == "__main__":
    main()
