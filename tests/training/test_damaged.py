"""Damaged, edited or hostile run folders end with one error, and nothing invalid is written."""

import json
import math
import os
import shutil
import struct

import numpy as np
import pytest
from cases.training import SMALL, images
from safetensors.torch import load, save

import recmix
from recmix.cli import main
from recmix.errors import NonFiniteError, RecmixError, RunError
from recmix.runs.files import write_json
from recmix.runs.folder import Run

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged") / "run"
    recmix.fit("vae", images(), out=folder, **SMALL)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def use(folder, name):
    """Read a weights file or a checkpoint."""
    if name.startswith("weights"):
        recmix.load(folder, device="cpu")
    else:
        recmix.fit("vae", images(), out=folder, resume=True, **(SMALL | {"epochs": 3}))


def split(path):
    """The header and the tensors of a safetensors file, as bytes."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join(path, header, tensors):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)


def edit(path, **state):
    """Change the recmix header of a file and remove its digest, as in files of older versions."""
    header, tensors = split(path)
    about = json.loads(header["__metadata__"]["recmix"])
    del about["sha256"]
    part = about.get("state", about)
    part |= state
    header["__metadata__"]["recmix"] = json.dumps(about)
    join(path, header, tensors)


@pytest.mark.parametrize("name", ["weights.safetensors", "checkpoint.safetensors"])
@pytest.mark.parametrize("damage", ["one bit", "nan", "header"])
def test_changed_bytes_are_noticed(folder, name, damage):
    path = folder / name
    header, tensors = split(path)
    if damage == "one bit":
        tensors = tensors[:100] + bytes([tensors[100] ^ 1]) + tensors[101:]
    elif damage == "nan":
        tensors = tensors[:400] + np.full(1000, np.nan, np.float32).tobytes() + tensors[4400:]
    else:
        about = json.loads(header["__metadata__"]["recmix"])
        header["__metadata__"]["recmix"] = json.dumps(about | {"more": 1})
    join(path, header, tensors)
    with pytest.raises(RunError, match=f"{name} is damaged: its content does not match its SHA-256"):
        use(folder, name)


@pytest.mark.parametrize("name", ["weights.safetensors", "checkpoint.safetensors"])
def test_files_without_a_digest_are_read(folder, name):
    edit(folder / name)
    use(folder, name)


@pytest.mark.parametrize(
    "state",
    [
        {"epoch": 10**9},
        {"epoch": -5},
        {"epoch": "2"},
        {"epoch": None},
        {"step": -1},
        {"best_epoch": 3},
        {"best_score": "high"},
        {"history": None},
        {"sums": []},
        {"surprise": 1},
    ],
)
def test_state_out_of_range_is_refused(folder, state):
    edit(folder / "checkpoint.safetensors", **state)
    with pytest.raises(RunError, match="checkpoint.safetensors is damaged"):
        use(folder, "checkpoint")
    assert Run(folder).status()["status"] == "done"


def test_score_that_is_not_finite_is_an_error_and_not_written(folder):
    """NaN weights in a file without a digest."""
    path = folder / "weights.safetensors"
    header, _ = split(path)
    tensors = {name: value * math.nan for name, value in load(path.read_bytes()).items()}
    path.write_bytes(save(tensors, header["__metadata__"]))
    edit(path)
    recmix.load(folder, device="cpu")
    with pytest.raises(NonFiniteError, match="the iwae of .* is nan, not a finite number"):
        Run(folder).add_score("test/5", {"elbo": -1.0, "iwae": math.nan})
    assert not (folder / "scores.json").exists()


def test_standard_error_of_one_example_is_null(folder):
    Run(folder).add_score("test/5", {"elbo": -1.0, "elbo_se": math.nan, "iwae": -1.0})
    assert Run(folder).scores()["test/5"]["elbo_se"] is None
    assert "NaN" not in (folder / "scores.json").read_text()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((("model", "latent"), value) for value in (None, "text", 4.5, 10**7, 10**30)),
        *((("shape",), value) for value in ([1.0, 8.0, 8.0], [10**9, 8, 8], None, "1", [1, -8, 8])),
        *(((name,), None) for name in ("method", "options", "data", "model", "training", "inference")),
        (("inference",), "text"),
        (("options",), {"surprise": 1}),
        (("label",), 3),
        (("init",), "runs/vae"),
        (("auto",), []),
        (("data", "fingerprint"), None),
        (("data", "root"), 5),
        (("data", "seed"), -1),
        (("data", "options"), {"download": True}),
        (("data", "fields"), 4.5),
        (("data", "fields"), [None]),
    ],
)
def test_edited_spec_is_one_error(folder, path, value):
    spec = json.loads((folder / "spec.json").read_text())
    inner = spec
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    write_json(folder / "spec.json", spec)
    with pytest.raises(RunError, match=r"spec\.json"):
        recmix.load(folder, device="cpu")


@pytest.mark.parametrize("content", [DEEP, "null", "[]", "{}", '{"status": 1}', "3"])
@pytest.mark.parametrize("name", ["spec", "status", "history", "scores", "tuned"])
def test_other_json_is_one_error(folder, name, content):
    valid = {("history", "[]"), ("scores", "{}")}
    path = folder / f"{name}.json"
    path.write_text(content)
    if (name, content) in valid:
        getattr(Run(folder), name)()
        return
    with pytest.raises(RunError, match=rf"{name}\.json"):
        getattr(Run(folder), name)()


def test_deep_toml_is_one_error(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text(f"a = {DEEP}")
    with pytest.raises(RecmixError, match=r"deep\.toml is not TOML"):
        recmix.runs.files.read_toml(path)


@pytest.mark.parametrize("metadata", ["[]", "3", "null", DEEP])
def test_other_metadata_are_one_error(folder, metadata):
    path = folder / "weights.safetensors"
    header, tensors = split(path)
    header["__metadata__"]["recmix"] = metadata
    join(path, header, tensors)
    with pytest.raises(RunError, match="weights.safetensors is damaged"):
        recmix.load(folder, device="cpu")


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
@pytest.mark.parametrize("name", ["weights.safetensors", "spec.json"])
def test_only_regular_files_are_read(folder, name, kind):
    path = folder / name
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(RunError, match="is not a regular file"):
        recmix.load(folder, device="cpu")


def test_tensors_are_not_read_if_the_size_is_wrong(folder):
    path = folder / "weights.safetensors"
    with path.open("r+b") as file:
        file.truncate(2**40)  # a sparse file
    with pytest.raises(RunError, match="its header states"):
        recmix.load(folder, device="cpu")


def test_folder_of_a_spec_is_not_used_for_downloads(tmp_path, monkeypatch):
    """Its files are read if they are there. Missing ones are fetched to the user's own folder."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    asked = []

    def download(urls, path, md5=None, **others):
        asked.append(path)
        raise recmix.data.fetch.DownloadError("not in a test")

    monkeypatch.setattr(recmix.data.fetch, "download", download)
    monkeypatch.setattr(recmix.data.fetch, "offline", lambda: False)
    monkeypatch.setenv("RECMIX_DATA", str(mine))
    about = {"kind": "named", "name": "mnist", "seed": 0, "fingerprint": "", "root": str(theirs)}
    with pytest.raises(recmix.errors.DataError):
        recmix.data.rebuild(about)
    assert asked
    assert all(path.is_relative_to(mine) for path in asked)


