"""The results of one device: a JSON file in ``benchmarks/results/``."""

from __future__ import annotations

import math
import os
import platform
import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.registry import Benchmark, Context, Measurement
from recmix._version import __version__
from recmix.errors import RunError
from recmix.runs.files import read_json, write_json


class Record:
    """The results of one device, in a file of their own.

    The file is written after each result. Results of other benchmarks stay in it. A quick result does
    not replace a full one.

    Args:
        folder: where the file is.
        context: for its device.
        quick: whether the results are quick ones.
    """

    def __init__(self, folder: Path, context: Context, quick: bool) -> None:
        import torch

        self.context = context
        self.path = folder / f"{_file_name(context)}.json"
        self.content: dict[str, Any] = read_json(self.path) if self.path.exists() else {}
        if not isinstance(self.content, dict):
            raise RunError(f"{self.path} is not a results file: expected a JSON object")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"could not create the folder {folder}: {error.strerror}") from error
        self.machine: dict[str, Any] = {
            "device": describe(context),
            "threads": torch.get_num_threads(),
            "load": load(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "recmix": __version__,
            "quick": quick,
        }

    def add(self, one: Benchmark, measurement: Measurement) -> dict[str, Any]:
        """Add a result and write the file. Returns the result as it is written."""
        target = one.target_on(self.context.device.type)
        entry = {
            **asdict(measurement),
            "unit": one.unit,
            "reach": target,
            "reached": None if target is None else reached(measurement.value, target),
            "about": one.about,
            **self.machine,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        rounded: dict[str, Any] = _rounded(entry)
        before = self.content.get(one.name, {"quick": True})
        if before.get("quick") or not rounded["quick"]:
            self.content[one.name] = rounded
            write_json(self.path, dict(sorted(self.content.items())))
        return rounded


def reached(value: float, target: str) -> bool:
    """Whether a value satisfies a target.

    >>> reached(12.5, ">= 12"), reached(1.6, "<= 1.5")
    (True, False)
    """
    sign, bound = target.split()
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float:
    """The machine's load average over the last minute; 0 where it is not known."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def describe(context: Context) -> str:
    """The device's name: the GPU, or the processor and its cores."""
    if context.cuda:
        import torch

        return torch.cuda.get_device_name(context.device)
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*:\s*(.+)", info.read_text("utf-8"))):
        name = found[1].strip()
    return f"{name}, {cores()} cores"


def _file_name(context: Context) -> str:
    """The device as a file name, such as ``nvidia-h200`` or ``cpu-2-cores``."""
    name = describe(context) if context.cuda else f"cpu {cores()} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _rounded(content: Any) -> Any:
    """The content with numbers rounded to six significant digits."""
    if isinstance(content, float):
        return float(f"{content:.6g}") if math.isfinite(content) else content
    if isinstance(content, dict):
        return {str(name): _rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    return content
