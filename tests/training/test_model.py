"""`recmix.Model` is an `nn.Module`: what torch's tools expect of one works."""

import copy

import pytest
import torch
from cases.training import SMALL, images
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.posteriors import Mixture, Posterior


@pytest.fixture(scope="module")
def trained():
    return {
        "vae": recmix.fit("vae", images(), **SMALL),
        "rme": recmix.fit("rme", images(), order=2, vae_epochs=1, **SMALL),
    }


@pytest.fixture(params=["vae", "rme"])
def model(trained, request):
    """A copy that a test may change."""
    return copy.deepcopy(trained[request.param])


@pytest.fixture
def x():
    return torch.from_numpy(images(6, seed=2))


def test_call_refuses_uint8(model, x):
    """`posterior` would divide it by 255."""
    with pytest.raises(recmix.RecmixError, match=r"x / 255, .*model\.posterior"):
        model((255 * x).to(torch.uint8))


def test_call_gives_the_posterior_with_gradients(model, x):
    assert isinstance(model, nn.Module)
    q = model(x)
    assert isinstance(q, Posterior)
    assert isinstance(q, Mixture) == (model.spec.method == "rme")
    z, log_q = q.rsample_and_log_prob(3)
    (log_q - model.latent_model.log_joint(x, z)).mean().backward()
    parameters = dict(model.named_parameters())
    for part in ("method.components.0.encoder.head.weight", "method.model.decoder.layers.0.weight"):
        assert parameters[part].grad.abs().sum() > 0, part
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).mean.sum(), x)
    assert gradient.abs().sum() > 0


def test_other_methods_give_no_gradients(model, x):
    assert not model.posterior(x).mean.requires_grad
    assert not model.elbo(x, 3).requires_grad
    assert not model.decode(torch.zeros(2, 2)).requires_grad
    assert torch.is_grad_enabled()
    torch.testing.assert_close(model.posterior(x).mean, model(x).mean.detach())


def test_call_uses_the_inference(model, x):
    refined = model.refined(2, checks=0)
    joint = [m.latent_model.log_joint(x, m(x).components[0].mean[None])[0] for m in (model, refined)]
    assert (joint[1] > joint[0]).all()
    wide = model.using(scale=1.5)
    assert (wide(x).components[0].stddev > model(x).components[0].stddev).all()


def test_parameters_are_those_of_the_method(model):
    assert [id(p) for p in model.parameters()] == [id(p) for p in model.method.parameters()]
    assert model.device == model.latent_model.centre.device
    assert set(model.state_dict()) == {f"method.{key}" for key in model.method.state_dict()}


def test_state_dict_round_trip(model, x):
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.1)
    assert not torch.equal(other.elbo(x), model.elbo(x))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.elbo(x), model.elbo(x))


def test_to_changes_the_dtype(model, x):
    before = model.posterior(x).mean
    assert model.to(torch.float64) is model
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    for after in (model.posterior(x).mean, model(x.double()).mean):
        assert after.dtype == torch.float64
        torch.testing.assert_close(after.float(), before, rtol=1e-4, atol=1e-5)
    assert model.log_likelihood(x, 5).dtype == torch.float64
    assert model.sample(2).dtype == torch.float64


def test_model_is_in_evaluation_mode_after_training(model):
    assert not any(part.training for part in model.modules())
    assert model.train() is model
    assert all(part.training for part in model.modules())
    assert model.eval() is model
    assert not any(part.training for part in model.modules())


def test_forward_hooks_are_called(model, x):
    seen = []
    before = model.register_forward_pre_hook(lambda _model, given: seen.append(given[0]))
    after = model.register_forward_hook(lambda _model, _given, q: seen.append(q))
    q = model(x)
    assert seen[0] is x
    assert seen[1] is q
    before.remove()
    after.remove()
    model(x)
    assert len(seen) == 2


def test_model_is_part_of_another_module(model, x):
    class Classifier(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model
            self.head = nn.Linear(2, 3)

        def forward(self, x):
            return self.head(self.model(x).mean)

    whole = Classifier(model)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    before = model.method.base_encoder.head.weight.detach().clone()
    whole(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.method.base_encoder.head.weight, before)


def test_compiled_model_gives_the_same_posterior(model, x):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    q, expected = compiled(x), model(x)
    torch.testing.assert_close(q.mean, expected.mean)
    z = torch.randn(3, len(x), 2)
    torch.testing.assert_close(q.log_prob(z), expected.log_prob(z))
    (gradient,) = torch.autograd.grad(q.mean.sum(), model.method.base_encoder.head.weight)
    assert gradient.abs().sum() > 0


def test_using_shares_weights_and_changes_only_the_inference(model, x):
    other = model.using(refine=1, scale=1.2)
    assert all(a is b for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert (other.inference.refine, other.inference.scale) == (1, 1.2)
    assert model.inference == recmix.Inference()
    before = other.posterior(x).mean
    with torch.no_grad():
        model.method.base_encoder.head.bias.add_(1.0)
    assert not torch.equal(other.posterior(x).mean, before)
    assert other.using(refine=0, scale=1.0).inference == recmix.Inference()
    with pytest.raises(ConfigError, match="scale must be above 0, got -1"):
        model.using(scale=-1.0)
    with pytest.raises(ConfigError, match="unknown option of Inference 'scales': did you mean 'scale'"):
        model.using(scales=2.0)


def test_refined_changes_only_what_is_given(model):
    refined = model.using(reuse=0, restarts=3).refined(2)
    assert (refined.inference.refine, refined.inference.reuse, refined.inference.restarts) == (2, 0, 3)
    assert refined.refined(0).inference.refine == 0
    for wrong in (-1, "2", 1.5, True):
        with pytest.raises(
            ConfigError, match=f"whole number of 0 or more, got {wrong!r}: try 1, 2 or 4"
        ):
            model.refined(wrong)


def test_inference_is_saved(model, x, tmp_path):
    other = model.using(refine=1, scale=1.2)
    again = recmix.load(other.save(tmp_path / "run"), device="cpu")
    assert again.inference == other.inference
    assert torch.equal(again.elbo(x), other.elbo(x))
    assert "inference: gauss-newton,refine=1" in repr(again)
