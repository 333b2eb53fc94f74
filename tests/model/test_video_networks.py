"""Networks for clips."""

import pytest
import torch

import recmix
from recmix.errors import ConfigError
from recmix.model.encoder_decoder import reset
from recmix.model.networks import default_network, make_decoder, make_encoder
from recmix.model.video_networks import EachFrame, video_decoder, video_encoder

CLIP = (3, 2, 9, 12)


@pytest.mark.parametrize("side", [8, 15, 28, 64])
def test_shapes(side):
    shape = (4, 1, side, side)
    assert default_network(shape) == "video"
    encoder = make_encoder("auto", shape, 3, units=16)
    assert encoder(torch.rand(2, *shape)).shape == (2, 6)
    assert make_decoder("auto", shape, 3, units=16)(torch.rand(2, 3)).shape == (2, *shape)


@pytest.mark.parametrize("output", [(3, 2, 9, 12, 5), (3, 4, 9, 12), (6, 2, 9, 12)])
def test_outputs_of_likelihoods(output):
    decoder = video_decoder(CLIP, 3, output, units=8)
    assert decoder(torch.rand(2, 3)).shape == (2, *output)


def test_other_shapes_are_refused():
    with pytest.raises(ConfigError, match="network='video' takes clips"):
        video_encoder((1, 28, 28), 3)
    with pytest.raises(ConfigError, match="sides from 8 to 64"):
        video_decoder((3, 1, 65, 65), 3)
    with pytest.raises(ConfigError, match="for clips of shape"):
        video_decoder(CLIP, 3, (4, 2, 9, 12))


def test_every_frame_has_the_same_network():
    layer = torch.nn.Conv2d(2, 3, 3)
    x = torch.rand(2, *CLIP)
    for t in range(3):
        torch.testing.assert_close(EachFrame(layer)(x)[:, t], layer(x[:, t]))


def test_encoder_sees_every_frame_and_their_order():
    torch.manual_seed(0)
    encoder = video_encoder(CLIP, 3, units=8).double()
    x = torch.rand(1, *CLIP, dtype=torch.double, requires_grad=True)
    (gradient,) = torch.autograd.grad(encoder(x).sum(), x)
    assert (gradient.abs().amax((0, 2, 3, 4)) > 0).all()
    assert (encoder(x.flip(1)) - encoder(x)).abs().max() > 1e-6


def test_frames_differ_in_time_and_depend_on_z():
    torch.manual_seed(0)
    decoder = video_decoder(CLIP, 3, units=8).double()
    z = torch.randn(2, 3, dtype=torch.double)
    clips = decoder(z)
    assert (clips[:, 0] - clips[:, 2]).abs().amax((1, 2, 3)).min() > 1e-4
    assert (clips[0] - clips[1]).abs().amax((1, 2, 3)).min() > 1e-4


def test_forward_mode_and_second_derivatives():
    torch.manual_seed(0)
    decoder = video_decoder(CLIP, 3, units=8).double()
    z, v = torch.randn(2, 2, 3, dtype=torch.double)
    out, moved = torch.func.jvp(decoder, (z,), (v,))
    step = 1e-6
    torch.testing.assert_close(moved, (decoder(z + step * v) - decoder(z - step * v)) / (2 * step))
    with torch.no_grad():  # the fused kernel of the GRU gives the same
        torch.testing.assert_close(decoder(z), out)
    hessian = torch.func.hessian(lambda at: decoder(at[None]).square().sum())(z[0])
    assert hessian.isfinite().all()
    assert hessian.abs().max() > 0
    torch.testing.assert_close(hessian, hessian.T)


def test_weights_are_drawn_again():
    decoder = video_decoder(CLIP, 3, units=8)
    before = [p.clone() for p in decoder.parameters()]
    reset(decoder)
    assert all((p != old).any() for p, old in zip(decoder.parameters(), before, strict=True))


FAST = {"latent": 2, "epochs": 1, "progress": False, "device": "cpu", "units": 8}


@pytest.fixture(scope="module")
def clips():
    return recmix.data.moving_digits(recmix.data.load("digits").x_train, 40, frames=3, side=8)


@pytest.mark.parametrize("likelihood", ["gaussian-decoded", "bernoulli", "gaussian-features"])
def test_a_model_of_clips_is_trained_and_stored(clips, likelihood, tmp_path):
    model = recmix.fit("vae", clips, out=tmp_path / "run", likelihood=likelihood, **FAST)
    again = recmix.load(tmp_path / "run", device="cpu")
    assert again.reconstruct(clips[:2]).shape == (2, 3, 1, 8, 8)
    torch.testing.assert_close(again.elbo(clips[:2], 3), model.elbo(clips[:2], 3))
    assert model.decode(torch.zeros(4, 5, 2)).shape == (4, 5, 3, 1, 8, 8)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_export_of_a_model_of_clips(clips, tmp_path):
    model = recmix.fit("vae", clips, likelihood="bernoulli", **FAST)
    folder = model.export(tmp_path / "exported", format="torchscript")
    z = torch.randn(5, 2)
    torch.testing.assert_close(torch.jit.load(folder / "decoder.pt")(z), model.decode(z))
    x = torch.from_numpy(clips[:5] / 255).float()
    _, means, _ = torch.jit.load(folder / "posterior.pt")(x)
    torch.testing.assert_close(means[:, 0], model.posterior(x).mean, rtol=1e-4, atol=1e-5)


def test_vamp_prior_of_clips(clips):
    model = recmix.fit("vae", clips, prior="vamp", prior_components=3, **FAST)
    assert model.sample(2).shape == (2, 3, 1, 8, 8)


def test_what_needs_an_image_says_so(clips):
    with pytest.raises(ConfigError, match="augment rotates and shifts images"):
        recmix.fit("vae", clips, augment=0.5, train="encoder", init=recmix.fit("vae", clips, **FAST))
    with pytest.raises(ConfigError, match="logistic-mixture likelihood"):
        recmix.fit("vae", clips, likelihood="logistic-mixture", **FAST)
