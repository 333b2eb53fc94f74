"""What only a CUDA device can show; skipped with a reason where there is none."""

import numpy as np
import pytest
import torch
from test_fit import images

import recmix
from recmix.captured import Captured
from recmix.core import METHODS, find_method
from recmix.run import Training
from recmix.training.engines import Compiled, Eager, Graph, pick_engine
from recmix.training.fit import _new
from recmix.training.job import Job

find_method("vae")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def job(method, seed=0, **options):
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    start = recmix.fit("vae", data, latent=3, epochs=1, progress=False, engine="eager", device="cuda")
    spec = recmix.fit(
        method, data, init=start, epochs=1, progress=False, engine="eager", device="cuda", **options
    ).spec
    made = _new(spec, data, None, None)
    torch.manual_seed(0)  # some components start at random
    made.start_from(start.method)
    training = Training(epochs=2, learning_rate=1e-3, batch_size=32, seed=seed)
    return Job(made, data, training, continued=True)


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


def test_images_on_the_device_are_checked_there():
    data = recmix.data.from_arrays(images(300, size=12), seed=0)
    model = recmix.fit("vae", data, latent=3, epochs=1, progress=False, device="cuda")
    x = torch.rand(4, 1, 12, 12, device="cuda")
    torch.testing.assert_close(model.posterior(x).mean.cpu(), model.posterior(x.cpu()).mean.cpu())
    with pytest.raises(recmix.errors.DataError):
        model.posterior(x + 1)
