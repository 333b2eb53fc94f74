"""`Method.step` with every objective, the registry, and parameter groups."""

import copy
from types import SimpleNamespace

import pytest
import torch
from cases.contract import BATCH, LATENT, SHAPE, images, make, seeded
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.methods.method import TEACHER_SAMPLES, Method, Objective, update
from recmix.methods.method_options import method_options
from recmix.methods.optimizers import make_optimizer
from recmix.methods.registry import METHODS, find_component, find_method, register, register_component
from recmix.methods.training_checks import check_can_be_distilled
from recmix.methods.vae import VAE, GaussianComponent
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Gaussian
from recmix.model.networks import make_decoder, make_encoder
from recmix.objectives import elbo, iwae
from recmix.posteriors import Mixture

TWO = Inference(refine=2)


def gradient_steps(method):
    """Optimisers whose step subtracts the gradient."""
    return {
        name: torch.optim.SGD([p for g in found.param_groups for p in g["params"]], lr=1.0)
        for name, found in method.optimizers(1.0).items()
    }


def updates(before, after):
    """What was subtracted from each parameter."""
    return [a.detach() - b.detach() for a, b in zip(before, after, strict=True)]


def gradient(loss, module):
    return list(torch.autograd.grad(loss, list(module.parameters())))


def step(method, objective):
    """The method after one gradient step; the given one is not changed."""
    trained = copy.deepcopy(method)
    metrics = trained.step(images(), gradient_steps(trained), objective=objective, generator=seeded())
    return trained, metrics


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_plain_step_follows_the_gradient_of_the_loss():
    method = make("vae")
    trained, metrics = step(method, Objective())
    loss = method.loss(images(), generator=seeded())
    expected = -elbo(method.model, images(), method.posterior(images()), generator=seeded()).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(metrics["loss"], loss.detach())
    torch.testing.assert_close(metrics["elbo"], -loss.detach())
    close(updates(method.parameters(), trained.parameters()), gradient(loss, method))


def decoder_gradient(method, objective, q, generator):
    """The decoder's gradient for a given objective, written out."""
    model, x = method.model, images()
    if objective.iwae_samples:
        with torch.no_grad():
            q = objective.inference(model, x, q)
        return gradient(-iwae(model, x, q, objective.iwae_samples, generator=generator).mean(), model)
    refined = objective.inference(model, x, q)
    z = torch.cat([c.rsample_and_log_prob(1, generator=generator)[0] for c in refined.components])
    bound = (refined.weights.t() * (model.log_joint(x, z) - refined.log_prob(z))).sum(0)
    return gradient(-bound.mean(), model)


SEPARATE = [
    Objective(iwae_samples=7),
    Objective(inference=TWO),
    Objective(inference=TWO, iwae_samples=3),
    Objective(inference=Inference(refine=1, restarts=2, scale=3.0)),
]


@pytest.mark.parametrize("objective", SEPARATE, ids=["iwae", "refined", "refined iwae", "restarts"])
def test_decoder_follows_its_own_objective(objective):
    """Minus IWAE of the posterior, or minus the ELBO of the refined posterior, without calibration."""
    method = make("vae")
    trained, _ = step(method, objective)
    loss = method.loss(images(), generator=(generator := seeded()))
    found = updates(method.base_encoder.parameters(), trained.base_encoder.parameters())
    close(found, gradient(loss, method.base_encoder))
    with torch.no_grad():
        q = method.posterior(images())
    uncalibrated = Objective(
        iwae_samples=objective.iwae_samples, inference=objective.inference.uncalibrated
    )
    expected = decoder_gradient(method, uncalibrated, q, generator)
    close(updates(method.model.parameters(), trained.model.parameters()), expected)


