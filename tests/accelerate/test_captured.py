"""Posteriors as CUDA graphs: what can be tested without a GPU. See also `test_gpu.py`."""

import copy
from types import SimpleNamespace

import pytest
import torch
from cases.training import images

import recmix
from recmix.accelerate import captured, stacked_posteriors
from recmix.accelerate.captured import KEPT, Captured
from recmix.accelerate.stacked import StackedEncoders
from recmix.accelerate.stacked_posteriors import stacks_of
from recmix.methods.registry import METHODS
from recmix.posteriors import Gaussian, Mixture

PLAIN = recmix.Inference()


def fit(name, **options):
    data = recmix.data.from_arrays(images(60, size=8), seed=0)
    small = {"latent": 2, "epochs": 1, "vae_epochs": 1, "progress": False, "device": "cpu"}
    return recmix.fit(name, data, **small, **options)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_copy_of_a_posterior_is_the_same_density_in_other_tensors(name):
    model = fit(name)
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


def test_stacked_mixture_is_copied_in_one_operation():
    parts = Gaussian(torch.randn(3, 4, 3), torch.randn(3, 4, 3))
    mixture = Mixture.from_stack(parts, torch.zeros(4, 3).log_softmax(-1))
    other = mixture.copy()
    z = torch.randn(2, 4, 3)
    assert torch.equal(mixture.log_prob(z), other.log_prob(z))
    assert other._stack[0].data_ptr() != mixture._stack[0].data_ptr()
    assert other.components[1].mean.data_ptr() == other._stack[0][1].data_ptr()


def test_on_a_cpu_nothing_is_captured():
    model = fit("vae")
    x = torch.rand(5, 1, 8, 8)
    form = Captured(model.method, PLAIN)
    for _ in range(3):
        assert torch.equal(form(model.method, x).mean, model.posterior(x).mean)
    assert not form._graphs


class Counted(Captured):
    """Counts captures; its graphs do nothing, so it needs no GPU."""

    def __init__(self, method, inference=PLAIN):
        super().__init__(method, inference)
        self.captures = 0

    def _capture(self, method, x, versions):
        self.captures += 1
        graph = SimpleNamespace(replay=lambda: None)
        kept, posterior = SimpleNamespace(copy_=lambda x: None), SimpleNamespace(copy=lambda: "graph")
        return captured._Graph(graph, kept, posterior, versions, self._held(method))


@pytest.fixture
def on_gpu(monkeypatch):
    """A function that makes a batch that says it is on a GPU."""
    monkeypatch.setattr(captured, "infer", lambda method, x, inference: "no graph")
    device = torch.device("cuda", 0)

    def batch(size=5):
        return SimpleNamespace(is_cuda=True, shape=(size, 1, 8, 8), dtype=torch.float32, device=device)

    return batch


def test_shape_is_captured_at_its_second_use(on_gpu):
    method = fit("vae").method
    form, x = Counted(method), on_gpu()
    assert [form(method, x) for _ in range(4)] == ["no graph", "graph", "graph", "graph"]
    assert form.captures == 1
    assert form(method, on_gpu(7)) == "no graph"
    assert form(method, on_gpu(7)) == "graph"
    assert form(method, x) == "graph"
    assert form.captures == 2


def test_each_inference_has_its_own_graphs(on_gpu, monkeypatch):
    monkeypatch.setattr(captured, "Captured", Counted)
    method, x = fit("vae").method, on_gpu()
    kinds = [recmix.Inference(refine=steps, scale=scale) for steps in range(3) for scale in (1.0, 2.0)]
    for inference in kinds * 3:
        captured.replay(method, x, inference)
    forms = captured._captured[method]
    assert len(forms) == len(kinds) > KEPT
    assert all(form.captures == 1 for form in forms.values())


def test_only_a_few_graphs_are_kept(on_gpu):
    method = fit("vae").method
    form = Counted(method)
    for size in range(1, KEPT + 3):
        form(method, on_gpu(size))
        form(method, on_gpu(size))
    assert len(form._graphs) == KEPT
    assert form(method, on_gpu(1)) == "no graph"


def test_method_in_training_is_not_captured(on_gpu):
    method = fit("vae").method
    form, x = Counted(method), on_gpu()
    method.train()
    assert [form(method, x) for _ in range(3)] == ["no graph"] * 3


def test_training_outdates_graphs(on_gpu):
    method = fit("vae").method
    form, x = Counted(method), on_gpu()
    for _ in range(2):
        form(method, x)
    method.eval()
    form(method, x)
    assert form.captures == 1
    method.train()  # the replay of a training graph changes weights without changing their versions
    method.eval()
    assert form(method, x) == "graph"
    assert form.captures == 2


def test_every_change_of_the_weights_outdates_graphs(on_gpu):
    method = fit("rme", order=2).method
    form, x, last = Counted(method), on_gpu(), list(method.parameters())[-1]
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
    }
    form(method, x)
    for count, (name, change) in enumerate(changes.items(), start=1):
        form(method, x)
        form(method, x)
        assert form.captures == count, name
        change()
    form(method, x)
    assert form.captures == len(changes) + 1


def test_failed_capture_is_reported_once(on_gpu, monkeypatch):
    method = fit("vae").method
    form, x = Captured(method, PLAIN), on_gpu()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr("recmix.accelerate.captured.recover_generators", lambda device: None)

    def fail(*_):
        raise RuntimeError("operation not permitted\nmore lines")

    monkeypatch.setattr(form, "_capture", fail)
    form(method, x)
    with pytest.warns(UserWarning, match=r"vae cannot be captured .* \(operation not permitted\)"):
        assert form(method, x) == "no graph"
    assert form(method, x) == "no graph"  # a second warning would be an error


def test_models_that_share_weights_share_graphs():
    model = fit("vae")
    assert model.refined(2).method is model.method


@pytest.mark.parametrize("name", ["vae", "rme", "vlae"])
def test_graph_holds_all_tensors_that_it_reads(name):
    method = fit(name).method
    stacked_posteriors._stack(  # made by the first use on a GPU
        method.components[0], StackedEncoders, [method.components[0].encoder], only_kernels=True
    )
    if name == "rme":
        stacked_posteriors._encoders(method)
        stacked_posteriors._gates(method)
    stacks = [stack for part in method.modules() for stack in stacks_of(part)]
    assert len(stacks) == (3 if name == "rme" else 1)
    for stack in stacks:
        stack._run = lambda x, shift: x  # as if it had been built
    held = Captured(method, PLAIN)._held(method)
    assert all(any(one is stack._run for one in held) for stack in stacks)
    addresses = {t.data_ptr() for t in held if isinstance(t, torch.Tensor)}
    assert {t.data_ptr() for t in method.state_dict().values()} <= addresses
