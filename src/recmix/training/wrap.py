"""Make a `Trained` object from networks, or a method, that `recmix.fit` did not train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recmix.data.checks import same_axes, to_numpy
from recmix.data.requirements import check_values
from recmix.errors import ConfigError, shown
from recmix.methods.method import Method
from recmix.methods.method_options import method_options
from recmix.methods.registry import METHODS
from recmix.methods.vae import VAE
from recmix.model.assembly import OWN, Own, complete_options
from recmix.model.foreign import as_decoder, as_encoder, check_module, latent_shape
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian, Likelihood, find_likelihood
from recmix.model.network_checks import check_probabilities
from recmix.model.options import ModelOptions
from recmix.model.priors import as_prior
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.build import Trained
from recmix.training.one_module import as_networks, keep_used_parts
from recmix.training.suspicious import warn_if_misread

__all__ = ["wrap_method", "wrap_networks"]


def wrap_method(method: Method, label: str | None = None) -> Trained:
    """Make a `Trained` object from a method that a user's own loop trained. Nothing is copied.

    Args:
        method: the method, with the weights to use.
        label: the model's name in tables; by default the method's name in capital letters.
    """
    known = METHODS.get(method.name, type(method))
    if known is not type(method):
        raise ConfigError(
            f"the class {type(method).__name__} has the name {method.name!r} of the class "
            f"{known.__name__}, which would be loaded instead: give it a name of its own, as in "
            "name = 'mine'"
        )
    method_options(type(method))  # refuses options that are not keyword-only, which cannot be stored
    model = method.model
    given: dict[str, Any] = {"latent": model.latent}
    if model.curvature is not None:
        given["curvature"] = "low-rank" if model.curvature.rank else "full"
        given["curvature_rank"] = model.curvature.rank or None
    if model.spread is not None:
        given["standardise"] = "features"
    own = Own(method.base_encoder, model.decoder, model.likelihood, model.prior)
    spec = Spec(
        method=method.name,
        label=label or method.name.upper(),
        shape=model.shape,
        options={
            name: method.options.get(name, option.default)
            for name, option in method_options(method).items()
        },
        model=complete_options(given, shape=model.shape, fields=model.fields, own=own),
        data={"fields": model.fields.to_json()} if model.fields else {},
        training=Training(
            dtype=str(model.centre.dtype).removeprefix("torch."), device=str(model.centre.device)
        ),
        setting=method.setting,
    )
    method.eval()
    return Trained(method, spec)


def wrap_networks(
    encoder: Any,
    decoder: Any = None,
    *,
    likelihood: str | Likelihood,
    latent: int | tuple[int, ...] | None = None,
    prior: Any = None,
    example: Any = None,
    label: str = "VAE",
) -> Trained:
    """Make a `Trained` VAE from an encoder and a decoder that were trained without recmix.

    The networks are used as they are. `recmix.wrap` explains the arguments.
    """
    given_parts = [getattr(part, "__self__", part) for part in (encoder, decoder)]
    encoder, decoder = as_networks(encoder, decoder)
    check_module(encoder, "encoder")
    check_module(decoder, "decoder")
    like = next(
        (p for network in (encoder, decoder) for p in network.parameters() if p.is_floating_point()),
        torch.zeros(()),
    )
    seen = _batch(example, like, encoder)
    try:
        dims = _latent(encoder, latent, seen)
    except ConfigError as error:
        if seen is not None and (mistake := _likely_mistake(encoder, decoder, seen)):
            raise ConfigError(mistake) from error
        raise
    halves = Own(encoder, decoder)
    decoder = _decoder(decoder, dims, like)
    size = math.prod(dims)
    with torch.no_grad():
        decoded: Tensor = decoder(torch.zeros(2, size, device=like.device, dtype=like.dtype))
    given = tuple(decoded.shape[1:])
    if seen is not None and same_axes(given, seen.shape[1:]) and given != tuple(seen.shape):
        seen = _accepted(encoder, seen.reshape(-1, *given), seen)
    shape = given if seen is None else tuple(seen.shape[1:])
    seen = torch.zeros(2, *shape).to(like) if seen is None else seen
    keep_used_parts(halves, shape, size)
    encoder = as_encoder(encoder, seen)
    density = _likelihood(likelihood, shape)
    expected = density.output_shape(shape)
    if given != expected:
        advice = "give another likelihood, or change the decoder"
        if example is None:
            advice = "give an example"
        elif given == tuple(seen.shape):
            advice = f"example is one example and not a batch: use example[None], of shape {(1, *given)}"
        elif math.prod(given) == math.prod(expected):
            advice = f"end the decoder with torch.nn.Unflatten(1, {expected})"
        raise ConfigError(
            f"the decoder gives {given} for one latent point, but the {density.name} likelihood needs "
            f"{expected} for examples of shape {shape}: {advice}"
        )
    check_probabilities(decoder, density, size, like)
    check_values(seen.numpy(force=True), density.requirement, density.name, what="example")
    model = LatentModel(decoder, density, latent=size, shape=shape, prior=as_prior(prior, size))
    method = VAE(model.to(like.device, like.dtype), encoder)
    method.eval()
    for part in given_parts:  # also the root of a whole VAE, of which `method` has a copy
        if isinstance(part, nn.Module):
            part.eval()
    warn_if_misread(method, seen)
    variance = None
    if isinstance(density, Gaussian) and not density.learned:
        # The shortest number with the same value: 0.02, not 0.019999999552965164.
        variance = float(str(density.variance.mean().numpy(force=True)))
    options = ModelOptions(
        latent=size,
        likelihood=density.name if density.named else OWN,
        network=OWN,
        decoder_network=OWN,
        prior="standard" if model.prior.standard else OWN,
        standardise="none",
        variance=variance,
    )
    training = Training(dtype=str(like.dtype).removeprefix("torch."), device=str(like.device))
    spec = Spec(method="vae", label=label, shape=shape, model=options, training=training)
    return Trained(method, spec)


def _decoder(decoder: nn.Module, dims: tuple[int, ...], like: Tensor) -> nn.Module:
    """Return the decoder as a module that maps z (N, D) to one tensor, see `as_decoder`.

    Raise a ConfigError if the decoder does not accept z of the shape `dims` per example. If the probable
    reason is that the encoder returns means only, the message says this.

    Args:
        like: a tensor with the device and dtype of the networks.
    """
    try:
        return as_decoder(decoder, dims, like)
    except ConfigError as error:
        both = 2 * dims[0]
        try:
            as_decoder(decoder, (both, *dims[1:]), like)
        except ConfigError:
            raise error from None
        raise ConfigError(
            f"the {both} outputs of the encoder are read as {dims[0]} means and {dims[0]} "
            f"log-variances, but the decoder takes z with {both} dimensions: does the encoder return "
            "means only? It must return the means and the log-variances"
        ) from error


def _likely_mistake(encoder: nn.Module, decoder: nn.Module, seen: Tensor) -> str:
    """Return a text that says which common mistake explains that the encoder rejects the examples.

    The mistakes are a missing batch axis, and encoder and decoder in the wrong order. The text is "" if
    neither of them explains it.

    Args:
        seen: the user's examples (B, ...).
    """
    given = f"examples of shape {tuple(seen.shape)}"
    missing = f"the encoder does not accept {given}, but it accepts them with one more dimension"
    swapped = f"the encoder does not accept {given}, but the decoder does"
    for network, x, mistake in (
        (encoder, seen[None], f"{missing}: the first is that of the batch, so use example[None]"),
        (decoder, seen, f"{swapped}: are they swapped? Call wrap(encoder, decoder, ...)"),
    ):
        try:
            latent_shape(network, x)
        except ConfigError:
            continue
        return mistake
    return ""


def _batch(example: Any, like: Tensor, encoder: nn.Module) -> Tensor | None:
    """Return the user's examples (B, ...) with the device and dtype of `like`; None if none were given.

    uint8 values are divided by 255. Axes of size 1 are removed if the encoder accepts the examples only
    without these axes.
    """
    if example is None:
        return None
    array = example if isinstance(example, Tensor) else to_numpy(example, "example")
    if isinstance(example, list | tuple) and isinstance(example[0], Tensor):
        raise ConfigError(
            f"example is a {type(example).__name__} of tensors; expected one batch (B, ...): give "
            "example[0] if this is a batch, or torch.stack(example)"
        )
    given = torch.as_tensor(array)
    seen = given.to(like.device, like.dtype) / (255 if given.dtype == torch.uint8 else 1)
    if seen.ndim < 2:
        raise ConfigError(
            f"example has shape {tuple(seen.shape)}; expected a batch (B, ...): use example[None]"
        )
    sizes = [size for size in seen.shape[1:] if size != 1]
    return _accepted(encoder, seen, seen.reshape(-1, *sizes)) if sizes else seen


def _accepted(encoder: nn.Module, first: Tensor, second: Tensor) -> Tensor:
    """Return `first`, or return `second` if the encoder accepts only `second`.

    Both are the same examples, in two shapes.
    """
    for x in (first, second):
        try:
            latent_shape(encoder, x)
        except ConfigError:
            continue
        return x
    return first


def _latent(
    encoder: nn.Module, latent: int | tuple[int, ...] | None, seen: Tensor | None
) -> tuple[int, ...]:
    """Return the shape of the latent variable z of one example.

    Args:
        latent: the dimension or shape of z that the user gave, if any.
        seen: a batch of examples for the encoder, if there is one.
    """
    given = (latent,) if isinstance(latent, int) else latent
    if given is not None and not (
        isinstance(given, Sequence) and given and all(isinstance(n, int) and n > 0 for n in given)
    ):
        raise ConfigError(
            f"latent must be the dimension of z, such as 4, or its shape, such as (4, 2, 2), got "
            f"{shown(latent)}"
        )
    if seen is None:
        if given is None:
            raise ConfigError(
                "the shapes of x and z are not known: give example=x, a batch of a few examples, or "
                "latent=, the dimension of z"
            )
        return given
    found = latent_shape(encoder, seen)
    if given is not None and math.prod(given) != math.prod(found):
        raise ConfigError(f"latent is {latent}, but the encoder gives means of shape {found}")
    return given if given is not None and len(given) > 1 else found


def _likelihood(likelihood: str | Likelihood, shape: tuple[int, ...]) -> Likelihood:
    """Return the likelihood object for examples of this shape.

    Raise a ConfigError for the name of a Gaussian likelihood, because a name does not say the variance.
    The user must give a Gaussian object with a variance instead.
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    kind = find_likelihood(likelihood)
    if issubclass(kind, Gaussian):
        raise ConfigError(
            f"the {likelihood} likelihood has a variance that the networks do not say: give "
            "recmix.likelihoods.Gaussian(variance), with the variance that the VAE was trained with. A "
            "VAE trained with the squared error Σ(x - x̂)² has ½, one trained with ½ Σ(x - x̂)² has 1"
        )
    return kind.for_data(shape)
