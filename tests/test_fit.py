"""`recmix.fit` as a user calls it, and the model it gives back."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import recmix
from recmix.api import Fitted
from recmix.errors import ConfigError, DataError, NonFiniteError, RunError
from recmix.methods.vae import VAE
from recmix.model.networks import make_encoder
from recmix.runs.options import Training
from recmix.training.job import Job
from recmix.training.loop import train
from recmix.training.schedule import rate_factor

SMALL = {"latent": 2, "epochs": 2, "batch_size": 20, "progress": False, "device": "cpu"}


def images(n=60, seed=0, size=8):
    """Blurred squares at random places: something a VAE can learn."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, 1, size, size), np.float32)
    for i, (r, c) in enumerate(rng.integers(0, size - 3, (n, 2))):
        x[i, 0, r : r + 3, c : c + 3] = 0.5 + 0.5 * rng.random()
    return x


@pytest.fixture(scope="module")
def data():
    return recmix.data.from_arrays(images(), x_test=images(20, seed=1))


@pytest.fixture(scope="module")
def vae(data):
    return recmix.fit("vae", data, **SMALL)


@pytest.fixture(scope="module")
def rme(data, vae):
    return recmix.fit("rme", data, order=3, init=vae, **SMALL)


def test_the_interface_of_the_readme(data, vae, rme):
    x = data.x_test[:5]
    plus = recmix.fit("vae", data, init=vae, epochs=1, progress=False)
    assert len(vae.history) == 2
    assert len(plus.history) == 1
    assert {"epoch", "learning_rate", "loss", "elbo", "val_elbo", "val_iwae"} <= set(rme.history[0])
    q = rme.posterior(x)
    z, log_q = q.rsample_and_log_prob(100)
    assert z.shape == (100, 5, 2)
    assert log_q.shape == (100, 5)
    torch.testing.assert_close(q.weights.sum(-1), torch.ones(5))
    assert q.weights.shape == (5, 3)
    assert q.as_distribution().event_shape == (2,)
    assert rme.log_likelihood(x, samples=10).shape == (5,)
    assert rme.elbo(x).shape == (5,)
    assert rme.reconstruct(x).shape == (5, 1, 8, 8)
    assert rme.sample(64).shape == (64, 1, 8, 8)
    assert rme.decode(z).shape == (100, 5, 1, 8, 8)
    assert rme.log_joint(x, z).shape == (100, 5)
    assert not z.requires_grad


def test_bounds_are_made_of_log_joint(rme, data):
    x = torch.from_numpy(data.x_test[:4])
    generator = torch.Generator().manual_seed(7)
    z, log_q = rme.posterior(x).rsample_and_log_prob(20, generator=generator)
    log_w = rme.log_joint(x, z) - log_q
    elbo, iwae = rme.bounds(x, 20, seed=7)
    torch.testing.assert_close(elbo, log_w.mean(0))
    torch.testing.assert_close(iwae, log_w.logsumexp(0) - np.log(20))


def test_images_come_back_in_the_datas_own_range(vae, data):
    """With a Gaussian likelihood the training mean is taken off and put back."""
    centre = vae.model.centre
    torch.testing.assert_close(centre, torch.from_numpy(data.x_train[:].mean(0)))
    zeroed = copy.deepcopy(vae.method)
    for p in zeroed.model.decoder.parameters():
        p.data.zero_()
    plain = Fitted(zeroed, vae.spec)
    torch.testing.assert_close(plain.sample(1)[0], centre)
    torch.testing.assert_close(plain.reconstruct(data.x_test[:1])[0], centre)


def test_bernoulli_images_are_not_centred():
    binary = recmix.data.from_arrays((images() > 0).astype(np.float32))
    model = recmix.fit("vae", binary, **SMALL)
    assert model.spec.likelihood == "bernoulli"
    assert model.model.centre.abs().sum() == 0
    assert 0 <= model.sample(3).min() <= model.sample(3).max() <= 1


