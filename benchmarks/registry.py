"""Benchmarks by name: functions in ``benchmarks/measures/`` that `benchmark` registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from benchmarks.peer import Peer
    from benchmarks.sizes import Sizes


@dataclass(frozen=True)
class Measurement:
    """The result of a benchmark. `spread` is the interquartile range over its repetitions."""

    value: float
    spread: float
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """What a benchmark runs with.

    Args:
        device: where it runs.
        sizes: how much is measured.
        pythae: the library that recmix is compared with, if the benchmark needs it.
    """

    device: torch.device
    sizes: Sizes
    pythae: Peer | None = None

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""
        if self.cuda:
            import torch

            torch.cuda.synchronize(self.device)


Measure = Callable[[Context], Measurement]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark.

    Args:
        name: its key in the results.
        about: what is measured, in words.
        unit: the unit of the value.
        target: the value to reach, such as ``>= 12``, or one for each type of device; empty if none.
        device: the type of device that it needs, ``cpu`` or ``cuda``; empty if any will do.
        pythae: whether it needs pythae.
        measure: the measurement.
    """

    name: str
    about: str
    unit: str
    target: str | Mapping[str, str] = ""
    device: str = ""
    pythae: bool = False
    measure: Measure

    def target_on(self, device: str) -> str | None:
        """The target on this type of device, or None."""
        target = self.target if isinstance(self.target, str) else self.target.get(device)
        return target or None


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(about: str, **more: Any) -> Callable[[Measure], Measure]:
    """Register a function as a benchmark of the same name. The arguments are those of `Benchmark`."""

    def register(measure: Measure) -> Measure:
        name = measure.__name__
        BENCHMARKS[name] = Benchmark(name=name, about=about, measure=measure, **more)
        return measure

    return register


def all_benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name."""
    import benchmarks.measures  # noqa: F401  (registers them)

    return BENCHMARKS
