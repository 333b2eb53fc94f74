"""`recmix.fit` as a user calls it, and the `recmix.Model` that it returns."""

import copy
import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from cases.training import SMALL, images
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import recmix
from recmix.errors import ConfigError, DataError, NonFiniteError, RunError
from recmix.methods.vae import VAE
from recmix.model.networks import make_encoder
from recmix.runs.training_options import Training
from recmix.training.job import Job
from recmix.training.loop import train
from recmix.training.request import read_request
from recmix.training.schedule import rate_factor


@pytest.fixture(scope="module")
def data():
    return recmix.data.from_arrays(images(), x_test=images(20, seed=1))


@pytest.fixture(scope="module")
def vae(data):
    return recmix.fit("vae", data, **SMALL)


@pytest.fixture(scope="module")
def rme(data, vae):
    return recmix.fit("rme", data, order=3, init=vae, **SMALL)


def test_model_has_the_interface_of_the_readme(data, vae, rme):
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
    assert isinstance(q, torch.distributions.Distribution)
    assert (q.batch_shape, q.event_shape) == ((5,), (2,))
    assert rme.log_likelihood(x, samples=10).shape == (5,)
    assert rme.elbo(x).shape == (5,)
    assert rme.reconstruct(x).shape == (5, 1, 8, 8)
    assert rme.sample(64).shape == (64, 1, 8, 8)
    assert rme.decode(z).shape == (100, 5, 1, 8, 8)
    assert rme.log_joint(x, z).shape == (100, 5)
    assert not z.requires_grad


def test_bounds_equal_log_joint_minus_log_q(rme, data):
    x = torch.from_numpy(data.x_test[:4])
    generator = torch.Generator().manual_seed(7)
    z, log_q = rme.posterior(x).rsample_and_log_prob(20, generator=generator)
    log_w = rme.log_joint(x, z) - log_q
    elbo, iwae = rme.bounds(x, 20, seed=7)
    torch.testing.assert_close(elbo, log_w.mean(0))
    torch.testing.assert_close(iwae, log_w.logsumexp(0) - np.log(20))


def test_images_are_in_the_range_of_the_data(vae, data):
    """With a Gaussian likelihood the training mean is subtracted, and added again."""
    centre = vae.latent_model.centre
    torch.testing.assert_close(centre, torch.from_numpy(data.x_train[:].mean(0)))
    zeroed = copy.deepcopy(vae.method)
    for p in zeroed.model.decoder.parameters():
        p.data.zero_()
    plain = recmix.Model(zeroed, vae.spec)
    torch.testing.assert_close(plain.sample(1)[0], centre)
    torch.testing.assert_close(plain.reconstruct(data.x_test[:1])[0], centre)


def test_bernoulli_images_are_not_centred():
    binary = recmix.data.from_arrays((images() > 0).astype(np.float32))
    model = recmix.fit("vae", binary, **SMALL)
    assert model.spec.model.likelihood == "bernoulli"
    assert model.latent_model.centre.abs().sum() == 0
    assert 0 <= model.sample(3).min() <= model.sample(3).max() <= 1


def test_same_seed_gives_same_bits(data, vae):
    again = recmix.fit("vae", data, **SMALL)
    other = recmix.fit("vae", data, seed=1, **SMALL)
    assert again.history == vae.history
    for key, value in vae.method.state_dict().items():
        assert torch.equal(value, again.method.state_dict()[key])
    assert other.history != vae.history


@pytest.mark.parametrize("kind", ["numpy", "tensor", "dataset", "uint8"])
def test_fit_takes_data_of_many_kinds(kind):
    x = images(30)
    given = {
        "numpy": x,
        "tensor": torch.from_numpy(x),
        "dataset": TensorDataset(torch.from_numpy(x), torch.zeros(30)),
        "uint8": (255 * x).astype(np.uint8),
    }[kind]
    model = recmix.fit("vae", given, latent=2, epochs=1, progress=False)
    assert model.spec.shape == (1, 8, 8)


def test_fit_takes_a_data_loader():
    x = torch.from_numpy(images(30))
    batches = DataLoader(TensorDataset(x, torch.zeros(30)), batch_size=7)
    model, same = (recmix.fit("vae", data, **SMALL) for data in (batches, images(30)))
    assert model.history == same.history


