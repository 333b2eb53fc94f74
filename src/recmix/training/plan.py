"""`make_plan` checks the arguments of `recmix.fit` and makes what training needs.

This is the spec of the run, the data and the networks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recmix.data import Data, Examples, as_data, check_values
from recmix.data.overlap import write_training_examples
from recmix.errors import ConfigError, shown
from recmix.inference import Inference
from recmix.methods.method import (
    Method,
    Objective,
    check_can_be_distilled,
    check_kl_can_change,
    same_shapes,
)
from recmix.model.assembly import Own, complete_options, needs_classes
from recmix.model.data_facts import Statistics
from recmix.model.fields import Fields
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Likelihood, find_likelihood
from recmix.model.network_checks import check_probabilities
from recmix.runs.folder import Run
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.arguments import Given, method_options, read_options, split_auto
from recmix.training.build import Trained, TrainedModel, build, load_trained
from recmix.training.curvature_request import VALIDATION
from recmix.training.job import Callback, Job
from recmix.training.labels import row_label
from recmix.training.resume import is_complete
from recmix.training.suspicious import warn_if_suspicious
from recmix.training.world import world

__all__ = ["FIRST_STAGE", "REQUEST", "SECOND_STAGE", "Plan", "check_start", "make_plan"]

FIRST_STAGE = {"epochs": 2000, "learning_rate": 5e-4}
SECOND_STAGE = {"epochs": 20, "learning_rate": 1e-6}
REQUEST = (
    *("method", "data", "init", "out", "resume", "overwrite", "encoder", "decoder", "vae_epochs"),
    "callbacks",
)
"""Names in a request besides options."""
PARTS = ("likelihood", "prior")
"""Parts of a model that a request gives by name or as an object."""


@dataclasses.dataclass
class Plan:
    """One checked call of `recmix.fit`: what is trained, from which weights, and in which folder.

    Attributes:
        spec: everything that defines the run.
        data: training and validation data.
        method: the method to train, with its initial weights.
        objective: what one training step maximises.
        own: encoder, decoder, likelihood and prior that the user gave as objects.
        init: the trained model to start from, or None.
        run: the run folder, or None if nothing is written.
        found: whether the folder held a run when the plan was made.
        resume: whether to continue the run in the folder.
        overwrite: whether to replace the run in the folder.
        callbacks: functions that are called after each epoch.
        first: the plan of the model to start from, if this model must be trained first.
        finished: the trained model, if the run in the folder is already complete.
    """

    spec: Spec
    data: Data
    method: Method
    objective: Objective
    own: Own
    init: TrainedModel | None
    run: Run | None
    found: bool
    resume: bool
    overwrite: bool
    callbacks: Sequence[Callback] = ()
    first: Plan | None = None
    finished: Trained | None = None

    @property
    def chooses_order(self) -> bool:
        """Whether the number of mixture components is chosen automatically (``order = "auto"``)."""
        return self.spec.auto is not None and "order" in self.spec.auto

    def claim_folder(self) -> None:
        """Create the run folder, or prepare to continue the run in it.

        If the run in the folder is already complete, it is loaded into `finished`.
        """
        if self.run is None:
            return
        group = world()
        group.wait()  # until all processes have seen whether there is a run
        if self.resume and self.found:
            if is_complete(self.run, self.spec, group):
                made = load_trained(
                    self.run.folder,
                    device=self.spec.training.device,
                    method=type(self.method),
                    own=self.own,
                )
                spec = dataclasses.replace(made.spec, inference=self.spec.inference)
                self.finished = dataclasses.replace(made, spec=spec)
                return
            if group.writer:
                self.run.set_vocabulary(self.data.vocabulary)
        elif group.writer:
            self.run.create(self.spec, overwrite=self.overwrite, vocabulary=self.data.vocabulary)
            write_training_examples(self.run.folder, self.data)
        group.wait()

    def job(self) -> Job:
        """Make the training job. If there is an `init`, its weights are copied into the method."""
        if self.init:
            with torch.random.fork_rng():
                torch.manual_seed(self.spec.training.seed)
                self.method.start_from(self.init.method)
        else:
            warn_if_suspicious(self.data, self.method, own_decoder=self.own.decoder is not None)
        spec, setting = self.spec, self.spec.setting
        return Job(
            self.method,
            self.data,
            spec.training if self.first is None else spec.training.with_plain_kl,
            objective=self.objective,
            continued=self.init is not None,
            run=self.run,
            resume=self.resume,
            title=(
                spec.label + (f"({spec.options[setting]})" if setting in spec.options else "")
            ).lower(),
            callbacks=self.callbacks,
        )

    def result(self, job: Job) -> Trained:
        """Return the trained model, after `job` has been trained."""
        folder = None if self.run is None else self.run.folder
        return Trained(self.method.eval(), self.spec, job.state.history, folder, self.data.vocabulary)


def make_plan(
    method: str | type[Method] | Method,
    data: Any,
    *,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    likelihood: str | Likelihood | None = None,
    prior: Any = None,
    init: TrainedModel | str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    vae_epochs: int | None = None,
    callbacks: Sequence[Callback] = (),
    select_on: Examples | None = None,
    **options: Any,
) -> Plan:
    """Check the arguments of `recmix.fit`, read the data and make the networks. Writes no files.

    The arguments are those of `recmix.fit`, and one more.

    Args:
        method: as in `recmix.fit`, like all arguments below except `select_on`.
        data: training data.
        encoder: the user's own encoder.
        decoder: the user's own decoder.
        likelihood: name or object.
        prior: name or object.
        init: the trained model to start from, or its folder.
        out: the run folder.
        resume: whether to continue the run in `out`.
        overwrite: whether to replace the run in `out`.
        vae_epochs: number of epochs of the model that is trained first, if there is no `init`.
        callbacks: functions of (epoch, metrics) that are called after each epoch.
        select_on: examples that select the best epoch, instead of all validation examples. They are
            given only while the number of components is chosen (``order = "auto"``).
        **options: options of the method, the model, training and inference.
    """
    _check_request(encoder, decoder, init, resume, overwrite, vae_epochs, callbacks)
    own, options = _own_parts(Own(encoder, decoder), options, likelihood=likelihood, prior=prior)
    given = read_options(method, options, REQUEST)
    cls, instance = given.cls, method if isinstance(method, Method) else None
    if instance:
        given = _with_instance(instance, given, options)
        own = Own(instance.base_encoder, instance.model.decoder, instance.model.likelihood)
    inference, training = Inference(**given.inference), Training(**given.training)
    run = None if out is None else Run(out)
    found = run is not None and run.exists
    refinement = inference.uncalibrated
    objective = Objective(
        iwae_samples=training.objective_samples if training.objective == "iwae" else 0,
        inference=VALIDATION if training.train == "curvature" else inference.in_training,
        distil=training.distil,
        teacher=dataclasses.replace(refinement, refine=training.distil_steps),
    )

    data = as_data(
        data, shape=_shape_of(init), description=run.spec().data if run and found and resume else None
    )
    described = data.describe()
    wanted = given.model
    counted = data.vocabulary is None and needs_classes(wanted)
    facts: dict[str, Any] = {
        "shape": data.shape,
        "kind": data.kind,
        "classes": data.classes if counted else 0,
        "fields": Fields(data.fields) if data.fields else None,
        "vocabulary": data.vocabulary,
    }
    statistics = Statistics()
    if not instance:
        statistics = data.statistics(
            spread=wanted.get("standardise") == "features", examples=wanted.get("prior") == "vamp"
        )

    first = None
    if init is None and cls.starts_from and not instance:
        first = make_plan(
            cls.starts_from,
            data,
            **vars(own.copied()) | {k: v for k, v in given.model.items() if k in PARTS and v},
            out=None if run is None else run.folder / cls.starts_from,
            resume=resume,
            overwrite=overwrite,
            **{k: v for k, v in given.model.items() if k not in PARTS},
            **vars(training) | {"epochs": vae_epochs, "learning_rate": None},
            **vars(refinement),
        )
    start = _load_start(init, training.device, own, data)
    before = start.spec if start else None
    if start and not instance:
        named = start.spec.model
        own = own.or_those_of(start.method.model, start.method.base_encoder, named)
    training = _by_stage(training, cls, continued=bool(start or first))
    changes_decoder = training.train == "all" and inference.how != "learned"
    if start and changes_decoder and "curvature" not in wanted:
        wanted = wanted | {"curvature": "none"}  # it would no longer fit the decoder
    settings, auto = split_auto(given.method)
    spec = Spec(
        method=cls.name,
        label=row_label(cls, training, inference, first.spec if first else before),
        shape=data.shape,
        options=settings,
        model=complete_options(wanted, **facts, own=own, before=before.model if before else None),
        training=training,
        inference=inference,
        data=described,
        init={"run": cls.starts_from, "epochs": vae_epochs} if first else _origin(start),
        setting=cls.setting,
        auto=auto if select_on is None else {"step of": "order"},
    )
    if select_on is not None:
        data = dataclasses.replace(data, x_val=select_on)

    _check_options(before, spec, networks=instance is None)
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)  # the first weights depend on the seed alone
        made = build(spec, own=own, statistics=statistics, method=instance or cls)
    _check_likelihood(made.model, data)
    inference.model(made.model)  # refuses noise that the likelihood does not have
    if training.distil:
        check_can_be_distilled(made)
    if training.changes_kl and not first:
        _check_kl_options(made, training, data)
    _check_architecture(start, made)
    plan = Plan(spec, data, made, objective, own, start, run, found, resume, overwrite, callbacks)
    plan.first = first
    return plan


def _check_request(
    encoder: Any, decoder: Any, init: Any, resume: bool, overwrite: bool, vae_epochs: Any, callbacks: Any
) -> None:
    if vae_epochs is not None and (not isinstance(vae_epochs, int) or isinstance(vae_epochs, bool)):
        raise ConfigError(f"vae_epochs must be a whole number, got {vae_epochs!r}")
    check_start(init)
    for name, module in (("encoder", encoder), ("decoder", decoder)):
        if module is not None and not isinstance(module, nn.Module):
            raise ConfigError(f"{name} must be a torch.nn.Module, got {shown(module)}")
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other: continue a run, or replace it")
    if not all(callable(callback) for callback in callbacks):
        raise ConfigError(f"callbacks must be functions of (epoch, metrics), got {callbacks!r}")


def check_start(init: Any) -> None:
    """Refuse an `init` that is neither a trained model nor its folder."""
    if init is not None and not isinstance(init, str | Path) and not hasattr(init, "spec"):
        advice = "make a model of networks that were trained elsewhere with recmix.wrap"
        raise ConfigError(f"init must be a trained model or its folder, got {shown(init)}: {advice}")


def _own_parts(own: Own, options: dict[str, Any], **parts: Any) -> tuple[Own, dict[str, Any]]:
    """Return the user's own objects, and the options with the parts that are given by name.

    Args:
        own: the user's own networks.
        options: all other options of the request.
        **parts: likelihood and prior, each a name, an object or None.
    """
    names = {name: part for name, part in parts.items() if isinstance(part, str)}
    objects = {k: part for k, part in parts.items() if part is not None and k not in names}
    given = objects.get("likelihood")
    if given is not None and not isinstance(given, Likelihood):
        find_likelihood(given)  # raises the error
    return dataclasses.replace(own, **objects), options | names


def _with_instance(method: Method, given: Given, options: Mapping[str, Any]) -> Given:
    """Add the options of a method instance to the options that the user gave.

    Refuses a given option of the method or the model, because the instance has already fixed it.
    """
    for name in options:
        if name in given.method or name in given.model:
            raise ConfigError(
                f"{name} is already fixed by the {method.name} instance, got {name}={options[name]!r}: "
                "make the instance with it, or give the method's name or class"
            )
    model, known = method.model, method_options(type(method))
    dtype = str(model.centre.dtype).removeprefix("torch.")
    return given._replace(
        method={n: method.options.get(n, option.default) for n, option in known.items()},
        model={"latent": model.latent, "likelihood": model.likelihood.name},
        training={"dtype": dtype, **given.training},
    )


def _check_likelihood(model: LatentModel, data: Data) -> None:
    """Refuse data that the likelihood excludes, and a decoder whose output it cannot read."""
    check_values(data, model.likelihood.requirement, model.likelihood.name)
    check_probabilities(model.decoder, model.likelihood, model.latent, model.centre)


def _shape_of(init: TrainedModel | str | Path | None) -> tuple[int, ...] | None:
    """Return the shape of an example that the model to start from was made for."""
    if isinstance(init, str | Path):
        return Run(init).spec().shape
    return None if init is None else init.spec.shape


def _warn_if_test_was_trained(init: TrainedModel, data: Data) -> None:
    """Warn if the model to start from was trained on all of these data, without a test part."""
    counts = init.spec.data.get("counts") or {}
    parts = (data.x_train, data.x_val, data.x_test)
    total = sum(len(part) for part in parts if part is not None)
    if data.x_test is None or not counts or counts.get("test"):
        return
    if sum(count or 0 for count in counts.values()) == total:
        warnings.warn(
            "the model to start from was trained on data without a test part. These data have as many "
            "examples, so that their test examples were probably training examples of that model. Use "
            "recmix.data.from_arrays(x, hold_out_test=False), or test examples of their own",
            stacklevel=2,
        )


def _load_start(
    init: TrainedModel | str | Path | None, device: str, own: Own, data: Data
) -> TrainedModel | None:
    """Return the model to start from. It is loaded from its folder if `init` is a path.

    A model that was trained with another vocabulary than that of the data is refused.
    """
    if isinstance(init, str | Path):
        init = load_trained(init, device=device, own=own.copied())
    theirs, ours = None if init is None else init.vocabulary, data.vocabulary
    if theirs is not None and ours is not None and theirs.digest != ours.digest:
        raise ConfigError(
            f"init was trained with another vocabulary, {theirs!r}, than that of the data, {ours!r}: "
            "load the data with vocabulary=init.vocabulary"
        )
    if init is not None:
        _warn_if_test_was_trained(init, data)
    return init


def _by_stage(training: Training, cls: type[Method], *, continued: bool) -> Training:
    """Fill in epochs and learning rates that were not given.

    The defaults of a model that starts from a trained one (`continued`) differ from those of a new
    one.
    """
    usual = SECOND_STAGE if continued else FIRST_STAGE
    rate = training.learning_rate or usual["learning_rate"] * cls.rate_factor
    most = max(1.0, FIRST_STAGE["learning_rate"] / rate)  # new parameters learn at a first stage's rate
    fresh = min(cls.fresh_factor, most) if training.fresh_rate is None else training.fresh_rate
    epochs = training.epochs or int(usual["epochs"])
    return dataclasses.replace(training, epochs=epochs, learning_rate=rate, fresh_rate=fresh)


def _check_kl_options(method: Method, training: Training, data: Data) -> None:
    """Refuse `kl_warmup` and `free_bits` for a method or a training whose loss has no such KL."""
    name = "kl_warmup" if training.kl_warmup else "free_bits"
    if training.train == "curvature":
        raise ConfigError(f"{name} has no effect on train = 'curvature': use it for the first stage")
    x = None
    if training.free_bits:
        centre = method.model.centre
        x = torch.as_tensor(data.x_train[:2]).to(centre.device, centre.dtype)
    trained = method.training
    check_kl_can_change(method.eval(), name, x)
    method.train(trained)


def _origin(init: TrainedModel | None) -> dict[str, Any] | None:
    """Describe the model that a run starts from, for the spec of the run.

    The description holds its method, label, folder and a hash of its weights.
    """
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


def _check_options(init: Spec | None, spec: Spec, *, networks: bool) -> None:
    """Refuse a model to start from (`init`) whose options do not fit the new run.

    Args:
        init: the spec of the trained model to start from, if there is one.
        spec: the spec of the new run.
        networks: whether all model options must agree; if not, only latent dimension and
            likelihood.
    """
    if init is None:
        return
    if init.shape != spec.shape:
        raise ConfigError(
            f"init was trained on examples of shape {init.shape}, these have shape {spec.shape}"
        )
    for name, value in vars(init.model).items():
        ours = getattr(spec.model, name)
        if name.startswith("curvature"):  # a model can get such a network later
            continue
        if value != ours and (networks or name in ("latent", "likelihood")):
            raise ConfigError(
                f"init was trained with {name} {value}, this run has {ours}: they must be the "
                "same; train another init, or leave the option out"
            )


def _check_architecture(init: TrainedModel | None, method: Method) -> None:
    """Refuse a model to start from (`init`) whose networks do not fit the new method."""
    if init is None:
        return
    pairs = {
        "encoder": (init.method.base_encoder, method.base_encoder),
        "decoder": (init.method.model.decoder, method.model.decoder),
    }
    for name, (one, two) in pairs.items():
        if not same_shapes(one, two):
            raise ConfigError(f"init has an {name} of another architecture: give the {name} it has")
