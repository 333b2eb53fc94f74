"""The importance weighted autoencoder (IWAE): a tighter bound from several samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.methods.method import ELBO, Method, Objective, Optimizers
from recmix.methods.registry import register
from recmix.methods.vae import GaussianComponent
from recmix.model.latent import LatentModel
from recmix.objectives import log_mean_exp, log_weights
from recmix.posteriors import Gaussian

__all__ = ["ImportanceWeighted"]


@register
class ImportanceWeighted(Method):
    """One diagonal Gaussian, trained on the IWAE bound L_K = E log 1/K Σ_k w_k.

    w_k = p(x, z_k) / q(z_k | x) is the importance weight of sample z_k. L_1 is the ELBO, and L_K rises
    with K towards log p(x). But with more samples the gradient of the encoder gets noisier. The option
    `doubly` avoids this. The gradient of the encoder's parameters φ is then estimated by
    Σ_k w̃_k² ∂ log w_k/∂z_k ∂z_k/∂φ, where w̃_k = w_k / Σ_j w_j. This estimate has the same expectation,
    but no term with the derivative of log q with respect to φ. The decoder's gradient is unchanged.

    Args:
        model: p(x, z).
        encoder: (B, *shape) -> (B, 2 D).
        samples: K, the number of samples of the bound, at least 1.
        doubly: train the encoder with the doubly reparameterised gradient (DReG).

    Reference: Burda et al., Importance Weighted Autoencoders, ICLR 2016; Tucker et al., Doubly
    Reparameterized Gradient Estimators for Monte Carlo Objectives, ICLR 2019.
    """

    name = "iwae"
    title = "importance weighted"
    reference = "Burda et al. 2016; Tucker et al. 2019"
    setting = "samples"
    starts_from = None

    def __init__(
        self, model: LatentModel, encoder: nn.Module, *, samples: int = 5, doubly: bool = False
    ) -> None:
        if samples < 1:
            raise ConfigError(f"samples (K) must be at least 1, which is the ELBO; got {samples}")
        super().__init__(model, [GaussianComponent(encoder, model)])
        self.samples = samples
        self.doubly = doubly

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the IWAE bound with K = `samples` samples, averaged over the batch, a scalar."""
        return -log_mean_exp(self._log_weights(x, generator)).mean()

    def step(
        self,
        x: Tensor,
        optimizers: Optimizers,
        *,
        objective: Objective = ELBO,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Train all parameters on one batch x (B, *shape); the arguments are those of `Method.step`.

        Returns:
            {name: scalar tensor on the device}: ``loss``, ``iwae`` (the IWAE bound) and ``elbo``. Both
            bounds are estimated from the same samples.
        """
        log_w = self._log_weights(x, generator)
        loss = -log_mean_exp(log_w).mean()
        self.descend(loss, x, optimizers["all"], objective, generator)
        return {"loss": loss.detach(), "iwae": -loss.detach(), "elbo": log_w.detach().mean()}

    def _log_weights(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        q = self.posterior(x)
        if self.doubly:
            assert isinstance(q, Gaussian)
            return _doubly_log_weights(self.model, x, q, self.samples, generator)
        return log_weights(self.model, x, q, self.samples, generator=generator)


def _doubly_log_weights(
    model: LatentModel, x: Tensor, q: Gaussian, samples: int, generator: torch.Generator | None
) -> Tensor:
    """Log importance weights log w_k, (K, B), for the option `doubly`.

    w_k = p(x, z_k) / q(z_k | x) is the weight of sample z_k of q, for K = `samples` samples per example.
    The gradient of log 1/K Σ_k w_k is the doubly reparameterised gradient. The parameters of q are
    detached in log q(z_k | x), so the encoder receives gradients only through z_k. Differentiating the
    log-mean multiplies the gradient of log w_k by w̃_k = w_k / Σ_j w_j. A hook on z_k multiplies the
    gradient of z_k by w̃_k once more. The decoder's gradient does not pass through z_k and is unchanged.
    """
    z, _ = q.rsample_and_log_prob(samples, generator=generator)
    detached = Gaussian(q.mean.detach(), q.log_variance.detach())
    log_w = model.log_joint(x, z) - detached.log_prob(z)
    if z.requires_grad:
        share = log_w.detach().softmax(0).unsqueeze(-1)  # w̃, (K, B, 1)
        z.register_hook(lambda gradient: share * gradient)
    return log_w
