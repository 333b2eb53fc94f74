"""The command line: ``python -m benchmarks``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from recmix.commands.terminal import err, out, plain
from recmix.errors import RecmixError

app = typer.Typer(
    name="python -m benchmarks",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog="Example: [bold]python -m benchmarks --only growth_in_order --quick[/]")
def benchmarks(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="BENCHMARK", help="Benchmarks to run (default: all)."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A benchmark to run; may be repeated.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repetitions, to check that everything works.")
    ] = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = Path(
        "benchmarks/results"
    ),
    peer: Annotated[
        Path | None, typer.Option(help="Folder with pythae's source (default: pip downloads it).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda and so on.")] = "auto",
    plot: Annotated[
        bool, typer.Option("--plot", help="Measure nothing; write docs/performance.md from the results.")
    ] = False,
) -> None:
    """Measure the speed and memory of recmix on this machine."""
    if plot:
        from benchmarks.plots import write_page

        out.print("wrote", ", ".join(map(str, write_page(folder, Path("docs")))), highlight=False)
        return
    from benchmarks.run import run

    run([*(names or ()), *(only or ())], quick=quick, out=folder, peer=peer, device=device)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; an error that the user can correct ends with status 2 and one message."""
    try:
        app(arguments)
    except RecmixError as error:
        err.print(f"[red]error:[/] {plain(error)}")
        sys.exit(2)


if __name__ == "__main__":
    main()
