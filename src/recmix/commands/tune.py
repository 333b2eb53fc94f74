"""`recmix tune`: choose how the posterior of a trained model is refined, within a time limit."""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from recmix.commands.inference_words import words
from recmix.commands.model_and_data import check_data, data_of, load_model, part_of
from recmix.commands.own_parts import Networks
from recmix.commands.stored_scores import folder_of_one_data, scored_data
from recmix.commands.terminal import Device, Json, Memory, Root, Seed, out
from recmix.errors import ConfigError, RunError
from recmix.runs.files import finite
from recmix.runs.folder import TUNED, Run

if TYPE_CHECKING:
    import torch

    from recmix.evaluation.tune import Frontier, Trial
    from recmix.inference import Inference

__all__ = ["table_of", "tune_command"]

MOST = 1000
"""Largest number of validation examples."""


def tune_command(
    run: Annotated[
        str,
        typer.Argument(
            help="Folder of a run, or its address hf://user/name; or module:function, a Python function "
            "without arguments that returns a recmix.Model (needs --data; nothing is stored)."
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(help="Time limit as a multiple of the encoder's time, such as 100x."),
    ] = None,
    milliseconds: Annotated[
        float | None, typer.Option(help="Time limit in milliseconds per example.")
    ] = None,
    samples: Annotated[int, typer.Option(help="K of IWAE-K.")] = 100,
    examples: Annotated[int, typer.Option(help="Validation examples (2 to 1000).")] = MOST,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw bound against time into this PNG or SVG file.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, but store nothing.")] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Delete the run's chosen refinement; measure nothing.")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    memory: Memory = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Name or path of the data: needed if the run was trained on arrays in memory."
        ),
    ] = None,
    networks: Networks = None,
    data_root: Root = None,
    as_json: Json = False,
) -> None:
    """Choose a refinement for a run: the best one on validation data that is not slower than a limit."""
    if reset:
        _reset(run, budget, milliseconds, as_json=as_json)
        return
    times = _check(budget, milliseconds, samples, examples, memory, plot)

    from recmix.data import has_same_examples
    from recmix.evaluation.tune import candidates, with_calibration_of
    from recmix.training.progress import watch

    model = load_model(run, data, device, networks=networks)
    source = data_of(model, data, data_root)
    own = data is None or has_same_examples(source, model.spec.data)
    held_out = part_of(source, "val")
    if data is not None:
        check_data(model, source, [held_out], run, data)
    folder = model.folder if Path(run).exists() and (own or not model.spec.data) else None
    if folder is not None and data is not None and not model.spec.data and not dry_run:
        folder = folder_of_one_data(model, source, run, data)
    total = 2 * len(candidates(model.method, base=model.inference))
    with watch("tuning", total, show=False if as_json else None) as show:
        found = model.frontier(
            held_out[:examples],
            **times,
            samples=samples,
            seed=seed,
            memory=None if memory is None else memory * 2**20,
            report=lambda done, _total: show(done),
        )
    count = min(examples, len(held_out))
    content = _content(found, model.device, samples=samples, examples=count, seed=seed)
    content |= scored_data(model, source)
    fits = any(t.milliseconds <= found.limit for t in found.trials if t is not found.encoder)
    stored = folder / TUNED if fits and not dry_run and folder is not None else None
    used = with_calibration_of(model.inference, found.winner.inference)
    if stored is not None and folder is not None:
        Run(folder).set_tuned(used, **content)
    if plot is not None:
        _draw(found, plot, samples=samples, title=f"{model.spec.label}, {content['device']}")
    if as_json:
        chosen = {"inference": used.to_json(), **content}
        out.print_json(json.dumps({"run": run, "stored": stored is not None, **finite(chosen)}))
        return
    out.print(table_of(found, samples, title=f"{model.spec.label}, {count:,} validation examples"))
    if stored is not None:
        end = f"stored in {stored}: {run} is now used with it. To undo this: recmix tune {run} --reset"
    elif dry_run:
        end = "nothing is stored (--dry-run)"
    elif not fits:
        end = "nothing is stored, because the limit allows no refinement: give a larger one"
    else:
        end = "nothing is stored: this needs the folder of a run, and its own data"
    lines = [*_sentences(found, content["device"]), *_about_calibration(model.inference, used), end]
    for line in [*lines, *([f"figure: {plot}"] if plot else [])]:
        out.print(line, highlight=False, markup=False)


