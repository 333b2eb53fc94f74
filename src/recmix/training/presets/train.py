"""Train a preset: its stages one after the other, each from the one it follows.

The last stage is the run itself, in the run's folder; those before it are in folders inside, by their
names. ``preset.json`` says what was asked, so that a run which was killed can go on without being told.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recmix._version import __version__
from recmix.api import Fitted
from recmix.data import ImageData, as_data
from recmix.errors import ConfigError, Interrupted, RecmixError, RunError
from recmix.methods.registry import find_method
from recmix.runs.files import read_json, write_json
from recmix.runs.folder import PRESET, Run
from recmix.runs.options import Training
from recmix.runs.spec import FORMAT, Spec, check_format
from recmix.training.build import build
from recmix.training.fit import fit
from recmix.training.options import read_options, split_auto
from recmix.training.presets.read import Preset, Stage, check_options, parse, read_preset
from recmix.training.world import world

__all__ = ["EVERYWHERE", "fit_preset", "stored"]

EVERYWHERE = ("seed", "device", "dtype", "engine", "checkpoint_every", "tensorboard")
"""Options that, given beside a preset, hold for all stages; the others hold for the last."""


def fit_preset(
    preset: str | Path | Preset,
    data: Any,
    *,
    latent: int | None = None,
    likelihood: str | None = None,
    network: str | None = None,
    decoder_network: str | None = None,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    vae_epochs: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Fitted:
    """Train the stages of a preset and return the model of the last.

    Args:
        preset: its name (``best``, ``paper``), or the path of a TOML file of your own.
        data: as in `recmix.fit`, and so are the arguments from `latent` to `decoder`.
        latent: dimension of z.
        likelihood: ``gaussian`` or ``bernoulli``.
        network: ``conv`` or ``dense``.
        decoder_network: the same for the decoder.
        encoder: your own module instead.
        decoder: your own module instead.
        out: folder of the run: the last stage in it, the others in folders inside.
        resume: continue what is in `out`; stages that are done are not done again.
        overwrite: replace what is in `out`.
        vae_epochs: epochs of the first stage.
        progress: as in `recmix.fit`.
        **options: over those of the last stage; `EVERYWHERE` lists those that hold for all.
    """
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other: continue a run, or replace it")
    asked = preset if isinstance(preset, Preset) else read_preset(preset)
    plan = _changed(asked, vae_epochs, options)
    data = as_data(data)
    first: dict[str, Any] = {
        "latent": latent,
        "likelihood": likelihood,
        "network": network,
        "decoder_network": decoder_network,
        # of the VAE that the first stage trains for itself; otherwise it is the first stage
        "vae_epochs": vae_epochs if find_method(plan.stages[0].method).second_stage else None,
    }
    for stage in plan.stages:
        with _telling_of(plan, stage):
            _try(stage, data, first, encoder, decoder)
    root = None if out is None else Path(out)
    if root is not None:
        _claim(root, plan, first | {"data": data.describe()}, resume=resume, overwrite=overwrite)
    done: dict[str, Fitted] = {}
    for place, stage in enumerate(plan.stages):
        last = place + 1 == len(plan.stages)
        _tell(f"{plan.name}: stage {place + 1} of {len(plan.stages)}, {stage.name}", progress)
        begin = {} if stage.after else first
        with _telling_of(plan, stage, root):
            done[stage.name] = fit(
                stage.method,
                data,
                init=done.get(stage.after),
                out=None if root is None else root if last else root / stage.name,
                encoder=encoder if last else copy.deepcopy(encoder),
                decoder=decoder if last else copy.deepcopy(decoder),
                resume=resume,
                progress=progress,
                **begin,
                **stage.options,
            )
    return done[plan.stages[-1].name]


def stored(folder: str | Path) -> dict[str, Any]:
    """The arguments of `fit_preset` for the run in a folder, to continue it; empty if it is of none."""
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
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is incomplete or damaged: {error}") from error
    return {"preset": preset, "data": data} | first


def _changed(preset: Preset, vae_epochs: int | None, options: Mapping[str, Any]) -> Preset:
    """The preset with what was given beside it in its place."""
    stages = list(preset.stages)
    if vae_epochs is not None and not find_method(stages[0].method).second_stage:
        stages[0] = _with(stages[0], {"epochs": vae_epochs})
    everywhere = {k: v for k, v in options.items() if k in EVERYWHERE}
    stages = [_with(stage, everywhere) for stage in stages]
    stages[-1] = _with(stages[-1], options)
    changed = dataclasses.replace(preset, stages=tuple(stages))
    for stage in stages:
        with _telling_of(changed, stage):
            check_options(stage.method, stage.options)
    return changed


def _with(stage: Stage, options: Mapping[str, Any]) -> Stage:
    return dataclasses.replace(stage, options={**stage.options, **options})


def _try(
    stage: Stage,
    data: ImageData,
    first: Mapping[str, Any],
    encoder: nn.Module | None,
    decoder: nn.Module | None,
) -> None:
    """Make the networks of a stage once, so that an impossible option is found before hours."""
    own, _ = read_options(find_method(stage.method), stage.options)
    network = "own" if encoder is not None else first["network"] or "conv"
    usual = "conv" if network == "own" else network
    spec = Spec(
        method=stage.method,
        options=split_auto(own)[0],
        latent=20 if first["latent"] is None else first["latent"],
        likelihood=first["likelihood"] or ("bernoulli" if data.binary else "gaussian"),
        shape=data.shape,
        network=network,
        decoder_network="own" if decoder is not None else first["decoder_network"] or usual,
        training=Training(device="cpu"),
    )
    with torch.random.fork_rng():
        build(spec, encoder=copy.deepcopy(encoder), decoder=copy.deepcopy(decoder))


def _claim(root: Path, preset: Preset, asked: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Write down in the run's folder what was asked; refuses a folder that holds a run."""
    folders = [Run(root), *(Run(root / stage.name) for stage in preset.stages[:-1])]
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
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"could not make the folder {root}: {error.strerror}") from error
        data = asked.pop("data")
        content = {"format": FORMAT, "recmix": __version__, "name": preset.name}
        content |= {"preset": preset.to_json(), "first": asked, "data": data}
        write_json(root / PRESET, content)
    world().wait()


@contextlib.contextmanager
def _telling_of(preset: Preset, stage: Stage, root: Path | None = None) -> Iterator[None]:
    """Say in an error which stage it is of, and in an interruption how to continue the whole."""
    try:
        yield
    except Interrupted as stop:
        message = str(stop)
        if root is not None:
            message = message.replace(f"--out {root / stage.name}", f"--out {root}")
        raise Interrupted(f"{preset.name}, stage {stage.name!r}: {message}") from None
    except RecmixError as error:
        raise type(error)(f"{preset.name}, stage {stage.name!r}: {error}") from error


def _tell(words: str, progress: bool | None) -> None:
    shown = sys.stderr.isatty() if progress is None else progress
    if shown and world().writer:
        print(words, file=sys.stderr, flush=True)
