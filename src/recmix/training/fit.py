"""From data and options to trained models: check a request, make its networks and folder, train it."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recmix.data import Data, Examples, as_data
from recmix.errors import ConfigError, Interrupted, NonFiniteError, RunError
from recmix.inference import Inference
from recmix.methods.method import Method, check_can_be_distilled, same_shapes
from recmix.methods.registry import find_method
from recmix.model.options import ModelOptions
from recmix.runs.files import write_json
from recmix.runs.folder import Run
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.arguments import Given, method_options, read_options, split_auto
from recmix.training.build import OWN, Trained, TrainedModel, build, load_trained, place
from recmix.training.job import Callback, Job
from recmix.training.labels import row_label
from recmix.training.loop import train
from recmix.training.order import choose_order
from recmix.training.world import World, world

__all__ = ["FIRST_STAGE", "IGNORED_ON_RESUME", "REQUEST", "SECOND_STAGE", "train_models"]

FIRST_STAGE = {"epochs": 2000, "learning_rate": 5e-4}
SECOND_STAGE = {"epochs": 20, "learning_rate": 1e-6}
REQUEST = (
    *("method", "data", "init", "out", "resume", "overwrite", "encoder", "decoder", "vae_epochs"),
    "callbacks",
)
"""Names in a request besides options."""


def train_models(requests: Sequence[dict[str, Any]], *, progress: bool | None = None) -> list[Trained]:
    """Train many models: on a GPU all at once in one process, elsewhere one after the other.

    Each has its own data, order of data and random stream, and gives the same result as alone.

    Args:
        requests: the keyword arguments of `recmix.fit` for each, ``method`` and ``data`` included.
        progress: as in `recmix.fit`.

    Raises:
        NonFiniteError: if a training failed; raised when the others are done.
    """
    if any("progress" in request for request in requests):
        raise ConfigError("progress is for all trainings together: give it to fit_many, not to one")
    plans = [_plan(**request) for request in requests]
    waiting = [plan for plan in plans if plan.first is not None]
    if waiting:
        try:
            first = train_models([plan.first for plan in waiting if plan.first], progress=progress)
        except Interrupted as stop:
            raise _name_whole_run(stop, waiting) from None
        for plan, start in zip(waiting, first, strict=True):
            plan.init = start
    jobs = {id(plan): plan.job() for plan in plans if plan.finished is None and not plan.chooses_order}
    failures: list[NonFiniteError | None] = []
    for group in _by_device(list(jobs.values())):
        engine = group[0].training.engine
        failures += train(group, engine=engine, progress=progress)
    for plan in [plan for plan in plans if plan.finished is None and plan.chooses_order]:
        try:
            plan.finished = plan.with_order(progress)
        except NonFiniteError as error:
            failures.append(error)
    for failure in failures:
        if failure is not None:
            raise failure
    return [plan.finished or plan.result(jobs[id(plan)]) for plan in plans]


def _by_device(jobs: list[Job]) -> list[list[Job]]:
    """Groups of jobs that train together: those with the same GPU and engine; on a CPU one job each."""
    groups: dict[Any, list[Job]] = {}
    for job in jobs:
        key = (job.device, job.training.engine) if job.device.type == "cuda" else id(job)
        groups.setdefault(key, []).append(job)
    return list(groups.values())


@dataclasses.dataclass
class _Plan:
    """One checked request."""

    spec: Spec
    data: Data
    method: Method
    init: TrainedModel | None
    run: Run | None
    resume: bool
    callbacks: Sequence[Callback] = ()
    first: dict[str, Any] | None = None
    """The request of the training that must come first, if there is one."""
    finished: Trained | None = None

    @property
    def chooses_order(self) -> bool:
        """Whether its order is to be chosen by the components' gains."""
        return self.spec.auto is not None and "order" in self.spec.auto

    def with_order(self, progress: bool | None) -> Trained:
        """Choose the order and train it; a user's own modules become the first component."""
        assert self.init is not None
        found = choose_order(
            self.spec,
            self.data,
            self.init,
            method=type(self.method),
            run=self.run,
            resume=self.resume,
            train_models=train_models,
            progress=progress,
        )
        self.method.start_from(found.method)
        return found

    def job(self) -> Job:
        """The training, ready to start."""
        if self.init:
            with torch.random.fork_rng():
                torch.manual_seed(self.spec.training.seed)
                self.method.start_from(self.init.method)
        return Job(
            self.method,
            self.data,
            self.spec.training,
            inference=self.spec.inference,
            continued=self.init is not None,
            run=self.run,
            resume=self.resume,
            title=_title(self.spec),
            callbacks=self.callbacks,
        )

    def result(self, job: Job) -> Trained:
        """The trained model."""
        folder = None if self.run is None else self.run.folder
        return Trained(self.method.eval(), self.spec, job.state.history, folder)


