"""Run folders: complete at every moment, never executed, refused if they do not fit."""

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
from cases.runs import same_run
from cases.training import SMALL, images
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import recmix
from recmix.errors import ConfigError, Interrupted, RunError
from recmix.inference import Inference
from recmix.methods.vae import VAE
from recmix.model.options import ModelOptions, options_of
from recmix.runs.files import write_bytes, write_json
from recmix.runs.folder import Run
from recmix.runs.spec import FORMAT, Spec
from recmix.runs.training_options import Training
from recmix.training import fit, job

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
        label=st.sampled_from(["VAE", "VAE+ objective=iwae"]),
        model=st.builds(
            ModelOptions,
            latent=st.integers(1, 100),
            likelihood=st.sampled_from(["gaussian", "bernoulli"]),
        ),
        inference=st.builds(
            Inference, refine=st.integers(0, 4), scale=st.floats(0.1, 8), slope=st.floats(-1, 1)
        ),
        shape=st.tuples(st.integers(1, 3), st.integers(8, 128), st.integers(8, 128)),
        options=st.dictionaries(st.text(min_size=1), st.integers() | st.booleans() | st.text()),
        training=st.builds(
            Training,
            epochs=st.none() | st.integers(1, 3000),
            learning_rate=st.none() | st.floats(1e-8, 1.0),
            seed=st.integers(0, 2**31),
            train=st.sampled_from(["all", "encoder"]),
        ),
        init=st.none() | st.just({"run": "vae", "epochs": None}),
        setting=st.none() | st.just("order"),
        auto=st.none() | st.just({"order": "auto", "max_order": 4}),
    )
)
@settings(max_examples=50, deadline=None)
def test_spec_is_the_same_after_json(spec):
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_existing_run_is_replaced_only_with_overwrite(folder):
    with pytest.raises(RunError, match="already holds a run.*--resume.*--overwrite"):
        recmix.fit("vae", images(), out=folder, **SMALL)
    before = (folder / "weights.safetensors").read_bytes()
    recmix.fit("vae", images(), out=folder, overwrite=True, seed=3, **SMALL)
    assert (folder / "weights.safetensors").read_bytes() != before


def test_overwrite_keeps_other_files(folder):
    (folder / "notes.txt").write_text("mine")
    recmix.fit("vae", images(), out=folder, overwrite=True, **SMALL)
    assert (folder / "notes.txt").read_text() == "mine"


def test_resume_returns_a_finished_run_and_more_epochs_continue_it(folder):
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
def test_header_whose_length_looks_like_a_pickle_is_read(folder, low):
    """A file begins with the length of its header, which can be any number."""
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
        ([], "not the spec"),
        (content | {"format": FORMAT + 1}, "newer than this version"),
        (content | {"format": 1}, "has format 1, this version of recmix reads format 2"),
        (content | {"surprise": 1}, "unknown field"),
        (content | {"format": None}, "no format number"),
        (content | {"data": {"columns": "age"}}, "columns must be a list"),
        (content | {"data": {"columns": [3]}}, "columns must be a list of names"),
        (content | {"method": "nosuch"}, "unknown method"),
    ]:
        write_json(spec, broken)
        with pytest.raises(recmix.RecmixError, match=message):
            recmix.load(folder)
    spec.write_text("{")
    with pytest.raises(RunError, match="not readable JSON"):
        recmix.load(folder)
    with pytest.raises(RunError, match="does not hold a run: it is a folder of runs: "):
        recmix.load(folder.parent)


def test_a_place_without_a_run_is_described(tmp_path):
    (tmp_path / "file.json").write_text("{}")
    for name in ("runs/b", "runs/a", "empty"):
        (tmp_path / name).mkdir(parents=True)
    for name in "ab":
        (tmp_path / "runs" / name / "spec.json").write_text("{}")
    for place, message in {
        "nope": "it does not exist",
        "file.json": "it is a file; expected a folder",
        "empty": "there is no spec.json in it",
        "runs": "it is a folder of runs: a, b. Give one of them, such as",
    }.items():
        with pytest.raises(RunError, match=f"{place} does not hold a run: {message}"):
            Run(tmp_path / place).spec()


def test_spec_of_format_1_is_refused_with_what_to_do(folder):
    """Its fields have other names; the error is about the format, not about them."""
    old = {"format": 1, "recmix": "0.1", "method": "vae", "latent": 2, "moves": "all", "widen": 1.0}
    (folder / "spec.json").write_text(json.dumps(old))
    expected = (
        r"spec.json has format 1, this version of recmix reads format 2: train the run again, or open "
        "it with an older version of recmix"
    )
    with pytest.raises(RunError, match=expected):
        recmix.load(folder)
    with pytest.raises(RunError, match=expected):
        recmix.fit("vae", images(), out=folder, resume=True, **SMALL)


def test_spec_json_has_its_documented_fields(folder):
    content = json.loads((folder / "spec.json").read_text())
    names = {"format", "recmix", "method", "label", "setting", "options", "model", "shape"}
    names |= {"training", "inference", "data", "init", "auto", "content_sha256"}
    assert set(content) == names
    assert content["format"] == 2
    assert set(content["model"]) == set(options_of(ModelOptions))
    assert set(content["training"]) == set(options_of(Training))
    assert set(content["inference"]) == set(options_of(Inference))


def test_weights_of_another_run_are_refused(folder, tmp_path):
    recmix.fit("vae", images(), out=tmp_path / "other", **(SMALL | {"latent": 3}))
    os.replace(tmp_path / "other" / "weights.safetensors", folder / "weights.safetensors")
    with pytest.raises(RunError, match="has shape .* expected"):
        recmix.load(folder)


