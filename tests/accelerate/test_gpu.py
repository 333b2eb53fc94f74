"""Tests that need a CUDA device; without one they are skipped with a reason."""

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases.training import images

import recmix
from recmix.accelerate.capture import recover_generators
from recmix.accelerate.captured import Captured
from recmix.accelerate.graph_engines import CompileEngine, GraphEngine
from recmix.accelerate.stacked_posteriors import stacks_of
from recmix.errors import DataError, NonFiniteError
from recmix.inference import Inference
from recmix.methods.method import Objective, infer
from recmix.methods.method_options import method_options
from recmix.methods.registry import METHODS
from recmix.model.data_facts import Statistics
from recmix.model.likelihoods.likelihood import Likelihood, sum_event
from recmix.model.options import ModelOptions
from recmix.posteriors import Mixture
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.build import build
from recmix.training.engines import Eager, pick_engine
from recmix.training.job import Job

PLAIN = Inference()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@functools.cache
def vae():
    """The data, and a VAE of one epoch on the GPU. Two trainings may not repeat to the last bit."""
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    options = {"latent": 3, "epochs": 1, "progress": False, "engine": "eager", "device": "cuda"}
    return data, recmix.fit("vae", data, **options)


def job(method, seed=0, training=None, inference=PLAIN, dtype="float32", **options):
    """A training that is ready to begin, on the GPU, from a VAE of one epoch."""
    data, start = vae()
    if "jitter" in method_options(METHODS[method]):  # the gates of equal components have no gradient
        options = {"jitter": 0.1} | options
    spec = recmix.fit(
        method, data, init=start, epochs=1, progress=False, engine="eager", device="cuda", **options
    ).spec
    spec = replace(spec, training=replace(spec.training, dtype=dtype))
    torch.manual_seed(0)  # gates and some components start at random
    made = build(spec, statistics=Statistics(centre=data.x_train.mean()))
    made.start_from(start.method)
    given = {"epochs": 2, "learning_rate": 1e-3, "batch_size": 32, "seed": seed, "dtype": dtype}
    given |= training or {}
    options = Training(**given)
    objective = Objective(
        iwae_samples=options.objective_samples if options.objective == "iwae" else 0,
        inference=inference,
        distil=options.distil,
    )
    return Job(made, data, options, objective=objective, continued=True)


def run(engine, jobs, steps=6):
    """Metrics and weights of each job after some steps of an engine."""
    for one in jobs:
        one.begin_epoch()
    running = engine(jobs)
    for _ in range(steps):
        running.step()
    torch.cuda.synchronize()
    return [
        (one.meter.totals(), {k: v.double().cpu().numpy() for k, v in one.method.state_dict().items()})
        for one in jobs
    ]


def same(one, two, tolerance=2e-3):
    """Equal up to rounding. The last bit can decide the sign of Adam's first step of a weight."""
    for name, total in one[0].items():
        assert total == pytest.approx(two[0][name], rel=1e-3, abs=1e-2), name
    for key, value in one[1].items():
        close = np.isclose(value, two[1][key], atol=tolerance, rtol=1e-2)
        assert close.mean() >= 0.99, key
        assert np.abs(value - two[1][key]).mean() <= 3e-4, key


def similar(one, two):
    """For Gauss-Newton steps: the last bit can decide which candidate is the best."""
    for name, total in one[0].items():
        assert total == pytest.approx(two[0][name], rel=1e-3, abs=1e-2), name
    for key, value in one[1].items():
        assert np.abs(value - two[1][key]).mean() <= 3e-4, key  # six steps change a weight by up to 6e-3