def _plan(
    method: str | type[Method] | Method,
    data: Any,
    *,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    init: TrainedModel | str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    vae_epochs: int | None = None,
    callbacks: Sequence[Callback] = (),
    select_on: Examples | None = None,
    **options: Any,
) -> _Plan:
    """Check a request and make its spec, networks and folder.

    With `select_on` it is a step of choosing an order: these examples, instead of all validation
    examples, select the best epoch.
    """
    cls = find_method(method)
    _check_request(encoder, decoder, init, resume, overwrite, vae_epochs, callbacks)
    given = read_options(cls, options, REQUEST)
    if isinstance(method, Method):
        given = _with_instance(method, given, options)
        encoder, decoder = method.base_encoder, method.model.decoder
    own, auto = split_auto(given.method)
    training, data = Training(**given.training), as_data(data)
    start = _start(init, training.device, encoder, decoder)
    before = start.spec if start else None
    if start and before and not isinstance(method, Method):
        if encoder is None and before.model.network == OWN:
            encoder = _copy(start.method.base_encoder)
        if decoder is None and before.model.decoder_network == OWN:
            decoder = _copy(start.method.model.decoder)
    needs_first = start is None and cls.starts_from is not None and not isinstance(method, Method)
    continued = start is not None or needs_first
    training = _by_stage(training, cls, continued=continued)
    inference = Inference(**given.inference)
    first_spec = before or (_first_spec(cls, training, inference) if needs_first else None)
    spec = Spec(
        method=cls.name,
        label=row_label(cls, training, inference, first_spec),
        shape=data.shape,
        options=own,
        model=_model_options(given.model, before, data, encoder, decoder),
        training=training,
        inference=inference,
        data=data.describe(),
        init={"run": cls.starts_from, "epochs": vae_epochs} if needs_first else _origin(start),
        setting=cls.setting,
        auto=auto if select_on is None else {"step of": "order"},
    )
    if select_on is not None:
        data = dataclasses.replace(data, x_val=select_on)
    if isinstance(method, Method):
        method.train()
        made = place(method, spec)
    else:
        made = _new(spec, data, encoder, decoder, cls)
    if training.distil:
        check_can_be_distilled(made)
    run = None if out is None else Run(out)
    plan = _Plan(spec, data, made, start, run, resume, callbacks)
    if start:
        _check_init(start, spec, made, networks=not isinstance(method, Method))
    if run is not None and (finished := _claim_folder(run, spec, resume=resume, overwrite=overwrite)):
        plan.finished = _load_finished(finished, spec, encoder, decoder, cls)
        return plan
    if needs_first:
        given_training = Training(**given.training)
        settings = {**vars(given_training), "epochs": vae_epochs, "learning_rate": None}
        own_modules = {"encoder": _copy(encoder), "decoder": _copy(decoder)}
        chosen = {k: v for k, v in spec.model.to_json().items() if v != OWN}
        plan.first = settings | vars(inference.uncalibrated) | chosen | own_modules
        plan.first |= {
            "method": cls.starts_from,
            "data": data,
            "out": None if run is None else run.folder / str(cls.starts_from),
            "resume": resume,
            "overwrite": overwrite,
        }
    return plan


def _with_instance(method: Method, given: Given, options: Mapping[str, Any]) -> Given:
    """The options with those of a method instance; refuses options that it has already fixed."""
    for name in options:
        if name in given.method or name in given.model:
            raise ConfigError(
                f"{name} is already fixed by the {method.name} instance, got {name}={options[name]!r}: "
                "make the instance with it, or give the method's name or class"
            )
    model, known = method.model, method_options(type(method))
    dtype = str(model.centre.dtype).removeprefix("torch.")
    return Given(
        method={n: method.options.get(n, option.default) for n, option in known.items()},
        model={"latent": model.latent, "likelihood": model.likelihood.name},
        training={"dtype": dtype, **given.training},
        inference=given.inference,
    )


