"""`recmix evaluate`: scores of a trained run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmix.commands.terminal import Json, Root, out, print_scores
from recmix.errors import ConfigError, unknown

if TYPE_CHECKING:
    from recmix.api import Model
    from recmix.data import Data

__all__ = ["evaluate_command"]


def evaluate_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    samples: Annotated[
        int | None, typer.Option(help="K of IWAE-K (default 100, with --gap 1000).")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    refine: Annotated[
        int | None, typer.Option(help="Gauss-Newton steps for each example first (1, 2, 4).")
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(help="Starting points for each example; the best result is used (1 to 9)."),
    ] = None,
    reuse: Annotated[
        int | None, typer.Option(help="Extra steps that use the same curvature (default 2).")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Calibrate the posterior on validation data first.")
    ] = False,
    gap: Annotated[
        bool, typer.Option("--gap", help="Measure what inference loses, and where; gives advice.")
    ] = False,
    images: Annotated[
        int | None,
        typer.Option(help="Examples for --gap, and as many training examples (default 200)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    memory: Annotated[
        int | None, typer.Option(help="MiB for the decoder's activations (default: by device).")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Other data than it was trained on.")] = None,
    data_root: Root = None,
    as_json: Json = False,
) -> None:
    """Score a trained run: ELBO, IWAE with standard errors, mixing weights, time."""
    from recmix.api import load
    from recmix.evaluation.score import score
    from recmix.runs.folder import Run
    from recmix.runs.scores import ScoreKey

    _check(samples, memory, split, images, calibrate=calibrate, gap=gap)
    model = load(run, device=device)
    model = _refined(model, refine, restarts, reuse)
    source = _data_of(model, data, data_root)
    scored = _part(source, split)
    if scored.shape[1:] != model.spec.shape:
        raise ConfigError(
            f"{run} was trained on examples of shape {model.spec.shape}, "
            f"those of {data} have shape {scored.shape[1:]}"
        )
    limit = None if memory is None else memory * 2**20
    if gap:
        from recmix.commands.gap import report_gap

        report_gap(
            model,
            source,
            scored,
            split=split,
            own=data is None,
            folder=run,
            count=200 if images is None else images,
            samples=1000 if samples is None else samples,
            seed=seed,
            memory=limit,
            console=out,
            as_json=as_json,
        )
        return
    samples = 100 if samples is None else samples
    used = model.inference.uncalibrated if calibrate else model.inference
    key = ScoreKey(split, samples, used, calibrate)
    if calibrate:
        model = model.calibrated(_part(source, "val"), samples, memory=limit)
    with _progress(f"evaluating {split}", len(scored), as_json) as report:
        found = score(
            model.method,
            scored,
            model.inference,
            samples=samples,
            seed=seed,
            memory=limit,
            report=report,
        )
    if data is None:
        Run(run).add_score(str(key), found)
    if as_json:
        out.print_json(json.dumps({"run": str(run), "split": split, **found}))
        return
    print_scores([(model.spec.label, found)], title=f"{split}, {found['images']:,} examples")
    if calibrate:
        out.print(_calibration(found["inference"]))


def _check(
    samples: int | None,
    memory: int | None,
    split: str,
    images: int | None,
    *,
    calibrate: bool,
    gap: bool,
) -> None:
    for name, value in (("samples", samples), ("memory", memory)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be positive, got {value}")
    if calibrate and gap:
        raise ConfigError("--calibrate improves IWAE bounds and --gap is about the ELBO: give only one")
    if calibrate and split in ("val", "validation"):
        raise ConfigError("--calibrate uses the validation data, so it cannot score them: try test")
    if images is not None and not gap:
        raise ConfigError("--images is for --gap: without it all examples of the split are scored")


def _refined(model: Model, refine: int | None, restarts: int | None, reuse: int | None) -> Model:
    """The model with the given options of refinement."""
    steps = model.inference.refine if refine is None else refine
    if restarts is not None and not (steps or model.method.can_restart):
        raise ConfigError(
            "--restarts needs steps to restart: give --refine too (only residual corrections have "
            "restarts without it)"
        )
    if reuse is not None and not steps:
        raise ConfigError("--reuse is for refinement: give --refine too")
    if not (steps or model.method.can_restart):
        restarts = 1  # they have no effect, so they are not part of the score's name
    return model.refined(steps, restarts=restarts, reuse=reuse)


def _calibration(inference: dict[str, Any]) -> str:
    """The result of a calibration, in words.

    >>> _calibration({"scale": 1.5, "slope": 0.007})
    'calibrated on validation data: scale 1.50, doubled for every 99 nats that an example fits worse'
    """
    text = f"calibrated on validation data: scale {inference['scale']:.2f}"
    if not (slope := inference["slope"]):
        return text
    how = "doubled" if slope > 0 else "halved"
    nats = math.log(2) / abs(slope)
    return f"{text}, {how} for every {nats:,.0f} nats that an example fits worse"


def _part(data: Data, name: str) -> Any:
    parts = {"train": data.x_train, "val": data.x_val, "validation": data.x_val, "test": data.x_test}
    if name not in parts:
        raise ConfigError(unknown("split", name, parts))
    if parts[name] is None:
        raise ConfigError(f"the data {data.name} have no {name} part: try --split val")
    return parts[name]


def _data_of(model: Model, data: str | None, root: Path | None) -> Data:
    from recmix.data import load, rebuild

    if data is not None:
        return load(data, root=root, seed=model.spec.data.get("seed", 0))
    return rebuild(model.spec.data, root=root)


def _progress(title: str, total: int, quiet: bool) -> Any:
    from recmix.training.progress import count

    return count(title, total, show=False if quiet else None)
