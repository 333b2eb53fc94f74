"""`recmix train`: its flags are the keyword arguments of `recmix.fit`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from recmix.commands.terminal import err, out, plain
from recmix.errors import ConfigError, RunError, unknown
from recmix.runs.files import read_toml

__all__ = ["add_train"]


TRAIN_EPILOG = (
    "Examples:\n\n"
    "[bold]recmix train --data mnist --method vae --latent 20 --out runs/vae[/]\n\n"
    "[bold]recmix train --data mnist --method vae --init runs/vae --out runs/vae+[/]  (VAE+)\n\n"
    "[bold]recmix train --data mnist --method rme --order 5 --init runs/vae --out runs/rme[/]\n\n"
    "[bold]recmix train --data mnist --method rme --order auto --init runs/vae --out runs/auto[/]\n\n"
    "[bold]recmix train --data mnist --preset best --latent 20 --out runs/best[/]  (several stages)\n\n"
    "[bold]recmix train --config run.toml --out runs/mine --epochs 5[/]  (flags override the file)\n\n"
    "[bold]recmix train --resume --out runs/rme[/]  (continue what was interrupted)"
)
FIT_OPTIONS: dict[str, tuple[Any, str]] = {
    "data": (
        str,
        "Named data set (see `recmix data`), or a path: .npy, .npz, a folder or zip of images.",
    ),
    "data_root": (Path, "Folder of the data sets (default: RECMIX_DATA, then a cache)."),
    "size": (int, "Side to which pictures in files are cut and resized."),
    "crop": (int, "Side of the centred square cut from pictures before that."),
    "split_seed": (int, "Which validation images are held out (default 0)."),
    "method": (str, "Name of the method (see `recmix methods`)."),
    "preset": (
        str,
        "Instead of a method: trainings in stages (see `recmix presets`), or a TOML file of your own. "
        "Options then hold for the last stage, --vae-epochs for the first, --seed, --device, --dtype "
        "and --engine for all.",
    ),
    "latent": (int, "Dimension of z (default 20, or that of --init)."),
    "likelihood": (str, "gaussian or bernoulli (default: by the data)."),
    "network": (str, "conv (the paper's) or dense."),
    "decoder_network": (str, "The same for the decoder."),
    "init": (Path, "Run to start from: the second stage."),
    "out": (Path, "Folder of the new run."),
    "vae_epochs": (int, "Epochs of the VAE that a method trains first when it has no --init."),
    "config": (Path, "TOML file with any of these options; flags override it."),
}


def add_train(app: typer.Typer, *, with_options: bool) -> None:
    """Register `train`; the flags of all methods only if they are wanted, for they need torch."""
    if any(command.name == "train" for command in app.registered_commands):
        app.registered_commands = [c for c in app.registered_commands if c.name != "train"]

    def listed() -> None:
        pass

    command = _train_with_options() if with_options else listed
    command.__doc__ = _train.__doc__
    app.command("train", epilog=TRAIN_EPILOG)(command)


def _train(**given: Any) -> None:
    """Train a method; every option of the method and of training is a flag."""
    flags = {k: v for k, v in given.items() if v is not None}
    wanted = _read_config(flags["config"]) if "config" in flags else {}
    wanted |= {k: v for k, v in flags.items() if k != "config"}
    resume, overwrite = wanted.pop("resume", False), wanted.pop("overwrite", False)
    for name, value in (("resume", resume), ("overwrite", overwrite)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, got {value!r}")
    if "out" not in wanted:
        raise ConfigError("no --out was given: name the folder of the new run")
    if not isinstance(wanted["out"], str | Path):
        raise ConfigError(f"out must be a folder, got {wanted['out']!r}")
    if resume:
        there = any((Path(wanted["out"]) / name).exists() for name in ("spec.json", "preset.json"))
        if not ({"method", "preset"} & wanted.keys() or there):
            raise RunError(f"there is no run in {wanted['out']} to resume")
        stored = _stored(Path(wanted["out"])) | wanted
        if "init" in stored and not (Path(stored["init"]) / "spec.json").exists():
            raise RunError(
                f"the run it started from is no longer in {stored['init']}: say where with --init"
            )
        wanted = stored
    for name in ("method", "init"):
        if "preset" in wanted and name in wanted:
            raise ConfigError(f"a preset says itself what is trained: leave --{name} or --preset out")
    for name, listed_by in (("data", "recmix data"), ("method", "recmix methods")):
        if name not in wanted and not (name == "method" and "preset" in wanted):
            raise ConfigError(f"no --{name} was given: `{listed_by}` lists what there is")
    _run_training(wanted, resume=resume, overwrite=overwrite)


def _run_training(wanted: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    from recmix.data import load, rebuild
    from recmix.runs.folder import Run
    from recmix.training.fit import fit
    from recmix.training.world import world

    source, root = wanted.pop("data"), wanted.pop("data_root", None)
    seed, cut = wanted.pop("split_seed", 0), {k: wanted.pop(k, None) for k in ("size", "crop")}
    if isinstance(source, dict):
        data = rebuild(source, root=root)
    else:
        data = load(source, root=root, seed=seed, **cut)
    folder = Path(wanted["out"])
    if world().writer:
        err.print(f"{data.name}: " + ", ".join(f"{n} {part}" for part, n in data.counts.items() if n))
    both: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "progress": True}
    if "preset" in wanted:
        from recmix.training.presets import fit_preset

        fitted = fit_preset(wanted.pop("preset"), data, **both, **wanted)
    else:
        fitted = fit(wanted.pop("method"), data, **both, **wanted)
    if not world().writer:
        return
    stands = Run(folder).status()
    if fitted.spec.auto:
        out.print(fitted.spec.auto["why"], highlight=False)
    out.print(
        f"{fitted.spec.method}: {len(fitted.history)} epochs, best validation bound "
        f"{stands['best_validation']:.2f} nats at epoch {stands['best_epoch']}. "
        f"Saved in {plain(folder)}",
        highlight=False,
    )
    out.print(f"Next: recmix evaluate {plain(folder)}", highlight=False)


def _stored(folder: Path) -> dict[str, Any]:
    """The options of the run in a folder, to continue it."""
    from recmix.runs.folder import PRESET, Run

    if (folder / PRESET).exists():
        from recmix.training.presets import stored

        return stored(folder)
    run = Run(folder)
    if not run.exists:
        return {}
    spec = run.spec()
    if spec.auto and "step of" in spec.auto:
        raise RunError(
            f"{folder} is a step in the choice of an order: resume the whole, {folder.parent}"
        )
    if "own" in (spec.network, spec.decoder_network):
        raise RunError(f"{folder} has its user's own networks: resume it from Python with recmix.fit")
    init = spec.init or {}
    found: dict[str, Any] = {
        **spec.options,
        **{k: v for k, v in (spec.auto or {}).items() if k != "why"},
        **vars(spec.training),
        "method": spec.method,
        "data": spec.data,
        "latent": spec.latent,
        "likelihood": spec.likelihood,
        "network": spec.network,
        "decoder_network": spec.decoder_network,
    }
    if "weights" in init:
        if init["run"] is None:
            raise RunError(f"{folder} started from a model that was not saved: resume it from Python")
        found["init"] = init["run"]
    elif init:
        found["vae_epochs"] = init["epochs"]
    return found


def _read_config(path: Path) -> dict[str, Any]:
    """Options from a TOML file: at the top, or in the tables [method] (with its name) and [training]."""
    content = read_toml(path)
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key == "method" and isinstance(value, dict):
            inner = dict(value)
            if "name" in inner:
                flat["method"] = inner.pop("name")
            flat |= inner
        elif key == "training" and isinstance(value, dict):
            flat |= value
        elif isinstance(value, dict):
            raise ConfigError(f"{path}: {unknown('table', key, ['method', 'training'])}")
        else:
            flat[key] = value
    if "config" in flat:
        raise ConfigError(f"{path}: a file cannot name another one with 'config'")
    return flat


def _train_with_options() -> Callable[..., None]:
    """`_train` with one flag for each option there is, typed and described."""
    from recmix.methods.registry import METHODS, find_method
    from recmix.training.options import Option, growth_options, method_options, training_options

    def flag(name: str, kind: Any, about: str, panel: str, default: Any = None) -> inspect.Parameter:
        if default is not None and not isinstance(default, bool):
            about += f" [dim](default {default})[/]"
        option = typer.Option(f"--{name.replace('_', '-')}", help=about, rich_help_panel=panel)
        if kind is bool:
            words = f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}"
            option = typer.Option(words, help=about, rich_help_panel=panel)
        annotation = Annotated[kind | None, option]
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )

    find_method("vae")  # fills the registry
    parameters = {n: flag(n, kind, about, "The run") for n, (kind, about) in FIT_OPTIONS.items()}
    parameters["resume"] = flag("resume", bool, "Continue the run in --out.", "The run")
    parameters["overwrite"] = flag("overwrite", bool, "Replace the run in --out.", "The run")
    users: dict[str, dict[str, list[str]]] = {}  # option -> what is said of it -> by whom
    options: dict[str, Option] = {}
    for name, cls in sorted(METHODS.items()):
        for option in (method_options(cls) | growth_options(cls)).values():
            users.setdefault(option.name, {}).setdefault(option.help, []).append(name)
            options.setdefault(option.name, option)
    for option in options.values():
        told = users[option.name].items()
        about = " ".join(f"[bold]{', '.join(names)}[/]: {plain(text)}" for text, names in told)
        parameters.setdefault(option.name, flag(option.name, _flag_type(option.kind), about, "Methods"))
    for option in training_options().values():
        kind = _flag_type(option.kind)
        parameters[option.name] = flag(option.name, kind, option.help, "Training", option.default)

    def train(**given: Any) -> None:
        _train(**given)

    train.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    train.__annotations__ = {name: p.annotation for name, p in parameters.items()}
    return train


def _flag_type(kind: Any) -> Any:
    """The type of a flag: without None, text for anything that is not a number or a switch."""
    plain = [k for k in (typing.get_args(kind) or (kind,)) if k is not type(None)]
    return plain[0] if len(plain) == 1 and plain[0] in (int, float, bool) else str