def _load_finished(
    folder: Path, spec: Spec, encoder: nn.Module | None, decoder: nn.Module | None, cls: type[Method]
) -> Trained:
    """The finished run in a folder, used with the inference of this request."""
    modules: dict[str, Any] = {"encoder": encoder, "decoder": decoder, "method": cls}
    found = load_trained(folder, device=spec.training.device, **modules)
    return dataclasses.replace(found, spec=dataclasses.replace(found.spec, inference=spec.inference))


def _start(
    init: TrainedModel | str | Path | None,
    device: str,
    encoder: nn.Module | None,
    decoder: nn.Module | None,
) -> TrainedModel | None:
    """The model to start from, loaded if it is a folder."""
    if isinstance(init, str | Path):
        return load_trained(init, device=device, encoder=_copy(encoder), decoder=_copy(decoder))
    return init


def _check_request(
    encoder: Any, decoder: Any, init: Any, resume: bool, overwrite: bool, vae_epochs: Any, callbacks: Any
) -> None:
    if vae_epochs is not None and (not isinstance(vae_epochs, int) or isinstance(vae_epochs, bool)):
        raise ConfigError(f"vae_epochs must be a whole number, got {vae_epochs!r}")
    if init is not None and not isinstance(init, str | Path) and not hasattr(init, "spec"):
        raise ConfigError(f"init must be a trained model or its folder, got {init!r}")
    for name, module in (("encoder", encoder), ("decoder", decoder)):
        if module is not None and not isinstance(module, nn.Module):
            raise ConfigError(f"{name} must be a torch.nn.Module, got {module!r}")
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other: continue a run, or replace it")
    if not all(callable(callback) for callback in callbacks):
        raise ConfigError(f"callbacks must be functions of (epoch, metrics), got {callbacks!r}")


def _model_options(
    given: dict[str, Any],
    before: Spec | None,
    data: Data,
    encoder: nn.Module | None,
    decoder: nn.Module | None,
) -> ModelOptions:
    """Complete model options: the given values, else those of `init`, else the defaults."""
    found = {k: v for k, v in given.items() if v is not None}
    if before:
        found = before.model.to_json() | found
    if encoder is not None:
        found["network"] = OWN
    network = found.setdefault("network", "conv")
    if decoder is not None:
        found["decoder_network"] = OWN
    found.setdefault("decoder_network", "conv" if network == OWN else network)
    found.setdefault("likelihood", "bernoulli" if data.binary else "gaussian")
    return ModelOptions(**found)


def _claim_folder(run: Run, spec: Spec, *, resume: bool, overwrite: bool) -> Path | None:
    """Create the folder or reuse it; returns it if the run in it is already complete."""
    group = world()
    there = run.exists
    group.wait()
    if resume and there:
        if _is_complete(run, spec, group):
            return run.folder
    elif group.writer:
        run.create(spec, overwrite=overwrite)
    group.wait()
    return None


def _name_whole_run(stop: Interrupted, waiting: list[_Plan]) -> Interrupted:
    """The same message, with the folder of the requested run instead of that of its first stage."""
    message = str(stop)
    for plan in waiting:
        if plan.run and plan.first:
            plan.run.set_status("interrupted", epoch=0, reason="during the model it starts from")
            message = message.replace(f"{plan.first['out']}", f"{plan.run.folder}")
    return Interrupted(message)


def _copy(module: nn.Module | None) -> nn.Module | None:
    return copy.deepcopy(module)


def _first_spec(cls: type[Method], training: Training, inference: Inference) -> Spec:
    """The method and label of the first stage, which is trained with the same options."""
    first = find_method(str(cls.starts_from))
    label = row_label(first, training, inference, None)
    return Spec(method=first.name, label=label, shape=(1, 1, 1))


def _by_stage(training: Training, cls: type[Method], *, continued: bool) -> Training:
    """Training options with the paper's values where none were given."""
    usual = SECOND_STAGE if continued else FIRST_STAGE
    return dataclasses.replace(
        training,
        epochs=training.epochs or int(usual["epochs"]),
        learning_rate=training.learning_rate or usual["learning_rate"] * cls.rate_factor,
        fresh_rate=cls.fresh_factor if training.fresh_rate is None else training.fresh_rate,
    )


