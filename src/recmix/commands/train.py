"""`recmix train`: train a method on data. Its flags are the keyword arguments of `recmix.fit`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from recmix.commands.own_parts import NETWORKS_HELP, make_own_parts
from recmix.commands.terminal import err, first_process, out, plain
from recmix.commands.train_flags import read_flags
from recmix.commands.train_help import TrainCommand, complete, epilog
from recmix.errors import ConfigError, RunError
from recmix.runs.data_options import DATA_OPTIONS
from recmix.runs.folder import Run

__all__ = ["add_train"]


EXAMPLES = {
    "recmix train --data my.npz --method vae --latent 20 --out runs/vae": "(your own arrays)",
    "recmix train --data mnist --method vae --init runs/vae --out runs/vae+": "(VAE+, the control)",
    "recmix train --data mnist --method rme --order 5 --init runs/vae --out runs/rme": "",
    "recmix train --data mnist --preset best --out runs/best": "(several stages)",
    "recmix train --resume --out runs/rme": "(continue an interrupted run)",
}
RUN_OPTIONS: dict[str, tuple[Any, str]] = {
    "data": (
        str,
        "Named data set (see `recmix data`), or a path: .npy, .npz (also sparse), .csv, .csv.gz, "
        ".parquet, .txt, .smi (one text per line), a folder or zip of images. Examples have any shape.",
    ),
    "data_root": (Path, "Folder of the data sets (default: RECMIX_DATA, then a cache)."),
    **DATA_OPTIONS,
    "split_seed": (int, "Seed of the validation split (default 0)."),
    "method": (str, "Name of the method (see `recmix methods`), or curvature with --init."),
    "preset": (
        str,
        "Instead of a method: a training in stages (see `recmix presets`), or a TOML file of your own. "
        "Options then apply to the last stage, --vae-epochs to the first, --seed, --device, --dtype "
        "and --engine to all.",
    ),
    "init": (
        str,
        "Trained run to start from: folder or hf://user/name. With --preset it replaces the first "
        "stage.",
    ),
    "out": (Path, "Folder of the new run."),
    "vae_epochs": (int, "Epochs of the VAE that a method trains first if there is no --init."),
    "config": (Path, "TOML file with any of these options; flags override it."),
    "networks": (str, NETWORKS_HELP),
}


def add_train(app: typer.Typer, *, with_options: bool, panel: str = "", example: str = "") -> None:
    """Add the command ``train`` to the program; replace it if it exists.

    Args:
        with_options: whether to add the flags of all methods, which loads torch.
        panel: heading in the help under which the command is listed.
        example: example of a command line, which the list of commands shows.
    """
    app.registered_commands = [c for c in app.registered_commands if c.name != "train"]

    def listed() -> None:
        pass

    command = _train_with_options() if with_options else listed
    command.__doc__ = _train.__doc__
    words = (_train.__doc__ or "").rstrip(".")
    app.command(
        "train",
        cls=TrainCommand,
        rich_help_panel=panel or None,
        short_help=f"{words}\n[dim]{example}[/]",
        epilog=epilog(EXAMPLES),
    )(command)


def _train(**given: Any) -> None:
    """Train a method on data, or continue an interrupted run."""
    from recmix.data import load_for_training
    from recmix.training.fit import train_models
    from recmix.training.presets import train_preset

    request, resume, overwrite = read_flags(given)
    prints = first_process()
    folder, flag = Path(request["out"]), ""  # the flag is what the next commands need to load the run
    if "networks" in request:
        flag = f" --networks {request['networks']}"
        request |= _own_parts(request.pop("networks"), request)
    start = request.get("init")
    data = partial(  # the data are loaded when all options have been checked
        load_for_training,
        request.pop("data"),
        root=request.pop("data_root", None),
        seed=request.pop("split_seed", None),
        start=start if isinstance(start, str | Path) else None,  # other values are refused
        resumed=Run(folder) if resume else None,
        tell=partial(err.print, markup=False, highlight=False) if prints else None,
        **{name: request.pop(name, None) for name in DATA_OPTIONS},
    )
    request |= {"data": data, "resume": resume, "overwrite": overwrite}
    if "preset" in request:
        trained = train_preset(**request, progress=True)
    else:
        trained = train_models([request], progress=True)[0]
    if not prints:
        return
    spec, epochs = trained.spec, len(trained.history)
    best, epoch = trained.outcome.get("best_validation"), trained.outcome.get("best_epoch")
    if not isinstance(best, int | float) or not isinstance(epoch, int):
        raise RunError(
            f"{folder / 'status.json'} is damaged: it does not name the best epoch and its validation "
            "bound. Delete the file, and continue the run with --resume"
        )
    if spec.auto:
        out.print(spec.auto["why"], highlight=False)
    early = epochs < (spec.training.epochs or 0) and not spec.auto
    why = f" (stopped: {plain(trained.outcome.get('reason'))}, see --patience)" if early else ""
    out.print(
        f"{spec.label}: {epochs} epochs{why}, best validation bound {best:.2f} nats at epoch {epoch}. "
        f"Saved in {plain(folder)}",
        highlight=False,
    )
    if epoch == epochs == spec.training.epochs and not spec.auto:
        faster = ". A new run with a larger --learning-rate may help, too" if spec.init else ""
        out.print(
            "The last epoch was the best, so that longer training may help: "
            f"recmix train --resume --out {plain(folder)} --epochs {2 * epoch}{flag}{faster}",
            highlight=False,
        )
    out.print(f"Next: recmix evaluate {plain(folder)}{flag}", highlight=False)


def _own_parts(path: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the networks, likelihood and prior that the user's function `path` makes.

    Raise a ConfigError if an option in `request` names a likelihood or prior that the function makes.
    """
    found = make_own_parts(str(path))
    for name in ("likelihood", "prior"):
        if name in found and request.get(name) not in (None, "own"):
            raise ConfigError(f"{path} makes the {name}: leave --{name} out")
    return found


