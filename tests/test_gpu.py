"""What only a CUDA device can show; skipped with a reason where there is none."""

import copy

import numpy as np
import pytest
import torch
from test_fit import images

import recmix
from recmix.accelerate.captured import Captured
from recmix.methods.registry import METHODS, find_method
from recmix.runs.options import Training
from recmix.runs.spec import Spec
from recmix.training.build import build
from recmix.training.engines import Compiled, Eager, Graph, pick_engine
from recmix.training.fit import _new
from recmix.training.job import Job

find_method("vae")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def job(method, seed=0, training=None, **options):
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    start = recmix.fit("vae", data, latent=3, epochs=1, progress=False, engine="eager", device="cuda")
    spec = recmix.fit(
        method, data, init=start, epochs=1, progress=False, engine="eager", device="cuda", **options
    ).spec
    made = _new(spec, data, None, None)
    torch.manual_seed(0)  # some components start at random
    made.start_from(start.method)
    asked = {"epochs": 2, "learning_rate": 1e-3, "batch_size": 32, "seed": seed} | (training or {})
    return Job(made, data, Training(**asked), continued=True)


def run(engine, jobs, steps=6):
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
    for name, total in one[0].items():
        assert total == pytest.approx(two[0][name], rel=1e-3, abs=1e-2), name
    for key, value in one[1].items():
        np.testing.assert_allclose(value, two[1][key], atol=tolerance, rtol=1e-2, err_msg=key)


