"""Each check of a file that a person or an accident changed has a test of its own."""

import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cases.training import SMALL, images

import recmix
from recmix.data import formats
from recmix.errors import ConfigError, DataError, RunError
from recmix.runs.files import write_json
from recmix.runs.lock import LOCK, lock, unlock
from recmix.runs.spec import Spec, check_description
from recmix.training import checkpoint
from recmix.training.presets import read_preset, stored_arguments

SPEC = Spec(method="vae", shape=(1, 8, 8)).to_json()
MORE = SMALL | {"epochs": 3, "weight_average": 0.9}


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_object_arrays_in_npz_files_are_not_unpickled(tmp_path):
    trap = np.empty(2, object)
    trap[:] = [Trap(tmp_path / "executed")] * 2
    np.savez(tmp_path / "a.npz", x_train=trap)
    with pytest.raises(DataError, match="it holds Python objects"):
        formats.read_npz(tmp_path / "a.npz")
    assert not (tmp_path / "executed").exists()


def test_lock_of_another_process_is_not_removed(tmp_path):
    """The file of this process was removed, and another process made a new one."""
    pytest.importorskip("fcntl")
    lock(tmp_path)
    (tmp_path / LOCK).unlink()
    code = "import os, pathlib, recmix.runs.lock as l; l.lock(pathlib.Path('.')); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    theirs = (tmp_path / LOCK).read_text()
    unlock(tmp_path)
    assert (tmp_path / LOCK).read_text() == theirs
    assert json.loads(theirs)["pid"] != os.getpid()


def test_spec_without_a_field_names_it():
    content = {name: value for name, value in SPEC.items() if name != "shape"}
    with pytest.raises(RunError, match="a is incomplete or damaged: it has no 'shape'"):
        Spec.from_json(content, "a")


@pytest.mark.parametrize("shape", [[1.0, 8, 8], [10**9, 8, 8], [1, -8, 8], "1", None, [True, 8]])
def test_shape_of_a_spec_is_checked_before_a_model_is_made(shape):
    with pytest.raises(RunError, match="shape must be a list of sizes with at most 10,000,000 values"):
        Spec.from_json(SPEC | {"shape": shape}, "a")


def test_options_of_the_data_in_a_spec_are_known_ones():
    with pytest.raises(ConfigError, match="unknown option of the data 'download'"):
        check_description({"options": {"download": True}})
    with pytest.raises(RunError, match="unknown option of the data 'download'"):
        Spec.from_json(SPEC | {"data": {"options": {"download": True}}}, "a")


def test_preset_file_with_other_options_of_the_data_is_refused(tmp_path):
    preset = read_preset("paper")
    content = {"format": 2, "name": "paper", "preset": preset.to_json(), "first": {}}
    about = {"name": "digits", "kind": "named", "fingerprint": "x", "seed": 0, "options": {}}
    write_json(tmp_path / "preset.json", content | {"data": about})
    assert stored_arguments(tmp_path)["data"] == about
    write_json(tmp_path / "preset.json", content | {"data": about | {"options": {"download": True}}})
    with pytest.raises(
        RunError, match=r"preset\.json is incomplete or damaged: unknown option of the data"
    ):
        stored_arguments(tmp_path)


# --- checkpoints and weights ---------------------------------------------------------------------


def test_header_states_the_size_of_its_file():
    """With tensors and without; a longer header than its file or than the limit is not read."""
    for head, data in (({"__metadata__": {}}, 0), ({"a": {"data_offsets": [0, 4]}}, 4)):
        text = json.dumps(head).encode()
        file = io.BytesIO(len(text).to_bytes(8, "little") + text + bytes(data))
        size = 8 + len(text) + data
        assert checkpoint._read_header(file, size) == head
        for other in (size - 1, size + 1):
            with pytest.raises(ValueError, match="its header"):
                checkpoint._read_header(file, other)
    for length in (0, checkpoint.MAX_HEADER + 1):
        with pytest.raises(ValueError, match="no valid length"):
            checkpoint._read_header(io.BytesIO(length.to_bytes(8, "little") + b"{}"), 2**40)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused") / "run"
    recmix.fit("vae", images(), out=folder, **MORE | {"epochs": 1})
    return folder


@pytest.fixture
def changed(trained, tmp_path):
    """A function that resumes the run from a checkpoint with changed tensors and a right digest."""
    tensors, header = checkpoint._read(trained / "checkpoint.safetensors")

    def resume(change):
        for path in trained.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        change(tensors)
        checkpoint._write(tmp_path / "checkpoint.safetensors", tensors, {"state": header["state"]})
        return recmix.fit("vae", images(), out=tmp_path, resume=True, **MORE)

    return resume


def test_changed_checkpoints_of_these_tests_are_read(changed):
    assert len(changed(lambda tensors: None).history) == 3


def test_checkpoint_with_a_state_that_torch_refuses_is_damaged(changed):
    with pytest.raises(
        RunError, match=r"checkpoint\.safetensors is damaged or not a checkpoint of this"
    ):
        changed(lambda tensors: tensors.update(generator=torch.zeros_like(tensors["generator"])))


@pytest.mark.parametrize("kind", ["best", "average"])
def test_checkpoint_with_other_best_or_averaged_weights_is_refused(changed, kind):
    def shorter(tensors):
        name = next(name for name in tensors if name.startswith(kind) and tensors[name].shape[:1] > (1,))
        tensors[name] = tensors[name][:1].clone()  # copying it would repeat it silently

    with pytest.raises(RunError, match=r"checkpoint\.safetensors has shape .* expected"):
        changed(shorter)


def test_checkpoint_without_one_of_the_best_weights_is_refused(changed):
    def fewer(tensors):
        del tensors[next(name for name in tensors if name.startswith("best."))]

    with pytest.raises(RunError, match=r"is missing from .*checkpoint\.safetensors"):
        changed(fewer)


@pytest.mark.parametrize("length", [0, 10**6, 2**63, 2**64 - 1])
def test_header_length_is_checked_before_the_header_is_read(tmp_path, length):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}" * 50)
    with pytest.raises(RunError, match="its header has no valid length"):
        checkpoint._read(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_is_named_as_such(tmp_path, protocol):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(pickle.dumps([1.0] * 100, protocol))
    with pytest.raises(RunError, match="is a pickle, not safetensors"):
        checkpoint._read(path)
