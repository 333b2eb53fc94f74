"""A wider encoder beside the given one."""

import torch
from test_fit import images
from test_residual import SHAPE, latent_model, x
from torch import nn

import recmix
from recmix.methods.vae import VAE
from recmix.model.networks import make_encoder


def wide(**options):
    return VAE(latent_model(), make_encoder("conv", SHAPE, 3), component="wide", **options).double()


def test_it_starts_as_the_encoder_and_is_a_sum():
    method = wide(width=3.0)
    plain = VAE(method.model, method.base_encoder)
    torch.testing.assert_close(method.posterior(x()).mean, plain.posterior(x()).mean)
    part = method.components[0]
    nn.init.normal_(part.beside.head.weight)
    image = method.model.centred(x())
    both = part.encoder(image) + part.beside(image)
    q = method.posterior(x())
    torch.testing.assert_close(torch.cat([q.mean, q.log_variance], -1), both)
    channels = [
        next(m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d))
        for net in (part.encoder, part.beside)
    ]
    assert channels[1] == 3 * channels[0]
    assert method.networks()[-1] is part.beside


def test_a_trained_vae_is_widened(tmp_path):
    data = recmix.data.from_arrays(images(160, size=12), seed=0)
    start = recmix.fit("vae", data, latent=3, epochs=3, learning_rate=1e-3, progress=False)
    asked = {"init": start, "component": "wide", "moves": "encoder", "learning_rate": 1e-3}
    run = recmix.fit("vae", data, epochs=5, out=tmp_path / "wide", progress=False, **asked)
    for name, value in start.model.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], value)
    assert run.elbo(data.x_val).mean() > start.elbo(data.x_val).mean()
    back = recmix.load(tmp_path / "wide")
    torch.testing.assert_close(back.posterior(data.x_val[:4]).mean, run.posterior(data.x_val[:4]).mean)
