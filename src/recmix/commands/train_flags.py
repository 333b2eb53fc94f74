"""Read the flags of `recmix train`, its TOML file and the options of a run that is continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recmix.commands.own_parts import check_can_load, check_no_own_parts
from recmix.errors import ConfigError, RunError, unknown
from recmix.runs.files import read_toml
from recmix.runs.folder import PRESET, Run
from recmix.runs.hub import open_run

__all__ = ["read_flags"]


def read_flags(given: Mapping[str, Any]) -> tuple[dict[str, Any], bool, bool]:
    """Read and check the flags of `recmix train`.

    Args:
        given: {flag name: value}; the value is None if the flag was not given.

    Returns:
        The arguments of `recmix.fit` or `recmix.fit_preset` together with the options of the data, as
        {name: value}; whether to resume the run; and whether to overwrite it.
    """
    flags = {k: v for k, v in given.items() if v is not None}
    request = _read_config(flags["config"]) if "config" in flags else {}
    if wrong := [name for name in request if name not in given]:
        raise ConfigError(f"{flags['config']}: {unknown('option', wrong[0], given)}")
    request |= {k: v for k, v in flags.items() if k != "config"}
    resume, overwrite = request.pop("resume", False), request.pop("overwrite", False)
    for name, value in (("resume", resume), ("overwrite", overwrite)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, got {value!r}")
    _check_complete(request, ("out",) if resume else ("data", "method", "out"))
    if not isinstance(request["out"], str | Path):
        raise ConfigError(f"out must be a folder, got {request['out']!r}")
    if resume:
        there = any((Path(request["out"]) / name).exists() for name in ("spec.json", "preset.json"))
        if not ({"method", "preset"} & request.keys() or there):
            raise RunError(f"there is no run in {request['out']} to resume")
        stored = _stored(Path(request["out"]), own="networks" in request) | request
        if "init" in stored and not open_run(stored["init"]).exists:
            raise RunError(
                f"the run it started from is no longer in {stored['init']}: give its folder with --init"
            )
        request = stored
    if isinstance(request.get("init"), str | Path):  # other values are refused later
        check_can_load(request["init"], own="networks" in request)
    if {"preset", "method"} <= request.keys():
        raise ConfigError("a preset names its own methods: leave --method or --preset out")
    _check_complete(request, ("data", "method"))
    return request, resume, overwrite


def _check_complete(request: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise a ConfigError that names all missing options. A preset needs no method."""
    missing = [n for n in names if n not in request and not (n == "method" and "preset" in request)]
    if missing:
        flags, verb = ", ".join(f"--{name}" for name in missing), "are" if missing[1:] else "is"
        raise ConfigError(
            f"{flags} {verb} missing. Example: recmix train --data digits --method vae --out runs/vae. "
            "`recmix data` and `recmix methods` list the choices"
        )


def _stored(folder: Path, *, own: bool) -> dict[str, Any]:
    """Return the options that are stored in the folder of a run, to continue the run.

    `own` says whether the user named a function that makes the user's own networks. Raise a RunError if
    the run needs such a function and `own` is False.
    """
    from recmix.methods.method_options import growth_options, method_options

    if (folder / PRESET).exists():
        from recmix.training.presets import stored_arguments

        return stored_arguments(folder)
    run = Run(folder)
    if not run.exists:
        return {}
    spec = run.spec()
    if spec.auto and "step of" in spec.auto:
        raise RunError(f"{folder} is one step of choosing an order: resume {folder.parent} instead")
    if not own:
        check_no_own_parts(
            spec, folder, "name a function that makes them with --networks module:function"
        )
    init = spec.init or {}
    own_options = {**spec.options, **{k: v for k, v in (spec.auto or {}).items() if k != "why"}}
    known = method_options(spec.method) | growth_options(spec.method)
    if wrong := [name for name in own_options if name not in known]:
        raise RunError(
            f"{run.folder / 'spec.json'} is damaged: {wrong[0]!r} is no option of the method "
            f"{spec.method}"
        )
    found: dict[str, Any] = {
        **own_options,
        **vars(spec.training),
        **vars(spec.inference),
        **vars(spec.model),
        "method": spec.method,
        "data": spec.data,
    }
    if "weights" in init:
        if init["run"] is None:
            raise RunError(
                f"{folder} started from a model that was not saved: continue it in Python, with "
                f"recmix.fit(..., init=model, out={str(folder)!r}, resume=True)"
            )
        found["init"] = init["run"]
    elif init:
        found["vae_epochs"] = init["epochs"]
    return found


def _read_config(path: Path) -> dict[str, Any]:
    """Read options from a TOML file, as {option: value}.

    An option is either at the top level of the file, or in one of the tables [method], [model],
    [training] and [inference]. The table [method] has the method's name as ``name``.
    """
    tables = ("method", "model", "training", "inference")
    flat: dict[str, Any] = {}
    for key, value in read_toml(path).items():
        if key == "method" and isinstance(value, dict):
            inner = dict(value)
            if "name" in inner:
                flat["method"] = inner.pop("name")
            flat |= inner
        elif isinstance(value, dict):
            if key not in tables:
                raise ConfigError(f"{path}: {unknown('table', key, tables)}")
            flat |= value
        else:
            flat[key] = value
    if "config" in flat:
        raise ConfigError(f"{path}: a configuration file cannot name another one with 'config'")
    return flat
