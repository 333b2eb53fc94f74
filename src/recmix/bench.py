"""`recmix bench`: figures of speed and memory, each measured in one run on one device.

This is the clock and the book. What is measured stands in ``benchmarks/`` of a checkout: the figures in
``measures.py``, the paper's pseudocode in ``literal.py``, the peer in ``peer.py``. A ratio is taken
between two things that are timed in turn, again and again; its value is the median over these
repetitions and its spread their interquartile range.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import platform
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.table import Table

from recmix._version import __version__
from recmix.errors import ConfigError, RunError, unknown
from recmix.runs.files import read_json, write_json

if TYPE_CHECKING:
    import torch

__all__ = [
    "Bench",
    "Block",
    "Key",
    "Measured",
    "clock",
    "interleave",
    "key",
    "keys",
    "medians",
    "middle",
    "part",
    "plot",
    "ratio",
    "run",
]


@dataclass(frozen=True)
class Measured:
    """What a measurement gave; `spread` is the interquartile range over its repetitions."""

    value: float
    spread: float
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One figure.

    Args:
        name: its key in the results.
        about: what it is, in words.
        unit: of the value.
        reach: what is to be reached, as ``>= 12``; nothing if it only informs.
        on: the kind of device that can give it; nothing if any can.
        reach_on: the kind of device that the reach is meant for; nothing if any.
        peer: whether it needs pythae.
        measure: the measurement.
    """

    name: str
    about: str
    unit: str
    reach: str = ""
    on: str = ""
    reach_on: str = ""
    peer: bool = False
    measure: Callable[[Bench], Measured]

    def reach_for(self, device: str) -> str | None:
        """What is to be reached on this kind of device, if anything."""
        return self.reach if self.reach and self.reach_on in ("", device) else None


@dataclass
class Bench:
    """What a measurement is made with.

    Args:
        device: where.
        scale: how much, see ``benchmarks/measures.py``.
        peer: pythae, where a key needs it.
    """

    device: torch.device
    scale: Any
    peer: Any = None

    @property
    def cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done what it was asked to."""
        if self.cuda:
            import torch

            torch.cuda.synchronize(self.device)


KEYS: dict[str, Key] = {}
Name = TypeVar("Name")
"""What a block is called: anything that a dictionary can hold."""


def key(
    about: str, *, unit: str, reach: str = "", on: str = "", reach_on: str = "", peer: bool = False
) -> Callable[[Callable[[Bench], Measured]], Callable[[Bench], Measured]]:
    """Make a measurement known under the name of its function; the arguments are those of `Key`."""

    def known(measure: Callable[[Bench], Measured]) -> Callable[[Bench], Measured]:
        name = measure.__name__
        KEYS[name] = Key(
            name=name,
            about=about,
            unit=unit,
            reach=reach,
            on=on,
            reach_on=reach_on,
            peer=peer,
            measure=measure,
        )
        return measure

    return known


# --- the clock --------------------------------------------------------------------------------------


@dataclass
class Block:
    """Work that is timed a block of units at a time.

    Args:
        work: does so many units of it, and need not wait for the device.
        most: units that one block can have.
        fixed: units of every block; 0 to have as many as fill the time.
    """

    work: Callable[[int], object]
    most: int = 5000
    fixed: int = 0


def interleave(
    bench: Bench, blocks: Mapping[Name, Block], *, repeats: int, seconds: float
) -> dict[Name, list[float]]:
    """Milliseconds per unit of each block, for each repetition.

    All blocks are warmed up first and then take turns, forwards and backwards alternately, so that
    whatever slows the machine for a while slows all of them.

    Args:
        bench: for its device.
        blocks: what is timed, by name.
        repeats: of the whole round.
        seconds: that a block is to take, where its units are not fixed.
    """
    units = {name: _warm_up(bench, block, seconds) for name, block in blocks.items()}
    times: dict[Name, list[float]] = {name: [] for name in blocks}
    names = list(blocks)
    for repeat in range(repeats):
        gc.collect()
        for name in names if repeat % 2 == 0 else reversed(names):
            took = clock(bench, blocks[name].work, units[name])
            times[name].append(1e3 * took / units[name])
    return times


def _warm_up(bench: Bench, block: Block, seconds: float) -> int:
    """Run a block until its caches are warm; gives the units that fill the time."""
    if block.fixed:
        clock(bench, block.work, block.fixed)
        return block.fixed
    for _ in range(2):
        once = clock(bench, block.work, 1)
    few = max(1, min(block.most, 5, int(seconds / once)))
    once = clock(bench, block.work, few) / few
    return max(1, min(block.most, round(seconds / once)))


def clock(bench: Bench, work: Callable[[int], object], units: int) -> float:
    """Seconds that so many units of work take, until the device has done them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        bench.wait()
        start = time.perf_counter()
        work(units)
        bench.wait()
        return time.perf_counter() - start
    finally:
        if collecting:
            gc.enable()


