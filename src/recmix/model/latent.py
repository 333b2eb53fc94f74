"""The latent variable model p(x, z) = p(z) p(x | z)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recmix.model.priors import Prior, StandardNormal, standard_normal

if TYPE_CHECKING:
    from recmix.model.curvature_network import CurvatureNetwork
    from recmix.model.fields import Fields
    from recmix.model.likelihoods import Likelihood

__all__ = ["LatentModel", "standard_normal"]


class LatentModel(nn.Module):
    """A latent variable model p(x, z) = p(z) p(x | z).

    Shapes: B is the number of examples, S the number of samples of z for each example, D the
    dimension of z. The sample axis comes first: z is (S, B, D), examples x are (B, *shape). Log
    densities are in nats, (S, B). They are densities of x before any centring or scaling.

    The networks and the likelihood get `observed(x)`, which is x after up to three changes. The
    training mean is subtracted, if the likelihood is centred. Then the result is divided by
    `spread`, if there is one. Then it is split into a dict of tensors, if there are `fields`.
    `decode` reverses the first two changes.

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
        fields: names and shapes of the fields of an example, if it has several. Then x is (B, P),
            where P is the number of values of all fields together.
        curvature: a network that predicts the posterior's covariance near z, for the refinement
            ``learned``. It is no part of p(x, z).
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
        """The training mean that is subtracted from x, of the shape of an example, or None."""
        return self.centre if self.likelihood.centred else None

    def observed(self, x: Tensor) -> Any:
        """Examples x (B, *shape) as the networks and the likelihood get them.

        They are standardised, and split into a dict of tensors if there are fields.
        """
        seen = self.standardised(x)
        return seen if self.fields is None else self.fields.unpack(seen)

    def standardised(self, x: Tensor) -> Tensor:
        """Examples x (B, *shape), centred and divided by `spread`, but not split into fields."""
        if self.likelihood.centred:
            x = x - self.centre
        return x if self.spread is None else x / self.spread

    def decoder_output(self, z: Tensor) -> Tensor:
        """The decoder's output, (S, B, *output), for z (S, B, D), before the likelihood uses it."""
        out: Tensor = self.decoder(z.flatten(0, -2))
        return out.view(*z.shape[:-1], *out.shape[1:])

    def decode(self, z: Tensor) -> Tensor:
        """The mean E[x | z] in the original units of the data: z (..., D) -> (..., *shape)."""
        mean = self.likelihood.mean(self.decoder_output(z))
        if self.spread is not None:
            mean = mean * self.spread
        return mean + self.centre if self.likelihood.centred else mean

    def log_density(self, observed: Any, decoded: Tensor) -> Tensor:
        """log p(x | z), (S, B), from examples and decoder outputs that are already computed.

        Args:
            observed: the result of `observed(x)` for B examples.
            decoded: decoder outputs (S, B, *output) for S samples of z.
        """
        found = self.likelihood.log_prob(observed, decoded)
        return found if self.spread is None else found - self.spread.log().sum()

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z), (S, B), for examples x (B, *shape) and latent points z (S, B, D)."""
        return self.log_density(self.observed(x), self.decoder_output(z))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z), (S, B), for examples x (B, *shape) and latent points z (S, B, D)."""
        return self.log_conditional(x, z) + self.prior.log_prob(z)

    def kl(self, posterior: Any, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || p(z)) of a posterior q to the prior, for each of the B examples.

        The result is exact, (B,) or (1, B), where a closed form exists. Otherwise it is the
        estimate log q(z) - log p(z) for each sample, (S, B).

        Args:
            posterior: q, a `recmix.Posterior`.
            z: samples of q, (S, B, D).
            log_q: log densities of the samples under q, (S, B).
        """
        if self.prior.standard:
            found: Tensor = posterior.kl_to_prior(z, log_q)
            return found
        return log_q - self.prior.log_prob(z)

    def with_noise(self, noise: float) -> LatentModel:
        """The same model with its likelihood's noise multiplied by `noise`.

        See `Likelihood.tempered` for the meaning of the noise. Networks and parameters are shared
        with this model. The result is another model of the data: its p(x) differs.
        """
        if noise == 1:
            return self
        made = copy.copy(self)
        made._modules = dict(self._modules) | {"likelihood": self.likelihood.tempered(noise)}
        return made

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """The means E[x | z], (n, *shape), for n draws of z from the prior."""
        return self.decode(self.prior.sample(n, generator=generator))
