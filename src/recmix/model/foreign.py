"""Adapters that use networks from other projects as the encoder and decoder of a `LatentModel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)
from torch.nn.modules.batchnorm import _BatchNorm

from recmix.errors import ConfigError

__all__ = [
    "ForeignDecoder",
    "ForeignEncoder",
    "as_decoder",
    "as_encoder",
    "check_module",
    "latent_shape",
    "tried",
]

MEANS = ("mean", "mu", "loc", "embedding", "z_mean", "qz_m")
LOG_VARIANCES = ("log_variance", "logvar", "log_var", "log_covariance", "z_log_var", "log_sigma2")
SCALES = ("scale", "std", "stddev", "sigma")
VARIANCES = ("variance", "var", "qz_v")
NESTED = ("latent_dist", "posterior", "distribution")
RECONSTRUCTIONS = ("reconstruction", "sample", "recon_x", "reconstructions", "x_hat", "logits")
ACCEPTED = (
    "expected a tensor (B, 2 D) with means and log-variances; a tuple (mean, log-variance); a dict or "
    "an object with a mean and one of log_variance, logvar, scale, std or variance; or a Gaussian "
    "distribution, such as torch.distributions.Normal or MultivariateNormal. A flow or a mixture is a "
    "method of recmix, see recmix methods"
)


class ForeignEncoder(nn.Module):
    """Adapter for an encoder from another project. It converts the encoder's output.

    The result is that of `read_posterior`: one tensor (B, 2 D) with the mean and log-variance of
    q(z | x), or a `MultivariateNormal` if the covariance is full.

    Args:
        network: the user's encoder. See `read_posterior` for the forms of its output.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any) -> Tensor | MultivariateNormal:
        """The posterior q(z | x) of the user's encoder: a tensor (B, 2 D) or a `MultivariateNormal`."""
        return read_posterior(self.network(x))


class ForeignDecoder(nn.Module):
    """Adapter for a decoder from another project. It maps z (N, D) to one tensor (N, *output).

    Args:
        network: the user's decoder. See `read_reconstruction` for the forms of its output.
        latent: the shape of z for one example that `network` takes, such as (4, 8, 8).
    """

    def __init__(self, network: nn.Module, latent: tuple[int, ...]) -> None:
        super().__init__()
        self.network = network
        self.latent = tuple(latent)

    def forward(self, z: Tensor) -> Tensor:
        """The decoder's output (N, *output) for N latent points z (N, D)."""
        return read_reconstruction(self.network(z.reshape(len(z), *self.latent)))


def as_encoder(network: nn.Module, example: Any) -> nn.Module:
    """Return the network itself if its output is one tensor (B, 2 D), else a `ForeignEncoder` around it.

    To see its output, the network is run on `example`, a batch of examples. Raise a `ConfigError` if
    the network fails or if its output is none of the forms of `read_posterior`.
    """
    check_module(network, "encoder")
    if isinstance(network, ForeignEncoder):
        return network
    out = tried(network, example, "encoder")
    if isinstance(out, Tensor) and out.ndim == 2 and out.shape[1] % 2 == 0:
        return network
    read_posterior(out)  # refuses what cannot be read
    return ForeignEncoder(network)


def as_decoder(network: nn.Module, latent: tuple[int, ...], like: Tensor) -> nn.Module:
    """Return the network itself if it maps z (N, D) to one tensor, else a `ForeignDecoder` around it.

    The network is run once on zeros. Raise a `ConfigError` if it fails.

    Args:
        network: the user's decoder.
        latent: the shape of z for one example that the network takes, such as (4, 8, 8).
        like: a tensor with the device and dtype that z must have.
    """
    check_module(network, "decoder")
    if isinstance(network, ForeignDecoder):
        return network
    z = torch.zeros(2, *latent, device=like.device, dtype=like.dtype)
    out = tried(network, z, "decoder")
    plain = isinstance(out, Tensor) and len(latent) == 1
    return network if plain else ForeignDecoder(network, latent)