def test_full_disk_keeps_the_last_checkpoint(folder, monkeypatch):
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
def test_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not|is a file"):
        recmix.fit("vae", images(), out=tmp_path / "file" / "run", **SMALL)
    with pytest.raises(RunError, match="is a file"):
        recmix.fit("vae", images(), out=tmp_path / "file", **SMALL)
    with pytest.raises(RunError, match="could not write"):
        write_bytes(tmp_path / "missing" / "x", b"")


def test_files_have_the_usual_permissions(folder):
    plain = folder / "plain"
    plain.write_text("")
    assert (folder / "spec.json").stat().st_mode == plain.stat().st_mode


def test_resume_and_overwrite_exclude_each_other(folder):
    with pytest.raises(ConfigError, match="exclude each other"):
        recmix.fit("vae", images(), out=folder, resume=True, overwrite=True, **SMALL)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run = [*TRAIN, "--method", "rme", "--order", "2", "--latent", "3", "--epochs", "4"]
    run += ["--vae-epochs", "4", "--batch-size", "64", "--out"]
    subprocess.run([*run, str(folder)], check=True, env=ENVIRONMENT, capture_output=True)
    return run, folder


def test_resume_after_kill_gives_same_bits(uninterrupted, tmp_path):
    """SIGKILL twice, at different times of a run with two stages."""
    command, whole = uninterrupted
    folder = tmp_path / "killed"
    waits = iter([0.2, 1.1])
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
def test_signal_saves_within_an_epoch_and_names_the_resume_command(number, at, tmp_path, monkeypatch):
    whole = recmix.fit("vae", images(), out=tmp_path / "whole", **SMALL)
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


@pytest.mark.filterwarnings("ignore:the validation bound was")
def test_resume_of_a_run_that_stopped_early_trains_no_further(tmp_path):
    """It was killed after its last checkpoint, before it was marked as done."""
    options = SMALL | {"epochs": 40, "patience": 2, "learning_rate": 0.03, "batch_size": 10}
    whole = recmix.fit("vae", images(), out=tmp_path / "whole", **options)
    assert len(whole.history) < 40
    recmix.fit("vae", images(), out=tmp_path / "killed", **options)
    Run(tmp_path / "killed").set_status("running", epoch=len(whole.history))
    (tmp_path / "killed" / "history.json").unlink()
    resumed = recmix.fit("vae", images(), out=tmp_path / "killed", resume=True, **options)
    assert resumed.history == whole.history
    same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.filterwarnings("ignore:the validation bound was")
def test_keep_weights_last_keeps_the_last_epoch(tmp_path):
    given = {**SMALL, "epochs": 3, "learning_rate": 10.0}  # too large: the first epoch is the best
    best = recmix.fit("vae", images(), out=tmp_path / "best", **given)
    last = recmix.fit("vae", images(), out=tmp_path / "last", keep_weights="last", patience=1, **given)
    assert best.history[0] == last.history[0]
    assert len(last.history) == 3
    status = Run(tmp_path / "last").status()
    assert (status["best_epoch"], status["best_validation"]) == (3, last.history[-1]["val_iwae"])
    assert Run(tmp_path / "best").status()["best_epoch"] < 3
    with pytest.raises(ConfigError, match="unknown value of keep_weights 'lsat': did you mean 'last'"):
        recmix.fit("vae", images(), keep_weights="lsat", **given)


def test_weights_are_written_with_the_checkpoints(tmp_path, monkeypatch):
    written = []
    plain = job.save_weights
    monkeypatch.setattr(job, "save_weights", lambda *a: (written.append(a[1]), plain(*a)))
    model = recmix.fit(
        "vae", images(), out=tmp_path / "run", **{**SMALL, "epochs": 5, "checkpoint_every": 2}
    )
    assert len(written) <= 4  # after 2, 4 and 5 epochs, and at the end
    for name, value in model.method.state_dict().items():
        torch.testing.assert_close(written[-1][name].cpu(), value.cpu())


def test_resumed_run_writes_the_same_checkpoint(tmp_path):
    given = {**SMALL, "dtype": "float64", "device": "cpu"}
    for name, epochs in (("whole", [2]), ("parts", [1, 2])):
        for count in epochs:
            recmix.fit("vae", images(), out=tmp_path / name, resume=True, **given | {"epochs": count})
    whole, parts = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert {k: v.dtype for k, v in whole.items()} == {k: v.dtype for k, v in parts.items()}
    assert all(torch.equal(value, parts[key]) for key, value in whole.items())


def test_run_finishes_after_a_signal_in_the_last_epoch(tmp_path, monkeypatch):
    plain = job.Job.end_epoch

    def end_epoch(self, validation):
        row = plain(self, validation)
        if self.state.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return row

    monkeypatch.setattr(job.Job, "end_epoch", end_epoch)
    recmix.fit("vae", images(), out=tmp_path / "run", **SMALL)
    assert Run(tmp_path / "run").status()["status"] == "done"


def test_tensorboard_events_are_written(tmp_path):
    pytest.importorskip("tensorboard")
    recmix.fit("vae", images(), out=tmp_path / "run", tensorboard=True, **SMALL)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_trainings_in_one_group_write_all_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "_by_device", lambda jobs: [jobs])  # as on a GPU
    small = {key: value for key, value in SMALL.items() if key != "progress"}
    requests = [{"method": "vae", "data": images(), "seed": seed, **small} for seed in (0, 1, 2)]
    recmix.fit_many([a | {"out": tmp_path / str(a["seed"])} for a in requests], progress=False)
    for seed, a in enumerate(requests):
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
        recmix.fit_many([a | {"out": tmp_path / f"full {a['seed']}"} for a in requests], progress=False)
