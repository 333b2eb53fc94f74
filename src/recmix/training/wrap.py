"""Make a `Trained` object from networks that were trained elsewhere. They are not trained here."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.methods.vae import VAE
from recmix.model.assembly import OWN
from recmix.model.foreign import as_decoder, as_encoder, latent_shape
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli, Gaussian, Likelihood, find_likelihood
from recmix.model.options import ModelOptions
from recmix.model.priors import as_prior
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.build import Trained

__all__ = ["wrap_networks"]


def wrap_networks(
    encoder: nn.Module,
    decoder: nn.Module,
    *,
    likelihood: str | Likelihood,
    latent: int | tuple[int, ...] | None = None,
    prior: Any = None,
    example: Any = None,
    label: str = "VAE",
) -> Trained:
    """Make a `Trained` VAE from a user's encoder and decoder; see `recmix.wrap` for the arguments."""
    like = next(
        (p for network in (encoder, decoder) for p in network.parameters() if p.is_floating_point()),
        torch.zeros(()),
    )
    seen = _batch(example, like)
    dims = _latent(encoder, latent, seen)
    decoder = as_decoder(decoder, dims, like)
    size = math.prod(dims)
    with torch.no_grad():
        decoded: Tensor = decoder(torch.zeros(2, size, device=like.device, dtype=like.dtype))
    shape = tuple(decoded.shape[1:]) if seen is None else tuple(seen.shape[1:])
    encoder = as_encoder(encoder, torch.zeros(2, *shape).to(like) if seen is None else seen)
    density = _likelihood(likelihood, shape)
    expected = density.output_shape(shape)
    if tuple(decoded.shape[1:]) != expected:
        raise ConfigError(
            f"the decoder gives {tuple(decoded.shape[1:])} for one latent point, but the {density.name} "
            f"likelihood needs {expected} for examples of shape {shape}: "
            + ("give an example" if seen is None else "give another likelihood, or change the decoder")
        )
    if type(density) is Bernoulli and bool(((decoded > 0) & (decoded < 1)).all()):
        raise ConfigError(
            "the Bernoulli likelihood needs logits, but all outputs of the decoder lie between 0 and 1: "
            "if it ends in a sigmoid, use likelihood='bernoulli-probabilities'"
        )
    model = LatentModel(decoder, density, latent=size, shape=shape, prior=as_prior(prior, size))
    method = VAE(model.to(like.device, like.dtype), encoder)
    method.eval()
    variance = None
    if isinstance(density, Gaussian) and not density.learned:
        variance = float(density.variance.mean())
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


def _batch(example: Any, like: Tensor) -> Tensor | None:
    """Return the user's examples (B, ...) with the device and dtype of `like`, if any were given."""
    if example is None:
        return None
    seen = torch.as_tensor(example).to(like.device, like.dtype)
    if seen.ndim < 2:
        raise ConfigError(
            f"example has shape {tuple(seen.shape)}; expected a batch (B, ...): use example[None]"
        )
    return seen


def _latent(
    encoder: nn.Module, latent: int | tuple[int, ...] | None, seen: Tensor | None
) -> tuple[int, ...]:
    """Return the shape of the latent variable z of one example.

    Args:
        encoder: the user's encoder.
        latent: the shape or dimension of z that the user gave, if any.
        seen: a batch of examples, from which the shape is found by calling the encoder, if any.
    """
    given = (latent,) if isinstance(latent, int) else latent
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

    The name of a Gaussian likelihood is refused, because its variance is not known. The user must
    give a Gaussian object with a variance instead.
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