def test_same_seed_same_bits(data, vae):
    again = recmix.fit("vae", data, **SMALL)
    other = recmix.fit("vae", data, seed=1, **SMALL)
    assert again.history == vae.history
    for key, value in vae.method.state_dict().items():
        assert torch.equal(value, again.method.state_dict()[key])
    assert other.history != vae.history


@pytest.mark.parametrize("kind", ["numpy", "tensor", "dataset", "uint8"])
def test_data_of_any_kind(kind):
    x = images(30)
    given = {
        "numpy": x,
        "tensor": torch.from_numpy(x),
        "dataset": TensorDataset(torch.from_numpy(x), torch.zeros(30)),
        "uint8": (255 * x).astype(np.uint8),
    }[kind]
    model = recmix.fit("vae", given, latent=2, epochs=1, progress=False)
    assert model.spec.shape == (1, 8, 8)


def test_without_init_the_vae_is_trained_first(tmp_path):
    model = recmix.fit("rme", images(), order=2, vae_epochs=3, out=tmp_path / "rme", **SMALL)
    inner = recmix.load(tmp_path / "rme" / "vae")
    assert inner.spec.method == "vae"
    assert len(inner.history) == 3
    assert inner.spec.training.learning_rate == 5e-4
    assert model.spec.training.learning_rate == 1e-6
    assert model.spec.init == {"run": "vae", "epochs": 3}


def test_the_best_epoch_is_kept_and_patience_stops(tmp_path):
    model = recmix.fit(
        "vae",
        images(),
        latent=2,
        epochs=60,
        patience=3,
        learning_rate=0.03,
        batch_size=10,
        out=tmp_path / "run",
        progress=False,
    )
    status = recmix.load(tmp_path / "run")
    best = max(model.history, key=lambda row: row["val_iwae"])
    last = model.history[-1]
    assert last["epoch"] - best["epoch"] == 3
    assert len(model.history) < 60
    x = recmix.data.from_arrays(images()).x_val[:]
    torch.testing.assert_close(status.elbo(x), model.elbo(x))


def test_a_continued_model_is_never_worse_on_validation_than_its_start(data, vae):
    worse = recmix.fit("vae", data, init=vae, learning_rate=3.0, epochs=1, progress=False)
    for a, b in zip(worse.method.parameters(), vae.method.parameters(), strict=True):
        assert torch.equal(a, b)


def test_save_and_load_give_the_same_answers(tmp_path, rme, data):
    rme.save(tmp_path / "saved")
    again = recmix.load(tmp_path / "saved")
    x = data.x_test[:6]
    torch.testing.assert_close(again.log_likelihood(x), rme.log_likelihood(x), rtol=0, atol=0)
    assert again.history == rme.history
    with pytest.raises(RunError, match="already holds a run"):
        rme.save(tmp_path / "saved")
    rme.save(tmp_path / "saved", overwrite=True)


class OwnEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)


class OwnDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 64)

    def forward(self, z):
        return self.linear(z).view(-1, 1, 8, 8)


def test_your_own_networks(tmp_path, data):
    own = recmix.fit(
        "vae", data, encoder=OwnEncoder(), decoder=OwnDecoder(), out=tmp_path / "own", **SMALL
    )
    grown = recmix.fit("rme", data, init=own, order=2, epochs=1, progress=False)
    assert isinstance(grown.method.base_encoder, OwnEncoder)
    scratch = recmix.fit("rme", data, encoder=OwnEncoder(), order=2, vae_epochs=1, **SMALL)
    assert isinstance(scratch.method.base_encoder, OwnEncoder)
    with pytest.raises(RunError, match="own encoder, which is code and not stored"):
        recmix.load(tmp_path / "own")
    again = recmix.load(tmp_path / "own", encoder=OwnEncoder(), decoder=OwnDecoder())
    torch.testing.assert_close(again.elbo(data.x_test[:3]), own.elbo(data.x_test[:3]))
    with pytest.raises(ConfigError, match="encoder"):
        recmix.fit("vae", data, encoder=nn.Linear(3, 3), **SMALL)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(ConfigError, match="encoder of another architecture"):
        recmix.fit("vae", data, encoder=other, init=own, epochs=1, progress=False)
    assert all(p.grad is None for p in own.method.parameters())