def latent_shape(encoder: nn.Module, example: Any) -> tuple[int, ...]:
    """The shape of z for one example, taken from the mean that an encoder returns.

    The encoder is run on `example`, a batch of examples.
    """
    network = encoder.network if isinstance(encoder, ForeignEncoder) else encoder
    out = tried(network, example, "encoder")
    if isinstance(out, Tensor):
        if out.ndim != 2 or out.shape[1] % 2:
            raise ConfigError(f"the encoder gave a tensor of shape {tuple(out.shape)}; {ACCEPTED}")
        return (out.shape[1] // 2,)
    mean, _ = _mean_and_rest(out)
    return tuple(mean.shape[1:])


def read_posterior(out: Any) -> Tensor | MultivariateNormal:
    """Convert an encoder's output to the mean and log-variance of q(z | x), (B, 2 D).

    If the output is a Gaussian with a full covariance, return a `MultivariateNormal` instead.

    Args:
        out: a tensor (B, 2 D); a Gaussian of torch or recmix; a pair of mean and log-variance; or a
            dict or object that holds both under usual names, such as ``mu`` and ``logvar``.

    Raises:
        ConfigError: If the output has another form, or is a distribution that is not Gaussian.
    """
    out = _innermost(out)
    if isinstance(out, Tensor | MultivariateNormal):
        return out
    mean, log_variance = _mean_and_rest(out)
    return torch.cat([mean.flatten(1), log_variance.flatten(1)], 1)


def read_reconstruction(out: Any) -> Tensor:
    """Find the tensor of reconstructions (N, *output) in the output of a user's decoder.

    Args:
        out: a tensor; a torch distribution, whose mean is used; a tuple that begins with a tensor;
            or a dict or object that holds a tensor under one of the names in `RECONSTRUCTIONS`.
    """
    if isinstance(out, Tensor):
        return out
    if isinstance(out, Distribution):
        return out.mean
    if isinstance(out, tuple | list) and out and isinstance(out[0], Tensor):
        return out[0]
    for name in RECONSTRUCTIONS:
        found = _get(out, name)
        if isinstance(found, Tensor):
            return found
    raise ConfigError(
        f"the decoder gave a {type(out).__name__}; expected a tensor, a tuple that begins with one, or "
        f"a dict or object with one of {', '.join(RECONSTRUCTIONS)}"
    )


def _innermost(out: Any) -> Any:
    """Find the part of an encoder's output that holds the mean and variance.

    The result is `out` itself, or the content of an `Independent`, of a tuple or list whose only element
    is not a tensor, or of an object that holds the posterior under one of the names in `NESTED`. Other
    Gaussians with a full covariance are converted to a `MultivariateNormal`.
    """
    if isinstance(out, Tensor):
        return out
    if isinstance(out, Independent):
        return _innermost(out.base_dist)
    one = isinstance(out, tuple | list) and len(out) == 1 and _first(out, MEANS) is None
    if one and not isinstance(out[0], Tensor):
        return _innermost(out[0])
    for name in NESTED:
        if (inner := _get(out, name)) is not None and not isinstance(inner, Tensor):
            return _innermost(inner)
    return _with_full_covariance(out) if isinstance(out, Distribution) else out


def _with_full_covariance(out: Any) -> Any:
    """Convert torch's and recmix's Gaussians of another form with correlations to `MultivariateNormal`.

    Other distributions are returned unchanged.
    """
    ours = hasattr(out, "multiply")  # a Gaussian of recmix with correlations has it: the product L ε
    if isinstance(out, LowRankMultivariateNormal) or (ours and hasattr(out, "scale_tril")):
        return MultivariateNormal(out.mean, scale_tril=out.scale_tril, validate_args=False)
    if not ours:
        return out
    units = torch.eye(out.mean.shape[-1], dtype=out.mean.dtype, device=out.mean.device)
    factor = out.multiply(units[:, None].expand(-1, *out.mean.shape)).movedim(0, -1)  # L, (B, D, D)
    return MultivariateNormal(out.mean, factor @ factor.mT, validate_args=False)


def _mean_and_rest(out: Any) -> tuple[Tensor, Tensor]:
    """Find the mean and the log-variance, two tensors of one shape, in an encoder's output.

    Raise a `ConfigError` if the output does not hold them.
    """
    out = _innermost(out)
    if isinstance(out, MultivariateNormal):
        return out.mean, out.variance.log()
    if isinstance(out, Normal):
        return out.loc, 2 * out.scale.log()
    if isinstance(out, Distribution) and _first(out, LOG_VARIANCES) is None:
        raise ConfigError(f"the encoder gave a {type(out).__name__}; {ACCEPTED}")
    if isinstance(out, tuple | list) and _first(out, MEANS) is None:  # a named tuple is read by names
        tensors = all(isinstance(part, Tensor) for part in out)
        if len(out) == 2 and tensors and out[0].shape == out[1].shape:
            return out[0], out[1]
        parts = ", ".join(
            str(tuple(part.shape)) if isinstance(part, Tensor) else type(part).__name__ for part in out
        )
        raise ConfigError(
            f"the encoder gave a {type(out).__name__} of {len(out)} parts ({parts}); expected exactly "
            "two tensors of one shape, the mean and the log-variance: put the encoder into a module "
            "that returns these two, such as encoder(x)[1:] of (z, mean, log-variance)"
        )
    mean = _first(out, MEANS)
    if mean is not None:
        if (log_variance := _first(out, LOG_VARIANCES)) is not None:
            return mean, log_variance
        if (scale := _first(out, SCALES)) is not None:
            return mean, 2 * scale.log()
        if (variance := _first(out, VARIANCES)) is not None:
            return mean, variance.log()
    keys = f" with {', '.join(map(str, out))}" if isinstance(out, Mapping) else ""
    raise ConfigError(f"the encoder gave a {type(out).__name__}{keys}; {ACCEPTED}")


def _first(out: Any, names: tuple[str, ...]) -> Tensor | None:
    """Find a tensor in the dict or object `out` under one of these names, tried in order, or None."""
    for name in names:
        found = _get(out, name)
        if isinstance(found, Tensor):
            return found
    return None


def _get(out: Any, name: str) -> Any:
    return out.get(name) if isinstance(out, Mapping) else getattr(out, name, None)


def tried(network: nn.Module, given: Any, what: str) -> Any:
    """Run a user's network without gradients and return its output.

    Raise a `ConfigError` if the network fails, or if its batch normalisation uses statistics of the
    batch.

    Args:
        given: the input of the network.
        what: "encoder" or "decoder", for the message.
    """
    for part in network.modules():
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
            raise ConfigError(
                f"the {what} has batch normalisation in training mode, so its output for one example "
                f"depends on the others: call {what}.eval() first"
            )
    try:
        with torch.no_grad():
            return network(given)
    except ConfigError:  # it says already what is wrong
        raise
    except Exception as error:
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ConfigError(
            f"the {what} failed for an input of shape {shape}: {type(error).__name__}: {error}"
        ) from error


def check_module(network: Any, what: str) -> None:
    """Raise a `ConfigError` if the user's network is not a torch module.

    `what` is the name of the network in the message, "encoder" or "decoder".
    """
    if isinstance(network, nn.Module):
        return
    advice = "put a function into the forward method of a module"
    if isinstance(network, type):
        advice = f"give an object, such as {network.__name__}(...)"
    elif getattr(network, "__name__", "") == "forward":
        advice = "give the module itself and not its method"
    elif isinstance(getattr(network, "__self__", None), nn.Module):
        advice = (
            "put the method into a module of its own, whose forward method calls it (docs: "
            "bring_your_own_vae, 'One class with encode and decode')"
        )
    given = "a class" if isinstance(network, type) else type(network).__name__
    raise ConfigError(f"{what} must be a torch.nn.Module, got {given}: {advice}")
