"""A linear-Gaussian model whose evidence and posterior are known exactly.

x = W z + b + noise with z ~ N(0, I), so log p(x) and p(z | x) have closed forms.
"""

import math

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian as GaussianLikelihood

SHAPE = (1, 2, 3)


class LinearDecoder(nn.Module):
    """z (N, D) -> (N, C, H, W), linear."""

    def __init__(self, latent: int, shape=SHAPE):
        super().__init__()
        self.shape = shape
        self.linear = nn.Linear(latent, math.prod(shape))

    def forward(self, z: Tensor) -> Tensor:
        return self.linear(z).view(-1, *self.shape)


class LinearEncoder(nn.Module):
    """Mean linear in x, constant variance: the form of the exact posterior."""

    def __init__(self, latent: int, shape=SHAPE):
        super().__init__()
        self.mean = nn.Linear(math.prod(shape), latent)
        self.log_variance = nn.Parameter(torch.zeros(latent))

    def reset_parameters(self):
        self.mean.reset_parameters()
        self.log_variance.data.normal_(0, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x.flatten(1))
        return torch.cat([mean, self.log_variance.expand_as(mean)], -1)


class LinearGaussian:
    """The model, its exact evidence and its exact posterior, in float64 on the CPU.

    Args:
        latent: D.
        variance: of the noise.
        seed: of the weights.
        shape: of an example.
    """

    def __init__(self, latent: int = 3, variance: float = 0.3, seed: int = 0, shape=SHAPE):
        torch.manual_seed(seed)
        self.latent = latent
        self.shape = shape
        centre = torch.rand(shape)
        self.model = LatentModel(
            LinearDecoder(latent, shape),
            GaussianLikelihood(variance),
            latent=latent,
            shape=shape,
            centre=centre,
        ).double()

    def _parts(self):
        weight = self.model.decoder.linear.weight.detach()  # (P, D)
        mean = self.model.decoder.linear.bias.detach() + self.model.centre.flatten()
        return weight, mean, self.model.likelihood.variance.detach()

    def log_evidence(self, x: Tensor) -> Tensor:
        """log p(x), (B,)."""
        weight, mean, variance = self._parts()
        covariance = weight @ weight.T + variance * torch.eye(len(mean), dtype=torch.float64)
        return MultivariateNormal(mean, covariance).log_prob(x.flatten(1))

    def posterior(self, x: Tensor) -> MultivariateNormal:
        """p(z | x)."""
        weight, mean, variance = self._parts()
        precision = torch.eye(self.latent, dtype=torch.float64) + weight.T @ weight / variance
        centre = torch.linalg.solve(precision, weight.T @ (x.flatten(1) - mean).T / variance).T
        return MultivariateNormal(centre, precision_matrix=precision.expand(len(x), -1, -1))

    def images(self, n: int = 5) -> Tensor:
        """Examples in [0, 1] from the global random stream."""
        return torch.rand(n, *self.shape, dtype=torch.float64)
