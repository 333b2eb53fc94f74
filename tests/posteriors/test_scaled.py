"""`Posterior.scaled`: what calibration does to standard deviations."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from recmix.errors import ConfigError
from recmix.posteriors import FullGaussian, Gaussian, Mixture, Reflected
from recmix.posteriors.flow import Reflections

MEANS = torch.tensor([[0.5, -1.0], [2.0, 0.1]]).double()
LOWER = torch.tensor([[[1.0, 0.0], [0.4, 0.3]], [[0.1, 0.0], [0.0, 0.2]]]).double()


def gaussian():
    return Gaussian(MEANS, torch.tensor([[0.3, -0.7], [-3.0, 0.0]]).double())


def from_precision():
    return FullGaussian.from_precision(MEANS, torch.linalg.inv(LOWER @ LOWER.mT))


def full():
    return FullGaussian(MEANS, LOWER)


def mixture():
    return Mixture([gaussian(), full()], torch.tensor([[0.3, 0.7], [0.5, 0.5]]).double().log())


def stack():
    log_variances = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    parts = Gaussian(torch.stack([MEANS, -MEANS]), log_variances)
    return Mixture.from_stack(parts, torch.tensor([[0.2, 0.8], [0.9, 0.1]]).double().log())


def covariance(q):
    return q.covariance_matrix if isinstance(q, FullGaussian) else q.variance.diag_embed()


@pytest.mark.parametrize("make", [gaussian, from_precision, full, mixture, stack])
@pytest.mark.parametrize("factor", [1.0, 1.7, 0.6, torch.tensor([3.0, 0.5]).double()])
def test_scaling_divides_the_precision_beyond_the_prior(make, factor):
    q = make()
    assert q.can_scale
    scaled = q.scaled(factor)
    assert type(scaled) is type(q)
    z = 0.5 * torch.randn(9, 2, 2, generator=torch.Generator().manual_seed(1)).double()
    f = torch.as_tensor(factor, dtype=torch.double).expand(2)[:, None, None]
    expected = []
    for weight, part in zip(q.weights.unbind(-1), q.components, strict=True):
        precision, identity = torch.linalg.inv(covariance(part)), torch.eye(2).double()
        less = torch.where(f > 1, identity + (precision - identity) / f**2, precision / f**2)
        expected.append(MultivariateNormal(part.mean, precision_matrix=less).log_prob(z) + weight.log())
    torch.testing.assert_close(scaled.log_prob(z), torch.stack(expected).logsumexp(0))
    torch.testing.assert_close(scaled.mean, q.mean)
    samples, log_q = scaled.rsample_and_log_prob(5, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(log_q, scaled.log_prob(samples))


@pytest.mark.parametrize("factor", [1.0, 2.0, torch.tensor([1.0, 3.0])])
@pytest.mark.parametrize("inverted", [False, True], ids=["scale", "precision"])
def test_narrow_dimension_does_not_disturb_others_in_float32(factor, inverted):
    sharp = Gaussian(torch.zeros(2, 2), torch.tensor([[1e-4, 1.0], [1e-3, 0.5]]).log() * 2)
    if inverted:
        q = FullGaussian._from_factor(sharp.mean, (1 / sharp.stddev).diag_embed(), inverted=True)
    else:
        q = FullGaussian(sharp.mean, sharp.stddev.diag_embed())
    found = q.scaled(factor).variance.sqrt()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, sharp.scaled(factor).stddev, rtol=1e-4, atol=0)


def test_nothing_becomes_wider_than_the_prior():
    q = Gaussian(torch.zeros(1, 3), torch.tensor([[-6.0, 0.0, -1.0]]))
    stddev = q.scaled(100.0).stddev
    assert (stddev <= 1).all()
    torch.testing.assert_close(stddev, torch.ones(1, 3), atol=0.03, rtol=0)


def test_posterior_without_standard_deviations_is_refused():
    q = Reflected(gaussian(), Reflections([torch.tensor([1.0, 0.0]).double()]))
    for made in (q, Mixture([gaussian(), q], torch.full((2, 2), 0.5).double().log())):
        assert not made.can_scale
        with pytest.raises(ConfigError, match="only Gaussians and mixtures of Gaussians"):
            made.scaled(2.0)
