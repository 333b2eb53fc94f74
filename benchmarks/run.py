"""`run`: measure benchmarks, print them as a table and record them."""

from __future__ import annotations

import gc
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import peer as peers
from benchmarks.record import Record, cores
from benchmarks.registry import Benchmark, Context, all_benchmarks
from benchmarks.sizes import Sizes, usual_sizes
from recmix.errors import ConfigError, RunError, unknown
from recmix.training.build import pick_device


def run(
    only: Iterable[str] = (),
    *,
    quick: bool = False,
    out: str | Path = "benchmarks/results",
    peer: str | Path | None = None,
    device: str = "auto",
    sizes: Sizes | None = None,
) -> dict[str, dict[str, Any]]:
    """Measure benchmarks, print them as a table and write them to ``OUT/<device>.json``.

    Args:
        only: names of the benchmarks; none means all that this device can run.
        quick: fewer repetitions, to check that everything works.
        out: folder of the results.
        peer: folder with pythae's source. Without it, pip downloads pythae into a temporary folder.
        device: ``auto``, ``cpu``, ``cuda`` and so on.
        sizes: how much is measured, if not the usual amounts.

    Returns:
        The new results, by name.

    Raises:
        ConfigError: if a name is unknown or the folder `peer` does not contain pythae.
        RunError: if a benchmark failed. It is raised after the others have run.
    """
    known = all_benchmarks()
    names = list(dict.fromkeys(only)) or list(known)
    for name in names:
        if name not in known:
            raise ConfigError(unknown("benchmark", name, known))
    if peer is not None and not peers.has(Path(peer)):
        raise ConfigError(
            f"--peer {peer} does not contain the package pythae: "
            f"pip install --target {peer} --no-deps pythae imageio"
        )
    where = pick_device(device)
    context = Context(where, sizes or usual_sizes(where.type, quick=quick))
    console = Console(soft_wrap=True)
    record = Record(Path(out), context, quick)
    if (busy := record.machine["load"]) > 0.5 * cores():
        console.print(
            f"[yellow]this machine is busy (load {busy:.1f} on {cores()} cores): "
            "expect a large spread, and measure again when it is idle[/]"
        )
    results: dict[str, dict[str, Any]] = {}
    without: dict[str, str] = {}  # why a benchmark has no result
    with ExitStack() as stack:
        for name in names:
            start = time.monotonic()
            one = known[name]
            try:
                why = _unsuitable(one, context) or (
                    _need_pythae(context, peer, stack) if one.pythae else ""
                )
                if why:
                    without[name] = f"skipped: {why}"
                else:
                    results[name] = record.add(one, one.measure(context))
            except ConfigError:
                raise
            except Exception as error:  # the other benchmarks still run
                traceback.print_exc()
                without[name] = f"failed: {type(error).__name__}: {error}"
            outcome = without.get(name) or f"{_short(results[name])} ({time.monotonic() - start:.0f} s)"
            console.print(f"{name}: {outcome}", highlight=False, markup=False)
            _free_memory(context)
    console.print(_table(results, without, record))
    if results:
        console.print(f"written to {record.path}", highlight=False)
    if failed := [name for name, why in without.items() if why.startswith("failed")]:
        raise RunError(f"{len(failed)} of {len(names)} benchmarks failed: {', '.join(failed)}")
    return results


def _unsuitable(one: Benchmark, context: Context) -> str:
    """Why this device cannot run the benchmark; empty if it can."""
    if one.device == "cuda" and not context.cuda:
        return "needs a GPU"
    if one.device == "cpu" and context.cuda:
        return "runs on a CPU: give --device cpu"
    return ""


def _need_pythae(context: Context, folder: str | Path | None, stack: ExitStack) -> str:
    """Import pythae into the context. Returns why that is not possible; empty if it is."""
    if context.pythae is not None:
        return ""
    place = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="recmix-peer-")))
    why = "" if folder else peers.install(place)
    if not why:
        context.pythae = peers.Peer(place)
    return why


def _free_memory(context: Context) -> None:
    gc.collect()
    if context.cuda:
        torch.cuda.empty_cache()


def _short(entry: Mapping[str, Any]) -> str:
    return f"{entry['value']:.4g} ± {entry['spread']:.2g} {entry['unit']}"


def _table(results: Mapping[str, Any], without: Mapping[str, str], record: Record) -> Table:
    machine = record.machine
    title = f"{machine['device']}; torch {machine['torch']}, Python {machine['python']}"
    table = Table("benchmark", "value", "unit", "spread", "target", "reached", title=title)
    words = {True: "[green]yes[/]", False: "[red]no[/]", None: "-"}
    for name, entry in results.items():
        value, spread = f"{entry['value']:.4g}", f"{entry['spread']:.2g}"
        table.add_row(name, value, entry["unit"], spread, entry["reach"] or "-", words[entry["reached"]])
    for name, why in without.items():
        table.add_row(name, "-", "-", "-", "-", why.split(":", 1)[0])
    return table
