"""Every likelihood with examples that fit it, a small decoder, and log p(x) by quadrature."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from recmix.model.latent import LatentModel
from recmix.model.likelihoods import (
    Autoregressive,
    Bernoulli,
    Categorical,
    CategoricalGraph,
    DecodedGaussian,
    FeatureGaussian,
    Gaussian,
    Likelihood,
    LogisticMixture,
    Multinomial,
    NegativeBinomial,
    Poisson,
    ProbabilityBernoulli,
    ZeroInflatedNegativeBinomial,
    sum_event,
)


class StudentT(Likelihood):
    """A likelihood of a user: only the two methods that are required."""

    def log_prob(self, x, decoded):
        return sum_event(torch.distributions.StudentT(5.0, decoded, 0.5).log_prob(x), x)

    def sample(self, decoded, generator=None):
        normal = torch.randn(decoded.shape, generator=generator, dtype=decoded.dtype)
        chi = sum(
            torch.randn(decoded.shape, generator=generator, dtype=decoded.dtype) ** 2 for _ in range(5)
        )
        return decoded + 0.5 * normal / (chi / 5).sqrt()


@dataclass(frozen=True)
class Case:
    """A likelihood, the shape of its examples, and the scale of the decoder's outputs."""

    make: Callable[[], Likelihood]
    shape: tuple[int, ...]
    scale: float = 1.0
    last: Callable[[], nn.Module] = nn.Identity
    points: int = 401
    """Points of the quadrature for each of the two latent dimensions."""

    def model(self, *, prior=None, seed=0):
        """p(x, z) with a random decoder of two latent dimensions, in float64."""
        torch.manual_seed(seed)
        likelihood = self.make()
        output = likelihood.output_shape(self.shape)
        last = nn.Linear(12, math.prod(output))
        decoder = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), last, nn.Unflatten(1, output), self.last())
        with torch.no_grad():
            last.weight.mul_(2 * self.scale)
        made = LatentModel(decoder, likelihood, latent=2, shape=self.shape, prior=prior)
        return made.double().eval()

    def examples(self, model, count=3, seed=1):
        """Examples drawn from the model."""
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(count, 2, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            return self._several(model, model.decoder(z), generator)

    def _several(self, model, decoded, generator):
        if isinstance(model.likelihood, Multinomial):  # one draw is one word
            return sum(model.likelihood.sample(decoded, generator) for _ in range(9))
        return model.likelihood.sample(decoded, generator)


CASES = {
    "gaussian": Case(lambda: Gaussian(0.3), (5,)),
    "gaussian-features": Case(lambda: FeatureGaussian((2, 3), 0.3), (2, 3)),
    "gaussian-decoded": Case(lambda: DecodedGaussian((4,)), (4,)),
    "bernoulli": Case(Bernoulli, (1, 3, 3)),
    "bernoulli-probabilities": Case(ProbabilityBernoulli, (1, 3, 3), last=nn.Sigmoid),
    "categorical": Case(lambda: Categorical(4), (5,)),
    "autoregressive": Case(
        lambda: Autoregressive((4,), 3, units=8, heads=2, blocks=1, end_token=True),
        (4,),
        4.0,
        points=101,
    ),
    "graph": Case(lambda: CategoricalGraph(3, 3, 2), (6,)),
    "poisson": Case(Poisson, (6,)),
    "negative-binomial": Case(lambda: NegativeBinomial((6,), 2.0), (6,)),
    "zero-inflated-negative-binomial": Case(lambda: ZeroInflatedNegativeBinomial((6,), 2.0), (6,)),
    "multinomial": Case(Multinomial, (7,)),
    "logistic-mixture": Case(lambda: LogisticMixture((1, 3, 3), 2), (1, 3, 3), 0.5),
    "own": Case(StudentT, (6,)),
}


def log_marginal(model, x, *, width=7.0, points=401):
    """log p(x) (B,) by the trapezoidal rule over a square of the two-dimensional latent space."""
    axis = torch.linspace(-width, width, points, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)  # (G, 2)
    with torch.no_grad():
        parts = [model.log_joint(x, part[:, None].expand(-1, len(x), -1)) for part in grid.split(20_000)]
    return torch.cat(parts).logsumexp(0) + 2 * math.log(float(axis[1] - axis[0]))
