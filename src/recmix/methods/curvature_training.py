"""Train the network that predicts the posterior's covariance near a latent point.

The network gives a factor L(z) of the covariance L Lᵀ. Let H be the Gauss-Newton curvature of
-log p(x, z) at z. The loss is

    ½ E_ε[(L ε)ᵀ H (L ε)] - log |det L|,    ε ~ N(0, I),

which is KL(N(0, L Lᵀ) || N(0, H⁻¹)) up to a constant. So the loss is smallest for L Lᵀ = H⁻¹. A product
H v takes one Jacobian-vector and one vector-Jacobian product of the decoder. H itself is never formed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from recmix.errors import ConfigError
from recmix.inference.conjugate import Curvature, choose_push, conjugate
from recmix.inference.gauss_newton import LogJoint, check_decoder_has_jacobian, normal_equations
from recmix.inference.learned import gaussian_at
from recmix.methods.method import ELBO, Method, Objective, Optimizers, update
from recmix.methods.optimizers import make_optimizer
from recmix.posteriors import FullGaussian

__all__ = ["CurvatureTraining"]

EXAMPLES = 128
"""Number of examples from which `CurvatureTraining.prepare` computes typical values."""
FURTHEST = 2.0
"""Training points are posterior samples whose distance from the posterior mean is multiplied by a random
factor between 0 and this number."""


class CurvatureTraining:
    """Trains the curvature network of a trained model, and no other parameters.

    The curvature network predicts the posterior covariance near a latent point z. It is trained at
    points near the posterior means of the examples, because the refinement of posteriors uses the
    network there. The class has the methods of `Method` that the training loop calls.

    Args:
        method: a trained method whose model has a curvature network.
    """

    def __init__(self, method: Method) -> None:
        if method.model.curvature is None:
            raise ConfigError(
                "train = 'curvature' trains the curvature network, but the model has none: give "
                "curvature = 'full' or 'low-rank', or use the method curvature"
            )
        check_decoder_has_jacobian(method.model)
        self.method, self.network = method, method.model.curvature
        centre = method.model.centre
        self.push = choose_push(method.model.decoder, centre.new_zeros(1, method.model.latent))
        method.requires_grad_(False)
        self.network.requires_grad_(True)

    def prepare(self, x: Tensor) -> None:
        """Set the constants of the curvature network from validation examples x (B, *shape).

        The constants are the mean and the standard deviations of the examples' posterior means, and a
        factor L of an average posterior covariance L Lᵀ. Training calls this before the first step.
        """
        model, x = self.method.model, x[:EXAMPLES]
        with torch.no_grad():
            mean = self.method.posterior(x).mean.detach()
            if self.network.rank:
                typical = conjugate(model, x, mean, steps=0).stddev.mean(0)
            else:
                precision = normal_equations(model, x, mean).precision.mean(0, keepdim=True)
                typical = FullGaussian.from_precision(mean[:1], precision).scale_tril[0]
            spread = mean.std(0, correction=0).clamp(min=1e-3)
            self.network.start_at(mean.mean(0), spread, typical)

    def optimizers(self, learning_rate: float, *, optimizer: str = "adam", **_: Any) -> Optimizers:
        """Make the optimiser of the curvature network, and return {"all": optimiser}.

        Other keyword arguments, such as ``variance_rate``, are ignored.
        """
        groups = [{"params": list(self.network.parameters()), "lr": learning_rate}]
        return {"all": make_optimizer(optimizer, groups, learning_rate)}

    def step(
        self,
        x: Tensor,
        optimizers: Optimizers,
        *,
        objective: Objective = ELBO,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Train the curvature network on one batch; return {"loss": scalar tensor on the device}.

        The arguments are those of `Method.step`; `objective` is not used.
        """
        loss = self.loss(x, generator=generator)
        update(loss, optimizers["all"])
        return {"loss": loss.detach()}

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The loss ½ (L ε)ᵀ H (L ε) - log |det L| of the curvature network, averaged over the batch.

        L is the network's factor of the covariance at a random point z near the posterior mean. H is the
        Gauss-Newton curvature of -log p(x, z) at z. ε is one standard normal vector per example.
        """
        model = self.method.model
        with torch.no_grad():
            q = self.method.posterior(x)
            drawn = q.rsample_and_log_prob(1, generator=generator)[0][0]
            far = torch.rand(len(x), 1, generator=generator, device=x.device, dtype=drawn.dtype)
            z = q.mean + FURTHEST * far * (drawn - q.mean)
            noise = torch.randn(z.shape, generator=generator, device=x.device, dtype=z.dtype)
        predicted = gaussian_at(model, z)
        v = predicted.multiply(noise)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # as in `conjugate`
            joint = LogJoint(model, x, z.dtype)
            pulled = Curvature(joint, z, self.push).multiply(v.detach())  # H v
        # d ½ vᵀ H v = (H v) · dv, so the gradient needs no derivative of H v.
        half = 0.5 * (v.detach() * pulled).sum(-1)
        along = (v * pulled).sum(-1)
        return (half + (along - along.detach()) - predicted.entropy()).mean()
