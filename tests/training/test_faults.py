"""Too little memory and operations that are not deterministic end with a message and a usable run."""

import importlib
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases.commands import call
from cases.runs import same_run
from cases.training import SMALL, images

import recmix
from recmix.errors import ConfigError, Interrupted, OutOfMemory, RecmixError, memory_advice
from recmix.methods.vae import VAE
from recmix.runs.folder import Run
from recmix.training import engines, job
from recmix.training.faults import WORKSPACE, deterministic

EVALUATION = importlib.import_module(
    "recmix.evaluation.bounds"
)  # the package has a function of that name
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has ...")


def at_call(number, action, plain):
    """`plain`, but its call with this number first does `action`."""
    calls = 0

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            action()
        return plain(*args, **kwargs)

    return counted


def no_memory():
    raise FULL


@pytest.mark.parametrize(("where", "number"), [("step", 4), ("validation", 3)])
def test_training_without_memory_can_be_resumed(tmp_path, monkeypatch, where, number):
    """Memory is missing in the second of two epochs."""
    recmix.fit("vae", images(), out=tmp_path / "whole", **SMALL)
    # Inside `bounds`, which has advice of its own.
    place, name = (VAE, "step") if where == "step" else (EVALUATION, "bounds_of")
    with monkeypatch.context() as patched:
        patched.setattr(place, name, at_call(number, no_memory, getattr(place, name)))
        with pytest.raises(OutOfMemory) as stop:
            recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    message = str(stop.value)
    expected = (
        "out of memory (CUDA out of memory. Tried to allocate 3.00 GiB): lower batch_size (now 20)."
    )
    assert message.startswith(expected)
    assert "continues from its last checkpoint: " in message
    assert f"recmix train --resume --out {tmp_path / 'run'}" in message
    status = Run(tmp_path / "run").status()
    assert status["status"] == "failed"
    assert "lower batch_size" in status["reason"]
    recmix.fit("vae", images(), out=tmp_path / "run", resume=True, **SMALL)
    same_run(tmp_path / "run", tmp_path / "whole")


def test_first_stage_without_memory_names_the_whole_run(tmp_path, monkeypatch):
    monkeypatch.setattr(VAE, "step", at_call(1, no_memory, VAE.step))
    with pytest.raises(OutOfMemory, match="lower batch_size") as stop:
        recmix.fit("rme", images(), order=2, vae_epochs=1, out=tmp_path / "run", **SMALL)
    assert f"{tmp_path / 'run' / 'vae'}" not in str(stop.value)
    assert Run(tmp_path / "run").status()["status"] == "failed"


def test_message_names_all_options_that_need_memory(monkeypatch):
    monkeypatch.setattr(VAE, "step", at_call(1, no_memory, VAE.step))
    with pytest.raises(
        OutOfMemory, match=r"objective_samples \(now 7\)\. Nothing was saved: give an out"
    ):
        recmix.fit("vae", images(), objective="iwae", objective_samples=7, **SMALL)


def test_evaluation_and_refinement_without_memory_name_what_to_lower(tmp_path, monkeypatch, capsys):
    model = recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    monkeypatch.setattr(recmix.Inference, "__call__", lambda *_: no_memory())
    with pytest.raises(OutOfMemory, match="give fewer examples at a time, or lower restarts"):
        model.refined(1).posterior(images(4))
    with pytest.raises(OutOfMemory, match="lower memory .--memory"):
        model.refined(1).log_likelihood(images(4), 3)
    np.save(tmp_path / "x.npy", images())
    assert (
        call("evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "x.npy"), "--samples", "3") == 2
    )
    said = " ".join(capsys.readouterr().err.split())
    assert "error: out of memory" in said
    assert "--restarts" in said
    assert not Run(tmp_path / "run").scores()


def test_other_errors_pass_unchanged():
    with pytest.raises(RuntimeError, match="shapes differ") as found, memory_advice("lower it"):
        raise RuntimeError("shapes differ")
    assert not isinstance(found.value, RecmixError)
    with pytest.raises(OutOfMemory, match="lower it"), memory_advice("lower it"):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


@pytest.mark.parametrize("name", ["auto", "graph"])
def test_graph_that_cannot_be_captured_gives_the_eager_engine(monkeypatch, recwarn, name):
    one = SimpleNamespace(
        device=torch.device("cuda"),
        world=SimpleNamespace(size=1),
        batches=SimpleNamespace(resident=True),
    )
    monkeypatch.setitem(engines.ENGINES, "graph", lambda jobs: no_memory())
    for function in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, function, lambda: None)
    if name == "auto":
        made, why = engines.pick_engine(name, [one])
    else:
        with pytest.warns(UserWarning, match="graph engine failed: CUDA out of memory"):
            made, why = engines.pick_engine(name, [one])
    assert type(made) is engines.Eager
    assert why.startswith("eager engine: graph engine failed: CUDA out of memory")


