"""`recmix evaluate`: scores of a trained run, or of a model that a Python function returns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmix.commands.extra_reports import (
    REPORTS,
    Measured,
    check_reports,
    measure_reports,
    print_reports,
)
from recmix.commands.own_parts import Networks, load_run
from recmix.commands.python_model import is_python_path, python_model
from recmix.commands.stored_scores import folder_of_scores, scored_data
from recmix.commands.terminal import Json, Root, err, out, print_scores
from recmix.errors import ConfigError, DataError, unknown
from recmix.inference.inference import REFINEMENT

if TYPE_CHECKING:
    from recmix.api import Model
    from recmix.data import Data
    from recmix.inference import Inference

__all__ = [
    "check_data",
    "data_of",
    "evaluate_command",
    "load_model",
    "part_of",
    "progress",
    "words",
]

USUAL_STEPS = 16
"""More refinement steps than this are worth a note."""
OTHER_PART = (
    "leave --split val out, so that the test part is scored. If the data have no test part, give a file "
    "with x_train and x_test with --data"
)


def evaluate_command(
    run: Annotated[
        str,
        typer.Argument(
            help="Folder of a run, or its address hf://user/name; or module:function, a Python function "
            "without arguments that returns a recmix.Model (needs --data)."
        ),
    ],
    samples: Annotated[
        int | None, typer.Option(help="K of IWAE-K (default 100, with --gap 1000).")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    refine: Annotated[
        int | None,
        typer.Option(help="Refinement steps for each example first (1, 2, 4); 0 removes refinement."),
    ] = None,
    how: Annotated[
        str | None,
        typer.Option(
            help="Kind of refinement: gauss-newton, learned, variational, conjugate, or auto (chosen "
            "on validation data). Needs --refine."
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(help="Starting points for each example; the best result is used (1 to 9)."),
    ] = None,
    reuse: Annotated[
        int | None, typer.Option(help="Extra steps that use the same curvature (default 2).")
    ] = None,
    checks: Annotated[
        int | None,
        typer.Option(help="Pairs of points that check each refinement (default 1); 0 does not check."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Calibrate the posterior on validation data first.")
    ] = False,
    calibrate_noise: Annotated[
        bool,
        typer.Option(
            "--calibrate-noise",
            help="Calibrate the posterior and the likelihood's noise. This changes p(x).",
        ),
    ] = False,
    gap: Annotated[
        bool, typer.Option("--gap", help="Measure what inference loses, and where; gives advice.")
    ] = False,
    report: Annotated[
        list[str] | None,
        typer.Option(
            help="A further report: "
            + "; ".join(f"{name} ({one.help})" for name, one in REPORTS.items())
            + ". Can be given several times."
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(help="Examples for --gap, and as many training examples (default 200)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    memory: Annotated[
        int | None, typer.Option(help="MiB for the decoder's activations (default: by device).")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Name or path of the data, if the run had arrays or other data are scored."),
    ] = None,
    networks: Networks = None,
    data_root: Root = None,
    as_json: Json = False,
) -> None:
    """Score a model (ELBO, IWAE, time), also refined or calibrated."""
    from recmix.data import has_same_examples
    from recmix.evaluation.score import score
    from recmix.inference import Inference
    from recmix.runs.files import finite
    from recmix.runs.folder import Run, check_finite
    from recmix.runs.scores import ScoreKey

    calibrate = calibrate or calibrate_noise
    reports = _chosen_reports(report, gap=gap)
    _check(samples, memory, split, examples, how, seed=seed, calibrate=calibrate, gap=gap)
    model = load_model(run, data, device, networks=networks)
    check_reports(reports, model)
    if calibrate_noise and not model.latent_model.likelihood.can_temper:
        raise ConfigError(
            f"the {model.latent_model.likelihood.name} likelihood has no noise that can be calibrated: "
            "use --calibrate"
        )
    source = data_of(model, data, data_root)
    scored = part_of(source, split)
    held_out = part_of(source, "val") if calibrate or how == "auto" else None
    if data is not None:
        check_data(model, source, [scored, *([] if held_out is None else [held_out])], run, data)
    own = data is None or has_same_examples(source, model.spec.data)
    folder = model.folder
    if data is not None:
        _note_random_part(source, split, data, own=own)
        folder = folder_of_scores(model, source, scored, split, run, data, data_root, own=own)
    model = _refined(model, refine, how, restarts=restarts, reuse=reuse, checks=checks, x=held_out)
    if how == "auto" and not as_json:
        out.print(f"chosen on validation data: refinement {words(model.inference)}", highlight=False)
    limit = None if memory is None else memory * 2**20
    if gap:
        from recmix.commands.gap import report_gap

        report_gap(
            model,
            source,
            scored,
            split=split,
            own=own,
            folder=folder,
            count=200 if examples is None else examples,
            samples=1000 if samples is None else samples,
            seed=seed,
            memory=limit,
            console=out,
            as_json=as_json,
        )
        return
    samples = 100 if samples is None else samples
    used = model.inference.uncalibrated if calibrate else model.inference
    key = ScoreKey(split, samples, used, calibrate, calibrate_noise)
    if calibrate:
        model = model.calibrated(held_out, samples, noise=calibrate_noise, memory=limit)
    with progress(f"evaluating {split}", len(scored), as_json) as done:
        found = score(
            model.method,
            scored,
            model.inference,
            samples=samples,
            seed=seed,
            memory=limit,
            against=Inference() if model.inference.key else None,
            report=done,
        )
    check_finite(found, run)
    extra = measure_reports(reports, Measured(model, source, scored, samples, seed, limit))
    if folder is not None:
        Run(folder).add_score(str(key), found | scored_data(model, source))
        if extra:
            Run(folder).add_reports(str(key), finite(extra))
    if as_json:
        shown = {"reports": extra} if extra else {}
        out.print_json(json.dumps(finite({"run": str(run), "split": split, **found, **shown})))
        return
    _print_result(model, found, extra, split)
    if calibrate:
        out.print(_calibration(found["inference"], noise=calibrate_noise))


def _print_result(model: Model, found: dict[str, Any], extra: dict[str, Any], split: str) -> None:
    """Print scores, the gain of refinement and calibration, and further reports."""
    name = " ".join([model.spec.label, *_changes(model.inference)])
    print_scores([(name, found)], title=f"{split}, {found['images']:,} examples")
    if "elbo_gain" in found:
        out.print(_gain(found), highlight=False)
    print_reports(extra)


def _note_random_part(data: Data, split: str, name: str, *, own: bool) -> None:
    """Print a note if the user's file has no part of this name, and a random part is scored.

    The run's `own` data are split as they were for its training, which needs no note.
    """
    if own or split not in data.held_out:
        return
    sizes = {part: size or 0 for part, size in data.counts.items()}
    total = sizes["train"] + sum(sizes[part] for part in data.held_out)
    err.print(
        f"note: {name} has no {split} part: a random tenth, {sizes[split]:,} of {total:,} examples, is "
        "scored, the same each time. To score others, give a file with x_train and "
        f"x_{split}, made with numpy.savez",
        highlight=False,
        markup=False,
    )


def load_model(run: str, data: str | None, device: str, *, networks: str | None = None) -> Model:
    """Load the model in a folder, or the one that a Python function returns.

    Args:
        run: the folder, or ``module:function``.
        data: the data that the user named, or None; a Python function's model needs them.
        device: the device for the model.
        networks: the function that makes the networks that the user wrote for the run, as
            ``module:function``; None if there are none.
    """
    from recmix.training.build import pick_device

    if Path(run).exists() or not is_python_path(run):
        return load_run(run, networks, device=device)
    if networks is not None:
        raise ConfigError("--networks is for the folder of a run, and a function returns a whole model")
    if data is None:
        raise ConfigError(f"--data is missing: name the data to score {run} on")
    model = python_model(run)
    return model if device == "auto" else model.to(pick_device(device))


def check_data(model: Model, data: Data, parts: list[Any], run: str, name: str) -> None:
    """Raise an error if a model cannot score the data.

    They must have the shape and fields of the model's examples, and values that its likelihood accepts.

    Args:
        model: the trained model.
        data: the data.
        parts: the parts of `data` that are used, such as its test part.
        run: name of the run, for the message.
        name: name of the data, for the message.
    """
    from recmix.data import check_values

    fields = model.method.model.fields
    expected = model.spec.shape if fields is None else fields.shapes
    given = data.shape if fields is None else data.fields
    if given != expected:
        raise ConfigError(
            f"{run} was trained on examples of shape {expected}, those of {name} have shape {given}"
        )
    likelihood = model.latent_model.likelihood
    for part in parts:
        if not (data.dynamic and part is data.x_train):  # those are binarised
            try:
                check_values(part, likelihood.requirement, likelihood.name, what="the data")
            except DataError as error:
                raise DataError(f"{name}: {error}") from error


def _check(
    samples: int | None,
    memory: int | None,
    split: str,
    examples: int | None,
    how: str | None,
    *,
    seed: int,
    calibrate: bool,
    gap: bool,
) -> None:
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed must be at least 0 and below 2**63, got {seed}")
    for name, value in (("samples", samples), ("memory", memory)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be positive, got {value}")
    if calibrate and gap:
        raise ConfigError("--calibrate improves IWAE bounds and --gap is about the ELBO: give only one")
    if calibrate and split in ("val", "validation"):
        raise ConfigError(f"--calibrate uses the validation data, so it cannot score them: {OTHER_PART}")
    if how is not None and how not in ("auto", *REFINEMENT):
        raise ConfigError(unknown("kind of refinement", how, [*REFINEMENT, "auto"]))
    if how == "auto" and split in ("val", "validation"):
        raise ConfigError(f"--how auto uses the validation data, so it cannot score them: {OTHER_PART}")
    if examples is not None and not gap:
        raise ConfigError("--examples is for --gap: without it all examples of the split are scored")


def _chosen_reports(names: list[str] | None, *, gap: bool) -> list[str]:
    """The names of the further reports; an unknown name, or a report beside --gap, is an error."""
    check_reports(names or [])
    if names and gap:
        raise ConfigError("--gap is a report by itself: give either --gap or --report")
    return names or []


def _refined(
    model: Model,
    refine: int | None,
    how: str | None,
    *,
    restarts: int | None,
    reuse: int | None,
    checks: int | None,
    x: Any,
) -> Model:
    """The model with the given options of refinement. Many steps are worth a note."""
    if (refine or 0) > USUAL_STEPS:
        err.print(
            f"note: {refine} refinement steps take long; 1, 2 or 4 steps give almost all of the gain",
            highlight=False,
        )
    steps = model.inference.refine if refine is None else refine
    if restarts is not None and not (steps or model.method.can_restart):
        raise ConfigError(
            "--restarts needs steps to restart: give --refine too (only residual corrections have "
            "restarts without it)"
        )
    for name, value in (("how", how), ("reuse", reuse), ("checks", checks)):
        if value is not None and not steps:
            raise ConfigError(f"--{name} is for refinement: give --refine too")
    if steps and how != "auto":
        kind = how or model.inference.how
        can_restart = model.method.can_restart or "restarts" in REFINEMENT[kind]
        if reuse is not None and "reuse" not in REFINEMENT[kind]:
            raise ConfigError(f"--reuse has no effect on the refinement {kind}: leave it out")
        if restarts is not None and not can_restart:
            raise ConfigError(f"--restarts has no effect on the refinement {kind}: leave it out")
    if not (steps or model.method.can_restart):
        restarts = 1  # they have no effect, so they are not part of the score's name
    given = {"restarts": restarts, "reuse": reuse, "checks": checks}
    if how != "auto":
        return model.refined(steps, how=how, **given)
    kept = {name: value for name, value in given.items() if value is not None}
    found = model.using(**kept).refined(steps, how="auto", x=x)  # chosen with these options
    return found if found.inference.refine or model.method.can_restart else found.using(restarts=1)


def words(inference: Inference) -> str:
    """Return the kind of refinement and the number of steps of an inference, in words.

    >>> from recmix import Inference
    >>> words(Inference()), words(Inference(refine=4)), words(Inference(how="learned", refine=1))
    ('none', 'gauss-newton, 4 steps', 'learned, 1 step')
    """
    if not inference.refine:
        return "none"
    return f"{inference.how}, {inference.refine} step{'s' * (inference.refine > 1)}"


def _changes(inference: Inference) -> list[str]:
    """What an inference does to the encoder's posterior, in brackets.

    >>> from recmix import Inference
    >>> _changes(Inference()), _changes(Inference(refine=2, restarts=3, scale=1.5))
    ([], ['(gauss-newton, 2 steps, 3 restarts, calibrated)'])
    """
    found = [words(inference)] if inference.refine else []
    if inference.restarts > 1:
        found.append(f"{inference.restarts} restarts")
    if inference.calibrated or inference.noise != 1:
        found.append("calibrated")
    return [f"({', '.join(found)})"] if found else []


def _gain(found: Mapping[str, Any]) -> str:
    """The gain over the encoder's posterior, in words.

    >>> found = {"samples": 5, "elbo_gain": 1.0, "elbo_gain_se": 0.1}
    >>> _gain({**found, "iwae_gain": -0.2, "iwae_gain_se": 0.3})
    "gain over the encoder's own posterior, paired: ELBO +1.00 ± 0.10, IWAE-5 -0.20 ± 0.30 nats"
    """
    elbo, iwae = (f"{found[n]:+.2f} ± {found[n + '_se']:.2f}" for n in ("elbo_gain", "iwae_gain"))
    start = "gain over the encoder's own posterior, paired"
    return f"{start}: ELBO {elbo}, IWAE-{found['samples']} {iwae} nats"


def _calibration(inference: dict[str, Any], *, noise: bool) -> str:
    """The result of a calibration, in words.

    >>> _calibration({"scale": 1.5, "slope": 0.007}, noise=False)
    'calibrated on validation data: scale 1.50, doubled for every 99 nats that an example fits worse'
    >>> _calibration({"scale": 1.5, "slope": 0.0, "noise": 0.8}, noise=True)
    "calibrated on validation data: scale 1.50; the likelihood's noise times 0.80, which changes p(x)"
    """
    text = f"calibrated on validation data: scale {inference['scale']:.2f}"
    if slope := inference["slope"]:
        how = "doubled" if slope > 0 else "halved"
        nats = math.log(2) / abs(slope)
        text += f", {how} for every {nats:,.0f} nats that an example fits worse"
    if not noise:
        return text
    return f"{text}; the likelihood's noise times {inference['noise']:.2f}, which changes p(x)"


def part_of(data: Data, name: str) -> Any:
    """Return the examples of one part of the data: train, val or test."""
    parts = {"train": data.x_train, "val": data.x_val, "validation": data.x_val, "test": data.x_test}
    if name not in parts:
        raise ConfigError(unknown("split", name, parts))
    if parts[name] is None:
        raise ConfigError(
            f"the data {data.name} have no {name} part: give a file that has one with --data, made with "
            "numpy.savez('parts.npz', x_train=..., x_test=...); or score the validation part with "
            "--split val, without --calibrate and --how auto"
        )
    return parts[name]


def data_of(model: Model, data: str | None, root: Path | None) -> Data:
    """Load the data that the user named, or else those that the model was trained on.

    Args:
        model: the trained model.
        data: name or path of the data; None for those of the training.
        root: folder of the named data sets.
    """
    from recmix.data import load_again, rebuild

    if data is not None:
        how: Any = {"root": root, "vocabulary": model.vocabulary, "shape": model.spec.shape}
        return load_again(data, model.spec.data, **how)
    return rebuild(model.spec.data, root=root, vocabulary=model.vocabulary)


def progress(title: str, total: int, quiet: bool) -> Any:
    """Return the context of a progress bar, which shows the time left unless `quiet`.

    It is that of `recmix.training.progress.count`.
    """
    from recmix.training.progress import count

    return count(title, total, show=False if quiet else None)
