"""The command line: the app and its commands, which are in `recmix.commands`.

Commands import what they need when they run, so that help comes at once.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from recmix._version import __version__
from recmix.commands.bench import bench_command
from recmix.commands.compare import compare_command, demo_command
from recmix.commands.evaluate import evaluate_command
from recmix.commands.export import export_command
from recmix.commands.grid import grid_command
from recmix.commands.lists import data_command, methods_command
from recmix.commands.presets import presets_command
from recmix.commands.report import figure_one_command, report_command
from recmix.commands.summary import summary_command
from recmix.commands.terminal import err, out, plain
from recmix.commands.train import add_train
from recmix.errors import Interrupted, RecmixError
from recmix.explore.serve import explore_command

__all__ = ["main"]

app = typer.Typer(
    name="recmix",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Accurate posterior inference for variational autoencoders, at the speed of one forward pass.",
    epilog="Bad input ends with status 2 and one message; [bold]--debug[/] anywhere adds the traceback.",
)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors a user can act on end with status 2 and one message."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    command = next((word for word in words if not word.startswith("-")), "")
    add_train(app, with_options=command == "train")
    try:
        app(words)
    except Interrupted as stop:
        err.print(f"[yellow]{plain(stop)}[/]")
        sys.exit(130)
    except KeyboardInterrupt:
        err.print("[yellow]stopped before there was anything to save[/]")
        sys.exit(130)
    except RecmixError as error:
        if debug:
            raise
        err.print(f"[red]error:[/] {plain(error)}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _version(show: bool) -> None:
    if show:
        out.print(f"recmix {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app.command("data", epilog="Example: [bold]recmix data --data-root ~/data[/]")(data_command)
app.command("methods", epilog="Example: [bold]recmix methods --json[/]")(methods_command)
app.command("presets", epilog="Example: [bold]recmix presets best > mine.toml[/]")(presets_command)
app.command("evaluate", epilog="Example: [bold]recmix evaluate runs/rme --samples 5000 --json[/]")(
    evaluate_command
)
app.command("demo", epilog="Example: [bold]recmix demo --out runs/demo --overwrite[/]")(demo_command)
app.command(
    "compare",
    epilog="Examples:\n\n[bold]recmix compare --data digits --out runs/compare[/]\n\n"
    "[bold]recmix compare --data mnist --init runs/vae --epochs 5 --out runs/all rme:order=2 rme iaf[/]",
)(compare_command)
app.command("grid", epilog="Example: [bold]recmix grid configs/smoke.toml --store runs/smoke[/]")(
    grid_command
)
app.command("bench", epilog="Example: [bold]recmix bench --only growth_in_order --quick[/]")(
    bench_command
)
app.command("figure1", epilog="Example: [bold]recmix figure1 --data mnist --out figures[/]")(
    figure_one_command
)
app.command("report", epilog="Example: [bold]recmix report runs/grid --out report.html[/]")(
    report_command
)
app.command("summary", epilog="Example: [bold]recmix summary runs/frontier --out docs/results[/]")(
    summary_command
)
app.command("export", epilog="Example: [bold]recmix export runs/rme --format onnx[/]")(export_command)
app.command("explore", epilog="Example: [bold]recmix explore runs/vae runs/rme[/]")(explore_command)

if __name__ == "__main__":
    main()