def ratio(top: Sequence[float], bottom: Sequence[float]) -> tuple[float, float]:
    """Median and interquartile range of the ratios of paired repetitions.

    >>> ratio([4.0, 6.0, 8.0], [2.0, 2.0, 2.0])
    (3.0, 1.0)
    """
    return middle([a / b for a, b in zip(top, bottom, strict=True)])


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Median and interquartile range."""
    if len(values) < 2:
        return values[0], 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return statistics.median(values), high - low


def medians(times: Mapping[Any, Sequence[float]]) -> dict[str, float]:
    """The median of each, by name."""
    return {str(name): statistics.median(values) for name, values in times.items()}


# --- the checkout -----------------------------------------------------------------------------------


def checkout() -> Path:
    """The folder ``benchmarks`` of the checkout we are in, or that this package lies in."""
    places = [Path.cwd() / "benchmarks", Path(__file__).resolve().parents[2] / "benchmarks"]
    for place in places:
        if (place / "literal.py").is_file() and (place / "measures.py").is_file():
            return place
    looked = " and ".join(map(str, places))
    raise ConfigError(
        f"`recmix bench` needs a checkout of the repository, with benchmarks/literal.py in it; "
        f"looked in {looked}: clone the repository and run it there"
    )


def part(name: str) -> Any:
    """The module ``benchmarks/NAME.py`` of the checkout."""
    path = checkout() / f"{name}.py"
    full = f"recmix_benchmarks_{name}"
    found = sys.modules.get(full)
    if found is not None and found.__file__ == str(path):
        return found
    spec = importlib.util.spec_from_file_location(full, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    return module


def keys() -> dict[str, Key]:
    """All figures there are, by key."""
    part("measures")
    part("serve")
    return KEYS


# --- the book ---------------------------------------------------------------------------------------


def run(
    only: Iterable[str] = (),
    *,
    quick: bool = False,
    out: str | Path = "benchmarks/results",
    peer: str | Path | None = None,
    device: str = "auto",
    scale: Any = None,
) -> dict[str, dict[str, Any]]:
    """Measure figures, print them as a table and write them to ``OUT/<device>.json``.

    The file is written anew after each figure; those that are not measured this time stay in it, and a
    quick one does not replace one that is not.

    Args:
        only: keys to measure; none for all that this device can give.
        quick: fewer repetitions, to see that it works.
        out: folder of the results.
        peer: folder with pythae's source; without it pip fetches it into a throw-away folder.
        device: ``auto``, ``cpu``, ``cuda`` …
        scale: sizes other than the usual ones.

    Returns:
        What was measured this time, by key.

    Raises:
        RunError: if a measurement failed; it is raised when the others are done.
    """
    from recmix.training.build import pick_device

    known = keys()
    wanted = list(dict.fromkeys(only)) or list(known)
    for name in wanted:
        if name not in known:
            raise ConfigError(unknown("key", name, known))
    if peer is not None and not part("peer").has(Path(peer)):
        raise ConfigError(
            f"--peer {peer} holds no package pythae: "
            f"pip install --target {peer} --no-deps pythae imageio"
        )
    bench = Bench(pick_device(device), scale)
    if scale is None:
        bench.scale = part("measures").scale(bench.device.type, quick=quick)
    console = Console(soft_wrap=True)
    book = _Book(Path(out), bench, quick)
    if (busy := book.stamp["load"]) > 0.5 * cores():
        console.print(
            f"[yellow]others use this machine (load {busy:.1f} on {cores()} cores): "
            "expect a large spread, and measure again when it is idle[/]"
        )
    found: dict[str, dict[str, Any]] = {}
    apart: dict[str, str] = {}  # why a key has no figure
    failed: list[str] = []
    with ExitStack() as stack:
        for name in wanted:
            began = time.monotonic()
            one = known[name]
            try:
                why = _cannot(one, bench) or (_with_peer(bench, peer, stack) if one.peer else "")
                if why:
                    apart[name] = f"skipped: {why}"
                else:
                    found[name] = book.enter(one, one.measure(bench))
            except ConfigError:
                raise
            except Exception as error:
                # A figure that fails must not take the others with it: a machine is lent for minutes.
                traceback.print_exc()
                apart[name] = f"failed: {type(error).__name__}: {error}"
                failed.append(name)
            told = apart.get(name) or f"{_shown(found[name])} ({time.monotonic() - began:.0f} s)"
            console.print(f"{name}: {told}", highlight=False, markup=False)
            _tidy(bench)
    console.print(_table(found, apart, book))
    if found:
        console.print(f"written to {book.path}", highlight=False)
    if failed:
        raise RunError(f"{len(failed)} of {len(wanted)} figures failed: {', '.join(failed)}")
    return found


def plot(results: str | Path = "benchmarks/results", docs: str | Path = "docs") -> list[Path]:
    """Write the page ``performance.md`` and its pictures from the results; gives the files written."""
    made: list[Path] = part("plots").plot(Path(results), Path(docs))
    return made


class _Book:
    """The results of one device, in a file of their own."""

    def __init__(self, folder: Path, bench: Bench, quick: bool) -> None:
        import torch

        self.bench = bench
        self.device = _describe(bench)
        self.path = folder / f"{_slug(bench)}.json"
        self.content: dict[str, Any] = read_json(self.path) if self.path.exists() else {}
        if not isinstance(self.content, dict):
            raise RunError(f"{self.path} is not a file of results: expected a JSON object")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"could not make the folder {folder}: {error.strerror}") from error
        self.stamp: dict[str, Any] = {
            "device": self.device,
            "threads": torch.get_num_threads(),
            "load": load(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "recmix": __version__,
            "quick": quick,
        }

    def enter(self, one: Key, measured: Measured) -> dict[str, Any]:
        """Add a figure and write the file."""
        reach = one.reach_for(self.bench.device.type)
        entry = {
            **asdict(measured),
            "unit": one.unit,
            "reach": reach,
            "reached": None if reach is None else _reached(measured.value, reach),
            "about": one.about,
            **self.stamp,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        rounded: dict[str, Any] = _rounded(entry)
        before = self.content.get(one.name, {"quick": True})
        if before.get("quick") or not rounded["quick"]:  # a quick look replaces no real figure
            self.content[one.name] = rounded
            write_json(self.path, dict(sorted(self.content.items())))
        return rounded


def _cannot(one: Key, bench: Bench) -> str:
    if one.on == "cuda" and not bench.cuda:
        return "needs a GPU"
    if one.on == "cpu" and bench.cuda:
        return "a figure of the CPU: measured with --device cpu"
    return ""


def _with_peer(bench: Bench, folder: str | Path | None, stack: ExitStack) -> str:
    """Give the bench its peer; says why if there is none."""
    if bench.peer is not None:
        return ""
    peer = part("peer")
    place = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="recmix-peer-")))
    why: str = "" if folder else peer.install(place)
    if why:
        return why
    bench.peer = peer.Peer(place)
    return ""


def _tidy(bench: Bench) -> None:
    gc.collect()
    if bench.cuda:
        import torch

        torch.cuda.empty_cache()


def _reached(value: float, reach: str) -> bool:
    """Whether a value is as ``>= 12`` or ``<= 1.5`` says."""
    sign, bound = reach.split()
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def _rounded(content: Any) -> Any:
    """Six significant digits are plenty, and make a file that can be read."""
    if isinstance(content, float):
        return float(f"{content:.6g}") if math.isfinite(content) else content
    if isinstance(content, dict):
        return {str(name): _rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    return content


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float:
    """Processes that wanted to run in the last minute, on average, before we began."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _describe(bench: Bench) -> str:
    if bench.cuda:
        import torch

        return torch.cuda.get_device_name(bench.device)
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*:\s*(.+)", info.read_text("utf-8"))):
        name = found[1].strip()
    return f"{name}, {cores()} cores"


def _slug(bench: Bench) -> str:
    """The device as a file name.

    >>> import torch
    >>> _slug(Bench(torch.device("cpu"), None)).startswith("cpu-")
    True
    """
    name = _describe(bench) if bench.cuda else f"cpu {cores()} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _shown(entry: Mapping[str, Any]) -> str:
    return f"{entry['value']:.4g} ± {entry['spread']:.2g} {entry['unit']}"


def _table(found: Mapping[str, Any], apart: Mapping[str, str], book: _Book) -> Table:
    stamp = book.stamp
    title = f"{stamp['device']}; torch {stamp['torch']}, Python {stamp['python']}"
    table = Table("key", "value", "unit", "spread", "reach", "met", title=title)
    words = {True: "[green]yes[/]", False: "[red]no[/]", None: "-"}
    for name, entry in found.items():
        value, spread = f"{entry['value']:.4g}", f"{entry['spread']:.2g}"
        table.add_row(name, value, entry["unit"], spread, entry["reach"] or "-", words[entry["reached"]])
    for name, why in apart.items():
        table.add_row(name, "-", "-", "-", "-", why.split(":", 1)[0])
    return table