@pytest.mark.parametrize("name", sorted(METHODS))
def test_graph_gives_the_same_as_eager(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    jobs = [job(name, dtype="float64") for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(GraphEngine, jobs[1:])
    for metric, total in eager[0].items():
        assert total == pytest.approx(graph[0][metric], rel=1e-6, abs=1e-6), metric
    for key, value in eager[1].items():
        assert np.abs(value - graph[1][key]).max() <= 1e-6, key


@pytest.mark.parametrize("name", sorted(METHODS))
def test_graph_is_close_to_eager_in_float32(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    jobs = [job(name) for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(GraphEngine, jobs[1:])
    for metric, total in eager[0].items():  # rounding changes the weights of boosted mixtures by 2 %
        assert total == pytest.approx(graph[0][metric], rel=0.05, abs=0.05), metric
    for key, value in eager[1].items():
        assert np.abs(value - graph[1][key]).mean() <= 3e-4, key


def test_replicas_give_the_same_as_each_alone():
    torch.backends.cudnn.allow_tf32 = False
    kinds = [("vae", {"seed": 1}), ("rme", {"seed": 2, "order": 2}), ("rme", {"seed": 3, "order": 3})]
    alone = [run(GraphEngine, [job(name, **options)])[0] for name, options in kinds]
    together = run(GraphEngine, [job(name, **options) for name, options in kinds])
    for one, two in zip(alone, together, strict=True):
        same(one, two)
    assert alone[1][0]["loss"] != alone[2][0]["loss"]


def test_compiled_graph_gives_the_same_as_eager():
    torch.backends.cudnn.allow_tf32 = False
    jobs = [job("rme", order=2) for _ in range(2)]
    (eager,), (fused,) = run(Eager, jobs[:1]), run(CompileEngine, jobs[1:])
    same(eager, fused)


@pytest.mark.parametrize("name", ["vae", "rme", "me"])
def test_weight_averages_and_distillation_in_a_graph(name):
    torch.backends.cudnn.allow_tf32 = False
    training = {"weight_average": 0.75, "distil": 0.5, "train": "encoder"}
    jobs = [job(name, training=training) for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(GraphEngine, jobs[1:])
    similar(eager, graph)
    averages = [{k: v.double().cpu().numpy() for k, v in one.averages.items()} for one in jobs]
    assert averages[0]["updates"] == averages[1]["updates"] == 6  # the warmup steps are undone
    for key, value in averages[0].items():
        assert np.abs(value - averages[1][key]).mean() <= 3e-4, key
    before = {k: v.clone() for k, v in jobs[1].method.state_dict().items()}
    jobs[1].validation()
    for key, value in jobs[1].method.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("reuse", [0, 2])
@pytest.mark.parametrize("name", ["vae", "rme"])
def test_refinement_in_a_graph(name, reuse):
    torch.backends.cudnn.allow_tf32 = False
    jobs = [job(name, inference=Inference(refine=2, reuse=reuse)) for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(GraphEngine, jobs[1:])
    similar(eager, graph)


@pytest.mark.parametrize("name", ["vae", "rme"])
def test_muon_in_a_graph(name):
    torch.backends.cudnn.allow_tf32 = False
    jobs = [job(name, training={"optimizer": "muon"}) for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(GraphEngine, jobs[1:])
    similar(eager, graph)


def captured_and_plain(model, x):
    """The posterior from a CUDA graph, and without one."""
    form = Captured(model.method, model.inference)
    form(model.method, x)  # a shape is captured at its second use
    with torch.no_grad():
        pair = form(model.method, x), infer(model.method, x, model.inference)
    assert form.failed == ""
    assert form._graphs
    assert all(graph is not None for graph in form._graphs.values())
    return pair


def small_model(method="vae", **options):
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    return recmix.fit(method, data, latent=3, epochs=1, progress=False, device="cuda", **options)


def test_restarted_corrections_are_captured():
    torch.backends.cudnn.allow_tf32 = False
    model = small_model("residual", vae_epochs=1, restarts=3)
    model = model.using(scale=1.5, slope=0.01, reference=20.0)
    captured, plain = captured_and_plain(model, torch.rand(5, 1, 12, 12, device="cuda"))
    torch.testing.assert_close(captured.mean, plain.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(captured.stddev, plain.stddev, rtol=1e-3, atol=1e-3)


def test_calibration_of_a_refined_posterior_is_captured():
    torch.backends.cudnn.allow_tf32 = False
    model = small_model().using(refine=2, scale=1.5, slope=0.01, reference=20.0)
    captured, plain = captured_and_plain(model, torch.rand(5, 1, 12, 12, device="cuda"))
    torch.testing.assert_close(captured.covariance_matrix, plain.covariance_matrix, rtol=1e-3, atol=1e-4)


def test_restarted_refinement_is_captured_and_better():
    torch.backends.cudnn.allow_tf32 = False
    model = small_model()
    x = torch.rand(5, 1, 12, 12, device="cuda")
    once, several = (model.refined(2, restarts=n) for n in (1, 4))
    captured, plain = captured_and_plain(several, x)
    torch.testing.assert_close(captured.mean, plain.mean, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        estimates = [
            model.latent_model.log_joint(x, q.mean[None])[0] + 0.5 * q.covariance_matrix.logdet()
            for q in (infer(once.method, x, once.inference), captured)
        ]
    assert (estimates[1] >= estimates[0] - 1e-3).all()


@pytest.mark.parametrize("reuse", [0, 2])
def test_refined_posterior_is_captured_and_better(reuse):
    torch.backends.cudnn.allow_tf32 = False
    model = small_model()
    x = torch.rand(5, 1, 12, 12, device="cuda")
    captured, plain = captured_and_plain(model.refined(2, reuse=reuse), x)
    torch.testing.assert_close(captured.mean, plain.mean, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        encoder = infer(model.method, x, PLAIN)
        joint = [model.latent_model.log_joint(x, q.mean[None]) for q in (encoder, captured)]
    assert (joint[1] >= joint[0] - 1e-3).all()


def test_auto_uses_the_graph_engine():
    one = job("vae")
    one.begin_epoch()
    engine, why = pick_engine("auto", [one])
    assert isinstance(engine, GraphEngine)
    assert "graph engine" in why


def test_whole_training_by_graph_gives_the_same_as_eager():
    ends = [
        recmix.fit("vae", images(300), latent=3, epochs=5, engine=e, progress=False, device="cuda")
        for e in ("eager", "graph")
    ]
    for a, b in zip(*(m.history for m in ends), strict=True):
        assert a["val_iwae"] == pytest.approx(b["val_iwae"], abs=0.5)


def test_graph_training_is_resumed(tmp_path):
    options = {"latent": 3, "progress": False, "device": "cuda", "engine": "graph"}
    recmix.fit("rme", images(300), order=2, vae_epochs=2, epochs=1, out=tmp_path / "a", **options)
    more = recmix.fit(
        "rme", images(300), order=2, vae_epochs=2, epochs=3, out=tmp_path / "a", resume=True, **options
    )
    assert len(more.history) == 3


def test_non_finite_loss_stops_a_graph(tmp_path):
    with pytest.raises(NonFiniteError, match=r"is not a finite number at batch \d+ of epoch \d+"):
        recmix.fit(
            "vae",
            images(300),
            latent=3,
            epochs=20,
            batch_size=32,
            learning_rate=1e12,
            engine="graph",
            progress=False,
            device="cuda",
            out=tmp_path / "run",
        )
    assert recmix.runs.folder.Run(tmp_path / "run").status()["status"] == "failed"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_captured_posterior_equals_the_posterior(name):
    torch.backends.cudnn.allow_tf32 = False
    made = job(name).method.eval()
    form = Captured(made, PLAIN)
    x, other = torch.rand(2, 5, 1, 12, 12, device="cuda")
    form(made, x)
    first = form(made, x)
    assert form.failed == ""
    kept = first.mean.clone()
    second = form(made, other)
    with torch.no_grad():
        torch.testing.assert_close(first.mean, kept)  # the result belongs to the caller
        torch.testing.assert_close(first.mean, made.posterior(x).mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(second.mean, made.posterior(other).mean, rtol=1e-4, atol=1e-4)
        z = torch.randn(3, 5, made.model.latent, device="cuda")
        torch.testing.assert_close(
            second.log_prob(z), made.posterior(other).log_prob(z), rtol=1e-3, atol=1e-3
        )
        for p in made.parameters():
            p.mul_(1.01)
        again = form(made, x)
        torch.testing.assert_close(again.mean, made.posterior(x).mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["vae", "rme", "vlae"])
def test_graphs_of_two_shapes_use_new_weights(name):
    torch.backends.cudnn.allow_tf32 = False
    made = job(name).method.eval()
    form = Captured(made, PLAIN)
    batches = [torch.rand(n, 1, 12, 12, device="cuda") for n in (5, 7)]
    with torch.no_grad():
        for x in [*batches, *batches]:
            form(made, x)
        for p in made.parameters():
            p.mul_(1.01)
        for x in batches:  # the graph of the second runs once more before it is captured anew
            expected = infer(made, x, PLAIN)
            torch.testing.assert_close(form(made, x).mean, expected.mean, rtol=1e-3, atol=1e-3)
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert form.failed == ""


def test_model_moves_between_devices():
    torch.backends.cudnn.allow_tf32 = False
    model = small_model("rme", order=2, vae_epochs=1)
    x = images(6, seed=1, size=12)
    on_gpu = [model.posterior(x).mean.cpu() for _ in range(3)][-1]
    on_cpu = model.to("cpu").posterior(x).mean
    assert model.device.type == "cpu"
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=1e-4)
    again = [model.to("cuda").posterior(x).mean.cpu() for _ in range(3)][-1]
    torch.testing.assert_close(again, on_cpu, rtol=1e-3, atol=1e-4)


def test_model_on_a_gpu_is_exported(tmp_path):
    torch.backends.cudnn.allow_tf32 = False
    model = small_model("rme", order=2, vae_epochs=1)
    x = torch.from_numpy(images(6, seed=1, size=12))
    folder = model.export(tmp_path / "x", format="pt2")
    _, means, _ = torch.export.load(folder / "posterior.pt2").module()(x)
    expected = torch.stack([q.mean for q in model.posterior(x).components], 1).cpu()
    torch.testing.assert_close(means, expected, rtol=1e-3, atol=1e-4)
    assert model.device.type == "cuda"


def test_images_on_the_gpu_are_checked_there():
    model = small_model()
    x = torch.rand(4, 1, 12, 12, device="cuda")
    torch.testing.assert_close(model.posterior(x).mean.cpu(), model.posterior(x.cpu()).mean.cpu())
    with pytest.raises(DataError):
        model.posterior(x * torch.nan)


@pytest.fixture
def exact():
    """Convolutions of torch in float32 instead of TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def untrained(name, shape, **options):
    torch.manual_seed(0)
    spec = Spec(
        method=name,
        model=ModelOptions(latent=50, likelihood="gaussian"),
        shape=shape,
        options=options,
        training=Training(device="cuda"),
    )
    found = Statistics(centre=np.random.default_rng(0).random(shape), variance=0.1)
    method = build(spec, statistics=found).to("cuda").eval()
    for p in method.parameters():
        p.data.add_(0.02 * torch.randn_like(p))
    return method


def uses_kernels(method):
    """Whether all stacked networks of a method go through Triton kernels."""
    found = [stack.how for part in method.modules() for stack in stacks_of(part)]
    return len(found) == (2 if method.name == "rme" else 1) and set(found) == {"triton"}


def near(q, exact):
    pairs = [(q.mean, exact.mean), (q.weights, exact.weights)]
    if isinstance(q, Mixture):
        pairs += [(q.log_weights, exact.log_weights)]
        for a, b in zip(q.components, exact.components, strict=True):
            pairs += [(a.mean, b.mean), (a.log_variance, b.log_variance)]
    else:
        pairs += [(q.log_variance, exact.log_variance)]
    for a, b in pairs:
        assert (a.double() - b).abs().max() <= 1e-5 * b.abs().max()


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("name", "options"), [("vae", {}), ("rme", {"order": 5})])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 64)])
@torch.no_grad()
def test_kernels_agree_with_float64_also_in_a_graph(name, options, shape):
    method = untrained(name, shape, **options)
    truth = copy.deepcopy(method).double()
    for batch in (1, 7, 128):
        x = torch.rand(batch, *shape, device="cuda")
        near(method.posterior(x), truth.posterior(x.double()))
        assert uses_kernels(method)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            method.posterior(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            q = method.posterior(x)
        for _ in range(2):
            x.copy_(torch.rand_like(x))
            graph.replay()
            near(q, truth.posterior(x.double()))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("name", "options"), [("vae", {}), ("rme", {"order": 3})])
@torch.no_grad()
def test_kernels_use_new_weights(name, options):
    method = untrained(name, (1, 28, 28), **options)
    x = torch.rand(7, 1, 28, 28, device="cuda")
    method.posterior(x)
    for p in method.parameters():
        p.add_(0.02 * torch.randn_like(p))
    near(method.posterior(x), copy.deepcopy(method).double().posterior(x.double()))
    with torch.enable_grad():
        method.train()
        method.step(x, method.optimizers(1e-2))
        method.eval()
    near(method.posterior(x), copy.deepcopy(method).double().posterior(x.double()))
    assert uses_kernels(method)


class StudentT(Likelihood):
    """A likelihood that checks its arguments on the host, so that it cannot be captured."""

    def log_prob(self, x, decoded):
        return sum_event(torch.distributions.StudentT(3.0, decoded).log_prob(x), x)

    def sample(self, decoded, generator=None):
        return torch.distributions.StudentT(3.0, decoded).sample()


def test_a_model_that_cannot_be_captured_is_trained_and_used_without_a_graph():
    data, _ = vae()
    options = {"latent": 2, "epochs": 1, "progress": False, "device": "cuda"}
    model = recmix.fit("vae", data, likelihood=StudentT(), **options)
    assert torch.randn(3, device="cuda").isfinite().all()  # the default generator still works
    refined = model.refined(1)
    refined.posterior(data.x_val)
    with pytest.warns(UserWarning, match="cannot be captured"):
        second = refined.posterior(data.x_val)
    assert second.mean.isfinite().all()
    assert torch.randn(3, device="cuda").isfinite().all()


def test_generators_are_usable_after_a_capture_that_failed():
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(5)
    expected = torch.randn(3, device=device, generator=generator)
    generator.manual_seed(5)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with pytest.raises(RuntimeError), torch.cuda.graph(graph):
        torch.ones(3, device=device).sum().item()
    recover_generators(device, generator)
    generator.manual_seed(5)
    assert torch.equal(torch.randn(3, device=device, generator=generator), expected)
    assert torch.randn(3, device=device).isfinite().all()
