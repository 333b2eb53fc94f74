"""`fit`: from data and a few names to the best-validation model."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recmix.api import Fitted, load
from recmix.data import ImageData, Images, as_data
from recmix.errors import ConfigError, Interrupted, NonFiniteError, RunError
from recmix.inference.refinement import check_can_be_taught
from recmix.methods.method import Method, same_shapes
from recmix.methods.registry import find_method
from recmix.runs.files import write_json
from recmix.runs.folder import Run
from recmix.runs.options import CLIMBS, Training
from recmix.runs.spec import Spec
from recmix.training.build import build
from recmix.training.job import Job
from recmix.training.loop import train
from recmix.training.options import read_options, split_auto
from recmix.training.order import choose_order
from recmix.training.world import World, world

__all__ = ["fit", "fit_many"]

FIRST_STAGE = {"epochs": 2000, "learning_rate": 5e-4}
SECOND_STAGE = {"epochs": 20, "learning_rate": 1e-6}


def fit(
    method: str,
    data: Any,
    *,
    latent: int | None = None,
    likelihood: str | None = None,
    network: str | None = None,
    decoder_network: str | None = None,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    init: Fitted | str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    vae_epochs: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Fitted:
    """Train a method and return the model of its best validation epoch.

    Args:
        method: a name from ``recmix methods``.
        data: what `recmix.data.as_data` takes: data, a name, a path, arrays, tensors, a torch Dataset.
        latent: dimension of z; by default that of `init`, or 20.
        likelihood: ``gaussian`` or ``bernoulli``; by default that of `init`, or Bernoulli for binary
            data and Gaussian for other.
        network: ``conv`` (the paper's, the default) or ``dense`` (its fully connected twin).
        decoder_network: the same for the decoder; by default as `network`.
        encoder: your own module (B, C, H, W) -> (B, 2 latent) instead; changed in place.
        decoder: your own module (N, latent) -> (N, C, H, W) instead; changed in place.
        init: a trained model, or its folder, to start from: the second stage. Methods that need one
            train a VAE first, in the folder ``vae`` of `out`, if none is given.
        out: folder of the run; without it nothing is written.
        resume: continue what is in `out`, if there is anything.
        overwrite: replace what is in `out`.
        vae_epochs: epochs of that first VAE, if it is trained here.
        progress: True shows progress, False never, None if there is a terminal.
        **options: those of the method and of training, see `recmix.runs.options.Training`.
    """
    asked = {k: v for k, v in locals().items() if k not in ("options", "progress")}
    return fit_many([asked | options], progress=progress)[0]


def fit_many(requests: Sequence[dict[str, Any]], *, progress: bool | None = None) -> list[Fitted]:
    """Train many models: on a GPU all at once in one process, elsewhere one after the other.

    Each has its own data, order of data and random stream, and gives what it would give alone. Splits,
    seeds, learning rates, orders and methods may differ.

    Args:
        requests: the keyword arguments of `fit` for each, ``method`` and ``data`` included.
        progress: as in `fit`.

    Raises:
        NonFiniteError: if a training failed; it is raised when the others are done.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((30, 1, 8, 8), np.float32)
    >>> models = fit_many([{"method": "vae", "data": x, "epochs": 1, "seed": s} for s in range(2)])
    >>> len(models)
    2
    """
    if any("progress" in request for request in requests):
        raise ConfigError("progress is shown of all trainings together: give it to fit_many, not to one")
    plans = [_plan(**request) for request in requests]
    waiting = [plan for plan in plans if plan.vae is not None]
    if waiting:
        try:
            first = fit_many([plan.vae for plan in waiting if plan.vae], progress=progress)
        except Interrupted as stop:
            raise _told_of_the_whole(stop, waiting) from None
        for plan, vae in zip(waiting, first, strict=True):
            plan.init = vae
    jobs = {id(plan): plan.job() for plan in plans if plan.finished is None and not plan.open}
    failures: list[NonFiniteError | None] = []
    for group in _together(list(jobs.values())):
        engine = group[0].training.engine
        failures += train(group, engine=engine, progress=progress)
    for plan in [plan for plan in plans if plan.finished is None and plan.open]:
        try:
            plan.finished = plan.with_order(progress)
        except NonFiniteError as error:
            failures.append(error)
    for failure in failures:
        if failure is not None:
            raise failure
    return [plan.finished or plan.result(jobs[id(plan)]) for plan in plans]


def _together(jobs: list[Job]) -> list[list[Job]]:
    """Jobs by device on GPUs, where they share it; each on its own elsewhere."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        key = (job.device, job.training.engine) if job.device.type == "cuda" else id(job)
        groups.setdefault(key, []).append(job)
    return list(groups.values())


@dataclasses.dataclass
class _Plan:
    """A training that was asked for, checked and laid out."""

    spec: Spec
    data: ImageData
    method: Method
    init: Fitted | None
    run: Run | None
    resume: bool
    vae: dict[str, Any] | None = None
    """What to ask `fit` for first, if it needs a VAE and has none."""
    finished: Fitted | None = None

    @property
    def open(self) -> bool:
        """Whether its order is to be chosen by what the components gain."""
        return self.spec.auto is not None and "order" in self.spec.auto

    def with_order(self, progress: bool | None) -> Fitted:
        """Choose the order and train it; what the user's own modules are is then the first component."""
        assert self.init is not None
        found = choose_order(
            self.spec,
            self.data,
            self.init,
            run=self.run,
            resume=self.resume,
            fit_many=fit_many,
            progress=progress,
        )
        self.method.start_from(found.method)
        return found

    def job(self) -> Job:
        """The training itself, with everything in its place."""
        if self.init:
            with torch.random.fork_rng():
                torch.manual_seed(self.spec.training.seed)
                self.method.start_from(self.init.method)
        return Job(
            self.method,
            self.data,
            self.spec.training,
            continued=self.init is not None,
            run=self.run,
            resume=self.resume,
            title=_title(self.spec),
        )

    def result(self, job: Job) -> Fitted:
        """What the training gave."""
        folder = None if self.run is None else self.run.folder
        return Fitted(self.method, self.spec, job.state.history, folder)


def _plan(
    method: str,
    data: Any,
    *,
    latent: int | None = None,
    likelihood: str | None = None,
    network: str | None = None,
    decoder_network: str | None = None,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    init: Fitted | str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    vae_epochs: int | None = None,
    choose_on: Images | None = None,
    **options: Any,
) -> _Plan:
    """Check a request to `fit` and make its spec, its networks and its folder.

    With `choose_on` it is a step in the choice of an order: these images, and not all validation images,
    pick its best epoch.
    """
    we = world()
    names = (("method", method), ("likelihood", likelihood), ("network", network))
    for name, value in (*names, ("decoder_network", decoder_network)):
        if not isinstance(value, str) and (value is not None or name == "method"):
            raise ConfigError(f"{name} must be a name, got {value!r}")
    for name, number in (("latent", latent), ("vae_epochs", vae_epochs)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise ConfigError(f"{name} must be a whole number, got {number!r}")
    if init is not None and not isinstance(init, Fitted | str | Path):
        raise ConfigError(f"init must be a trained model or its folder, got {init!r}")
    for name, module in (("encoder", encoder), ("decoder", decoder)):
        if module is not None and not isinstance(module, nn.Module):
            raise ConfigError(f"{name} must be a torch.nn.Module, got {module!r}")
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other: continue a run, or replace it")
    cls = find_method(method)
    own, common = read_options(cls, options, _names(fit))
    own, auto = split_auto(own)
    training = Training(**common)
    data = as_data(data)
    if isinstance(init, str | Path):
        init = load(init, device=training.device, encoder=_copy(encoder), decoder=_copy(decoder))
    before = init.spec if init else None
    if encoder is None and init and before and before.network == "own":
        encoder = _copy(init.method.base_encoder)
    if decoder is None and init and before and before.decoder_network == "own":
        decoder = _copy(init.model.decoder)
    network = "own" if encoder is not None else network or (before.network if before else "conv")
    if decoder is not None:
        decoder_network = "own"
    elif decoder_network is None:
        decoder_network = before.decoder_network if before else "conv" if network == "own" else network
    needs_vae = init is None and cls.second_stage
    spec = Spec(
        method=method,
        latent=latent if latent is not None else before.latent if before else 20,
        likelihood=likelihood or (before.likelihood if before else _usual_likelihood(data)),
        shape=data.shape,
        network=network,
        decoder_network=decoder_network,
        options=own,
        training=_by_stage(training, cls, continued=init is not None or needs_vae),
        data=data.describe(),
        init={"run": "vae", "epochs": vae_epochs} if needs_vae else _origin(init),
        setting=cls.setting,
        auto=auto if choose_on is None else {"step of": "order"},
    )
    if choose_on is not None:
        data = dataclasses.replace(data, x_val=choose_on)
    run = None if out is None else Run(out)
    plan = _Plan(spec, data, _new(spec, data, encoder, decoder), init, run, resume)
    if init:
        _check_init(init, spec, plan.method)
    if run is not None:
        there = run.exists
        we.wait()
        if resume and there:
            if _nothing_left(run, spec, we):
                plan.finished = load(
                    run.folder, device=training.device, encoder=encoder, decoder=decoder
                )
                return plan
        elif we.writer:
            run.create(spec, overwrite=overwrite)
        we.wait()
    if needs_vae:
        settings = dataclasses.asdict(training) | {"epochs": vae_epochs, "learning_rate": None}
        plan.vae = settings | {
            "method": "vae",
            "data": data,
            "latent": spec.latent,
            "likelihood": spec.likelihood,
            "network": None if network == "own" else network,
            "decoder_network": None if decoder_network == "own" else decoder_network,
            "encoder": _copy(encoder),
            "decoder": _copy(decoder),
            "out": None if run is None else run.folder / "vae",
            "resume": resume,
            "overwrite": overwrite,
        }
    return plan


def _told_of_the_whole(stop: Interrupted, waiting: list[_Plan]) -> Interrupted:
    """The same message with the folders of the runs that were asked for, not of their VAEs."""
    message = str(stop)
    for plan in waiting:
        if plan.run:
            plan.run.set_status("interrupted", epoch=0, reason="during the VAE it starts from")
            message = message.replace(f"{plan.run.folder / 'vae'}", f"{plan.run.folder}")
    return Interrupted(message)


def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _copy(module: nn.Module | None) -> nn.Module | None:
    return copy.deepcopy(module)


def _usual_likelihood(data: ImageData) -> str:
    return "bernoulli" if data.binary else "gaussian"


def _by_stage(training: Training, cls: type[Method], *, continued: bool) -> Training:
    """Settings with the paper's values where none were given."""
    usual = SECOND_STAGE if continued else FIRST_STAGE
    return dataclasses.replace(
        training,
        epochs=training.epochs or int(usual["epochs"]),
        learning_rate=training.learning_rate or usual["learning_rate"] * cls.rate_factor,
        fresh_rate=cls.fresh_factor if training.fresh_rate is None else training.fresh_rate,
    )


def _new(spec: Spec, data: ImageData, encoder: nn.Module | None, decoder: nn.Module | None) -> Method:
    """The method with its first weights: a function of the seed alone."""
    centre = data.x_train.mean()
    with torch.random.fork_rng():
        torch.manual_seed(spec.training.seed)
        made = build(
            spec,
            encoder=encoder,
            decoder=decoder,
            centre=centre,
            variance=data.x_train.variance(centre),
        )
    if spec.training.distil:
        check_can_be_taught(made)
    return made


def _origin(init: Fitted | None) -> dict[str, Any] | None:
    """What is recorded of the model it starts from."""
    if init is None:
        return None
    digest = hashlib.sha256()
    for name, value in sorted(init.method.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return {
        "method": init.spec.method,
        "run": None if init.folder is None else str(init.folder.resolve()),
        "weights": digest.hexdigest()[:16],
    }


def _check_init(init: Fitted, spec: Spec, method: Method) -> None:
    if init.spec.shape != spec.shape:
        raise ConfigError(
            f"init was trained on images of shape {init.spec.shape}, these have shape {spec.shape}"
        )
    for name in ("latent", "likelihood", "network", "decoder_network"):
        theirs, ours = getattr(init.spec, name), getattr(spec, name)
        if theirs != ours:
            raise ConfigError(
                f"init was trained with {name} {theirs}, this run asks for {ours}: "
                "they must agree; train another one, or leave the option out to take init's"
            )
    pairs = {
        "encoder": (init.method.base_encoder, method.base_encoder),
        "decoder": (init.model.decoder, method.model.decoder),
    }
    for name, (theirs, ours) in pairs.items():
        if not same_shapes(theirs, ours):
            raise ConfigError(f"init has an {name} of another architecture: give the {name} it has")


IGNORED_ON_RESUME = {"epochs", "device", "checkpoint_every", "tensorboard", "root", "engine"}


def _nothing_left(run: Run, spec: Spec, we: World) -> bool:
    """Whether the run in the folder is this one and complete; refuses if it is another one.

    If not, the folder now holds what is asked for, once all processes have read what was there.
    """
    stored = run.spec()
    for name, theirs, ours in _differences(stored, spec):
        raise RunError(
            f"{run.folder} holds a run with {name} = {theirs!r}, not {ours!r}: resume it with the same "
            "options, or give another folder, or overwrite it"
        )
    if spec.auto and stored.training.epochs != spec.training.epochs:
        raise RunError(
            f"{run.folder} chose its order with {stored.training.epochs} epochs at a time, not "
            f"{spec.training.epochs}: another number may lead to another order; give another folder"
        )
    enough = (stored.training.epochs or 0) >= (spec.training.epochs or 0)
    if enough and run.status()["status"] == "done":
        return True
    we.wait()
    if we.writer:
        write_json(run.folder / "spec.json", spec.to_json())
    return False


def _differences(stored: Spec, spec: Spec) -> Iterator[tuple[str, Any, Any]]:
    for field in dataclasses.fields(Spec):
        theirs, ours = getattr(stored, field.name), getattr(spec, field.name)
        if field.name == "auto":
            continue  # with the options
        if field.name == "options":
            theirs, ours = (_asked(s) for s in (stored, spec))
        if field.name == "training":
            theirs, ours = vars(theirs), vars(ours)
        if field.name == "init":
            theirs, ours = ((i or {}).get("weights") for i in (theirs, ours))
        if isinstance(theirs, dict):
            skipped = IGNORED_ON_RESUME
            if field.name == "training" and not (ours["refine"] or ours["distil"]):
                skipped = skipped | {*CLIMBS}  # it trains without
            keys = (k for k in theirs | ours if k not in skipped)
            yield from ((k, theirs.get(k), ours.get(k)) for k in keys if theirs.get(k) != ours.get(k))
        elif theirs != ours:
            yield field.name, theirs, ours


def _asked(spec: Spec) -> dict[str, Any]:
    """The options as they were asked, where one was left open."""
    return spec.options | {k: v for k, v in (spec.auto or {}).items() if k != "why"}


def _title(spec: Spec) -> str:
    name = f"{spec.method}({spec.options[spec.setting]})" if spec.setting else spec.method
    return "vae+" if spec.init and spec.method == "vae" else name
