"""A user's own density as a prior moves with the model."""

import pytest
import torch
from torch.distributions import (
    AffineTransform,
    Independent,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)

from recmix.model.priors import OwnPrior, as_prior

DENSITIES = {
    "full": MultivariateNormal(torch.ones(2), torch.eye(2)),
    "nested": Independent(Normal(torch.ones(2), torch.ones(2)), 1),
    "transformed": Independent(
        TransformedDistribution(
            Normal(torch.zeros(2), torch.ones(2)), [AffineTransform(torch.ones(2), torch.ones(2))]
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", sorted(DENSITIES))
def test_a_distribution_moves_with_the_prior_and_the_users_own_stays(name):
    density = DENSITIES[name]
    prior = OwnPrior(density).double()
    assert prior.sample(3).dtype == torch.float64
    z = torch.zeros(3, 2, dtype=torch.float64)
    torch.testing.assert_close(prior.log_prob(z), density.log_prob(z.float()).double())
    assert density.sample().dtype == torch.float32


def test_a_prior_that_cannot_be_drawn_from_is_accepted():
    class OnlyDensity(torch.nn.Module):
        def log_prob(self, z):
            return -0.5 * z.square().sum(-1)

        def sample(self, shape):
            raise NotImplementedError

    prior = as_prior(OnlyDensity(), 2)
    assert prior.log_prob(torch.zeros(3, 2)).shape == (3,)
    with pytest.raises(NotImplementedError):
        prior.sample(2)
