"""The public functions `fit`, `fit_many`, `fit_preset`, `wrap` and `load`. They return a `Model`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from recmix.api.model import Model
from recmix.api.trained_posterior import SeenValues
from recmix.errors import ConfigError, check_arguments
from recmix.methods.method import Method
from recmix.methods.registry import METHODS
from recmix.model.assembly import OWN, Own
from recmix.model.likelihoods import Likelihood, find_likelihood
from recmix.runs.hub import open_run
from recmix.training.build import Trained, load_trained
from recmix.training.curvature_request import CURVATURE
from recmix.training.fit import train_models
from recmix.training.one_module import as_networks
from recmix.training.presets import Preset, train_preset
from recmix.training.request import Callback
from recmix.training.wrap import wrap_method, wrap_networks

__all__ = ["fit", "fit_many", "fit_preset", "load", "wrap"]


@check_arguments
def fit(
    method: str | type[Method] | Method,
    data: Any,
    *,
    init: Model | str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    likelihood: str | Likelihood | None = None,
    prior: Any = None,
    vae_epochs: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **options: Any,
) -> Model:
    """Train a method and return the model of the epoch with the best validation score.

    Args:
        method: a name from ``recmix methods``, a `Method` class, or an instance.
        data: a data set: its name, a path, arrays, tensors, a torch Dataset, a DataLoader or a list
            of sentences; see `recmix.data.as_data`. Missing validation and test parts are held out
            of it, a tenth each. If `data` are training examples only, give
            ``recmix.data.from_arrays(x, hold_out_test=False)``.
        init: a trained model to start from, or its folder, or its address ``hf://user/name``. If the
            method needs a trained model and `init` is None, a VAE is trained first, in the folder
            ``vae`` of `out`.
        out: folder in which the run is stored; without it nothing is written.
        resume: continue the run stored in `out`, if there is one.
        overwrite: replace the run stored in `out`.
        encoder: your own module, from examples (B, ...) to (B, 2 · latent dimension), or with
            another kind of output that `wrap` accepts. Its weights are changed in place.
        decoder: your own module, from (N, latent dimension) to (N, ...). Its weights are changed in
            place.
        likelihood: p(x | z), a name or an object; by default one that suits the data.
        prior: p(z), a name or an object; by default N(0, I).
        vae_epochs: number of epochs of the VAE that is trained first, if there is one.
        callbacks: functions called with (epoch, metrics) after each epoch.
        progress: False shows nothing. Otherwise a bar in a terminal or a notebook, and elsewhere a
            line every 15 seconds; True also prints a line at the end of a shorter training.
        **options: options of the method, of the model (`recmix.model.options.ModelOptions`), of
            training (`recmix.runs.training_options.Training`) and of inference
            (`recmix.Inference`).
    """
    request = {k: v for k, v in locals().items() if k not in ("options", "progress")}
    _check_order(method, data)
    return fit_many([request | options], progress=progress)[0]


@check_arguments
def fit_many(requests: Sequence[dict[str, Any]], *, progress: bool | None = None) -> list[Model]:
    """Train many models: on a GPU all at once in one process, elsewhere one after the other.

    Each model has its own data, order of the data and random numbers. So the result is the same as if
    each model were trained alone. The models may have different data, seeds, options and methods.

    Args:
        requests: for each model the keyword arguments of `fit`, ``method`` and ``data`` included.
        progress: as in `fit`.

    Raises:
        NonFiniteError: if the training of a model failed; raised when the other models are done.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).random((30, 1, 8, 8), np.float32)
    >>> models = fit_many([{"method": "vae", "data": x, "epochs": 1, "seed": s} for s in range(2)])
    >>> len(models)
    2
    """
    trained = train_models([_with_start(request) for request in requests], progress=progress)
    return [_model(found) for found in trained]


@check_arguments
def fit_preset(
    preset: str | Path | Preset, data: Any, *, progress: bool | None = None, **arguments: Any
) -> Model:
    """Train the stages of a preset one after the other, and return the model of the last stage.

    A preset is a stored list of training stages with their options.

    Args:
        preset: the name of a preset (``best``, ``paper``), the path of a TOML file of your own, or a
            `Preset`.
        data: the data set, in any form that `fit` takes.
        progress: as in `fit`.
        **arguments: further arguments of `fit`. Options of the model apply to the first stage, from
            which later stages take the model. Options of the method, of training and of inference apply
            to the last stage. The options seed, device, dtype, engine, deterministic, checkpoint_every
            and tensorboard apply to all stages.
    """
    return _model(train_preset(preset, data, progress=progress, **_with_start(arguments)))


@check_arguments
def wrap(
    encoder: Any,
    decoder: Any = None,
    *,
    likelihood: str | Likelihood | None = None,
    latent: int | tuple[int, ...] | None = None,
    prior: Any = None,
    example: Any = None,
    label: str | None = None,
) -> Model:
    """Make a `Model` of a VAE that was trained elsewhere: an encoder and a decoder, or one module.

    If the VAE is one module with the methods `encode` and `decode`, write ``wrap(vae, ...)``. Methods
    with other names are given as ``wrap(vae.infer, vae.generate, ...)``. A `recmix.methods.Method` that
    your own loop trained contains everything: write ``wrap(method)``.

    Nothing is trained or copied. The result does all that a fitted model does: `log_likelihood`,
    `gap`, `refined`, `calibrated`, `export`, `save`, and it can be the `init` of `fit`. The
    networks are set to evaluation mode. x is used as it is given: bring it into the form that the
    networks were trained on.

    Args:
        encoder: module from x (B, ...) to q(z | x). It gives a tensor (B, 2 D) with means and
            log-variances; or a tuple of the two; or a dict or object with a mean and a
            log-variance, scale or variance; or a Normal or MultivariateNormal of
            `torch.distributions`. A method of a module can be given, too.
        decoder: module or method from z (N, D), or z of the shape of the encoder's mean, to the
            parameters of p(x | z).
        likelihood: p(x | z) as a function of the decoder's output: a name such as ``bernoulli``, or
            an object such as ``recmix.likelihoods.Gaussian(0.1)``. Only ``wrap(method)`` needs none.
        latent: the dimension or shape of z; needed only without an example.
        prior: p(z): None for N(0, I), a distribution, or a module with `log_prob` and `sample`.
        example: a batch of a few examples (B, ...), from which all shapes are read.
        label: the model's name in tables; by default ``VAE``, or the name of the method.

    >>> import torch
    >>> encoder, decoder = nn.Linear(6, 4), nn.Linear(2, 6)
    >>> model = wrap(encoder, decoder, likelihood="bernoulli", example=torch.zeros(1, 6))
    >>> model.log_likelihood(torch.ones(3, 6)).shape
    torch.Size([3])
    """
    if isinstance(encoder, Method):
        more = {"decoder": decoder, "likelihood": likelihood, "latent": latent, "prior": prior}
        more["example"] = example
        if given := [name for name, value in more.items() if value is not None]:
            raise ConfigError(
                f"a {encoder.name} method needs no {', '.join(given)}: write recmix.wrap(method)"
            )
        return _model(wrap_method(encoder, label))
    if isinstance(encoder, Model):
        raise ConfigError("this is a recmix.Model already: use it as it is")
    if likelihood is None:
        raise ConfigError(
            "wrap needs likelihood=, how the decoder's output gives p(x | z): a name such as "
            "'bernoulli', or an object such as recmix.likelihoods.Gaussian(0.1)"
        )
    found = wrap_networks(
        encoder,
        decoder,
        likelihood=likelihood,
        latent=latent,
        prior=prior,
        example=example,
        label=label or "VAE",
    )
    return _model(found, None if example is None else SeenValues(example))


@check_arguments
def load(
    folder: str | Path,
    encoder: Any = None,
    decoder: Any = None,
    *,
    device: str = "auto",
    likelihood: str | Likelihood | None = None,
    prior: Any = None,
    method: type[Method] | None = None,
) -> Model:
    """Load a trained model from its folder. Nothing in the folder is executed.

    Args:
        folder: a folder written by `fit`, `Model.save` or ``recmix train``; or the address of a run
            on the Hugging Face Hub, such as ``hf://user/name`` or ``hf://user/name@revision``.
        encoder: if the model has an encoder of your own: a module of the same class, or what was given
            to `wrap`, such as a whole VAE. Its weights are replaced.
        decoder: your own decoder, if the model has one; given like `encoder`.
        device: the device on which to put the model.
        likelihood: your own likelihood, if the model has one; given like `encoder`. The name of the
            stored likelihood is accepted and has no effect.
        prior: your own prior, if the model has one; given like `encoder`.
        method: the class of the method, if it is not registered.
    """
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        _check_name(likelihood, folder)
        likelihood = None
    if encoder is not None and (decoder is not None or hasattr(encoder, "decode")):
        encoder, decoder = as_networks(encoder, decoder)
    own = Own(encoder, decoder, likelihood, prior)
    return _model(load_trained(folder, device=device, own=own, method=method))


def _check_name(likelihood: str, folder: str | Path) -> None:
    """Raise a ConfigError unless `likelihood` is the name of the likelihood of the run in `folder`."""
    find_likelihood(likelihood)
    stored = open_run(folder).spec().model.likelihood
    if likelihood != stored:
        advice = "give the object" if stored == OWN else "leave likelihood out"
        raise ConfigError(
            f"likelihood is {likelihood!r}, but the run in {folder} has {stored!r}: {advice}"
        )


def _check_order(method: Any, data: Any) -> None:
    """Raise a ConfigError if the name of a method was given in the place of the data."""
    known = not isinstance(method, str) or method in METHODS or method == CURVATURE
    if isinstance(data, str) and data in METHODS and not known:
        raise ConfigError(
            f"the method comes first, then the data: write fit({data!r}, {method!r}), got "
            f"fit({method!r}, {data!r})"
        )


def _with_start(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `fit` with the training result inside `init`, if `init` is a model."""
    init = arguments.get("init")
    return {**arguments, "init": init._trained()} if isinstance(init, Model) else arguments


def _model(trained: Trained, seen: SeenValues | None = None) -> Model:
    method, spec = trained.method.eval(), trained.spec
    return Model(method, spec, trained.history, trained.folder, trained.vocabulary, seen)
