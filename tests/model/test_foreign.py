"""Encoders and decoders of any form become those of a `LatentModel`."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributions import (
    Categorical,
    Independent,
    Laplace,
    LogNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)
from torch.distributions.transforms import ExpTransform

import recmix
from recmix.errors import ConfigError
from recmix.model.foreign import (
    ForeignDecoder,
    ForeignEncoder,
    as_decoder,
    as_encoder,
    latent_shape,
    read_posterior,
    read_reconstruction,
)

MEAN, LOG_VARIANCE = torch.randn(3, 2), torch.randn(3, 2)
SCALE = (0.5 * LOG_VARIANCE).exp()
FORMS = {
    "tensor": torch.cat([MEAN, LOG_VARIANCE], 1),
    "tuple": (MEAN, LOG_VARIANCE),
    "named tuple": namedtuple("Out", "z mu logvar")(SCALE, MEAN, LOG_VARIANCE),
    "dict": {"mu": MEAN, "logvar": LOG_VARIANCE},
    "dict with scale": {"loc": MEAN, "scale": SCALE},
    "dict with variance": {"mean": MEAN, "variance": SCALE.square()},
    "Normal": Normal(MEAN, SCALE),
    "Independent": Independent(Normal(MEAN, SCALE), 1),
    "output object": SimpleNamespace(embedding=MEAN, log_covariance=LOG_VARIANCE),
    "nested": SimpleNamespace(latent_dist=SimpleNamespace(mean=MEAN, logvar=LOG_VARIANCE)),
}


class Gives(nn.Module):
    """A network with one fixed output."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def forward(self, x):
        return self.out


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_mean_and_log_variance(form):
    torch.testing.assert_close(read_posterior(FORMS[form]), FORMS["tensor"])
    assert latent_shape(Gives(FORMS[form]), torch.zeros(3, 5)) == (2,)


def test_only_a_plain_tensor_needs_no_wrapper():
    x = torch.zeros(3, 5)
    plain = Gives(FORMS["tensor"])
    assert as_encoder(plain, x) is plain
    wrapped = as_encoder(Gives(FORMS["tuple"]), x)
    assert isinstance(wrapped, ForeignEncoder)
    assert as_encoder(wrapped, x) is wrapped
    torch.testing.assert_close(wrapped(x), FORMS["tensor"])


def test_a_full_gaussian_stays_one():
    q = MultivariateNormal(MEAN, torch.eye(2).expand(3, 2, 2))
    assert read_posterior(q) is q
    assert latent_shape(Gives(q), torch.zeros(3, 5)) == (2,)


@pytest.mark.parametrize("kind", ["low rank", "independent", "nested", "recmix", "recmix low rank"])
def test_gaussians_keep_their_covariance(kind):
    factor = torch.tensor([[1.0, 0.0], [0.7, 2.0]]).expand(3, 2, 2)
    made = {
        "low rank": LowRankMultivariateNormal(MEAN, torch.randn(3, 2, 1), torch.ones(3, 2)),
        "independent": Independent(MultivariateNormal(MEAN, scale_tril=factor), 0),
        "nested": SimpleNamespace(posterior=MultivariateNormal(MEAN, scale_tril=factor)),
        "recmix": recmix.posteriors.FullGaussian(MEAN, factor),
        "recmix low rank": recmix.posteriors.LowRankGaussian(
            MEAN, torch.randn(3, 2), torch.rand(3, 2, 1), torch.rand(3, 2, 1)
        ),
    }[kind]
    found = read_posterior(made)
    known = made.posterior if kind == "nested" else made
    torch.testing.assert_close(found.log_prob(MEAN + 1), known.log_prob(MEAN + 1))


class Pair(torch.distributions.Distribution):
    """A distribution of a user, with the mean and the log-variance of a Gaussian."""

    mean, logvar = MEAN, LOG_VARIANCE

    def __init__(self):
        super().__init__(validate_args=False)


class Heavy(torch.distributions.Distribution):
    """A distribution with a scale matrix that is not Gaussian."""

    mean, scale_tril = MEAN, torch.eye(2).expand(3, 2, 2)

    def __init__(self):
        super().__init__(validate_args=False)


def test_a_distribution_with_a_log_variance_is_read():
    torch.testing.assert_close(read_posterior(Pair()), torch.cat([MEAN, LOG_VARIANCE], 1))


@pytest.mark.parametrize(
    "out",
    [
        Heavy(),
        Independent(Laplace(MEAN, torch.ones(3, 2)), 1),
        Independent(LogNormal(MEAN, torch.ones(3, 2)), 1),
        MixtureSameFamily(
            Categorical(torch.ones(3, 2)),
            MultivariateNormal(torch.zeros(3, 2, 2), torch.eye(2)),
        ),
        TransformedDistribution(Normal(MEAN, 1.0), ExpTransform()),
        recmix.posteriors.Mixture([recmix.posteriors.Gaussian(MEAN, LOG_VARIANCE)], torch.zeros(3, 1)),
    ],
    ids=lambda out: type(out).__name__,
)
def test_other_distributions_are_refused(out):
    with pytest.raises(ConfigError, match="gave a .*; expected .*Gaussian"):
        read_posterior(out)


def test_latents_of_any_shape_are_flattened():
    encoder = Gives((torch.ones(3, 4, 2, 2), torch.zeros(3, 4, 2, 2)))
    assert latent_shape(encoder, torch.zeros(3, 5)) == (4, 2, 2)
    assert as_encoder(encoder, torch.zeros(3, 5))(torch.zeros(3, 5)).shape == (3, 32)
    decoder = as_decoder(nn.Conv2d(4, 3, 1), (4, 2, 2), torch.zeros(()))
    assert isinstance(decoder, ForeignDecoder)
    assert decoder(torch.zeros(5, 16)).shape == (5, 3, 2, 2)


@pytest.mark.parametrize(
    "out",
    [MEAN, (MEAN, None), {"reconstruction": MEAN}, SimpleNamespace(sample=MEAN), Normal(MEAN, SCALE)],
)
def test_reconstructions(out):
    torch.testing.assert_close(read_reconstruction(out), MEAN)


@pytest.mark.parametrize(
    "out",
    [
        *({"z": MEAN}, (MEAN,), 3, {"mean": MEAN}, (MEAN, LOG_VARIANCE[:, :1])),
        *((MEAN, LOG_VARIANCE, MEAN), (MEAN, None), ()),
    ],
)
def test_other_encoders_are_refused_with_what_is_accepted(out):
    with pytest.raises(ConfigError, match="expected|gave"):
        read_posterior(out)


@pytest.mark.parametrize("out", [{"x": MEAN}, 3, ()])
def test_other_decoders_are_refused_with_what_is_accepted(out):
    with pytest.raises(ConfigError, match="expected a tensor"):
        read_reconstruction(out)


def test_batch_normalisation_must_be_in_evaluation_mode():
    encoder = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4))
    with pytest.raises(ConfigError, match=r"encoder\.eval\(\)"):
        as_encoder(encoder, torch.zeros(3, 5))
    running = encoder[0].running_mean.clone()
    assert as_encoder(encoder.eval(), torch.ones(3, 5)) is encoder
    assert torch.equal(encoder[0].running_mean, running)


def test_failures_name_the_input():
    with pytest.raises(ConfigError, match=r"encoder failed for an input of shape \(3, 4\).*mat1"):
        as_encoder(nn.Linear(5, 4), torch.zeros(3, 4))
    with pytest.raises(ConfigError, match="must be a torch.nn.Module, got function"):
        as_encoder(lambda x: x, torch.zeros(3, 4))
