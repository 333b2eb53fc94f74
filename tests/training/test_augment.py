"""Additional images for training an encoder while the decoder is fixed."""

import numpy as np
import pytest
import torch
from cases.training import images

import recmix
from recmix.errors import ConfigError
from recmix.methods.registry import METHODS
from recmix.training.augment import Augment


@pytest.fixture(scope="module")
def model():
    data = recmix.data.from_arrays(images(100, size=12), seed=0)
    return recmix.fit("vae", data, latent=2, epochs=2, progress=False, device="cpu")


def x(n=20):
    return torch.rand(n, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def test_given_shares_of_the_batch_are_replaced(model):
    given = x()
    made = Augment(model.method, augment=0.25, decoder_samples=0.5, kind="unit")(given)
    assert made.shape == given.shape
    changed = (made != given).flatten(1).any(1)
    assert changed[:15].all()
    assert not changed[15:].any()
    assert made.min() >= 0
    assert made.max() <= 1


def test_binary_images_stay_binary(model):
    made = Augment(model.method, augment=0.5, decoder_samples=0.5, kind="binary")(x().round())
    assert ((made == 0) | (made == 1)).all()


def test_same_generator_gives_same_images_near_the_data(model):
    augment = Augment(model.method, augment=1.0, decoder_samples=0.0, kind="unit")
    one, two = (augment(x(), torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)
    smooth = torch.linspace(0, 1, 12).expand(200, 1, 12, 12).contiguous()
    moved = augment(smooth, torch.Generator().manual_seed(3))
    assert 0.01 < (moved - smooth).abs().mean() < 0.15  # a rotation by a few degrees, not another image
    assert (moved - smooth).mean().abs() < 0.02  # in both directions equally


def test_options_need_a_fixed_decoder():
    with pytest.raises(ConfigError, match="give train = 'encoder'"):
        recmix.fit("vae", images(20), augment=0.5)
    with pytest.raises(ConfigError, match="at most 1 together; got 0.7 and 0.7"):
        recmix.fit("vae", images(20), train="encoder", augment=0.7, decoder_samples=0.7)
    message = "decoder_samples must be at least 0 and at most 1, got 1.5"
    with pytest.raises(ConfigError, match=message):
        recmix.fit("vae", images(20), train="encoder", decoder_samples=1.5)


@pytest.mark.filterwarnings("ignore:the validation bound was")  # the new encoders of me learn fast
@pytest.mark.parametrize("name", sorted(METHODS))
def test_decoder_does_not_change(model, name):
    data = recmix.data.from_arrays(images(100, size=12), seed=0)
    given = {"train": "encoder", "epochs": 2, "learning_rate": 1e-3, "patience": 0, "progress": False}
    made = recmix.fit(name, data, init=model, augment=0.3, decoder_samples=0.3, **given)
    for key, value in model.latent_model.state_dict().items():
        assert torch.equal(value, made.latent_model.state_dict()[key].cpu()), key
    assert all(p.requires_grad for p in made.latent_model.parameters())


def test_what_cannot_be_augmented_is_refused():
    table = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    fast = {"epochs": 1, "latent": 2, "progress": False, "train": "encoder", "device": "cpu"}
    with pytest.raises(ConfigError, match=r"augment rotates and shifts images.*\(6,\)"):
        recmix.fit("vae", table, augment=0.5, **fast)
    with pytest.raises(ConfigError, match="decoder_samples needs a gaussian, bernoulli or categorical"):
        recmix.fit(
            "vae", np.abs(table).round().astype(int), decoder_samples=0.5, likelihood="poisson", **fast
        )
    model = recmix.fit("vae", 10 * table, decoder_samples=0.5, **fast)  # not clipped to [0, 1]
    made = Augment(model.method, augment=0.0, decoder_samples=1.0, kind="real")
    assert made(torch.from_numpy(10 * table)).abs().max() > 2