class Unregistered(VAE):
    """A method that only this file knows; it takes an option."""

    name = "unregistered"

    def __init__(self, model, encoder, *, factor: float = 1.0):
        super().__init__(model, encoder)
        self.factor = factor

    def loss(self, x, *, generator=None):
        return self.factor * super().loss(x, generator=generator)


def test_method_is_a_name_or_a_class(data, vae):
    by_class = recmix.fit(VAE, data, **SMALL)
    assert by_class.history == vae.history
    assert by_class.spec == vae.spec


def test_method_is_a_class_that_is_not_registered(tmp_path, data, vae):
    out = tmp_path / "run"
    plain, doubled = (recmix.fit(Unregistered, data, factor=f, **SMALL) for f in (1.0, 2.0))
    assert [row["elbo"] for row in plain.history] == [row["elbo"] for row in vae.history]
    assert doubled.history[0]["loss"] == pytest.approx(2 * vae.history[0]["loss"], rel=1e-2)
    assert doubled.spec.options == {"factor": 2.0}
    model = recmix.fit(Unregistered, data, out=out, **SMALL)
    assert model.spec.label == "UNREGISTERED"
    with pytest.raises(ConfigError, match="unknown method 'unregistered'.*method=YourClass"):
        recmix.load(out)
    for given in (VAE, vae.method, "unregistered", dict):
        with pytest.raises(ConfigError, match="method is .* trained with the method 'unregistered'"):
            recmix.load(out, method=given)
    again = recmix.load(out, method=Unregistered, device=torch.device("cpu"))
    assert torch.equal(again.elbo(data.x_test[:3]), model.elbo(data.x_test[:3]))
    longer = recmix.fit(Unregistered, data, out=out, resume=True, **(SMALL | {"epochs": 3}))
    assert longer.history[:2] == model.history
    with pytest.raises(
        ConfigError, match="unknown option for unregistered 'fctor': did you mean 'factor'"
    ):
        recmix.fit(Unregistered, data, fctor=2.0, **SMALL)


def test_method_is_an_instance(tmp_path, data, vae):
    method = Unregistered(copy.deepcopy(vae.latent_model), OwnEncoder(), factor=2.0)
    before = copy.deepcopy(method.state_dict())
    given = {name: value for name, value in SMALL.items() if name != "latent"}
    model = recmix.fit(method, data, out=tmp_path / "run", **given)
    assert model.method is method  # trained in place
    assert any(not torch.equal(value, before[key]) for key, value in method.state_dict().items())
    assert (model.spec.method, model.spec.options) == ("unregistered", {"factor": 2.0})
    assert (model.spec.model.latent, model.spec.model.likelihood) == (2, "gaussian")
    modules = {"encoder": OwnEncoder(), "decoder": copy.deepcopy(method.model.decoder)}
    again = recmix.load(tmp_path / "run", method=Unregistered, device="cpu", **modules)
    assert torch.equal(again.elbo(data.x_test[:3]), model.elbo(data.x_test[:3]))


def test_instance_takes_examples_of_its_shape_only(vae):
    with pytest.raises(
        ConfigError, match=r"made for examples of shape \(1, 8, 8\), these have shape \(1, 10, 10\)"
    ):
        recmix.fit(copy.deepcopy(vae.method), images(size=10), epochs=1, progress=False)


def test_callbacks_are_called_after_each_epoch(data):
    calls, order = [], []

    def first(epoch, metrics):
        calls.append((epoch, dict(metrics)))
        metrics.clear()  # a callback has its own copy
        order.append("first")

    model = recmix.fit("vae", data, callbacks=[first, lambda *_: order.append("second")], **SMALL)
    assert calls == [(row["epoch"], row) for row in model.history]
    assert [epoch for epoch, _ in calls] == [1, 2]
    assert order == ["first", "second"] * 2
    for given in (["print"], print, "print"):
        with pytest.raises(ConfigError, match=r"callbacks must be a list .*callbacks=\[function\]"):
            recmix.fit("vae", data, callbacks=given, **SMALL)


@pytest.mark.parametrize(
    ("callback", "problem"),
    [
        (lambda epoch: None, "too many positional arguments"),
        (lambda epoch, metrics, more: None, "missing a required argument: 'more'"),
        (partial(print, end=""), None),
        (max, None),  # a built-in function without a known signature
    ],
)
def test_callbacks_with_other_arguments_are_refused(callback, problem, data):
    if problem is None:
        read_request("vae", callbacks=[callback], **SMALL)
        return
    message = rf"callbacks are called with \(epoch, metrics\), but .* takes other .*{problem}.*: write"
    with pytest.raises(ConfigError, match=message):
        recmix.fit("vae", data, callbacks=[callback], **SMALL)


