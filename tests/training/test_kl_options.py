"""`kl_warmup` and `free_bits`: what is minimised, which stage they belong to, and exact resume."""

import math

import numpy as np
import pytest
import torch
from cases.oracle import LinearEncoder, LinearGaussian
from cases.training import SMALL, images

import recmix
from recmix.errors import ConfigError, RunError
from recmix.methods.method import Objective
from recmix.methods.registry import METHODS
from recmix.methods.vae import VAE
from recmix.model.causal_networks import CausalNetwork
from recmix.objectives import elbo, elbo_parts, kl_by_dimension, weighted_elbo
from recmix.posteriors import FullGaussian, Gaussian, Mixture
from recmix.runs.folder import Run
from recmix.runs.training_options import Training
from recmix.training.job import VALIDATION_SEED, Job
from recmix.training.schedule import KLWeight

LONG = SMALL | {"epochs": 4, "batch_size": 20}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(x, latent=3):
    """A diagonal Gaussian whose KL differs between dimensions: near 0, small and large."""
    mean = torch.tensor([0.01, 0.3, 2.0]).double().expand(len(x), latent).clone().requires_grad_()
    log_variance = torch.tensor([0.0, -0.1, -2.0]).double().expand(len(x), latent).clone()
    return Gaussian(mean, log_variance.requires_grad_())


# --- the formula -------------------------------------------------------------------------------------


def test_parts_are_those_of_the_elbo():
    world = LinearGaussian()
    x = world.images()
    q = gaussian(x)
    pair = [q, Gaussian(q.mean + 1, q.log_variance)]
    for posterior in (q, Mixture(pair, torch.tensor([[0.3, 0.7]]).double().log().expand(len(x), 2))):
        reconstruction, kl = elbo_parts(world.model, x, posterior, 3, generator=seeded())
        torch.testing.assert_close(
            reconstruction - kl, elbo(world.model, x, posterior, 3, generator=seeded())
        )
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(q.mean, q.stddev), torch.distributions.Normal(0.0, 1.0)
    )
    torch.testing.assert_close(kl_by_dimension(world.model, q), exact)
    torch.testing.assert_close(elbo_parts(world.model, x, q)[1], exact.sum(-1))


@pytest.mark.parametrize(("weight", "bits"), [(1.0, 0.0), (0.25, 0.0), (1.0, 0.1), (0.5, 0.1)])
def test_objective_is_the_literal_formula(weight, bits):
    world = LinearGaussian()
    x = world.images()
    q = gaussian(x)
    found, bound = weighted_elbo(
        world.model, x, q, kl_weight=torch.tensor(weight), free_bits=bits, generator=seeded()
    )
    z, _ = q.rsample_and_log_prob(1, generator=seeded())
    reconstruction = world.model.log_conditional(x, z).mean()
    each = [
        (0.5 * (q.mean[:, d] ** 2 + q.variance[:, d] - 1 - q.log_variance[:, d])).mean()
        for d in range(3)
    ]
    expected = reconstruction - weight * sum(max(bits, kl.item()) for kl in each)
    torch.testing.assert_close(found, expected.expand(()))
    torch.testing.assert_close(bound, (reconstruction - sum(each)).detach())
    assert not bound.requires_grad


def test_no_gradient_below_free_bits():
    """The KL of the first two dimensions is below 0.1 nats, that of the third above."""
    world = LinearGaussian()
    x = world.images()
    gradients = []
    for weight in (0.0, 1.0):
        q = gaussian(x)
        parameters = (q.mean, q.log_variance)
        found, _ = weighted_elbo(world.model, x, q, kl_weight=weight, free_bits=0.1, generator=seeded())
        gradients.append(torch.stack(torch.autograd.grad(found, parameters)))
    of_kl = gradients[1] - gradients[0]
    assert of_kl[..., :2].abs().max() == 0
    expected = torch.stack([q.mean[:, 2], 0.5 * (q.variance[:, 2] - 1)]) / len(x)
    torch.testing.assert_close(-of_kl[..., 2], expected)


def test_free_bits_need_a_kl_that_is_a_sum():
    world = LinearGaussian()
    x = world.images()
    full = FullGaussian(torch.zeros(5, 3).double(), torch.eye(3).double().expand(5, 3, 3))
    with pytest.raises(ConfigError, match="diagonal Gaussian and prior = 'standard'; got a FullGauss"):
        weighted_elbo(world.model, x, full, free_bits=0.1)
    weighted_elbo(world.model, x, full, kl_weight=0.1)  # any KL can have a weight


