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
    from recmix.api import Fitted
    from recmix.data import ImageData

__all__ = ["evaluate_command"]


def evaluate_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    samples: Annotated[
        int | None, typer.Option(help="K of IWAE-K (default 100, with --gap 1000).")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    refine: Annotated[
        int | None, typer.Option(help="Gauss-Newton steps for every image first (1, 2, 4).")
    ] = None,
    starts: Annotated[
        int | None,
        typer.Option(help="Climbs, or chains of corrections, of which the best counts (1 to 9)."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit the posterior's width to validation images first.")
    ] = False,
    gap: Annotated[bool, typer.Option("--gap", help="Say how much is lost where, and advise.")] = False,
    images: Annotated[
        int | None, typer.Option(help="Images for --gap, and as many training images (default 200).")
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

    for name, value in (("samples", samples), ("memory", memory)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be positive, got {value}")
    if calibrate and gap:
        raise ConfigError("--calibrate is for IWAE bounds and --gap about the ELBO: give one of them")
    if calibrate and split in ("val", "validation"):
        raise ConfigError("--calibrate fits the width to the validation images: score others")
    if images is not None and not gap:
        raise ConfigError("--images is for --gap: without it every image of the split is scored")
    fitted = load(run, device=device)
    climbs = fitted.method.refine if refine is None else refine
    if starts is not None and not (climbs or fitted.method.several):
        raise ConfigError(
            "--starts is the number of climbs of a refinement, or of chains of corrections; "
            "this run is no such chain: give --refine too"
        )
    if refine is not None or starts is not None:
        fitted = fitted.refined(climbs, starts=starts)
    source = _data_of(fitted, data, data_root)
    scored = _split(source, split)
    if scored.shape[1:] != fitted.spec.shape:
        raise ConfigError(
            f"{run} was trained on images of shape {fitted.spec.shape}, "
            f"the images of {data} have shape {scored.shape[1:]}"
        )
    limit = None if memory is None else memory * 2**20
    if gap:
        from recmix.commands.gap import report_gap

        report_gap(
            fitted,
            source,
            scored,
            split=split,
            own=data is None,
            images=200 if images is None else images,
            samples=1000 if samples is None else samples,
            seed=seed,
            memory=limit,
            console=out,
            as_json=as_json,
        )
        return
    samples = 100 if samples is None else samples
    if calibrate:
        fitted = fitted.calibrated(_split(source, "val"), samples, seed=seed, memory=limit)
    with _progress(f"evaluating {split}", len(scored), as_json) as report:
        found = score(fitted.method, scored, samples=samples, seed=seed, memory=limit, report=report)
    if data is None:
        Run(run).add_score(str(ScoreKey(split, samples, refine, calibrate)), found)
    if as_json:
        out.print_json(json.dumps({"run": str(run), "split": split, **found}))
        return
    print_scores([(run.name, found)], title=f"{split}, {found['images']:,} images")
    if calibrate:
        out.print(f"{found['widen']:.2f} times as wide{_tilt(found)}, as validation images ask for")


def _tilt(found: dict[str, Any]) -> str:
    """How the width of a calibrated score depends on how an image fits.

    >>> _tilt({"widen_tilt": 0.007}), _tilt({"widen_tilt": 0.0})
    (', twice that for every 99 nats that one fits worse', '')
    """
    if not (tilt := found["widen_tilt"]):
        return ""
    how = "twice" if tilt > 0 else "half"
    return f", {how} that for every {math.log(2) / abs(tilt):,.0f} nats that one fits worse"


def _split(data: ImageData, name: str) -> Any:
    parts = {"train": data.x_train, "val": data.x_val, "validation": data.x_val, "test": data.x_test}
    if name not in parts:
        raise ConfigError(unknown("split", name, parts))
    if parts[name] is None:
        raise ConfigError(f"the data {data.name} have no {name} images: try --split val")
    return parts[name]


def _data_of(fitted: Fitted, data: str | None, root: Path | None) -> ImageData:
    from recmix.data import load, rebuild

    if data is not None:
        return load(data, root=root, seed=fitted.spec.data.get("seed", 0))
    return rebuild(fitted.spec.data, root=root)


def _progress(title: str, total: int, quiet: bool) -> Any:
    from recmix.training.progress import count

    return count(title, total, show=False if quiet else None)
