"""The latent variable model p(x, z) = p(z) p(x | z)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recmix.model.priors import Prior, StandardNormal, standard_normal

if TYPE_CHECKING:
    from recmix.model.fields import Fields
    from recmix.model.likelihoods import Likelihood

__all__ = ["LatentModel", "standard_normal"]


class LatentModel(nn.Module):
    """p(x, z) = p(z) p(x | z).

    Shapes: the sample axis comes first. z is (S, B, D), examples x are (B, *shape). Log densities are in
    nats, (S, B), and are densities of x as it is given.

    Networks and the likelihood see `observed(x)`: x with the training mean subtracted, if the likelihood
    is centred; then divided by `spread`, if there is one; as a dict of tensors, if there are `fields`.
    `decode` undoes the first two.

    Args:
        decoder: (N, D) -> (N, *output), where `output` is the likelihood's `output_shape`.
        likelihood: p(x | decoder output).
        latent: D, the dimension of z.
        shape: of an example.
        centre: the training mean, of this shape; ignored unless the likelihood is centred.
        spread: the standard deviation of each value, of this shape; None does not divide.
        prior: p(z); None is N(0, I).
        fields: names and shapes of the parts of an example, if it has several; x is then (B, P).
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
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.likelihood = likelihood
        self.prior = prior or StandardNormal(latent)
        self.latent = latent
        self.shape = tuple(shape)
        self.fields = fields
        if not self.likelihood.centred or centre is None:
            centre = torch.zeros(self.shape)
        self.register_buffer("centre", centre.detach().clone())
        self.register_buffer("spread", None if spread is None else spread.detach().clone())

    @property
    def shift(self) -> Tensor | None:
        """The mean that is subtracted from x, of shape `shape`, or None."""
        return self.centre if self.likelihood.centred else None

    def observed(self, x: Tensor) -> Any:
        """x (B, *shape) as networks and the likelihood see it."""
        seen = self.standardised(x)
        return seen if self.fields is None else self.fields.unpack(seen)

    def standardised(self, x: Tensor) -> Tensor:
        """x (B, *shape) centred and divided by `spread`, as one tensor also where there are fields."""
        if self.likelihood.centred:
            x = x - self.centre
        return x if self.spread is None else x / self.spread

    def decoder_output(self, z: Tensor) -> Tensor:
        """The decoder's raw output for z (S, B, D): (S, B, *output)."""
        out: Tensor = self.decoder(z.flatten(0, -2))
        return out.view(*z.shape[:-1], *out.shape[1:])

    def decode(self, z: Tensor) -> Tensor:
        """E[x | z] in the range of the data: (..., D) -> (..., *shape)."""
        mean = self.likelihood.mean(self.decoder_output(z))
        if self.spread is not None:
            mean = mean * self.spread
        return mean + self.centre if self.likelihood.centred else mean

    def log_density(self, observed: Any, decoded: Tensor) -> Tensor:
        """log p(x | z) for `observed(x)` and decoder outputs (S, B, *output): (S, B)."""
        found = self.likelihood.log_prob(observed, decoded)
        return found if self.spread is None else found - self.spread.log().sum()

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z): x (B, *shape), z (S, B, D) -> (S, B)."""
        return self.log_density(self.observed(x), self.decoder_output(z))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z): x (B, *shape), z (S, B, D) -> (S, B)."""
        return self.log_conditional(x, z) + self.prior.log_prob(z)

    def kl(self, posterior: Any, z: Tensor, log_q: Tensor | None = None) -> Tensor:
        """KL(q || p(z)) of a posterior: a closed form (B,) or (1, B), or an estimate (S, B).

        Args:
            posterior: a `recmix.Posterior`.
            z: samples of it (S, B, D).
            log_q: their log densities (S, B), if they are known.
        """
        if self.prior.standard:
            found: Tensor = posterior.kl_to_prior(z, z if log_q is None else log_q)
            return found
        found = posterior.log_prob(z) if log_q is None else log_q
        return found - self.prior.log_prob(z)

    def with_noise(self, noise: float) -> LatentModel:
        """The same model with its likelihood's `tempered` noise; networks and parameters are shared.

        This is another model of the data: it has another p(x).
        """
        if noise == 1:
            return self
        made = copy.copy(self)
        made._modules = dict(self._modules) | {"likelihood": self.likelihood.tempered(noise)}
        return made

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """E[x | z] for n draws of z from the prior, (n, *shape)."""
        return self.decode(self.prior.sample(n, generator=generator))