@pytest.mark.parametrize("objective", SEPARATE, ids=["iwae", "refined", "refined iwae", "restarts"])
def test_decoder_of_a_recursive_mixture_follows_its_own_objective(objective):
    """With the posterior after the updates of components and gates."""
    order, method = 2, make("rme", order=2)
    trained, metrics = step(method, objective)
    generator = seeded()
    for _ in range(2 * order):  # the samples before and after each component's update
        torch.randn(1, BATCH, LATENT, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        after = copy.deepcopy(trained)
        after.model.load_state_dict(method.model.state_dict())  # the decoder is updated last
        q = after.posterior(images())
    assert isinstance(q, Mixture)
    uncalibrated = Objective(
        iwae_samples=objective.iwae_samples, inference=objective.inference.uncalibrated
    )
    expected = decoder_gradient(after, uncalibrated, q, generator)
    close(updates(method.model.parameters(), trained.model.parameters()), expected)
    assert metrics["elbo"].isfinite()


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_distillation_is_added_to_the_encoder_gradient(share):
    """(1 - share) · loss + share · distillation for the encoder; the decoder's update is unchanged."""
    method = make("vae")
    teacher = Inference(refine=1)
    plain, _ = step(method, Objective())
    trained, _ = step(method, Objective(distil=share, teacher=teacher))
    generator = seeded()
    own = gradient(method.loss(images(), generator=generator), method.base_encoder)
    q = method.posterior(images())
    with torch.no_grad():
        refined = teacher(method.model, images(), q)
        z, _ = refined.rsample_and_log_prob(TEACHER_SAMPLES, generator=generator)
    taught = gradient(-q.log_prob(z).mean(), method.base_encoder)
    expected = [(1 - share) * a + share * b for a, b in zip(own, taught, strict=True)]
    found = updates(method.base_encoder.parameters(), trained.base_encoder.parameters())
    close(found, expected)
    close(plain.model.parameters(), trained.model.parameters())


def test_distillation_and_iwae_together():
    """The encoder is distilled and the decoder maximises IWAE."""
    method = make("vae")
    both, _ = step(method, Objective(distil=0.5, iwae_samples=4))
    distilled, _ = step(method, Objective(distil=0.5))
    close(both.base_encoder.parameters(), distilled.base_encoder.parameters())
    assert any(
        not torch.allclose(a, b)
        for a, b in zip(both.model.parameters(), distilled.model.parameters(), strict=True)
    )


def test_fixed_decoder_stays_as_it_is():
    """Parameters that need no gradient are not trained, with any objective."""
    for objective in (Objective(), Objective(iwae_samples=3), Objective(distil=0.5)):
        method = make("vae")
        method.model.requires_grad_(False)
        trained, _ = step(method, objective)
        for a, b in zip(method.model.parameters(), trained.model.parameters(), strict=True):
            assert torch.equal(a, b)
        found = updates(method.base_encoder.parameters(), trained.base_encoder.parameters())
        assert all(change.abs().sum() > 0 for change in found)


@pytest.mark.parametrize("name", ["vae", "rme"])
def test_fixed_encoders_stay_as_they_are(name):
    """The decoder alone is trained, with any objective."""
    for objective in (Objective(), *SEPARATE, Objective(distil=0.5)):
        method = make(name)
        method.components.requires_grad_(False)
        trained, _ = step(method, objective)
        for a, b in zip(method.components.parameters(), trained.components.parameters(), strict=True):
            assert torch.equal(a, b)
        found = updates(method.model.parameters(), trained.model.parameters())
        assert all(change.abs().sum() > 0 for change in found)


def test_component_that_cannot_be_distilled_is_refused():
    with pytest.raises(ConfigError, match="laplace component gives its encoder no gradient: use vae"):
        check_can_be_distilled(make("vlae"))
    check_can_be_distilled(make("vae"))


def test_separate_decoder():
    assert not Objective().separate_decoder
    assert not Objective(distil=0.5).separate_decoder
    assert not Objective(inference=Inference(scale=2.0)).separate_decoder
    assert all(objective.separate_decoder for objective in SEPARATE)


def test_update_gives_gradients_only_to_its_optimizer():
    trained, other = nn.Linear(2, 2), nn.Linear(2, 1)
    before = trained.weight.clone()
    loss = other(trained(torch.ones(3, 2))).sum()
    update(loss, torch.optim.SGD(trained.parameters(), lr=0.1))
    assert not torch.equal(trained.weight, before)
    assert all(p.grad is None for p in other.parameters())
    frozen = nn.Linear(2, 1).requires_grad_(False)
    update(other(torch.ones(1, 2)).sum(), torch.optim.SGD(frozen.parameters(), lr=0.1))
    assert all(p.grad is None for p in other.parameters())


def test_options_are_kept():
    assert make("rme", order=2, bound=3.0).options == {"order": 2, "bound": 3.0}
    assert make("vae").options == {}


def test_registry_finds_methods_and_refuses_wrong_names():
    method = make("vae")
    assert find_method("vae") is find_method(VAE) is find_method(method) is VAE
    assert find_component("gaussian") is GaussianComponent
    with pytest.raises(ConfigError, match="unknown method 'rmi': did you mean 'rme'"):
        find_method("rmi")
    with pytest.raises(ConfigError, match="unknown component 'gausian': did you mean 'gaussian'"):
        find_component("gausian")
    with pytest.raises(ConfigError, match="a name, a Method class or a Method instance, got 3"):
        find_method(3)
    with pytest.raises(ConfigError, match=r"fit\('vae', x, init=model\), or .*fit\(model.method, x\)"):
        find_method(SimpleNamespace(method=method))
    with pytest.raises(ConfigError, match="two methods are called 'vae'"):
        register(VAE)
    with pytest.raises(ConfigError, match="two components are called 'gaussian'"):
        register_component(GaussianComponent)


def test_registered_method_is_found_by_name(monkeypatch):
    monkeypatch.setattr("recmix.methods.registry.METHODS", dict(METHODS))

    class Narrow(VAE):
        """A VAE with another name."""

        name = "narrow"

    assert recmix.register(Narrow) is Narrow
    assert find_method("narrow") is Narrow


def test_unknown_optimizer_is_refused():
    with pytest.raises(ConfigError, match="unknown optimizer 'adan'.*'adam'"):
        make_optimizer("adan", [], 1e-3)
    with pytest.raises(ConfigError, match="unknown optimizer"):
        make("rme").optimizers(1e-3, optimizer="adan")


def test_training_mode_is_counted():
    method = make("vae")
    before = method.trainings
    method.train()
    method.eval()
    method.train()
    assert method.trainings == before + 2
    assert method.components[0].trainings == before + 2


def test_all_methods_are_subclasses_with_different_names():
    assert all(issubclass(cls, Method) and cls.name == name for name, cls in METHODS.items())
    assert len({cls.title for cls in METHODS.values()}) == len(METHODS)


def test_start_from_another_shape_copies_encoder_and_decoder_only():
    small = make("vae", seed=2)
    large = make("iaf", flows=1)
    large.start_from(small)
    close(large.base_encoder.parameters(), small.base_encoder.parameters())
    again = make("iaf", flows=2)
    steps = copy.deepcopy(again.components[0].steps.state_dict())
    again.start_from(large)
    close(again.base_encoder.parameters(), small.base_encoder.parameters())
    for key, value in again.components[0].steps.state_dict().items():
        assert torch.equal(value, steps[key])


def test_only_methods_with_the_default_step_and_loss_can_weight_their_kl():
    def own(self, *args, **given):
        raise NotImplementedError

    assert VAE.maximises_elbo_only()
    for name in ("step", "loss"):
        assert not type("Own", (VAE,), {name: own}).maximises_elbo_only()
    assert not METHODS["vlae"].maximises_elbo_only()


def vae_of(latent=LATENT, shape=SHAPE, kind="conv"):
    model = LatentModel(make_decoder(kind, shape, latent), Gaussian(0.1), latent=latent, shape=shape)
    return METHODS["vae"](model, make_encoder(kind, shape, latent)).double()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"latent": LATENT + 1}, f"the given vae has latent {LATENT + 1}, expected {LATENT}: make both"),
        ({"shape": (1, 9, 9)}, r"the given vae has shape \(1, 9, 9\), expected \(1, "),
        ({"kind": "mlp"}, "the encoder of the given vae has another architecture"),
    ],
)
def test_start_from_another_model_is_refused(name, other, message):
    with pytest.raises(ConfigError, match=message):
        make(name).start_from(vae_of(**other))
    make(name).start_from(vae_of())


@pytest.mark.parametrize("name", METHODS)
def test_start_from_anything_but_a_method_is_refused(name):
    with pytest.raises(ConfigError, match=r"start_from takes a Method, got .*: give model\.method"):
        make(name).start_from(SimpleNamespace(method=make("vae")))


def test_options_of_a_method_are_keyword_only_and_typed():
    class Untyped(VAE):
        name = "untyped"

        def __init__(self, model, encoder, *, k=3):
            super().__init__(model, encoder)

    class Positional(VAE):
        name = "positional"

        def __init__(self, model, encoder, k: int = 3):
            super().__init__(model, encoder)

    with pytest.raises(ConfigError, match="option k of the class Untyped needs a type annotation"):
        method_options(Untyped)
    with pytest.raises(ConfigError, match="option k of the class Positional must be keyword-only"):
        method_options(Positional)
    plain = make("vae")
    assert method_options(Positional(plain.model, plain.base_encoder, 2)) == {}  # has its value
