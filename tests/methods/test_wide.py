"""A second, wider encoder added to the given one."""

from types import SimpleNamespace

import torch
from cases.residual import SHAPE, latent_model, x
from cases.training import images
from torch import nn

import recmix
from recmix.methods.vae import VAE
from recmix.methods.wide import WideVAE
from recmix.model.networks import make_encoder


def test_starts_at_the_encoder_and_is_a_sum():
    method = WideVAE(latent_model(), make_encoder("conv", SHAPE, 3), width=3.0).double()
    plain = VAE(method.model, method.base_encoder)
    torch.testing.assert_close(method.posterior(x()).mean, plain.posterior(x()).mean)
    part = method.components[0]
    nn.init.normal_(part.second.head.weight)
    image = method.model.observed(x())
    both = part.encoder(image) + part.second(image)
    q = method.posterior(x())
    torch.testing.assert_close(torch.cat([q.mean, q.log_variance], -1), both)
    channels = [
        next(m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d))
        for net in (part.encoder, part.second)
    ]
    assert channels[1] == 3 * channels[0]
    assert method.networks()[-1] is part.second


def test_second_encoder_reads_fields_only_if_it_is_of_the_same_kind():
    """Examples with fields are observed as a dictionary, which another kind of network cannot read."""
    own = nn.Sequential(nn.Flatten(), nn.Linear(144, 6))
    model = SimpleNamespace(observed=lambda x: "fields", standardised=lambda x: "one tensor")
    for encoder, form in ((make_encoder("conv", SHAPE, 3), "fields"), (own, "one tensor")):
        part = WideVAE(latent_model(), encoder).components[0]
        assert part._input(x(), model) == form


def test_second_encoder_improves_a_trained_vae(tmp_path):
    data = recmix.data.from_arrays(images(160, size=12), seed=0)
    start = recmix.fit("vae", data, latent=3, epochs=3, learning_rate=1e-3, progress=False)
    options = {"init": start, "train": "encoder", "learning_rate": 1e-3, "progress": False}
    run = recmix.fit("wide", data, epochs=5, out=tmp_path / "wide", **options)
    for name, value in start.latent_model.state_dict().items():
        torch.testing.assert_close(run.latent_model.state_dict()[name], value)
    assert run.elbo(data.x_val).mean() > start.elbo(data.x_val).mean()
    back = recmix.load(tmp_path / "wide")
    torch.testing.assert_close(back.posterior(data.x_val[:4]).mean, run.posterior(data.x_val[:4]).mean)
