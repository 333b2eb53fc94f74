"""Run folders: refused when they must be, whole at every moment, never executed."""

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_fit import SMALL, images

import recmix
from recmix.errors import ConfigError, Interrupted, RunError
from recmix.runs.files import write_bytes
from recmix.runs.folder import Run
from recmix.runs.options import Training
from recmix.runs.spec import FORMAT, Spec

TRAIN = [sys.executable, "-m", "recmix.cli", "train", "--data", "digits", "--device", "cpu"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def folder(tmp_path):
    recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    return tmp_path / "run"


@given(
    st.builds(
        Spec,
        method=st.sampled_from(["vae", "rme"]),
        latent=st.integers(1, 100),
        likelihood=st.sampled_from(["gaussian", "bernoulli"]),
        shape=st.tuples(st.integers(1, 3), st.integers(8, 128), st.integers(8, 128)),
        options=st.dictionaries(st.text(min_size=1), st.integers() | st.booleans() | st.text()),
        training=st.builds(
            Training,
            epochs=st.none() | st.integers(1, 3000),
            learning_rate=st.none() | st.floats(1e-8, 1.0),
            seed=st.integers(0, 2**31),
        ),
        init=st.none() | st.just({"run": "vae", "epochs": None}),
    )
)
@settings(max_examples=50, deadline=None)
def test_a_spec_survives_json(spec):
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_folder_with_a_run_is_refused_unless_told(folder):
    with pytest.raises(RunError, match="already holds a run.*--resume.*--overwrite"):
        recmix.fit("vae", images(), out=folder, **SMALL)
    before = (folder / "weights.safetensors").read_bytes()
    recmix.fit("vae", images(), out=folder, overwrite=True, seed=3, **SMALL)
    assert (folder / "weights.safetensors").read_bytes() != before


def test_overwriting_leaves_other_files_alone(folder):
    (folder / "notes.txt").write_text("mine")
    recmix.fit("vae", images(), out=folder, overwrite=True, **SMALL)
    assert (folder / "notes.txt").read_text() == "mine"


def test_resume_of_a_finished_run_returns_it_and_more_epochs_continue_it(folder):
    before = Run(folder).history()
    assert recmix.fit("vae", images(), out=folder, resume=True, **SMALL).history == before
    more = recmix.fit("vae", images(), out=folder, resume=True, **(SMALL | {"epochs": 4}))
    assert more.history[:2] == before
    assert len(more.history) == 4
    whole = recmix.fit("vae", images(), **(SMALL | {"epochs": 4}))
    assert whole.history == more.history


def test_resume_with_other_options_is_refused(folder):
    with pytest.raises(RunError, match="batch_size = 20, not 10"):
        recmix.fit("vae", images(), out=folder, resume=True, **(SMALL | {"batch_size": 10}))
    with pytest.raises(RunError, match="fingerprint"):
        recmix.fit("vae", images(seed=5), out=folder, resume=True, **SMALL)


@pytest.mark.parametrize("name", ["weights.safetensors", "checkpoint.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "pickle", "torch", "newer", "foreign"])
def test_damaged_files_are_named_and_never_executed(folder, name, damage):
    path = folder / name
    content = path.read_bytes()
    bomb = folder.parent / "executed"

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (bomb,))

    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "pickle":
        path.write_bytes(pickle.dumps(Bomb()))
    elif damage == "torch":
        torch.save({"bomb": Bomb()}, path)
    elif damage == "newer":
        mark = f'\\"format\\": {FORMAT}'.encode()
        assert mark in content
        path.write_bytes(content.replace(mark, mark[:-1] + b"9"))
    else:
        path.write_bytes(b"hello" * 1000)
    with pytest.raises(RunError, match=name):
        if name.startswith("weights"):
            recmix.load(folder)
        else:
            recmix.fit("vae", images(), out=folder, resume=True, **(SMALL | {"epochs": 3}))
    assert not bomb.exists()


@pytest.mark.parametrize("low", [b"PK", b"\x80\x02", b"\x80\x03"])
def test_a_header_whose_length_looks_like_a_pickle_is_read(folder, low):
    """The file begins with its header's length, which may be any number."""
    path = folder / "weights.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    wanted = int.from_bytes(low + b"\0" * 6, "little")
    while wanted < size:
        wanted += 1 << 16
    header = content[8 : 8 + size].ljust(wanted)
    path.write_bytes(wanted.to_bytes(8, "little") + header + content[8 + size :])
    assert path.read_bytes()[:2] == low
    recmix.load(folder)


def test_damaged_specs_are_named(folder):
    spec = folder / "spec.json"
    content = json.loads(spec.read_text())
    for broken, message in [
        ("{", "not readable JSON"),
        (json.dumps([]), "not the spec"),
        (json.dumps(content | {"format": FORMAT + 1}), "newer than this version"),
        (json.dumps(content | {"surprise": 1}), "unknown field"),
        (json.dumps(content | {"format": None}), "no format number"),
        (json.dumps(content | {"method": "nosuch"}), "unknown method"),
    ]:
        spec.write_text(broken)
        with pytest.raises(recmix.RecmixError, match=message):
            recmix.load(folder)
    with pytest.raises(RunError, match="does not hold a run"):
        recmix.load(folder.parent)


def test_weights_of_another_run_are_refused(folder, tmp_path):
    recmix.fit("vae", images(), out=tmp_path / "other", **(SMALL | {"latent": 3}))
    os.replace(tmp_path / "other" / "weights.safetensors", folder / "weights.safetensors")
    with pytest.raises(RunError, match="has shape .* expected"):
        recmix.load(folder)


def test_a_full_disk_costs_only_the_work_in_flight(folder, monkeypatch):
    before = (folder / "checkpoint.safetensors").read_bytes()

    def full(_fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"disk is full.*--resume"):
        recmix.fit("vae", images(), out=folder, resume=True, **(SMALL | {"epochs": 4}))
    monkeypatch.undo()
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    assert not list(folder.glob(".*part"))
    recmix.fit("vae", images(), out=folder, resume=True, **(SMALL | {"epochs": 4}))


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not|is a file"):
        recmix.fit("vae", images(), out=tmp_path / "file" / "run", **SMALL)
    with pytest.raises(RunError, match="is a file"):
        recmix.fit("vae", images(), out=tmp_path / "file", **SMALL)
    with pytest.raises(RunError, match="could not write"):
        write_bytes(tmp_path / "missing" / "x", b"")


def test_files_are_as_readable_as_any_other(folder):
    plain = folder / "plain"
    plain.write_text("")
    assert (folder / "spec.json").stat().st_mode == plain.stat().st_mode


def test_resume_and_overwrite_exclude_each_other(folder):
    with pytest.raises(ConfigError, match="exclude each other"):
        recmix.fit("vae", images(), out=folder, resume=True, overwrite=True, **SMALL)


def same_run(a, b):
    assert Run(a).history() == Run(b).history()
    for name in ("weights.safetensors", "checkpoint.safetensors"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run = [*TRAIN, "--method", "rme", "--order", "2", "--latent", "3", "--epochs", "4"]
    run += ["--vae-epochs", "4", "--batch-size", "64", "--out"]
    subprocess.run([*run, str(folder)], check=True, env=ENVIRONMENT, capture_output=True)
    return run, folder


def test_killed_at_any_moment_and_resumed_is_bit_identical(uninterrupted, tmp_path):
    """SIGKILL four times, at moments spread over the whole two-stage run."""
    command, whole = uninterrupted
    folder = tmp_path / "killed"
    waits = iter([0.2, 0.5, 1.1, 1.9])
    killed = 0
    for wait in waits:
        process = subprocess.Popen(
            [*command, str(folder), "--resume"], env=ENVIRONMENT, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while not (folder / "spec.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(wait)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed >= 1
    done = subprocess.run(
        [*TRAIN[:4], "--resume", "--out", str(folder)], env=ENVIRONMENT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    same_run(folder, whole)
    same_run(folder / "vae", whole / "vae")


@pytest.mark.parametrize(("number", "at"), [(signal.SIGINT, 3), (signal.SIGTERM, 4)])
def test_a_signal_saves_in_the_middle_and_says_how_to_resume(number, at, tmp_path, monkeypatch):
    whole = recmix.fit("vae", images(), out=tmp_path / "whole", **SMALL)
    from recmix.methods.vae import VAE

    steps = 0
    plain = VAE.step

    def step(self, *args, **kwargs):
        nonlocal steps
        steps += 1
        if steps == at:  # an epoch has two batches
            os.kill(os.getpid(), number)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(VAE, "step", step)
    with pytest.raises(
        Interrupted, match=rf"epoch 2, batch {at - 2}; saved.*recmix train --resume --out"
    ) as stop:
        recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    assert str(tmp_path / "run") in str(stop.value)
    assert Run(tmp_path / "run").status()["status"] == "interrupted"
    resumed = recmix.fit("vae", images(), out=tmp_path / "run", resume=True, **SMALL)
    assert resumed.history == whole.history
    same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_that_had_stopped_early_does_not_go_on_when_it_is_resumed(tmp_path, monkeypatch):
    """Killed after its last checkpoint but before it was marked as done."""
    options = SMALL | {"epochs": 40, "patience": 2, "learning_rate": 0.03, "batch_size": 10}
    whole = recmix.fit("vae", images(), out=tmp_path / "whole", **options)
    assert len(whole.history) < 40
    recmix.fit("vae", images(), out=tmp_path / "killed", **options)
    Run(tmp_path / "killed").set_status("running", epoch=len(whole.history))
    (tmp_path / "killed" / "history.json").unlink()
    resumed = recmix.fit("vae", images(), out=tmp_path / "killed", resume=True, **options)
    assert resumed.history == whole.history
    same_run(tmp_path / "killed", tmp_path / "whole")


def test_the_last_epoch_is_kept_where_that_is_asked(tmp_path):
    asked = {**SMALL, "epochs": 3, "learning_rate": 10.0}  # it learns nothing: the first epoch is best
    best = recmix.fit("vae", images(), out=tmp_path / "best", **asked)
    last = recmix.fit("vae", images(), out=tmp_path / "last", keep="last", patience=1, **asked)
    assert best.history[0] == last.history[0]
    assert len(last.history) == 3
    status = Run(tmp_path / "last").status()
    assert (status["best_epoch"], status["best_validation"]) == (3, last.history[-1]["val_iwae"])
    assert Run(tmp_path / "best").status()["best_epoch"] < 3
    with pytest.raises(ConfigError, match="keep"):
        recmix.fit("vae", images(), keep="lsat", **asked)


def test_weights_are_written_with_the_checkpoints(tmp_path, monkeypatch):
    from recmix.training import job

    written = []
    plain = job.save_weights
    monkeypatch.setattr(job, "save_weights", lambda *a: (written.append(a[2]), plain(*a)))
    recmix.fit("vae", images(), out=tmp_path / "run", **{**SMALL, "epochs": 5, "checkpoint_every": 2})
    best = Run(tmp_path / "run").status()["best_epoch"]
    assert len(written) <= 4  # after 2, 4 and 5 epochs, and at the end
    assert written[-1] == best


def test_a_resumed_run_writes_the_checkpoint_that_an_undisturbed_one_does(tmp_path):
    asked = {**SMALL, "dtype": "float64", "device": "cpu"}
    for name, epochs in (("whole", [2]), ("parts", [1, 2])):
        for count in epochs:
            recmix.fit("vae", images(), out=tmp_path / name, resume=True, **asked | {"epochs": count})
    whole, parts = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert {k: v.dtype for k, v in whole.items()} == {k: v.dtype for k, v in parts.items()}
    assert all(torch.equal(value, parts[key]) for key, value in whole.items())


def test_a_signal_in_the_last_epoch_lets_it_finish(tmp_path, monkeypatch):
    from recmix.training.job import Job

    plain = Job.end_epoch

    def end_epoch(self, validation):
        row = plain(self, validation)
        if self.state.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return row

    monkeypatch.setattr(Job, "end_epoch", end_epoch)
    recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    assert Run(tmp_path / "run").status()["status"] == "done"


def test_tensorboard_events_are_written(tmp_path):
    pytest.importorskip("tensorboard")
    recmix.fit("vae", images(), out=tmp_path / "run", tensorboard=True, **SMALL)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_trainings_in_one_group_write_their_checkpoints_together(tmp_path, monkeypatch):
    from recmix.training import fit, job

    monkeypatch.setattr(fit, "_together", lambda jobs: [jobs])  # as on a GPU
    small = {key: value for key, value in SMALL.items() if key != "progress"}
    asked = [{"method": "vae", "data": images(), "seed": seed, **small} for seed in (0, 1, 2)]
    recmix.fit_many([a | {"out": tmp_path / str(a["seed"])} for a in asked], progress=False)
    for seed, a in enumerate(asked):
        recmix.fit(**a, out=tmp_path / "alone", overwrite=True, progress=False)
        names = ("alone", str(seed))
        one, other = (load_file(tmp_path / name / "checkpoint.safetensors") for name in names)
        assert all(torch.equal(value, other[key]) for key, value in one.items())
        assert Run(tmp_path / str(seed)).status()["status"] == "done"

    def full(path, *_):
        if path.parent.name == "full 1":
            raise RunError("the disk is full")

    monkeypatch.setattr(job, "save_checkpoint", full)
    with pytest.raises(RunError, match="the disk is full"):
        recmix.fit_many([a | {"out": tmp_path / f"full {a['seed']}"} for a in asked], progress=False)
