"""`recmix bench`: speed and memory on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recmix.commands.terminal import out

__all__ = ["bench_command"]


def bench_command(
    figures: Annotated[list[str] | None, typer.Argument(help="Figures, as with --only.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="A figure; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer repetitions, to see that it works.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = Path(
        "benchmarks/results"
    ),
    peer: Annotated[Path | None, typer.Option(help="Folder with pythae's source.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    plot: Annotated[bool, typer.Option("--plot", help="Write docs/performance.md from them.")] = False,
) -> None:
    """Measure speed and memory, as ratios taken in one run on this machine."""
    from recmix import bench

    if plot:
        out.print("wrote", ", ".join(map(str, bench.plot(folder, "docs"))), highlight=False)
        return
    bench.run([*(figures or ()), *(only or ())], quick=quick, out=folder, peer=peer, device=device)