def test_schedule_warms_up_and_anneals():
    setting = Training(schedule="cosine", warmup=2, final_rate=0.1)
    factors = [rate_factor(e, 12, setting) for e in range(12)]
    assert factors[0] == pytest.approx(1 / 3)
    assert factors[2] == 1
    assert factors[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in zip(factors[2:], factors[3:], strict=False))
    model = recmix.fit("vae", images(), latent=2, epochs=3, schedule="linear", progress=False)
    rates = [row["learning_rate"] for row in model.history]
    assert rates[0] == 5e-4
    assert rates[-1] == pytest.approx(5e-6)


def test_variance_has_its_own_rate():
    model = recmix.fit("vae", images(), latent=2, epochs=1, variance_rate=40.0, progress=False)
    groups = model.method.optimizers(1e-3, variance_rate=40.0)["all"].param_groups
    assert groups[-1]["lr"] == pytest.approx(0.04)
    assert [id(p) for p in groups[-1]["params"]] == [id(model.model.likelihood.log_variance)]


class Poisoned(nn.Module):
    """An encoder that gives NaN from its k-th training batch on."""

    def __init__(self, at):
        super().__init__()
        self.encoder = make_encoder("conv", (1, 8, 8), 2)
        self.left = at

    def forward(self, x):
        out = self.encoder(x)
        if self.training and torch.is_grad_enabled():
            self.left -= 1
            if self.left < 0:
                return out * float("nan")
        return out


def test_a_non_finite_loss_names_the_batch_the_quantity_and_the_checkpoint(tmp_path):
    with pytest.raises(
        NonFiniteError, match=r"loss is not a finite number at batch 2 of epoch 2"
    ) as caught:
        recmix.fit(
            "vae",
            images(),
            encoder=Poisoned(at=4),
            out=tmp_path / "bad",
            latent=2,
            batch_size=18,
            epochs=5,
            progress=False,
        )
    assert str(tmp_path / "bad" / "checkpoint.safetensors") in str(caught.value)
    assert recmix.runs.folder.Run(tmp_path / "bad").status()["status"] == "failed"


def test_gradient_norm_guard_limits_each_update():
    x = images()
    free, held = (
        recmix.fit("vae", x, max_gradient_norm=norm, **SMALL).history[-1]["val_elbo"]
        for norm in (0.0, 1e-9)
    )
    start = recmix.fit("vae", x, **(SMALL | {"learning_rate": 1e-12})).history[-1]["val_elbo"]
    assert free > start + 0.1
    assert held < free  # Adam's step survives a small gradient, but not one far below its epsilon


