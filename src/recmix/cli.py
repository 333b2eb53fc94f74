"""The command line: the app and its commands, which are in `recmix.commands`.

Commands import what they need when they run, so that help appears at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from recmix.commands.compare import compare_command
from recmix.commands.demo import demo_command
from recmix.commands.evaluate import evaluate_command
from recmix.commands.explore import explore_command
from recmix.commands.export import export_command
from recmix.commands.grid import grid_command
from recmix.commands.lists import data_command, methods_command
from recmix.commands.presets import presets_command
from recmix.commands.report import figure_one_command, report_command
from recmix.commands.summary import summary_command
from recmix.commands.terminal import before_command, err, plain
from recmix.commands.train import add_train
from recmix.commands.tune import tune_command
from recmix.errors import Interrupted, RecmixError

__all__ = ["main"]

app = typer.Typer(
    name="recmix",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Accurate posterior inference for variational autoencoders, at the speed of one forward pass.",
    epilog="Bad input ends with status 2 and one message; [bold]--debug[/] adds the traceback.",
)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors that a user can fix end with status 2 and one message."""
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
    except BrokenPipeError:  # the reader of our output closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "data": (data_command, "recmix data --data-root ~/data"),
    "methods": (methods_command, "recmix methods --json"),
    "presets": (presets_command, "recmix presets best > mine.toml"),
    "evaluate": (evaluate_command, "recmix evaluate runs/rme --samples 5000 --json"),
    "tune": (tune_command, "recmix tune runs/rme --budget 3x --plot tuned.png"),
    "demo": (demo_command, "recmix demo --out runs/demo --overwrite"),
    "compare": (
        compare_command,
        "recmix compare --data mnist --init runs/vae --epochs 5 --out runs/all rme:order=2 rme iaf",
    ),
    "grid": (grid_command, "recmix grid configs/smoke.toml --store runs/smoke"),
    "figure1": (figure_one_command, "recmix figure1 --data mnist --out figures"),
    "report": (report_command, "recmix report runs/grid --out report.html"),
    "summary": (summary_command, "recmix summary runs/frontier --out docs/results"),
    "export": (export_command, "recmix export runs/rme --format onnx"),
    "explore": (explore_command, "recmix explore runs/vae runs/rme"),
}
app.callback()(before_command)
for _name, (_command, _example) in COMMANDS.items():
    app.command(_name, epilog=f"Example: [bold]{_example}[/]")(_command)

if __name__ == "__main__":
    main()