def table_of(found: Frontier, samples: int, title: str) -> Table:
    """Make a table of all measured refinements of the posterior, from the fastest to the slowest.

    A row has the time of the refinement and its IWAE bound. The bound is not measured for refinements
    that take much longer than the time limit.
    """
    table = Table(title=title, box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("refinement", no_wrap=True)
    for name in ("ms per\nexample", "times\nencoder", f"IWAE-{samples}\n(nats)", "gain\n(nats)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("within\nbudget", no_wrap=True)
    table.add_column("", no_wrap=True)
    efficient = found.efficient
    for trial in found.trials:
        chosen = trial is found.winner
        multiple = trial.milliseconds / found.encoder.milliseconds
        table.add_row(
            words(trial.inference),
            f"{trial.milliseconds:.3g}",
            f"{multiple:.1f}" if multiple < 100 else f"{multiple:,.0f}",
            "–" if trial.bound is None else f"{trial.bound:.2f}",
            _gain(trial, found.encoder),
            "yes" if trial.milliseconds <= found.limit else "no",
            "chosen" if chosen else "efficient" * any(trial is one for one in efficient),
            style="bold" if chosen else None,
        )
    return table


def _gain(trial: Trial, encoder: Trial) -> str:
    if trial is encoder or trial.bound is None or encoder.bound is None:
        return "–"
    return f"{trial.bound - encoder.bound:+.2f} ± {trial.standard_error:.2f}"


def _check(
    budget: str | None,
    milliseconds: float | None,
    samples: int,
    examples: int,
    memory: int | None,
    plot: Path | None,
) -> dict[str, float | None]:
    """Check the options; return the time limit as arguments of `recmix.Model.frontier`."""
    from recmix.evaluation.tune import read_limit

    times = dict(zip(("budget", "milliseconds"), read_limit(budget, milliseconds), strict=True))
    for name, value in (("samples", samples), ("memory", memory)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be positive, got {value}")
    if not 2 <= examples <= MOST:
        raise ConfigError(f"--examples must be 2 to {MOST}, got {examples}")
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise ConfigError(f"--plot must name a PNG or SVG file, got {plot}")
    return times


def _reset(run: str, budget: str | None, milliseconds: float | None, *, as_json: bool) -> None:
    """Delete the chosen refinement of a run, and print a message.

    Args:
        run: folder of the run.
        budget: the user's option --budget. It must be None, because nothing is measured.
        milliseconds: the user's option --milliseconds. It must be None for the same reason.
        as_json: whether the message is JSON.
    """
    if budget is not None or milliseconds is not None:
        raise ConfigError("--reset measures nothing: leave --budget and --milliseconds out")
    folder = Run(run)
    if not folder.exists:
        raise RunError(f"{run} does not hold a run (no spec.json in it)")
    there = folder.reset_tuned()
    if as_json:
        out.print_json(json.dumps({"run": run, "reset": there}))
    elif there:
        refinement = words(folder.spec().inference)
        out.print(
            f"deleted {folder.folder / TUNED}: {run} is used again as it was trained (refinement: "
            f"{refinement})",
            highlight=False,
            markup=False,
        )
    else:
        out.print(f"{run} has no {TUNED}: there is nothing to reset", highlight=False, markup=False)


def _content(
    found: Frontier, device: torch.device, *, samples: int, examples: int, seed: int
) -> dict[str, Any]:
    """The settings and results of the measurement, which are stored beside the chosen refinement."""
    import torch

    from recmix.evaluation.score import device_name

    name = device_name(device)
    if device.type == "cpu":
        threads = torch.get_num_threads()
        name = f"cpu ({platform.machine()}, {threads} thread{'s' * (threads > 1)})"
    return {
        "limit": found.limit,
        "device": name,
        "torch": torch.__version__,
        "samples": samples,
        "examples": examples,
        "seed": seed,
        "trials": [trial.to_json() for trial in found.trials],
    }


def _sentences(found: Frontier, device: str) -> list[str]:
    """Describe the result in sentences: the machine, the time limit and the chosen refinement."""
    own, limit = found.encoder.milliseconds, found.limit
    lines = [
        f"measured on {device}; the limit is {limit:.3g} ms per example, {limit / own:.1f} times the "
        "encoder"
    ]
    if own > limit:
        lines.append(f"the encoder alone takes {own:.3g} ms per example, more than the limit")
    fastest = found.smallest_budget
    if found.winner is not found.encoder:
        lines.append(f"chosen: {words(found.winner.inference)}: {found.reason}")
    elif fastest is not None and fastest * own > limit:
        lines.append(
            f"chosen: no refinement; the fastest one takes {fastest:.1f} times the encoder, so that the "
            f"smallest budget with a refinement is --budget {math.ceil(1.1 * fastest)}x"
        )
    else:
        lines.append(f"chosen: no refinement: {found.reason}")
    return lines


def _about_calibration(own: Inference, used: Inference) -> list[str]:
    """Say that refinements are compared without the run's calibration, and whether it is kept.

    Args:
        own: the inference of the run before the choice. If it is not calibrated, nothing is said.
        used: the chosen inference.
    """
    if not own.calibrated:
        return []
    measured = f"the run's calibration (scale {own.scale:.2f}) was left out of this comparison"
    if used.calibrated:
        return [f"{measured}. It is kept, because the refinement has not changed"]
    return [
        f"{measured}. It was chosen for another refinement ({words(own)}), so it is removed. To choose "
        "a new one: model.calibrated(x_val) in Python, or recmix evaluate --calibrate"
    ]


def _draw(found: Frontier, path: Path, *, samples: int, title: str) -> None:
    from recmix.reports.frontier import RefinementPoint, refinement_times

    efficient = found.efficient
    points = [
        RefinementPoint(
            how=trial.inference.how if trial.inference.refine else "none",
            steps=trial.inference.refine,
            milliseconds=trial.milliseconds,
            bound=trial.mean,
            error=trial.standard_error,
            efficient=any(trial is one for one in efficient),
            chosen=trial is found.winner,
        )
        for trial in found.trials
        if math.isfinite(trial.mean)
    ]
    refinement_times(points, path, limit=found.limit, samples=samples, title=title)