def _train_with_options() -> Callable[..., None]:
    """Make a version of `_train` whose signature has a typed flag with a help text for each option."""
    from recmix.data import SETS
    from recmix.methods.method_options import growth_options, method_options
    from recmix.methods.registry import METHODS
    from recmix.model.options import Option, options_of
    from recmix.training.arguments import GROUPS
    from recmix.training.presets import presets

    own = {name: method_options(name) | growth_options(name) for name in sorted(METHODS)}
    values = {
        "method": lambda: [*own, "curvature"],
        "data": lambda: [*SETS],
        "preset": presets,
    }
    shared = {group: options_of(cls) for group, cls in GROUPS.items()}

    def flag(name: str, kind: Any, text: str, panel: str, default: Any = None) -> inspect.Parameter:
        if default is not None and not isinstance(default, bool):
            text += f" [dim](default {default})[/]"
        dashed = name.replace("_", "-")
        words = f"--{dashed}/--no-{dashed}" if kind is bool else f"--{dashed}"
        more = {"autocompletion": complete(values[name])} if name in values else {}
        metavar = {bool: None, int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")
        option = typer.Option(words, help=text, rich_help_panel=panel, metavar=metavar, **more)
        annotation = Annotated[kind | None, option]
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )

    parameters = {n: flag(n, kind, text, "run") for n, (kind, text) in RUN_OPTIONS.items()}
    parameters["resume"] = flag("resume", bool, "Continue the run in --out.", "run")
    parameters["overwrite"] = flag("overwrite", bool, "Replace the run in --out.", "run")
    users: dict[str, dict[str, list[str]]] = {}  # option -> help text -> methods
    options: dict[str, Option] = {}
    for name, known in own.items():
        for option in known.values():
            users.setdefault(option.name, {}).setdefault(option.help, []).append(name)
            options.setdefault(option.name, option)
    for option in options.values():
        texts = users[option.name].items()
        text = " ".join(f"[bold]{', '.join(names)}[/]: {plain(words)}" for words, names in texts)
        parameters.setdefault(option.name, flag(option.name, _flag_type(option.kind), text, "methods"))
    for group, known in shared.items():
        for option in known.values():
            kind, panel = _flag_type(option.kind), group
            parameters[option.name] = flag(option.name, kind, option.help, panel, option.default)

    def train(**given: Any) -> None:
        _train(**given)

    train.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    train.__annotations__ = {name: p.annotation for name, p in parameters.items()}
    return train


def _flag_type(kind: Any) -> Any:
    """The type of the flag of an option whose value has the type `kind`, such as ``int | None``.

    The type is int, float or bool if `kind` is one of these types, or one of them or None. For all other
    types it is str.
    """
    kinds = [k for k in (typing.get_args(kind) or (kind,)) if k is not type(None)]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (int, float, bool) else str