def test_error_in_a_callback_stops_the_training(tmp_path, data):
    def stop(epoch, _metrics):
        raise ZeroDivisionError(f"epoch {epoch}")

    with pytest.raises(ZeroDivisionError, match="epoch 1"):
        recmix.fit("vae", data, callbacks=[stop], out=tmp_path / "run", **SMALL)


def test_vae_is_trained_first_without_init(tmp_path):
    model = recmix.fit("rme", images(), order=2, vae_epochs=3, out=tmp_path / "rme", **SMALL)
    inner = recmix.load(tmp_path / "rme" / "vae")
    assert inner.spec.method == "vae"
    assert len(inner.history) == 3
    assert inner.spec.training.learning_rate == 5e-4
    assert model.spec.training.learning_rate == 1e-6
    assert model.spec.init == {"run": "vae", "epochs": 3}


@pytest.mark.filterwarnings("ignore:the validation bound was")
def test_best_epoch_is_kept_and_patience_stops(tmp_path):
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
    loaded = recmix.load(tmp_path / "run")
    best = max(model.history, key=lambda row: row["val_iwae"])
    last = model.history[-1]
    assert last["epoch"] - best["epoch"] == 3
    assert len(model.history) < 60
    x = recmix.data.from_arrays(images()).x_val[:]
    torch.testing.assert_close(loaded.elbo(x), model.elbo(x))


