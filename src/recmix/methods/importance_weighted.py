"""The importance weighted autoencoder (IWAE): a tighter bound from several samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.methods.method import Method, Optimizers
from recmix.methods.registry import register
from recmix.methods.vae import GaussianComponent
from recmix.model.latent import LatentModel
from recmix.posteriors import Gaussian
from recmix.posteriors.posterior import Posterior

__all__ = ["ImportanceWeighted", "iwae_objective"]


@register
class ImportanceWeighted(Method):
    """One diagonal Gaussian, trained on L_K = E log 1/K Σ_k w_k with w_k = p(x, z_k) / q(z_k | x).

    L_1 is the ELBO; L_K rises with K towards log p(x). The more samples, the weaker the encoder's
    gradient stands out from its noise: `doubly` is the remedy. It follows
    Σ_k w̃_k² ∂ log w_k/∂z_k ∂z_k/∂φ with w̃ = w / Σ w, which has the same expectation and no score
    term; the decoder's gradient Σ_k w̃_k ∂ log w_k/∂θ stays as it is.

    Args:
        model: p(x, z).
        encoder: (B, C, H, W) -> (B, 2 D).
        samples: K, at least 1.
        doubly: train the encoder with the doubly reparameterised gradient (DReG).

    Reference: Burda et al., Importance Weighted Autoencoders, ICLR 2016; Tucker et al., Doubly
    Reparameterized Gradient Estimators for Monte Carlo Objectives, ICLR 2019.
    """

    name = "iwae"
    title = "importance weighted"
    reference = "Burda et al. 2016; Tucker et al. 2019"
    setting = "samples"
    second_stage = False

    def __init__(
        self, model: LatentModel, encoder: nn.Module, *, samples: int = 5, doubly: bool = False
    ) -> None:
        if samples < 1:
            raise ConfigError(f"samples (K) must be at least 1, which is the ELBO; got {samples}")
        super().__init__(model, [GaussianComponent(encoder, model)])
        self.samples = samples
        self.doubly = doubly

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the bound L_K, averaged over the batch."""
        return -_log_mean(self._log_weights(x, generator)).mean()

    def step(
        self, x: Tensor, optimizers: Optimizers, *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """One update of everything; the metrics hold the ELBO of the same samples beside L_K."""
        log_w = self._log_weights(x, generator)
        loss = -_log_mean(log_w).mean()
        self.move(loss, x, optimizers["all"], generator)
        return {"loss": loss.detach(), "iwae": -loss.detach(), "elbo": log_w.detach().mean()}

    def _log_weights(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        q = self.posterior(x)
        if self.doubly:
            assert isinstance(q, Gaussian)
            return _doubly_log_weights(self.model, x, q, self.samples, generator)
        return _log_weights(self.model, x, q, self.samples, generator)


def iwae_objective(
    model: LatentModel,
    x: Tensor,
    q: Posterior,
    samples: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """L_K = log 1/K Σ_k p(x, z_k) / q(z_k) from one draw of K samples of any posterior, (B,) in nats.

    To train a decoder alone, form `q` under `no_grad`: every z_k is then a constant.

    Args:
        model: p(x, z).
        x: images (B, C, H, W) in [0, 1].
        q: q(z | x) for these images.
        samples: K.
        generator: the random stream.

    >>> from recmix.model.likelihoods import Bernoulli
    >>> decoder = nn.Sequential(nn.Linear(2, 6), nn.Unflatten(1, (1, 2, 3)))
    >>> model = LatentModel(decoder, Bernoulli(), latent=2, shape=(1, 2, 3))
    >>> q = Gaussian(torch.zeros(4, 2), torch.zeros(4, 2))
    >>> iwae_objective(model, torch.zeros(4, 1, 2, 3), q, 5).shape
    torch.Size([4])
    """
    return _log_mean(_log_weights(model, x, q, samples, generator))


def _log_mean(log_w: Tensor) -> Tensor:
    """log 1/K Σ_k w_k: (K, B) -> (B,)."""
    return log_w.logsumexp(0) - math.log(log_w.shape[0])


def _log_weights(
    model: LatentModel, x: Tensor, q: Posterior, samples: int, generator: torch.Generator | None
) -> Tensor:
    """Log w, (K, B)."""
    z, log_q = q.rsample_and_log_prob(samples, generator=generator)
    return model.log_joint(x, z) - log_q


def _doubly_log_weights(
    model: LatentModel, x: Tensor, q: Gaussian, samples: int, generator: torch.Generator | None
) -> Tensor:
    """Log w, (K, B), whose log-mean has the doubly reparameterised gradient in q.

    The log-mean sends w̃_k to log w_k. With log q's own parameters held still, all that reaches the
    encoder passes through z_k, where it is multiplied by w̃_k once more. The decoder's share never
    passes there, so one backward pass gives both gradients.
    """
    z, _ = q.rsample_and_log_prob(samples, generator=generator)
    still = Gaussian(q.mean.detach(), q.log_variance.detach())
    log_w = model.log_joint(x, z) - still.log_prob(z)
    if z.requires_grad:
        share = log_w.detach().softmax(0).unsqueeze(-1)  # w̃, (K, B, 1)
        z.register_hook(lambda gradient: share * gradient)
    return log_w
