import copy

import pytest
import torch
from test_fit import images

import recmix
from recmix.accelerate.captured import Captured
from recmix.accelerate.stacked import Stacked
from recmix.methods.registry import METHODS, find_method

find_method("vae")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_copy_of_a_posterior_is_the_same_density_in_other_tensors(name):
    data = recmix.data.from_arrays(images(60, size=8), seed=0)
    model = recmix.fit(name, data, latent=2, epochs=1, vae_epochs=1, progress=False, device="cpu")
    x = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        q = model.method.posterior(x)
        other = q.copy()
        z = torch.randn(3, 5, 2)
        assert torch.equal(q.log_prob(z), other.log_prob(z))
        assert torch.equal(q.weights, other.weights)
        for mine, theirs in zip(_tensors(q), _tensors(other), strict=True):
            assert mine.data_ptr() != theirs.data_ptr()
            mine.add_(100.0)
        assert not torch.equal(other.log_prob(z), q.copy().log_prob(z))


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for part in value for t in _tensors(part)]
    if isinstance(value, torch.nn.Module) or not hasattr(value, "__dict__"):
        return []
    return [t for part in vars(value).values() for t in _tensors(part)]


def test_a_joined_mixture_is_copied_at_once():
    parts = recmix.posteriors.Gaussian(torch.randn(3, 4, 3), torch.randn(3, 4, 3))
    mixture = recmix.posteriors.Mixture.of_gaussians(parts, torch.zeros(4, 3).log_softmax(-1))
    other = mixture.copy()
    z = torch.randn(2, 4, 3)
    assert torch.equal(mixture.log_prob(z), other.log_prob(z))
    assert other._joined[0].data_ptr() != mixture._joined[0].data_ptr()
    assert other.components[1].mean.data_ptr() == other._joined[0][1].data_ptr()


def test_without_a_gpu_it_is_the_method_itself():
    data = recmix.data.from_arrays(images(60, size=8), seed=0)
    model = recmix.fit("vae", data, latent=2, epochs=1, progress=False, device="cpu")
    x = torch.rand(5, 1, 8, 8)
    form = Captured(model.method)
    for _ in range(3):
        assert torch.equal(form(x).mean, model.posterior(x).mean)
    assert not form._graphs


def test_a_training_makes_graphs_anew():
    data = recmix.data.from_arrays(images(60, size=8), seed=0)
    form = Captured(recmix.fit("vae", data, latent=2, epochs=1, progress=False, device="cpu").method)
    before = form._versions()
    form.method.eval()
    assert form._versions() == before
    form.method.train()
    form.method.eval()
    assert form._versions() != before


def test_every_change_of_the_posterior_makes_graphs_anew():
    data = recmix.data.from_arrays(images(60, size=8), seed=0)
    model = recmix.fit(
        "rme", data, latent=2, order=2, vae_epochs=1, epochs=1, progress=False, device="cpu"
    )
    method = model.method
    form, last = Captured(method), list(method.parameters())[-1]
    encoder = method.components[0].encoder

    def in_place():
        with torch.no_grad():
            last.add_(1.0)

    def replaced():
        encoder.head.weight = torch.nn.Parameter(encoder.head.weight.detach().clone())

    changes = {
        "in place": in_place,
        "data": lambda: setattr(last, "data", last.data.clone()),
        "replaced": replaced,
        "assigned": lambda: method.load_state_dict(copy.deepcopy(method.state_dict()), assign=True),
        "buffer": lambda: method.model.centre.add_(0.0),
        "refine": lambda: setattr(method, "refine", 2),
        "widen": lambda: setattr(method, "widen", 2.0),
    }
    for name, change in changes.items():
        before = form._versions()
        assert form._versions() == before
        change()
        assert form._versions() != before, name


def test_a_training_is_seen_by_models_that_share_the_weights():
    data = recmix.data.from_arrays(images(60, size=8), seed=0)
    model = recmix.fit("vae", data, latent=2, epochs=1, progress=False, device="cpu")
    form = Captured(model.refined(2).method)
    before = form._versions()
    model.method.train()
    model.method.eval()
    assert form._versions() != before


@pytest.mark.parametrize("name", ["vae", "rme", "vlae"])
def test_a_graph_holds_all_that_it_reads(name):
    data = recmix.data.from_arrays(images(60, size=8), seed=0)
    model = recmix.fit(name, data, latent=2, vae_epochs=1, epochs=1, progress=False, device="cpu")
    form = Captured(model.method)
    made = []
    for part in model.method.modules():
        for value in vars(part).values():
            if isinstance(value, Stacked):
                value._run = lambda x, shift: x  # as if it had been built
                made.append(value._run)
    held = form._held()
    assert made
    assert all(any(one is run for one in held) for run in made)
    addresses = {t.data_ptr() for t in held if isinstance(t, torch.Tensor)}
    assert {t.data_ptr() for t in model.method.state_dict().values()} <= addresses