def test_continued_model_is_never_worse_on_validation(data, vae):
    with pytest.warns(UserWarning, match=r"fell to -\S+ nats in epoch 1\. The learning rate 3 is prob"):
        worse = recmix.fit("vae", data, init=vae, learning_rate=3.0, epochs=1, progress=False)
    for a, b in zip(worse.method.parameters(), vae.method.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


def test_saved_model_gives_same_results(tmp_path, rme, data):
    rme.save(tmp_path / "saved")
    again = recmix.load(tmp_path / "saved", device="cpu")
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


def test_user_networks(tmp_path, data):
    own = recmix.fit(
        "vae", data, encoder=OwnEncoder(), decoder=OwnDecoder(), out=tmp_path / "own", **SMALL
    )
    grown = recmix.fit("rme", data, init=own, order=2, epochs=1, progress=False)
    assert isinstance(grown.method.base_encoder, OwnEncoder)
    scratch = recmix.fit("rme", data, encoder=OwnEncoder(), order=2, vae_epochs=1, **SMALL)
    assert isinstance(scratch.method.base_encoder, OwnEncoder)
    with pytest.raises(RunError, match=r"own encoder and decoder\..* pass encoder=…, decoder=…\. If"):
        recmix.load(tmp_path / "own")
    modules = {"encoder": OwnEncoder(), "decoder": OwnDecoder()}
    again = recmix.load(tmp_path / "own", device="cpu", **modules)
    torch.testing.assert_close(again.elbo(data.x_test[:3]), own.elbo(data.x_test[:3]))
    with pytest.raises(ConfigError, match="encoder"):
        recmix.fit("vae", data, encoder=nn.Linear(3, 3), **SMALL)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(ConfigError, match="encoder of another architecture"):
        recmix.fit("vae", data, encoder=other, init=own, epochs=1, progress=False)
    assert all(p.grad is None for p in own.method.parameters())


def test_schedule_rises_and_decays():
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


def test_variance_has_own_learning_rate():
    model = recmix.fit("vae", images(), latent=2, epochs=1, variance_rate=40.0, progress=False)
    groups = model.method.optimizers(1e-3, variance_rate=40.0)["all"].param_groups
    assert float(groups[-1]["lr"]) == pytest.approx(0.04)
    assert [id(p) for p in groups[-1]["params"]] == [id(model.latent_model.likelihood.log_variance)]


class Poisoned(nn.Module):
    """An encoder that returns NaN after `at` training batches."""

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


def test_non_finite_loss_names_batch_metric_and_checkpoint(tmp_path):
    with pytest.raises(
        NonFiniteError, match=r"loss is not a finite number at batch 2 of epoch 2"
    ) as caught:
        recmix.fit(
            "vae",
            recmix.data.from_arrays(images(), hold_out_test=False),
            encoder=Poisoned(at=4),
            out=tmp_path / "bad",
            latent=2,
            batch_size=18,
            epochs=5,
            progress=False,
            engine="eager",  # a CUDA graph would not count the batches in Python
        )
    assert str(tmp_path / "bad" / "checkpoint.safetensors") in str(caught.value)
    assert recmix.runs.folder.Run(tmp_path / "bad").status()["status"] == "failed"


def test_gradient_norm_limits_each_update():
    x = images()
    free, held = (
        recmix.fit("vae", x, max_gradient_norm=norm, **SMALL).history[-1]["val_elbo"]
        for norm in (0.0, 1e-9)
    )
    start = recmix.fit("vae", x, **(SMALL | {"learning_rate": 1e-12})).history[-1]["val_elbo"]
    assert free > start + 0.1
    assert held < free  # the clipped gradient is far below the epsilon of Adam


def test_dynamic_binarisation_draws_anew_in_each_epoch():
    grey = recmix.data.from_arrays(np.full((10, 1, 8, 8), 0.5, np.float32))
    grey = dataclasses.replace(grey, dynamic=True, binary=True)
    seen = []

    class Recording(VAE):
        def step(self, x, optimizers, **given):
            seen.append(x)
            return super().step(x, optimizers, **given)

    model = recmix.fit("vae", grey, latent=2, epochs=1, progress=False)
    assert model.spec.model.likelihood == "bernoulli"
    method = Recording(model.latent_model, make_encoder("conv", (1, 8, 8), 2).to(model.device))
    train([Job(method, grey, Training(epochs=2, learning_rate=1e-4))], engine="eager")
    assert set(seen[0].unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(seen[0], seen[1])
    assert grey.x_val[:].min() == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rmi"}, "did you mean 'rme'"),
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"latent": 0}, "latent must be at least 1, got 0"),
        ({"latent": -3}, "latent must be at least 1, got -3"),
        ({"latent": "three"}, "latent must be a whole number, got 'three'"),
        ({"latent": 2.5}, "latent must be a whole number, got 2.5"),
        ({"method": None}, "method must be a name"),
        ({"likelihood": 3}, "likelihood must be a name or an object of recmix.likelihoods, got 3"),
        ({"out": 3}, "the folder of a run must be text or a path, got 3"),
        ({"init": 3}, "init must be a trained model or its folder"),
        ({"encoder": "x"}, "encoder must be a torch.nn.Module.* the option network"),
        ({"decoder": "dense"}, "the option decoder_network"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, got -1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0, got 0.0"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"epochs": 2.5}, "epochs must be a whole number, got 2.5"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"dtype": "float16"}, "unknown value of dtype 'float16'.*float32, float64"),
        ({"device": "cdua"}, "does not exist"),
        ({"likelihood": "gausian"}, "did you mean 'gaussian'"),
        ({"network": "cnov"}, "did you mean 'conv'"),
        ({"final_rate": 2.0}, "final_rate must be at least 0 and at most 1, got 2.0"),
        ({"patience": -1}, "patience must be at least 0, got -1"),
        ({"method": "rme", "order": 0}, "1 to 16; got 0"),
    ],
)
def test_invalid_options_are_refused(options, message):
    method = options.pop("method", "vae")
    with pytest.raises(ConfigError, match=message):
        recmix.fit(method, images(), **({"latent": 2, "progress": False} | options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_refused():
    with pytest.raises(ConfigError, match="no CUDA device"):
        recmix.fit("vae", images(), device="cuda")


@pytest.mark.parametrize(
    ("data_options", "options", "message"),
    [
        ({"size": 10}, {}, r"examples of shape \(1, 8, 8\), these have shape \(1, 10, 10\)"),
        ({}, {"latent": 3}, "latent 2, this run has 3"),
        ({}, {"likelihood": "bernoulli"}, "likelihood gaussian, this run has bernoulli"),
        ({}, {"network": "dense"}, "network conv, this run has dense"),
    ],
)
def test_init_with_other_model_is_refused(vae, data_options, options, message):
    with pytest.raises(ConfigError, match=message):
        recmix.fit("rme", images(**data_options), init=vae, progress=False, **options)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (images() * np.nan, "NaN|finite"),
        (images()[:, 0, :, :, None], "channels-last"),
        (images()[:0], "empty|no examples|0"),
        (images()[:1], "one|two|2"),
    ],
)
def test_invalid_images_are_refused(x, message):
    with pytest.raises(DataError, match=message):
        recmix.fit("vae", x, progress=False)