def test_step_with_weight_one_is_the_usual_step():
    steps = []
    for objective in (Objective(), Objective(kl_weight=torch.ones(()).double())):
        torch.manual_seed(0)
        world = LinearGaussian()
        method = VAE(world.model, LinearEncoder(3)).double()
        metrics = method.step(
            world.images(), method.optimizers(1e-2), objective=objective, generator=seeded()
        )
        steps.append((metrics, [p.detach() for p in method.parameters()]))
    (one, parameters), (two, others) = steps
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(parameters, others)


def test_step_reports_the_elbo_and_minimises_the_weighted_loss():
    torch.manual_seed(0)
    world = LinearGaussian()
    method = VAE(world.model, LinearEncoder(3)).double()
    x = world.images()
    q = method.posterior(x)
    objective = Objective(kl_weight=torch.zeros(()).double())
    metrics = method.step(x, method.optimizers(1e-2), objective=objective, generator=seeded())
    torch.testing.assert_close(
        metrics["elbo"] + metrics["loss"], -kl_by_dimension(world.model, q).sum(-1).mean().detach()
    )


def test_step_never_reads_a_value():
    """On the meta device tensors have no values, so a step that waits for the device fails."""
    world = LinearGaussian()
    method = VAE(world.model, LinearEncoder(3)).double().to("meta")
    weight = KLWeight(2, 4, like=world.model.centre)
    weight.begin(0)
    weight.update(torch.zeros(1, dtype=torch.int64, device="meta"))
    objective = Objective(kl_weight=weight.value, free_bits=0.1)
    x = torch.zeros(5, *world.shape, dtype=torch.float64, device="meta")
    metrics = method.step(x, method.optimizers(1e-3), objective=objective)
    assert all(value.is_meta for value in metrics.values())


# --- the weight over the epochs ----------------------------------------------------------------------


def test_weight_rises_from_0_to_1_over_the_epochs(monkeypatch):
    used = []
    plain = Job.step

    def step(self):
        plain(self)
        used.append(float(self.objective.kl_weight))

    monkeypatch.setattr(Job, "step", step)
    recmix.fit("vae", images(), kl_warmup=2, **(LONG | {"epochs": 3}))
    steps = len(used) // 3
    assert steps > 1
    np.testing.assert_allclose(used, np.minimum(1, np.arange(3 * steps) / (2 * steps)), rtol=1e-6)


def test_weight_without_warmup_is_one():
    weight = KLWeight(0, 4, like=torch.zeros(()))
    weight.begin(0)
    weight.update(torch.tensor([0]))
    assert weight.value == 1


def test_patience_counts_from_the_end_of_the_warmup(monkeypatch):
    """The bound may fall while the weight of the KL is small."""
    falling = iter(range(100))
    monkeypatch.setattr(Job, "validation", lambda self: torch.full((2,), -float(next(falling))))
    options = LONG | {"epochs": 20, "patience": 2}
    assert len(recmix.fit("vae", images(40), **options).history) == 3
    falling = iter(range(100))
    assert len(recmix.fit("vae", images(40), kl_warmup=5, **options).history) == 7


def test_validation_is_the_true_bound():
    """The reported ELBO of the model is the one that selected its epoch."""
    model = recmix.fit("vae", images(), kl_warmup=100, free_bits=0.5, **LONG)
    last = model.history[-1]
    assert last["loss"] != pytest.approx(-last["elbo"])  # the loss is not minus the ELBO
    best = max(model.history, key=lambda row: row["val_iwae"])
    x = recmix.data.from_arrays(images()).x_val[:]
    true = model.elbo(x, 5, seed=VALIDATION_SEED).mean()
    assert float(true) == pytest.approx(best["val_elbo"], rel=1e-5)


# --- methods and stages ------------------------------------------------------------------------------


def test_methods_that_can_use_them():
    found = {name for name, cls in METHODS.items() if cls.maximises_elbo_only()}
    assert found >= {"vae", "full", "wide", "iaf", "hf"}
    assert not found & {"rme", "me", "iwae", "vlae", "residual"}


@pytest.mark.parametrize("name", ["rme", "iwae"])
@pytest.mark.parametrize("option", ["kl_warmup", "free_bits"])
def test_other_methods_say_to_use_it_for_the_first_stage(name, option):
    start = recmix.fit("vae", images(), **SMALL)
    with pytest.raises(ConfigError, match=f"{option} changes the KL .* for the first stage"):
        recmix.fit(name, images(), init=start, **{option: 1}, **SMALL)


