"""`recmix evaluate`: score the model in a run folder, or a model that a Python function returns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmix.commands.extra_reports import (
    REPORTS,
    Measured,
    check_reports,
    measure_reports,
    print_reports,
)
from recmix.commands.inference_words import calibration, changes, words
from recmix.commands.inference_words import gain as gain_of
from recmix.commands.model_and_data import check_data, data_of, load_model, part_of
from recmix.commands.own_parts import Networks
from recmix.commands.stored_scores import folder_of_scores, note_random_part, scored_data
from recmix.commands.terminal import (
    Device,
    Json,
    Memory,
    Root,
    Seed,
    err,
    out,
    plain,
    print_scores,
)
from recmix.errors import ConfigError, unknown
from recmix.inference.inference import REFINEMENT

if TYPE_CHECKING:
    from recmix.api import Model
    from recmix.runs.scores import ScoreKey

__all__ = ["evaluate_command"]

USUAL_STEPS = 16
"""With more refinement steps than this, the command prints a note that they take long."""
UNFINISHED = ("running", "interrupted", "failed")
"""The statuses of runs whose training did not reach its end."""
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
    seed: Seed = 0,
    device: Device = "auto",
    memory: Memory = None,
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
    from recmix.training.progress import watch

    calibrate = calibrate or calibrate_noise
    reports = _chosen_reports(report, gap=gap)
    _check(samples, memory, split, examples, how, seed=seed, calibrate=calibrate, gap=gap)
    model = _load(run, data, device, networks)
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
        note_random_part(model, source, split, data, own=own)
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
    with watch(f"evaluating {split}", len(scored), show=False if as_json else None) as done:
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
    stored = {name: result.to_json() for name, result in extra.items()}
    if folder is not None:
        Run(folder).add_score(str(key), found | scored_data(model, source))
        if stored:
            Run(folder).add_reports(str(key), finite(stored))
    if as_json:
        shown = {"reports": stored} if stored else {}
        out.print_json(json.dumps(finite({"run": str(run), "split": split, **found, **shown})))
        return
    _print_result(model, found, extra, key)


def _load(run: str, data: str | None, device: str, networks: str | None) -> Model:
    """Load the model with `load_model`, and print a note if the training of its run has not finished."""
    from recmix.runs.folder import Run
    from recmix.training.resume import how_to_resume

    model = load_model(run, data, device, networks=networks)
    status = {} if model.folder is None else Run(model.folder).status()
    if model.folder is not None and status["status"] in UNFINISHED:
        total = model.spec.training.epochs
        done = f"epoch {status.get('epoch', 0)}" + (f" of {total}" if total else "")
        advice = how_to_resume(Run(model.folder))
        err.print(
            f"note: {plain(run)} is not finished ({plain(status['status'])}): {done}. To continue it: "
            f"{plain(advice)}",
            highlight=False,
        )
    return model


def _print_result(model: Model, found: dict[str, Any], extra: dict[str, Any], key: ScoreKey) -> None:
    """Print the scores of a model, the gain by refinement and calibration, and the reports.

    Args:
        found: the scores, from `recmix.evaluation.score.score`.
        extra: results of the reports, as {report name: result}.
        key: the part of the data, the number of samples and the inference of the scores.
    """
    name = " ".join([model.spec.label, *changes(model.inference)])
    print_scores([(name, found)], title=f"{key.part}, {found['images']:,} examples")
    if "elbo_gain" in found:
        out.print(gain_of(found), highlight=False)
    print_reports(extra)
    if key.calibrated:
        out.print(calibration(found["inference"], noise=key.noise))


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
    if calibrate and split == "val":
        raise ConfigError(f"--calibrate uses the validation data, so it cannot score them: {OTHER_PART}")
    if how is not None and how not in ("auto", *REFINEMENT):
        raise ConfigError(unknown("kind of refinement", how, [*REFINEMENT, "auto"]))
    if how == "auto" and split == "val":
        raise ConfigError(f"--how auto uses the validation data, so it cannot score them: {OTHER_PART}")
    if examples is not None and not gap:
        raise ConfigError("--examples is for --gap: without it all examples of the split are scored")


def _chosen_reports(names: list[str] | None, *, gap: bool) -> list[str]:
    """Return the names of reports that were given with --report.

    Raise a ConfigError if a name is unknown, or if both --report and --gap were given.
    """
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
    """Return the model with the refinement options of the command line; None keeps the model's own.

    Raise a ConfigError if an option has no effect. If there are many steps, print a note. `x` are
    validation examples, from which the kind of refinement is chosen if `how` is "auto".
    """
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
    given = {"restarts": restarts, "reuse": reuse, "checks": checks}
    if how != "auto":
        found = model.refined(steps, how=how, **given)
    else:
        kept = {name: value for name, value in given.items() if value is not None}
        found = model.using(**kept).refined(steps, how="auto", x=x)  # chosen with these options
    used = REFINEMENT[found.inference.how] if found.inference.refine else ()
    if model.method.can_restart or "restarts" in used:
        return found
    return found.using(restarts=1)  # restarts have no effect, so they are not part of the score's name
