"""A linear-Gaussian model whose evidence and posterior are known exactly.

x = W z + b + noise, z ~ N(0, I): log p(x) and p(z | x) are Gaussian in closed form.
"""

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian as GaussianLikelihood

SHAPE = (1, 2, 3)


class LinearDecoder(nn.Module):
    def __init__(self, latent: int, shape=SHAPE):
        super().__init__()
        self.shape = shape
        self.linear = nn.Linear(latent, shape[0] * shape[1] * shape[2])

    def forward(self, z: Tensor) -> Tensor:
        return self.linear(z).view(-1, *self.shape)


class LinearGaussian:
    """The model, its exact evidence and its exact posterior, in float64."""

    def __init__(self, latent: int = 3, variance: float = 0.3, seed: int = 0):
        torch.manual_seed(seed)
        self.latent = latent
        centre = torch.rand(SHAPE)
        self.model = LatentModel(
            LinearDecoder(latent),
            GaussianLikelihood(variance),
            latent=latent,
            shape=SHAPE,
            centre=centre,
        ).double()

    def _parts(self):
        weight = self.model.decoder.linear.weight.detach()  # (P, D)
        mean = self.model.decoder.linear.bias.detach() + self.model.centre.flatten()
        return weight, mean, self.model.likelihood.variance.detach()

    def log_evidence(self, x: Tensor) -> Tensor:
        weight, mean, variance = self._parts()
        covariance = weight @ weight.T + variance * torch.eye(len(mean), dtype=torch.float64)
        return MultivariateNormal(mean, covariance).log_prob(x.flatten(1))

    def posterior(self, x: Tensor) -> MultivariateNormal:
        weight, mean, variance = self._parts()
        precision = torch.eye(self.latent, dtype=torch.float64) + weight.T @ weight / variance
        centre = torch.linalg.solve(precision, weight.T @ (x.flatten(1) - mean).T / variance).T
        return MultivariateNormal(centre, precision_matrix=precision.expand(len(x), -1, -1))

    def images(self, n: int = 5) -> Tensor:
        return torch.rand(n, *SHAPE, dtype=torch.float64)