def test_dynamic_binarisation_draws_afresh():
    import dataclasses

    grey = recmix.data.from_arrays(np.full((10, 1, 8, 8), 0.5, np.float32))
    grey = dataclasses.replace(grey, dynamic=True, binary=True)
    seen = []

    class Watching(VAE):
        def step(self, x, optimizers, *, generator=None):
            seen.append(x)
            return super().step(x, optimizers, generator=generator)

    model = recmix.fit("vae", grey, latent=2, epochs=1, progress=False)
    assert model.spec.likelihood == "bernoulli"
    method = Watching(model.model, make_encoder("conv", (1, 8, 8), 2))
    train([Job(method, grey, Training(epochs=2, learning_rate=1e-4))])
    assert set(seen[0].unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(seen[0], seen[1])
    assert grey.x_val[:].min() == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rmi"}, "did you mean 'rme'"),
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"latent": 0}, "at least 1; got 0"),
        ({"latent": -3}, "at least 1"),
        ({"latent": "3"}, "latent must be a whole number, got '3'"),
        ({"latent": 2.5}, "latent must be a whole number"),
        ({"method": None}, "method must be a name"),
        ({"likelihood": 3}, "likelihood must be a name"),
        ({"init": 3}, "init must be a trained model or its folder"),
        ({"encoder": "x"}, "encoder must be a torch.nn.Module"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"batch_size": -1}, "batch_size must be positive"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"epochs": 2.5}, "whole number"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"dtype": "float16"}, "float32"),
        ({"device": "cdua"}, "does not exist"),
        ({"likelihood": "gausian"}, "did you mean 'gaussian'"),
        ({"network": "cnov"}, "did you mean 'conv'"),
        ({"final_rate": 2.0}, "0 to 1"),
        ({"patience": -1}, "not be negative"),
        ({"method": "rme", "order": 0}, "1 to 16; got 0"),
    ],
)
def test_bad_options_say_what_is_valid(options, message):
    method = options.pop("method", "vae")
    with pytest.raises(ConfigError, match=message):
        recmix.fit(method, images(), **({"latent": 2, "progress": False} | options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ConfigError, match="no CUDA device"):
        recmix.fit("vae", images(), device="cuda")


@pytest.mark.parametrize(
    ("data_options", "options", "message"),
    [
        ({"size": 10}, {}, "images of shape"),
        ({}, {"latent": 3}, "latent 2, this run asks for 3"),
        ({}, {"likelihood": "bernoulli"}, "likelihood gaussian, this run asks for bernoulli"),
        ({}, {"network": "dense"}, "network conv, this run asks for dense"),
    ],
)
def test_init_of_another_kind_is_refused(vae, data_options, options, message):
    with pytest.raises(ConfigError, match=message):
        recmix.fit("rme", images(**data_options), init=vae, progress=False, **options)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (2 * images(), r"\[0, 1\]"),
        (images() * np.nan, "NaN|finite"),
        (images()[:, :, :, :, None], "shape|dimensions"),
        (images()[:0], "empty|no images|0"),
        (images()[:1], "one|two|2"),
    ],
)
def test_bad_images_are_refused(x, message):
    with pytest.raises(DataError, match=message):
        recmix.fit("vae", x, progress=False)


@pytest.mark.parametrize(
    "x", [np.zeros((2, 3, 8, 8)), np.zeros((2, 1, 9, 9)), np.full((2, 1, 8, 8), 7.0)]
)
def test_a_posterior_of_other_images_is_refused(vae, x):
    with pytest.raises(DataError):
        vae.posterior(x.astype(np.float32))


def test_latents_of_another_shape_are_refused(vae, data):
    with pytest.raises(ConfigError, match="z must be"):
        vae.decode(np.zeros((3, 5)))
    with pytest.raises(ConfigError, match="z must be"):
        vae.log_joint(data.x_test[:3], np.zeros((1, 4, 2)))
    with pytest.raises(ConfigError, match="positive"):
        vae.sample(0)
    with pytest.raises(ConfigError, match="at least 1"):
        vae.elbo(data.x_test[:3], 0)


def test_uint8_images_count_as_value_over_255():
    model = recmix.fit("vae", images(40), latent=2, epochs=1, progress=False)
    grey = (255 * images(5)).astype(np.uint8)
    q, other = model.posterior(grey), model.posterior(grey.astype(np.float32) / 255)
    torch.testing.assert_close(q.mean, other.mean)
    torch.testing.assert_close(model.elbo(grey), model.elbo(grey.astype(np.float32) / 255))


def test_progress_is_asked_of_all_trainings_together():
    with pytest.raises(ConfigError, match="give it to fit_many"):
        recmix.fit_many([{"method": "vae", "data": images(), "progress": False}])