def _new(
    spec: Spec,
    data: Data,
    encoder: nn.Module | None,
    decoder: nn.Module | None,
    cls: type[Method],
) -> Method:
    """The method with its first weights, which depend on the seed alone."""
    centre = data.x_train.mean()
    with torch.random.fork_rng():
        torch.manual_seed(spec.training.seed)
        return build(
            spec,
            encoder=encoder,
            decoder=decoder,
            centre=centre,
            variance=data.x_train.variance(centre),
            method=cls,
        )


def _origin(init: TrainedModel | None) -> dict[str, Any] | None:
    """What a spec says about the model it starts from."""
    if init is None:
        return None
    digest = hashlib.sha256()
    for name, value in sorted(init.method.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return {
        "method": init.spec.method,
        "label": init.spec.label,
        "run": None if init.folder is None else str(init.folder.resolve()),
        "weights": digest.hexdigest()[:16],
    }


def _check_init(init: TrainedModel, spec: Spec, method: Method, *, networks: bool) -> None:
    """Refuse an init that does not fit; the names of networks are compared only if `networks`."""
    if init.spec.shape != spec.shape:
        raise ConfigError(
            f"init was trained on examples of shape {init.spec.shape}, these have shape {spec.shape}"
        )
    theirs, ours = init.spec.model.to_json(), spec.model.to_json()
    for name, value in theirs.items():
        if value != ours[name] and (networks or name in ("latent", "likelihood")):
            raise ConfigError(
                f"init was trained with {name} {value}, this run has {ours[name]}: they must be the "
                "same; train another init, or leave the option out"
            )
    pairs = {
        "encoder": (init.method.base_encoder, method.base_encoder),
        "decoder": (init.method.model.decoder, method.model.decoder),
    }
    for name, (one, two) in pairs.items():
        if not same_shapes(one, two):
            raise ConfigError(f"init has an {name} of another architecture: give the {name} it has")


IGNORED_ON_RESUME = {"epochs", "device", "checkpoint_every", "tensorboard", "root", "engine"}


def _is_complete(run: Run, spec: Spec, group: World) -> bool:
    """Whether the run in the folder is this one and complete; refuses another run.

    If it is not complete, the folder gets this spec, once all processes have read the old one.
    """
    stored = run.spec()
    for name, theirs, ours in _differences(stored, spec):
        raise RunError(
            f"{run.folder} holds a run with {name} = {theirs!r}, not {ours!r}: resume it with the same "
            "options, or give another folder, or overwrite it"
        )
    if spec.auto and stored.training.epochs != spec.training.epochs:
        raise RunError(
            f"{run.folder} chose its order with {stored.training.epochs} epochs per step, not "
            f"{spec.training.epochs}: another number may give another order; give another folder"
        )
    enough = (stored.training.epochs or 0) >= (spec.training.epochs or 0)
    if enough and run.status()["status"] == "done":
        return True
    group.wait()
    if group.writer:
        write_json(run.folder / "spec.json", spec.to_json())
    return False


def _differences(stored: Spec, spec: Spec) -> Iterator[tuple[str, Any, Any]]:
    one, two = stored.to_json(), spec.to_json()
    one["options"], two["options"] = _requested(stored), _requested(spec)
    for found in (one, two):
        del found["auto"], found["recmix"], found["label"]
        found["init"] = (found["init"] or {}).get("weights")
        trained_with = spec.inference.refine or stored.inference.refine or spec.training.distil
        if not trained_with:  # it says how the posterior is used, not how it is trained
            found["inference"] = {}
    for name, theirs in one.items():
        ours = two[name]
        if isinstance(theirs, dict):
            keys = (k for k in theirs | ours if k not in IGNORED_ON_RESUME)
            yield from ((k, theirs.get(k), ours.get(k)) for k in keys if theirs.get(k) != ours.get(k))
        elif theirs != ours:
            yield name, theirs, ours


def _requested(spec: Spec) -> dict[str, Any]:
    """The options as they were given, also where one was ``auto``."""
    return spec.options | {k: v for k, v in (spec.auto or {}).items() if k != "why"}


def _title(spec: Spec) -> str:
    name = f"{spec.label}({spec.options[spec.setting]})" if spec.setting in spec.options else spec.label
    return name.lower()
