"""Register all commands of the program, with their order, headings and examples in the help.

Commands import what they need when they run, so that help appears at once.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable

import typer

from recmix.commands.compare import compare_command
from recmix.commands.demo import demo_command
from recmix.commands.doctor import doctor_command
from recmix.commands.evaluate import evaluate_command
from recmix.commands.explore import explore_command
from recmix.commands.export import export_command
from recmix.commands.generate import generate_command
from recmix.commands.grid import grid_command
from recmix.commands.lists import data_command, methods_command
from recmix.commands.parsing import Command, Group
from recmix.commands.presets import presets_command
from recmix.commands.report import figure_one_command, report_command
from recmix.commands.summary import summary_command
from recmix.commands.terminal import before_command
from recmix.commands.train import add_train
from recmix.commands.tune import tune_command
from recmix.errors import ConfigError, unknown

__all__ = ["COMMANDS", "HINTS", "add_commands", "app", "check_command"]

app = typer.Typer(
    name="recmix",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Better posteriors from a variational autoencoder: from one that you train with recmix, or "
    "from one that you already have.",
    epilog="[bold]recmix COMMAND --help[/] lists the options of a command. Wrong input ends with "
    "status 2 and one message; [bold]--debug[/] adds the traceback.\n\nA VAE of your own: recmix.wrap "
    "in Python makes a model of it. [bold]recmix evaluate module:function --data DATA[/] scores the "
    "model that your function returns. See docs/bring_your_own_vae.md.",
)


COMMANDS: dict[str, tuple[str, Callable[..., None] | None, str]] = {
    "demo": ("Begin", demo_command, "recmix demo"),
    "doctor": ("Begin", doctor_command, "recmix doctor"),
    "data": ("Begin", data_command, "recmix data"),
    "methods": ("Begin", methods_command, "recmix methods"),
    "presets": ("Begin", presets_command, "recmix presets best > mine.toml"),
    "train": (
        "Train",
        None,  # added by `add_train`
        "recmix train --data mnist --method vae --out runs/vae",
    ),
    "grid": ("Train", grid_command, "recmix grid configs/smoke.toml --store runs/smoke"),
    "tune": ("Improve", tune_command, "recmix tune runs/vae --milliseconds 5"),
    "evaluate": ("Measure", evaluate_command, "recmix evaluate runs/vae --refine 2"),
    "compare": (
        "Compare",
        compare_command,
        "recmix compare --data mnist --init runs/vae rme iaf",
    ),
    "report": ("Compare", report_command, "recmix report runs/all --out report.html"),
    "summary": ("Compare", summary_command, "recmix summary runs/all --out results"),
    "explore": ("Look", explore_command, "recmix explore runs/vae runs/rme"),
    "generate": ("Look", generate_command, "recmix generate runs/vae --count 64 --out samples.png"),
    "figure1": ("Look", figure_one_command, "recmix figure1 --data mnist --out figures"),
    "export": ("Serve", export_command, "recmix export runs/rme --format onnx"),
}
"""{command: (heading in the help, function, example)}, in the order of the help."""

EVALUATE, EXPLORE = "`recmix evaluate RUN` scores a run", "`recmix explore RUN` shows them in a browser"
TRAIN = "`recmix train --data DATA --method vae --out RUN` trains a model"
TUNE = "`recmix tune RUN --milliseconds 5` chooses a refinement and stores it in the run"
HINTS = {
    "refine": f"`recmix evaluate RUN --refine 2` scores a run with refinement; {TUNE}",
    "calibrate": "`recmix evaluate RUN --calibrate` calibrates on validation data and scores the run",
    "improve": TUNE,
    "gap": "`recmix evaluate RUN --gap` measures what inference loses",
    "score": EVALUATE,
    "test": EVALUATE,
    "fit": TRAIN,
    "run": TRAIN,
    "resume": "`recmix train --resume --out RUN` continues a run",
    "wrap": "`recmix evaluate module:function --data DATA` scores a model that recmix.wrap returns",
    "sample": f"`recmix generate RUN --count 64` gives samples; {EXPLORE}",
    "reconstruct": f"{EXPLORE}; in Python, recmix.load(RUN).reconstruct(x) gives reconstructions",
    "encode": "in Python, recmix.load(RUN).posterior(x).mean gives latent vectors",
    "serve": "`recmix explore RUN` is a web page and answers programs over HTTP",
    "plot": "`recmix report FOLDER --out report.html` draws figures and curves",
    "help": "`recmix --help` lists the commands, `recmix COMMAND --help` the options of one",
    "version": "`recmix --version` says it",
}
"""{word that people try as a command, but that is not a command: what to use instead}."""


def check_command(words: list[str]) -> None:
    """Raise a ConfigError if the command does not exist; the message suggests an existing command."""
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None or name in COMMANDS or any("completion" in word for word in words):
        return
    if name in HINTS:
        raise ConfigError(f"there is no command {name!r}: {HINTS[name]}")
    raise ConfigError(unknown("command", name, COMMANDS))


def add_commands(words: list[str]) -> None:
    """Register all commands. The options of ``train`` are added only if this command is called.

    The reason is that these options import torch, which is slow.
    """
    train_options = _names_train(words)
    app.registered_commands = []
    for name, (panel, command, example) in COMMANDS.items():
        if command is None:
            add_train(app, with_options=train_options, panel=panel, example=example)
            continue
        about = (inspect.getdoc(command) or "").partition("\n\n")[0].rstrip(".")
        app.command(
            name,
            rich_help_panel=panel,
            cls=Command,
            short_help=f"{about}\n[dim]{example}[/]",
            epilog=f"Example: [bold]{example}[/]",
        )(command)


def _names_train(words: list[str]) -> bool:
    """Whether the words of a command line name the command `train`.

    During shell completion, the words are read from the environment variables of the shell instead.
    """
    if "_RECMIX_COMPLETE" in os.environ:
        written = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        words = written.split()[1:]
    return next((word for word in words if not word.startswith("-")), "") == "train"


app.callback()(before_command)
add_commands([])