def test_free_bits_of_a_full_covariance_are_refused_before_training():
    start = recmix.fit("vae", images(), **SMALL)
    with pytest.raises(ConfigError, match="sum over latent dimensions"):
        recmix.fit("full", images(), init=start, free_bits=0.1, **SMALL)
    recmix.fit("full", images(), init=start, kl_warmup=1, **SMALL)


def test_curvature_training_refuses_them():
    start = recmix.fit("vae", images(), **SMALL)
    with pytest.raises(ConfigError, match="kl_warmup has no effect on train = 'curvature'"):
        recmix.fit("curvature", images(), init=start, kl_warmup=1, **SMALL)


@pytest.mark.parametrize("name", ["rme", "full"])
def test_options_belong_to_the_vae_that_is_trained_first(name, tmp_path):
    """The same result as two calls: a VAE with the options, then the method without them."""
    options = {"order": 2} if name == "rme" else {}
    data = recmix.data.from_arrays(images())
    model = recmix.fit(
        name, data, kl_warmup=2, free_bits=0.2, vae_epochs=3, out=tmp_path / "run", **options, **SMALL
    )
    start = recmix.fit("vae", data, kl_warmup=2, free_bits=0.2, **(SMALL | {"epochs": 3}))
    apart = recmix.fit(name, data, init=start, **options, **SMALL)
    assert model.history == apart.history
    assert Run(tmp_path / "run" / "vae").spec().training.kl_warmup == 2
    again = {"kl_warmup": 2, "free_bits": 0.2, "vae_epochs": 3, "out": tmp_path / "run"}
    longer = SMALL | {"epochs": 3}
    resumed = recmix.fit(name, data, resume=True, **again, **options, **longer)
    assert resumed.history[:2] == model.history
    with pytest.raises(RunError, match="kl_warmup = 2, not 1"):
        recmix.fit(name, data, resume=True, **(again | {"kl_warmup": 1}), **options, **longer)


def test_order_auto_uses_them_for_the_first_stage():
    model = recmix.fit("rme", images(200), order="auto", max_order=2, kl_warmup=1, vae_epochs=2, **SMALL)
    assert model.spec.options["order"] in (1, 2)


# --- resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [4, 6])  # in the middle of an epoch
def test_interrupted_and_resumed_equals_uninterrupted(at, tmp_path, monkeypatch):
    options = LONG | {"kl_warmup": 3, "free_bits": 0.05}
    whole = recmix.fit("vae", images(), out=tmp_path / "whole", **options)
    plain, steps = recmix.training.engines.Eager.step, []

    def step(self):
        plain(self)
        steps.append(None)
        if len(steps) == at:
            stops[0].append("SIGTERM")

    stops = []
    epoch = recmix.training.loop._epoch

    def caught(running, stop, report):
        stops[:] = [stop]
        return epoch(running, stop, report)

    with monkeypatch.context() as patched:
        patched.setattr(recmix.training.engines.Eager, "step", step)
        patched.setattr(recmix.training.loop, "_epoch", caught)
        with pytest.raises(recmix.errors.Interrupted):
            recmix.fit("vae", images(), out=tmp_path / "run", **options)
    resumed = recmix.fit("vae", images(), out=tmp_path / "run", resume=True, **options)
    assert resumed.history == whole.history
    for one, two in zip(resumed.method.parameters(), whole.method.parameters(), strict=True):
        assert torch.equal(one, two)


def test_defaults_change_nothing():
    """A training without the options makes no weight, so its steps are those of earlier versions."""
    assert not Training().changes_kl
    data = recmix.data.from_arrays(images())
    made = recmix.fit("vae", data, **SMALL)
    job = Job(made.method, data, made.spec.training)
    assert job.kl_weight is None
    assert job.objective.kl_weight is None
    assert math.isfinite(made.history[-1]["elbo"])


def test_frozen_decoder_has_no_dropout_while_the_encoder_is_trained(monkeypatch):
    texts = ["a cat sat", "a dog ran", "the cow sat", "the dog", "a cat ran"] * 4
    data = recmix.data.from_texts(texts, texts)
    tiny = {"latent": 2, "units": 8, "heads": 2, "blocks": 1, "epochs": 1, "progress": False}
    model = recmix.fit("vae", data, token_dropout=0.4, device="cpu", **tiny)
    modes = []
    hide = CausalNetwork._some_hidden
    monkeypatch.setattr(
        CausalNetwork, "_some_hidden", lambda self, x: modes.append(self.training) or hide(self, x)
    )
    recmix.fit("vae", data, init=model, train="encoder", epochs=1, progress=False, device="cpu")
    assert modes
    assert not any(modes)
