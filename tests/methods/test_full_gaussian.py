"""The encoder of a full Gaussian: where it starts, and what its additional layer learns."""

import torch
from torch import nn

from recmix.methods.full_gaussian import FullComponent
from recmix.model.encoder_decoder import reset
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli
from recmix.model.networks import make_decoder, make_encoder
from recmix.posteriors import Gaussian

SHAPE = (1, 8, 8)


def latent_model(latent=4):
    torch.manual_seed(0)
    decoder = make_decoder("dense", SHAPE, latent, hidden=16)
    return LatentModel(decoder, Bernoulli(), latent=latent, shape=SHAPE).double()


def component(model, encoder=None):
    torch.manual_seed(1)
    encoder = encoder or make_encoder("dense", SHAPE, model.latent, hidden=16)
    return FullComponent(encoder, model).double()


def images(n=3):
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_starts_at_the_diagonal_gaussian_of_its_encoder():
    model, x = latent_model(), images()
    part = component(model)
    base, q = Gaussian.from_parameters(part.encoder(x)), part(x, model)
    torch.testing.assert_close(q.mean, base.mean, rtol=0, atol=0)
    torch.testing.assert_close(q.scale_tril, torch.diag_embed(base.stddev), rtol=0, atol=0)


def test_learns_the_entries_below_the_diagonal():
    model, x = latent_model(), images()
    part = component(model)
    z, log_q = part(x, model).rsample_and_log_prob(1, generator=torch.Generator().manual_seed(0))
    (model.log_joint(x, z) - log_q).sum().backward()
    assert part.below.weight.grad.abs().sum() > 0
    nn.init.normal_(part.below.weight, std=0.1)
    scale = part(x, model).scale_tril
    assert torch.equal(scale, scale.tril())
    assert (scale.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert (scale.tril(-1).abs().sum((1, 2)) > 0).all()
    reset(part)  # new random weights: the diagonal Gaussian again
    assert part(x, model).scale_tril.tril(-1).abs().sum() == 0


def test_one_latent_dimension():
    model = latent_model(latent=1)
    assert component(model)(images(), model).scale_tril.shape == (3, 1, 1)


def test_encoder_without_features():
    model = latent_model()
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    assert component(model, own)(images(), model).scale_tril.shape == (3, 4, 4)
