"""Train a preset, which is a sequence of trainings (stages), one after the other.

The folder of the run holds the last stage. Each earlier stage has its own folder inside. The file
``preset.json`` stores the preset and its arguments. So an interrupted run can be continued without
giving them again.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from recmix._version import __version__
from recmix.data import Data, as_data
from recmix.errors import ConfigError, Interrupted, RecmixError, RunError
from recmix.methods.method import Method
from recmix.methods.registry import find_method
from recmix.model.assembly import Own, complete_options, needs_classes
from recmix.model.fields import Fields
from recmix.model.options import ModelOptions, options_of
from recmix.runs.files import make_folder, read_json, write_json
from recmix.runs.folder import PRESET, Run
from recmix.runs.hub import is_hub_address
from recmix.runs.spec import FORMAT, Spec, check_description, check_format
from recmix.runs.training_options import Training
from recmix.training.arguments import as_text, read_options, split_auto
from recmix.training.augment import takes_decoder_samples
from recmix.training.build import Trained, build, load_trained
from recmix.training.fit import train_models
from recmix.training.presets.read import Preset, Stage, check_options, parse, read_preset
from recmix.training.progress import say
from recmix.training.request import check_start
from recmix.training.world import world

__all__ = ["ALL_STAGES", "stored_arguments", "train_preset"]

ALL_STAGES = ("seed", "device", "dtype", "engine", "deterministic", "checkpoint_every", "tensorboard")
"""Options that apply to all stages if a user gives them together with a preset. All other options of
training, of inference and of the method apply to the last stage only."""


def train_preset(
    preset: str | Path | Preset,
    data: Any,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    vae_epochs: int | None = None,
    progress: bool | None = None,
    **arguments: Any,
) -> Trained:
    """Train the stages of a preset one after the other and return the model of the last stage.

    A preset is a sequence of trainings (stages). Each starts from the weights of an earlier stage.

    Args:
        preset: the name of a preset, the path of a TOML file, or a `Preset`.
        out: folder of the run. It holds the last stage; each earlier stage has its own folder
            inside.
        resume: continue the run in `out`; finished stages are not repeated.
        overwrite: replace the run in `out`.
        vae_epochs: number of epochs of the first stage, a VAE. If the first stage is another
            method, this is the number of epochs of the VAE that it starts from.
        **arguments: the other arguments of `recmix.fit`. Options of the model and the networks
            apply to the first stage; the other stages take them from there. The options in
            `ALL_STAGES` apply to all stages. All other options apply to the last stage.
    """
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other: continue a run, or replace it")
    world()  # sets the GPU of this process, before a model is loaded on it
    if out is not None and not resume:
        Run(out).check_free(overwrite=overwrite)
    init = arguments.pop("init", None)
    modules = {name: arguments.pop(name, None) for name in ("encoder", "decoder")}
    callbacks = arguments.pop("callbacks", ())
    model = {k: arguments.pop(k) for k in options_of(ModelOptions) if k in arguments}
    model = {k: v for k, v in model.items() if v is not None}
    plan = _with_options(
        preset if isinstance(preset, Preset) else read_preset(preset), vae_epochs, arguments
    )
    start = None if init is None else _first_stage(init, plan, model, vae_epochs)
    described = stored_arguments(out).get("data") if out is not None and resume else None
    data = as_data(data, shape=None if start is None else start.spec.shape, description=described)
    if len(data.shape) != 3 and "augment" not in arguments:
        plan = _without_option(plan, "augment", "it is for images", progress)
    if start is not None:
        model = {k: v for k, v in vars(start.spec.model).items() if v != "own"}
    for stage in plan.stages:
        with _named_errors(plan, stage):
            made = _try(stage, data, model, modules)
    if "decoder_samples" not in arguments and not takes_decoder_samples(
        made.model.likelihood, data.kind
    ):
        why = f"the {made.model.likelihood.name} likelihood of these data does not allow it"
        plan = _without_option(plan, "decoder_samples", why, progress)
    root = None if out is None else Path(out)
    # A first stage that trains its own VAE takes vae_epochs; otherwise the first stage is that VAE.
    own_vae = find_method(plan.stages[0].method).starts_from is not None
    first = model | ({"vae_epochs": vae_epochs} if own_vae else {})
    if start is not None:
        first = {} if start.folder is None else {"init": str(start.folder.resolve())}
        if is_hub_address(init):
            first = {"init": init}
    if root is not None:
        _claim(root, plan, first, data.describe(), resume=resume, overwrite=overwrite)
    done: dict[str, Trained] = {}
    for place, stage in enumerate(plan.stages):
        last = place + 1 == len(plan.stages)
        if start is not None and place == 0:
            done[stage.name] = start
            continue
        say(f"{plan.name}: stage {place + 1} of {len(plan.stages)}, {stage.name}", progress)
        request = {
            "method": stage.method,
            "data": data,
            "init": done.get(stage.after),
            "out": None if root is None else root if last else root / stage.name,
            "resume": resume,
            "callbacks": callbacks,
            **(modules if last else copy.deepcopy(modules)),
            **({} if stage.after else first),
            **stage.options,
        }
        with _named_errors(plan, stage, root):
            done[stage.name] = train_models([request], progress=progress)[0]
    return done[plan.stages[-1].name]


def _first_stage(init: Any, preset: Preset, model: Mapping[str, Any], vae_epochs: int | None) -> Trained:
    """Return the trained model that replaces the first stage of a preset.

    Raise a ConfigError if the model is not of this stage's method, or if the user also gave options for
    the first stage: `model` (model options) or `vae_epochs`.

    Args:
        init: a trained model, its folder, or its address ``hf://user/name``, as the user gave it.
    """
    first = preset.stages[0]
    given = [*model, *(["vae_epochs"] if vae_epochs is not None else [])]
    if given:
        raise ConfigError(f"init replaces the first stage, which has {given[0]}: leave {given[0]} out")
    if len(preset.stages) < 2:
        raise ConfigError(f"the preset {preset.name} has one stage, which init would replace")
    check_start(init)
    found = load_trained(init) if isinstance(init, str | Path) else init
    if found.spec.method != first.method:
        raise ConfigError(
            f"the first stage of {preset.name} trains the method {first.method}, but init is a run of "
            f"{found.spec.method}: give a run of {first.method}, or leave init out"
        )
    return Trained(found.method, found.spec, [], found.folder, found.vocabulary)


def stored_arguments(folder: str | Path) -> dict[str, Any]:
    """Return the arguments of `train_preset` that continue the run in `folder`.

    They are read from ``preset.json``. The result is empty if the folder has no such file.
    """
    path = Path(folder) / PRESET
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise RunError(f"{path} is not a JSON object: the file is damaged")
    check_format(content.get("format", 0), str(path))
    try:
        preset = parse(content["preset"], content["name"], str(path))
        first, data = dict(content["first"]), dict(content["data"])
        check_description(data)
        if wrong := first.keys() - {*options_of(ModelOptions), "vae_epochs", "init"}:
            raise ValueError(f"{min(wrong)!r} is no option of the first stage")
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is incomplete or damaged: {error}") from error
    return {"preset": preset, "data": data} | first


def _with_options(preset: Preset, vae_epochs: int | None, options: Mapping[str, Any]) -> Preset:
    """Add the options that the user gave to the stages of a preset, and return the new preset.

    Raise a ConfigError if an option is not valid.
    """
    stages = list(preset.stages)
    options = {name: as_text(value) for name, value in options.items()}  # they are stored as JSON
    if vae_epochs is not None and find_method(stages[0].method).starts_from is None:
        stages[0] = _changed(stages[0], {"epochs": vae_epochs})
    everywhere = {k: v for k, v in options.items() if k in ALL_STAGES}
    stages = [_changed(stage, everywhere) for stage in stages]
    stages[-1] = _changed(stages[-1], options)
    changed = dataclasses.replace(preset, stages=tuple(stages))
    for stage in stages:
        with _named_errors(changed, stage):
            check_options(stage.method, stage.options)
    return changed


def _without_option(preset: Preset, name: str, why: str, progress: bool | None) -> Preset:
    """Return the preset with the option `name` removed from all stages.

    If a stage has this option, print a note with the reason `why`.
    """
    if any(stage.options.get(name) for stage in preset.stages):
        say(f"{preset.name}: the option {name} is left out, because {why}", progress)
    options = [{k: v for k, v in stage.options.items() if k != name} for stage in preset.stages]
    stages = zip(preset.stages, options, strict=True)
    changed = tuple(dataclasses.replace(stage, options=kept) for stage, kept in stages)
    return dataclasses.replace(preset, stages=changed)


def _changed(stage: Stage, options: Mapping[str, Any]) -> Stage:
    return dataclasses.replace(stage, options={**stage.options, **options})


def _try(stage: Stage, data: Data, model: Mapping[str, Any], modules: Mapping[str, Any]) -> Method:
    """Make the untrained method of a stage, so that an impossible option is found before training.

    Args:
        model: model options, {name: value}.
        modules: the user's own encoder and decoder, {name: module or None}.
    """
    given = read_options(stage.method, stage.options)
    own = Own(**modules)
    spec = Spec(
        method=stage.method,
        options=split_auto(given.method)[0],
        shape=data.shape,
        model=complete_options(
            model,
            shape=data.shape,
            kind=data.kind,
            classes=data.classes if data.vocabulary is None and needs_classes(model) else 0,
            fields=Fields(data.fields) if data.fields else None,
            vocabulary=data.vocabulary,
            own=own,
        ),
        data={"fields": Fields(data.fields).to_json()} if data.fields else {},
        training=Training(device="cpu"),
    )
    with torch.random.fork_rng():
        return build(spec, own=own.copied())


def _claim(
    root: Path,
    preset: Preset,
    first: dict[str, Any],
    data: dict[str, Any],
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Prepare the run folder `root` for a preset, and write ``preset.json`` into it.

    Args:
        first: arguments of the first stage, {name: value}, which are stored.
        data: description of the data, which is stored.

    Raises:
        RunError: the folder already holds a run, and neither `resume` nor `overwrite` is True.
    """
    folders = [Run(root), *(Run(root / stage.name) for stage in preset.stages[:-1])]
    if starts_from := find_method(preset.stages[0].method).starts_from:
        # The first stage trains the model that it starts from, in a folder inside its own.
        folders.append(Run(folders[:2][-1].folder / starts_from))
    there = next((run for run in folders if run.exists or (run.folder / PRESET).exists()), None)
    world().wait()
    if there and not (resume or overwrite):
        raise RunError(
            f"{there.folder} already holds a run: continue it with --resume (resume=True), "
            "replace it with --overwrite (overwrite=True), or give another folder"
        )
    if world().writer:
        if overwrite:
            for run in folders:
                run.clear()
        make_folder(root)
        content = {"format": FORMAT, "recmix": __version__, "name": preset.name}
        content |= {"preset": preset.to_json(), "first": first, "data": data}
        write_json(root / PRESET, content)
    world().wait()


@contextlib.contextmanager
def _named_errors(preset: Preset, stage: Stage, root: Path | None = None) -> Iterator[None]:
    """In this context, put the names of the preset and the stage in front of each error message.

    Args:
        root: the run folder of the preset, which a message about an interrupted training then names
            instead of the folder of the stage.
    """
    try:
        yield
    except Interrupted as stop:
        message = str(stop)
        if root is not None:
            message = message.replace(f"--out {root / stage.name}", f"--out {root}")
        raise Interrupted(f"{preset.name}, stage {stage.name!r}: {message}") from None
    except RecmixError as error:
        raise type(error)(f"{preset.name}, stage {stage.name!r}: {error}") from error
