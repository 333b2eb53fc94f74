"""The latent variable model p(x, z) = p(z) p(x | z)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError, DataError, shown
from recmix.model.encoder_decoder import evaluation_mode
from recmix.model.priors import Prior, StandardNormal, standard_normal

if TYPE_CHECKING:
    from recmix.model.curvature_network import CurvatureNetwork
    from recmix.model.fields import Fields
    from recmix.model.likelihoods import Likelihood

__all__ = ["LatentModel", "decode_bytes", "standard_normal"]


class LatentModel(nn.Module):
    """A latent variable model p(x, z) = p(z) p(x | z).

    Shapes: B is the number of examples, S the number of samples of z for each example, D the dimension
    of z. The sample axis comes first: z is (S, B, D), examples x are (B, *shape). Log densities are in
    nats, (S, B). They are densities of x before any centring or scaling.

    The networks and the likelihood get `observed(x)`, which is x after up to three changes. If the
    likelihood is centred, the training mean is subtracted. If there is a `spread`, the result is divided
    by it. If there are `fields`, the result is split into a dict of tensors. `decode` reverses the first
    two changes.

    Args:
        decoder: maps (N, D) to (N, *output), where `output` is the likelihood's `output_shape`.
        likelihood: p(x | z) as a function of the decoder's output.
        latent: D, the dimension of z.
        shape: shape of an example.
        centre: the training mean, with the shape of an example; ignored unless the likelihood is
            centred.
        spread: the standard deviation of each value, with the shape of an example; None means no
            division.
        prior: p(z); None means N(0, I).
        fields: names and shapes of the fields of an example, if it has several. Then x is (B, P), where
            P is the number of values of all fields together.
        curvature: a network that predicts the posterior's covariance near z, for the refinement
            ``learned``. It is not part of p(x, z).
    """

    centre: Tensor
    spread: Tensor | None

    def __init__(
        self,
        decoder: nn.Module,
        likelihood: Likelihood,
        *,
        latent: int,
        shape: tuple[int, ...],
        centre: Tensor | None = None,
        spread: Tensor | None = None,
        prior: Prior | None = None,
        fields: Fields | None = None,
        curvature: CurvatureNetwork | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(likelihood, nn.Module):
            raise ConfigError(
                f"likelihood must be an object, such as recmix.likelihoods.Bernoulli(), got "
                f"{shown(likelihood)}"
            )
        self.decoder = decoder
        self.likelihood = likelihood
        self.prior = prior or StandardNormal(latent)
        self.curvature = curvature
        self.latent = latent
        self.shape = tuple(shape)
        self.fields = fields
        if not self.likelihood.centred or centre is None:
            centre = torch.zeros(self.shape)
        self.register_buffer("centre", centre.detach().clone())
        self.register_buffer("spread", None if spread is None else spread.detach().clone())

    @property
    def shift(self) -> Tensor | None:
        """The training mean that is subtracted from x, or None if the likelihood is not centred."""
        return self.centre if self.likelihood.centred else None

    def observed(self, x: Tensor) -> Any:
        """Convert examples x (B, *shape) to the form that the networks and the likelihood take.

        The result is that of `standardised`. If the model has `fields`, this tensor is split into a dict
        with one tensor for each field.
        """
        if not isinstance(x, Tensor) or x.shape[1:] != self.shape:
            raise DataError(_wrong_batch(x, self.shape))
        seen = self.standardised(x)
        return seen if self.fields is None else self.fields.unpack(seen)

    def standardised(self, x: Tensor) -> Tensor:
        """Subtract the training mean from examples x (B, *shape) and divide by `spread`: (B, *shape).

        The mean is subtracted only if the likelihood is centred. If `spread` is None, nothing is
        divided.
        """
        if self.likelihood.centred:
            x = x - self.centre
        return x if self.spread is None else x / self.spread

    def decoder_output(self, z: Tensor) -> Tensor:
        """The decoder's output, (S, B, *output), for latent points z (S, B, D).

        The output holds the parameters of p(x | z), such as logits. S is the number of samples of z for
        each of the B examples.
        """
        out: Tensor = self.decoder(z.flatten(0, -2))
        return out.reshape(*z.shape[:-1], *out.shape[1:])

    def decode(self, z: Tensor) -> Tensor:
        """The mean E[x | z], (..., *shape), for latent points z (..., D), in the units of the data.

        Some likelihoods give something else, see their method `mean`: for example, the probabilities of
        the classes, (..., *shape, K), if the values are classes.
        """
        mean = self.likelihood.mean(self.decoder_output(z))
        if self.spread is not None:
            mean = mean * self.spread
        return mean + self.centre if self.likelihood.centred else mean

    def log_density(self, observed: Any, decoded: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), from decoder outputs that are already computed.

        Args:
            observed: the result of `observed(x)` for B examples.
            decoded: the result of `decoder_output(z)`, (S, B, *output), for S samples of z for each
                example.
        """
        found = self.likelihood.log_prob(observed, decoded)
        return found if self.spread is None else found - self.spread.log().sum()

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z) in nats, (S, B), for examples x (B, *shape) and latent points z (S, B, D).

        S is the number of samples of z for each of the B examples.
        """
        found = self.log_density(self.observed(x), self.decoder_output(z))
        if found.shape != z.shape[:-1]:
            raise ConfigError(
                f"log_prob of the likelihood {type(self.likelihood).__name__} gave shape "
                f"{tuple(found.shape)} for z of shape {tuple(z.shape)}: expected {tuple(z.shape[:-1])}, "
                "one number for each latent point; recmix.likelihoods.sum_event sums over an example"
            )
        return found

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z) in nats, (S, B), for examples x (B, *shape) and latent points z (S, B, D).

        S is the number of samples of z for each of the B examples.
        """
        return self.log_conditional(x, z) + self.prior.log_prob(z)

    def with_noise(self, noise: float) -> LatentModel:
        """Make a model like this one, but multiply the noise of the likelihood by the factor `noise`.

        The noise is, for example, the variance of a Gaussian likelihood; see `Likelihood.tempered`. The
        new model shares its networks with this one, but its p(x) is different. If `noise` is 1, this
        model itself is returned.
        """
        if noise == 1:
            return self
        made = copy.copy(self)
        made._modules = dict(self._modules) | {"likelihood": self.likelihood.tempered(noise)}
        return made

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n latent points z from the prior and return the means E[x | z], (n, *shape)."""
        return self.decode(self.prior.sample(n, generator=generator))


def _wrong_batch(x: Any, shape: tuple[int, ...]) -> str:
    """The text of the error for a batch x that is not a tensor (B, *shape)."""
    expected = f"a tensor (B, {', '.join(map(str, shape))})"
    if isinstance(x, list | tuple) and x and isinstance(x[0], Tensor):
        return (
            f"expected a batch of examples, {expected}, got a {type(x).__name__} of {len(x)} tensors: "
            "if a DataLoader gives [examples, labels], use the first: x[0]"
        )
    if not isinstance(x, Tensor):
        return f"expected a batch of examples, {expected}, got {shown(x)}: use torch.as_tensor(x)"
    advice = "use x[None]" if x.shape == shape else "the model was made for examples of that shape"
    return f"expected a batch of examples, {expected}, got a tensor of shape {tuple(x.shape)}: {advice}"


def decode_bytes(model: LatentModel) -> int:
    """Estimate the memory, in bytes, for computing log p(x | z) for one latent vector z.

    The layers of the decoder and of the likelihood are run once, and the sizes of their outputs are
    added. For the formula of the likelihood, four times the size of the decoder's output is added. If
    the likelihood has a network, it is four times the size of the largest of all layer outputs.
    """
    total = largest = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total, largest
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, Tensor):
                size = tensor.numel() * tensor.element_size()
                total, largest = total + size, max(largest, size)

    networks = [model.decoder, *model.likelihood.children()]
    leaves = [m for network in networks for m in network.modules() if not list(m.children())]
    hooks = [m.register_forward_hook(count) for m in leaves]
    try:
        with evaluation_mode(model), torch.no_grad():
            z = torch.zeros(1, 1, model.latent, device=model.centre.device, dtype=model.centre.dtype)
            decoded = model.decoder_output(z)
            if len(networks) > 1:
                x = torch.zeros(1, *model.shape, device=z.device, dtype=z.dtype)
                model.log_density(model.observed(x), decoded)
    finally:
        for hook in hooks:
            hook.remove()
    own = largest if len(networks) > 1 else decoded.numel() * decoded.element_size()
    return total + 4 * own  # for the likelihood