# --- deterministic -------------------------------------------------------------------------------


def settings():
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.utils.deterministic.fill_uninitialized_memory,
        os.environ.get(WORKSPACE),
    )


def test_settings_of_torch_are_restored(monkeypatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    before = settings()
    with deterministic(False):
        assert settings() == before
    with deterministic(True):
        assert settings() == (True, True, False, False, False, False, ":4096:8")
        with deterministic(True):
            pass
        assert settings() == (True, True, False, False, False, False, ":4096:8")
    assert settings() == before


def test_a_users_own_settings_of_torch_are_restored():
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("medium")
        with deterministic(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")


def test_other_way_to_set_a_precision_is_named(monkeypatch):
    def refuse():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    with pytest.raises(ConfigError, match="fp32_precision"), deterministic(True):
        pass


def test_used_cublas_is_named():
    with (
        pytest.raises(ConfigError, match="Set the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8"),
        deterministic(True),
    ):
        raise RuntimeError("Deterministic behavior was enabled ... you must set CUBLAS_WORKSPACE_CONFIG")


def test_operation_that_is_not_deterministic_is_named(monkeypatch, tmp_path):
    def put():
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))

    monkeypatch.setattr(VAE, "step", at_call(1, put, VAE.step))
    before = settings()
    with pytest.raises(ConfigError, match="the operation put_ of torch is not"):
        recmix.fit("vae", images(), deterministic=True, out=tmp_path, **SMALL)
    assert settings() == before
    assert Run(tmp_path).status()["status"] == "failed"


def test_noise_that_a_checkpoint_does_not_hold_is_refused():
    with pytest.raises(ConfigError, match="global random generator, for example dropout"):
        recmix.fit("vae", images(), network="mlp", dropout=0.5, deterministic=True, **SMALL)
    with pytest.raises(ConfigError, match="engine compile chooses kernels by their speed"):
        recmix.fit("vae", images(), engine="compile", deterministic=True, **SMALL)


def test_deterministic_training_and_resume_give_the_same_bits(tmp_path, monkeypatch):
    given = {"order": 2, "vae_epochs": 1, "deterministic": True, **SMALL}
    seen = set()
    step = job.Job.step
    monkeypatch.setattr(job.Job, "step", lambda self: (seen.add(settings()[0]), step(self)))
    recmix.fit("rme", images(), out=tmp_path / "whole", **given)
    assert seen == {True}  # the VAE before it, too
    assert Run(tmp_path / "whole" / "vae").spec().training.deterministic
    stop = at_call(5, lambda: os.kill(os.getpid(), signal.SIGTERM), job.Job.step)
    monkeypatch.setattr(job.Job, "step", stop)
    with pytest.raises(Interrupted, match="batch 1; saved"):
        recmix.fit("rme", images(), out=tmp_path / "run", **given)
    recmix.fit("rme", images(), out=tmp_path / "run", resume=True, **given)
    same_run(tmp_path / "run", tmp_path / "whole")


# --- learning rates that are too high ------------------------------------------------------------


def test_training_that_makes_a_model_worse_warns_of_the_learning_rate(recwarn):
    recmix.fit("vae", images(), **SMALL)
    assert not recwarn
    before = r"the validation bound was -\d\S+ nats before training and is -\S+e\+\d+ nats after it"
    with pytest.warns(UserWarning, match=rf"{before}.*learning rate 10 .* lower learning_rate"):
        recmix.fit("vae", images(), learning_rate=10.0, **SMALL)


@pytest.mark.filterwarnings("error:the validation bound")
def test_warning_that_is_an_error_leaves_a_finished_run(tmp_path):
    with pytest.raises(UserWarning, match="the validation bound"):
        recmix.fit("vae", images(), learning_rate=10.0, out=tmp_path / "run", **SMALL)
    assert Run(tmp_path / "run").status()["status"] == "done"


def test_start_without_a_test_part_is_warned_of(recwarn):
    start = recmix.fit("vae", recmix.data.from_arrays(images(), hold_out_test=False), **SMALL)
    assert not recwarn
    with pytest.warns(UserWarning, match="trained on data without a test part"):
        recmix.fit("vae", images(), init=start, epochs=1, progress=False)