def test_evaluate_refuses_a_score_that_is_not_finite(tmp_path, capsys):
    folder = tmp_path / "digits"
    recmix.fit("vae", "digits", out=folder, **(SMALL | {"epochs": 1, "batch_size": 500}))
    path = folder / "weights.safetensors"
    header, _ = split(path)
    tensors = {name: value * math.nan for name, value in load(path.read_bytes()).items()}
    path.write_bytes(save(tensors, header["__metadata__"]))
    edit(path)
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(folder), "--samples", "2", "--device", "cpu"])
    assert stop.value.code == 2
    assert "not a finite number" in " ".join(capsys.readouterr().err.split())
    assert not (folder / "scores.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "nowhere", "--seed", str(2**70)], "seed must be"),
        (["train", "--order", "inf"], "order must be"),
        (["train", "--order", "nan"], "order must be"),
        (["train", "--seed", str(2**70)], "seed must be"),
        (["train", "--latent", "1000000"], "latent must be at most 100,000"),
        (["train", "--config", "epochs.toml"], "epochs must be a whole number"),
    ],
)
def test_numbers_out_of_range_are_one_error(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "epochs.toml").write_text("epochs = inf")
    if words[0] == "train":
        words = [*words, "--method", "rme", "--data", "digits", "--out", "run"]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
