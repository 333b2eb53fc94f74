import pytest
import torch
from test_fit import images

import recmix
from recmix.errors import ConfigError
from recmix.training.variety import Variety


@pytest.fixture(scope="module")
def model():
    data = recmix.data.from_arrays(images(100, size=12), seed=0)
    return recmix.fit("vae", data, latent=2, epochs=2, progress=False, device="cpu")


def x(n=20):
    return torch.rand(n, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def test_shares_of_the_batch_are_replaced(model):
    given = x()
    made = Variety(model.method, augment=0.25, dreams=0.5, binary=False)(given)
    assert made.shape == given.shape
    changed = (made != given).flatten(1).any(1)
    assert changed[:15].all()
    assert not changed[15:].any()
    assert made.min() >= 0
    assert made.max() <= 1


def test_binary_images_stay_binary(model):
    made = Variety(model.method, augment=0.5, dreams=0.5, binary=True)(x().round())
    assert ((made == 0) | (made == 1)).all()


def test_the_same_stream_gives_the_same_images_and_small_changes_stay_near(model):
    variety = Variety(model.method, augment=1.0, dreams=0.0, binary=False)
    one, two = (variety(x(), torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, two)
    smooth = torch.linspace(0, 1, 12).expand(200, 1, 12, 12).contiguous()
    moved = variety(smooth, torch.Generator().manual_seed(3))
    assert 0.01 < (moved - smooth).abs().mean() < 0.15  # a turn of some degrees, not another image
    assert (moved - smooth).mean().abs() < 0.02  # to both sides alike


def test_only_an_encoder_learns_from_what_is_not_data():
    with pytest.raises(ConfigError, match='moves = "encoder"'):
        recmix.fit("vae", images(20), augment=0.5)
    with pytest.raises(ConfigError, match="at most 1 together"):
        recmix.fit("vae", images(20), moves="encoder", augment=0.7, dreams=0.7)
    with pytest.raises(ConfigError, match="share of the batch"):
        recmix.fit("vae", images(20), moves="encoder", dreams=1.5)


@pytest.mark.parametrize("name", sorted(recmix.methods.registry.METHODS) or ["vae"])
def test_the_decoder_stands_still(model, name):
    data = recmix.data.from_arrays(images(100, size=12), seed=0)
    told = {"moves": "encoder", "epochs": 2, "learning_rate": 1e-3, "patience": 0, "progress": False}
    made = recmix.fit(name, data, init=model, augment=0.3, dreams=0.3, **told)
    for key, value in model.model.state_dict().items():
        assert torch.equal(value, made.model.state_dict()[key]), key
    assert all(p.requires_grad for p in made.model.parameters())