def alike(one, two):
    """Where Gauss-Newton steps are taken: which of those tried is best may turn on the last bit."""
    for name, total in one[0].items():
        assert total == pytest.approx(two[0][name], rel=1e-3, abs=1e-2), name
    for key, value in one[1].items():
        assert np.abs(value - two[1][key]).mean() <= 3e-4, key  # of up to 6e-3 that six steps make


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_graph_gives_what_eager_gives(name):
    torch.backends.cudnn.allow_tf32 = False
    jobs = [job(name) for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(Graph, jobs[1:])
    same(eager, graph)


def test_replicas_give_what_each_gives_alone():
    torch.backends.cudnn.allow_tf32 = False
    kinds = [("vae", {"seed": 1}), ("rme", {"seed": 2, "order": 2}), ("rme", {"seed": 3, "order": 3})]
    alone = [run(Graph, [job(name, **options)])[0] for name, options in kinds]
    together = run(Graph, [job(name, **options) for name, options in kinds])
    for one, two in zip(alone, together, strict=True):
        same(one, two)
    assert alone[1][0]["loss"] != alone[2][0]["loss"]


def test_a_compiled_graph_gives_what_eager_gives():
    torch.backends.cudnn.allow_tf32 = False
    jobs = [job("rme", order=2) for _ in range(2)]
    (eager,), (fused,) = run(Eager, jobs[:1]), run(Compiled, jobs[1:])
    same(eager, fused)


@pytest.mark.parametrize("name", ["vae", "rme", "me"])
def test_averages_and_distillation_are_part_of_a_graph(name):
    torch.backends.cudnn.allow_tf32 = False
    training = {"average": 0.75, "distil": 0.5, "moves": "encoder"}
    jobs = [job(name, training=training) for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(Graph, jobs[1:])
    alike(eager, graph)
    averages = [{k: v.double().cpu().numpy() for k, v in one.averages.items()} for one in jobs]
    assert averages[0]["updates"] == averages[1]["updates"] == 6  # warming up is taken back
    for key, value in averages[0].items():
        assert np.abs(value - averages[1][key]).mean() <= 3e-4, key
    before = {k: v.clone() for k, v in jobs[1].method.state_dict().items()}
    jobs[1].validation()
    for key, value in jobs[1].method.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("reuse", [0, 2])
@pytest.mark.parametrize("name", ["vae", "rme"])
def test_refinement_is_part_of_a_graph(name, reuse):
    torch.backends.cudnn.allow_tf32 = False
    jobs = [job(name, training={"refine": 2, "reuse": reuse}) for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(Graph, jobs[1:])
    alike(eager, graph)


@pytest.mark.parametrize("name", ["vae", "rme"])
def test_muon_is_part_of_a_graph(name):
    torch.backends.cudnn.allow_tf32 = False
    jobs = [job(name, training={"optimizer": "muon"}) for _ in range(2)]
    (eager,), (graph,) = run(Eager, jobs[:1]), run(Graph, jobs[1:])
    alike(eager, graph)


def test_chains_from_several_starts_are_captured():
    torch.backends.cudnn.allow_tf32 = False
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    how = {"component": "residual", "latent": 3, "epochs": 1, "progress": False, "device": "cuda"}
    made = recmix.fit("vae", data, starts=3, **how).widened(1.5, tilt=0.01, at=20.0)
    form = Captured(made.method.eval())
    x = torch.rand(5, 1, 12, 12, device="cuda")
    form(x)
    with torch.no_grad():
        captured, apart = form(x), made.method.infer(x)
    assert form.failed == ""
    torch.testing.assert_close(captured.mean, apart.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(captured.stddev, apart.stddev, rtol=1e-3, atol=1e-3)


def test_a_refined_posterior_is_widened_in_the_graph():
    torch.backends.cudnn.allow_tf32 = False
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    made = recmix.fit("vae", data, latent=3, epochs=1, progress=False, device="cuda")
    method = made.refined(2).widened(1.5, tilt=0.01, at=20.0).method.eval()
    form = Captured(method)
    x = torch.rand(5, 1, 12, 12, device="cuda")
    form(x)
    with torch.no_grad():
        captured, apart = form(x), method.infer(x)
    assert form.failed == ""
    torch.testing.assert_close(captured.covariance, apart.covariance, rtol=1e-3, atol=1e-4)


def test_the_best_of_several_starts_is_captured():
    torch.backends.cudnn.allow_tf32 = False
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    made = recmix.fit("vae", data, latent=3, epochs=1, progress=False, device="cuda")
    x = torch.rand(5, 1, 12, 12, device="cuda")
    once, several = (made.refined(2, starts=n).method.eval() for n in (1, 4))
    form = Captured(several)
    form(x)
    with torch.no_grad():
        captured, apart = form(x), several.infer(x)
        assert form.failed == ""
        torch.testing.assert_close(captured.mean, apart.mean, rtol=1e-3, atol=1e-3)
        known = [
            made.model.log_joint(x, q.mean[None])[0] + 0.5 * q.covariance.logdet()
            for q in (once.infer(x), captured)
        ]
    assert (known[1] >= known[0] - 1e-3).all()


@pytest.mark.parametrize("reuse", [0, 2])
def test_a_refined_posterior_is_captured_and_climbs(reuse):
    torch.backends.cudnn.allow_tf32 = False
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    made = recmix.fit("vae", data, latent=3, epochs=1, progress=False, device="cuda", reuse=reuse)
    x = torch.rand(5, 1, 12, 12, device="cuda")
    plain, refined = made.method.eval(), made.refined(2).method.eval()
    form = Captured(refined)
    form(x)
    with torch.no_grad():
        captured, apart = form(x), refined.infer(x)
        assert form.failed == ""
        torch.testing.assert_close(captured.mean, apart.mean, rtol=1e-3, atol=1e-3)
        joint = [plain.model.log_joint(x, q.mean[None]) for q in (plain.infer(x), captured)]
    assert (joint[1] >= joint[0] - 1e-3).all()


def test_auto_picks_the_graph_and_says_so():
    one = job("vae")
    one.begin_epoch()
    engine, why = pick_engine("auto", [one])
    assert isinstance(engine, Graph)
    assert "graph engine" in why


def test_a_whole_training_by_graph_ends_where_eager_ends():
    ends = [
        recmix.fit("vae", images(300), latent=3, epochs=5, engine=e, progress=False, device="cuda")
        for e in ("eager", "graph")
    ]
    for a, b in zip(*(m.history for m in ends), strict=True):
        assert a["val_iwae"] == pytest.approx(b["val_iwae"], abs=0.5)


def test_a_resumed_graph_goes_on(tmp_path):
    options = {"latent": 3, "progress": False, "device": "cuda", "engine": "graph"}
    recmix.fit("rme", images(300), order=2, vae_epochs=2, epochs=1, out=tmp_path / "a", **options)
    more = recmix.fit(
        "rme", images(300), order=2, vae_epochs=2, epochs=3, out=tmp_path / "a", resume=True, **options
    )
    assert len(more.history) == 3


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_captured_posterior_is_the_posterior(name):
    torch.backends.cudnn.allow_tf32 = False
    made = job(name).method.eval()
    form = Captured(made)
    x, other = torch.rand(2, 5, 1, 12, 12, device="cuda")
    form(x)
    first = form(x)
    assert form.failed == ""
    kept = first.mean.clone()
    second = form(other)
    with torch.no_grad():
        torch.testing.assert_close(first.mean, kept)  # the caller's own
        torch.testing.assert_close(first.mean, made.posterior(x).mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(second.mean, made.posterior(other).mean, rtol=1e-4, atol=1e-4)
        z = torch.randn(3, 5, made.model.latent, device="cuda")
        torch.testing.assert_close(
            second.log_prob(z), made.posterior(other).log_prob(z), rtol=1e-3, atol=1e-3
        )
        for p in made.parameters():
            p.mul_(1.01)
        torch.testing.assert_close(form(x).mean, made.posterior(x).mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["vae", "rme", "vlae"])
def test_graphs_of_two_shapes_see_new_weights(name):
    torch.backends.cudnn.allow_tf32 = False
    made = job(name).method.eval()
    form = Captured(made)
    batches = [torch.rand(n, 1, 12, 12, device="cuda") for n in (5, 7)]
    with torch.no_grad():
        for x in [*batches, *batches]:
            form(x)
        for p in made.parameters():
            p.mul_(1.01)
        for x in batches:  # the second one's graph runs once more before it is made anew
            torch.testing.assert_close(form(x).mean, made.infer(x).mean, rtol=1e-3, atol=1e-3)
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert form.failed == ""


def test_images_on_the_device_are_checked_there():
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    model = recmix.fit("vae", data, latent=3, epochs=1, progress=False, device="cuda")
    x = torch.rand(4, 1, 12, 12, device="cuda")
    torch.testing.assert_close(model.posterior(x).mean.cpu(), model.posterior(x.cpu()).mean.cpu())
    with pytest.raises(recmix.errors.DataError):
        model.posterior(x + 1)


@pytest.fixture
def exact():
    """Convolutions of torch in float32 proper, to compare with."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def fresh(name, shape, **options):
    torch.manual_seed(0)
    spec = Spec(
        method=name,
        latent=50,
        likelihood="gaussian",
        shape=shape,
        options=options,
        training=Training(device="cuda"),
    )
    method = build(spec, centre=np.random.default_rng(0).random(shape), variance=0.1).to("cuda").eval()
    for p in method.parameters():
        p.data.add_(0.02 * torch.randn_like(p))
    return method


def by_kernels(method):
    if method.name == "rme":
        return (method._encoders.how, method._gates.how) == ("triton", "triton")
    return method.components[0]._alone.how == "triton"


def near(q, exact):
    pairs = [(q.mean, exact.mean), (q.weights, exact.weights)]
    if hasattr(q, "components"):
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
def test_our_kernels_give_what_float64_gives_in_and_out_of_a_graph(name, options, shape):
    method = fresh(name, shape, **options)
    truth = copy.deepcopy(method).double()
    for batch in (1, 7, 128):
        x = torch.rand(batch, *shape, device="cuda")
        near(method.posterior(x), truth.posterior(x.double()))
        assert by_kernels(method)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            method.posterior(x)
        torch.cuda.current_stream().wait_stream(aside)
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
def test_our_kernels_see_new_weights(name, options):
    method = fresh(name, (1, 28, 28), **options)
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
    assert by_kernels(method)
