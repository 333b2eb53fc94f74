import pytest
import torch
from test_fit import images

import recmix
from recmix.captured import Captured
from recmix.core import METHODS, find_method

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
