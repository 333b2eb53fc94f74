"""`read_request` checks the arguments of `recmix.fit` before any data are read.

The result, a `Request`, has the method, its options, the initial model and the run folder.
`recmix.training.plan` then reads the data and makes the networks.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recmix.errors import ConfigError, shown
from recmix.inference import Inference
from recmix.inference.inference import UNCALIBRATED
from recmix.methods.method import Method, Objective
from recmix.methods.method_options import method_options
from recmix.model.assembly import Own, check_part_names, needs_classes
from recmix.model.likelihoods import Likelihood, find_likelihood
from recmix.runs.folder import Run
from recmix.runs.hub import is_hub_address
from recmix.runs.training_options import Training
from recmix.training.arguments import Given, read_options, split_auto
from recmix.training.build import Trained, load_trained, pick_device
from recmix.training.curvature_request import VALIDATION
from recmix.training.labels import row_label
from recmix.training.one_module import as_networks

__all__ = [
    "FIRST_STAGE",
    "SECOND_STAGE",
    "Callback",
    "Request",
    "by_stage",
    "check_start",
    "read_request",
]

Callback = Callable[[int, dict[str, float]], None]
"""A function that is called after each epoch with the number of the epoch and {metric: value}."""
FIRST_STAGE = {"epochs": 2000, "learning_rate": 5e-4}
SECOND_STAGE = {"epochs": 20, "learning_rate": 1e-6}
REQUEST = (
    *("method", "data", "init", "out", "resume", "overwrite", "encoder", "decoder", "vae_epochs"),
    *("callbacks", "progress"),
)
"""Names of the arguments of `recmix.fit` that are not options."""
PARTS = ("likelihood", "prior")
"""Parts of a model that a user can give by name or as an object."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The checked arguments of one call of `recmix.fit`, without its data.

    Attributes:
        instance: the method itself, if the user gave an instance.
        label: the name of the run in tables of results.
        options: options of the method, complete with defaults.
        auto: how the number of components is chosen (``order = "auto"``), or None.
        model: options of the model p(x, z) that were given.
        counts_classes: whether the model needs the number of classes in the data, such as the number
            of different tokens.
        own: encoder, decoder, likelihood and prior that the user gave as objects.
        training: training options, with epochs and learning rates filled in.
        usual_rate: whether the learning rate is the default of a training that starts from a trained
            model.
        inference: inference options: how the posterior is refined and calibrated.
        objective: what one training step maximises.
        start: the trained model to start from, or None.
        address: the address of `start` on the Hugging Face Hub, if it came from there.
        first: the request for the initial model, if the initial model must be trained first.
        vae_epochs: number of epochs of the initial model, if the user gave this number.
        found: whether the run folder already holds a run.
    """

    cls: type[Method]
    instance: Method | None
    label: str
    options: dict[str, Any]
    auto: dict[str, Any] | None
    model: dict[str, Any]
    counts_classes: bool
    own: Own
    training: Training
    usual_rate: bool
    inference: Inference
    objective: Objective
    device: torch.device
    start: Trained | None
    address: str | None
    first: Request | None
    vae_epochs: int | None
    run: Run | None
    found: bool
    resume: bool
    overwrite: bool
    callbacks: Sequence[Callback]

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.cls.name


def read_request(
    method: str | type[Method] | Method,
    *,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    likelihood: str | Likelihood | None = None,
    prior: Any = None,
    init: Trained | str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    vae_epochs: int | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Request:
    """Check the arguments of `recmix.fit`, except the data. Writes no files.

    The arguments are those of `recmix.fit`.
    """
    if encoder is not None and decoder is not None:
        encoder, decoder = as_networks(encoder, decoder)
    _check_arguments(encoder, decoder, init, resume, overwrite, vae_epochs, callbacks)
    own, options = _own_parts(Own(encoder, decoder), options, likelihood=likelihood, prior=prior)
    given = read_options(method, options, REQUEST)
    cls, instance = given.cls, method if isinstance(method, Method) else None
    if instance:
        given = _with_instance(instance, given, options)
        own = Own(instance.base_encoder, instance.model.decoder, instance.model.likelihood)
    check_part_names(given.model)
    counts_classes = needs_classes(given.model)
    starts_from = cls.starts_from if init is None and instance is None else None
    # The model to start from gets its own copies of the user's networks.
    copies = own.copied() if starts_from or isinstance(init, str | Path) else own
    inference = Inference(**given.inference)
    run = None if out is None else Run(out)
    if run and not resume:
        run.check_free(overwrite=overwrite)
    first = None
    if starts_from:
        first = read_request(
            starts_from,
            **vars(copies) | {k: v for k, v in given.model.items() if k in PARTS and v},
            out=None if out is None else Path(out) / starts_from,
            resume=resume,
            overwrite=overwrite,
            **{k: v for k, v in given.model.items() if k not in PARTS},
            **given.training | {"epochs": vae_epochs, "learning_rate": None},
            **{k: v for k, v in given.inference.items() if k not in UNCALIBRATED},
        )
    training = Training(**given.training)
    if training.changes_kl and training.train == "curvature":
        name = "kl_warmup" if training.kl_warmup else "free_bits"
        raise ConfigError(f"{name} has no effect on train = 'curvature': use it for the first stage")
    model = given.model
    address = str(init) if is_hub_address(init) else None
    if isinstance(init, str | Path):
        init = load_trained(init, device=training.device, own=copies)
    if init is not None:
        if not instance:
            own = own.or_those_of(init.method.model, init.method.base_encoder, init.spec.model)
        changes_decoder = training.train == "all" and inference.how != "learned"
        if changes_decoder and "curvature" not in model:
            model = model | {"curvature": "none"}  # it would no longer fit the decoder
    continued, rate = init is not None or first is not None, training.learning_rate
    training = by_stage(training, cls, continued=continued)
    settings, auto = split_auto(given.method)
    return Request(
        cls=cls,
        instance=instance,
        label=row_label(cls, training, inference, init.spec if init else first),
        options=settings,
        auto=auto,
        model=model,
        counts_classes=counts_classes,
        own=own,
        training=training,
        usual_rate=continued and rate is None and training.train != "curvature",
        inference=inference,
        objective=_objective(training, inference),
        device=pick_device(training.device),
        start=init,
        address=address,
        first=first,
        vae_epochs=vae_epochs,
        run=run,
        found=run is not None and run.exists,
        resume=resume,
        overwrite=overwrite,
        callbacks=callbacks,
    )


def _check_arguments(
    encoder: Any, decoder: Any, init: Any, resume: bool, overwrite: bool, vae_epochs: Any, callbacks: Any
) -> None:
    if vae_epochs is not None and (not isinstance(vae_epochs, int) or isinstance(vae_epochs, bool)):
        raise ConfigError(f"vae_epochs must be a whole number, got {vae_epochs!r}")
    check_start(init)
    for name, module in (("encoder", encoder), ("decoder", decoder)):
        if module is not None and not isinstance(module, nn.Module):
            built_in = {"encoder": "network", "decoder": "decoder_network"}[name]
            hint = f": built-in networks have the option {built_in}" if isinstance(module, str) else ""
            raise ConfigError(f"{name} must be a torch.nn.Module, got {shown(module)}{hint}")
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other: continue a run, or replace it")
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise ConfigError(
            f"callbacks must be a list of functions of (epoch, metrics), got {shown(callbacks)}: write "
            "callbacks=[function]"
        )
    for callback in callbacks:
        try:
            inspect.signature(callback).bind(1, {})
        except TypeError as error:
            raise ConfigError(
                f"callbacks are called with (epoch, metrics), but {shown(callback)} takes other "
                f"arguments ({error}): write def callback(epoch, metrics)"
            ) from None
        except ValueError:  # the signature of some built-in functions is not known
            continue


def check_start(init: Any) -> None:
    """Raise a ConfigError if `init` has the wrong type for a model to start from.

    It must be a trained model, a run folder, an address on the Hugging Face Hub such as
    ``hf://user/name``, or None. It is not checked that the folder or the address exists.
    """
    if init is not None and not isinstance(init, str | Path) and not hasattr(init, "spec"):
        advice = "make a model of networks that were trained elsewhere with recmix.wrap"
        raise ConfigError(f"init must be a trained model or its folder, got {shown(init)}: {advice}")


def _own_parts(own: Own, options: dict[str, Any], **parts: Any) -> tuple[Own, dict[str, Any]]:
    """Sort the likelihood and the prior, which a user gives as objects or by name.

    Args:
        own: the user's own encoder and decoder.
        **parts: the likelihood and the prior as the user gave them.

    Returns:
        `own` with the parts that are objects, and `options` with the parts that are names.
    """
    names = {name: part for name, part in parts.items() if isinstance(part, str)}
    objects = {k: part for k, part in parts.items() if part is not None and k not in names}
    given = objects.get("likelihood")
    if given is not None and not isinstance(given, Likelihood):
        find_likelihood(given)  # raises the error
    return dataclasses.replace(own, **objects), options | names


def _with_instance(method: Method, given: Given, options: Mapping[str, Any]) -> Given:
    """Add the options of the user's method instance to the options that the user gave.

    The instance fixes the options of the method and of the model. Raise a ConfigError if the user gave
    one of these, too.

    Args:
        method: the instance.
        given: the user's options, sorted by `read_options`.
        options: the same options, not sorted.
    """
    for name in options:
        if name in given.method or name in given.model:
            raise ConfigError(
                f"{name} is already fixed by the {method.name} instance, got {name}={options[name]!r}: "
                "make the instance with it, or give the method's name or class"
            )
    model, known = method.model, method_options(method)
    dtype = str(model.centre.dtype).removeprefix("torch.")
    return given._replace(
        method={n: method.options.get(n, option.default) for n, option in known.items()},
        model={"latent": model.latent, "likelihood": model.likelihood.name},
        training={"dtype": dtype, **given.training},
    )


def _objective(training: Training, inference: Inference) -> Objective:
    """Return what one training step maximises: the method's own objective, with the user's changes."""
    changes: dict[str, Any] = {}
    if training.objective == "iwae":
        changes["iwae_samples"] = training.objective_samples
    if training.train == "curvature":
        changes["inference"] = VALIDATION
    elif inference.refine:
        changes["inference"] = inference.for_training
    if training.distil:
        teacher = dataclasses.replace(inference.uncalibrated, refine=training.distil_steps)
        changes |= {"distil": training.distil, "teacher": teacher}
    return Objective(**changes)


def by_stage(training: Training, cls: type[Method], *, continued: bool) -> Training:
    """Return the training options with defaults for epochs and learning rates that were not given.

    A training that starts from a trained model (`continued`) has other defaults than a new training.
    """
    usual = SECOND_STAGE if continued else FIRST_STAGE
    rate = training.learning_rate or usual["learning_rate"] * cls.rate_factor
    most = max(1.0, FIRST_STAGE["learning_rate"] / rate)  # new parameters learn at a first stage's rate
    fresh = min(cls.fresh_factor, most) if training.fresh_rate is None else training.fresh_rate
    epochs = training.epochs or int(usual["epochs"])
    return dataclasses.replace(training, epochs=epochs, learning_rate=rate, fresh_rate=fresh)