@pytest.mark.parametrize(
    "x", [np.zeros((2, 3, 8, 8)), np.zeros((2, 1, 9, 9)), np.full((2, 1, 8, 8), np.inf)]
)
def test_posterior_refuses_images_of_other_shape_or_not_finite(vae, x):
    with pytest.raises(DataError):
        vae.posterior(x.astype(np.float32))


def test_latents_of_other_shape_are_refused(vae, data):
    with pytest.raises(ConfigError, match="z must be"):
        vae.decode(np.zeros((3, 5)))
    with pytest.raises(ConfigError, match="z must be"):
        vae.log_joint(data.x_test[:3], np.zeros((1, 4, 2)))
    with pytest.raises(ConfigError, match="positive"):
        vae.sample(0)
    with pytest.raises(ConfigError, match="at least 1"):
        vae.elbo(data.x_test[:3], 0)


def test_uint8_images_mean_value_over_255():
    model = recmix.fit("vae", images(40), latent=2, epochs=1, progress=False)
    grey = (255 * images(5)).astype(np.uint8)
    q, other = model.posterior(grey), model.posterior(grey.astype(np.float32) / 255)
    torch.testing.assert_close(q.mean, other.mean)
    torch.testing.assert_close(model.elbo(grey), model.elbo(grey.astype(np.float32) / 255))


def test_progress_of_one_request_is_refused():
    with pytest.raises(ConfigError, match="give it to fit_many"):
        recmix.fit_many([{"method": "vae", "data": images(), "progress": False}])


def test_instance_is_stored_with_all_options_and_keeps_its_dtype(data, tmp_path):
    vae = recmix.fit("vae", data, **SMALL)
    method = type(vae.method)(
        model=copy.deepcopy(vae.latent_model), encoder=copy.deepcopy(vae.method.base_encoder)
    ).double()
    model = recmix.fit(method, data, init=vae, epochs=1, progress=False, out=tmp_path / "run")
    assert model.spec.options == {}
    assert model.spec.training.dtype == "float64"
    assert model.latent_model.centre.dtype == torch.float64


def test_finished_run_is_used_with_the_requested_inference(data, tmp_path):
    first = recmix.fit("vae", data, **SMALL, out=tmp_path / "run")
    again = recmix.fit("vae", data, **SMALL, out=tmp_path / "run", resume=True, scale=2.0)
    assert first.inference.scale == 1
    assert again.inference.scale == 2


def test_first_stage_has_the_refinement_of_the_second(data, tmp_path):
    options = {"latent": 2, "epochs": 1, "vae_epochs": 1, "progress": False}
    model = recmix.fit("rme", data, order=2, refine=1, out=tmp_path / "run", **options)
    first = recmix.load(tmp_path / "run" / "vae")
    assert first.inference.refine == 1
    assert (first.spec.label, model.spec.label) == ("VAE refine=1", "RME refine=1 from VAE refine=1")


def test_another_inference_leaves_the_mode_of_a_model(vae):
    vae.train()
    try:
        assert vae.using(scale=2.0).training
        assert vae.method.training
    finally:
        vae.eval()


def test_resume_with_test_examples_that_the_run_did_not_have_says_how_to_leave_them_out(tmp_path):
    x = images(30)
    recmix.fit("vae", recmix.data.from_arrays(x, hold_out_test=False), out=tmp_path / "run", **SMALL)
    with pytest.raises(RunError, match=r"from_arrays\(x, hold_out_test=False\)"):
        recmix.fit("vae", recmix.data.from_arrays(x), out=tmp_path / "run", resume=True, **SMALL)


def test_a_folder_that_cannot_be_used_is_named_before_the_first_stage(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file is a file: give the name of a folder"):
        recmix.fit("rme", "digits", latent=2, epochs=1, vae_epochs=1, out=tmp_path / "file")
    recmix.fit("vae", "digits", latent=2, epochs=1, network="mlp", widths=(8,), out=tmp_path / "run")
    with pytest.raises(RunError, match="run already holds a run"):
        recmix.fit("rme", "digits", latent=2, epochs=1, vae_epochs=1, out=tmp_path / "run")
