"""Runs on the Hugging Face Hub: with its real client and a stand-in server, and with a fake client."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from cases.commands import call
from cases.hub import serve
from cases.training import SMALL, images

import recmix
from recmix.commands.explore import load_models
from recmix.errors import ConfigError, RunError
from recmix.runs.folder import Run
from recmix.runs.hub import SHARED, download_run, prepare_upload, upload_run
from recmix.runs.model_card import model_card

SCORE = {"elbo": -3.25, "elbo_se": 0.5, "iwae": -2.5, "iwae_se": 0.25, "images": 12}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A run with a score, and its model."""
    folder = tmp_path_factory.mktemp("hub") / "secret" / "vae"
    data = folder.parent / "faces.npy"
    folder.parent.mkdir()
    np.save(data, images(40))
    model = recmix.fit("vae", str(data), out=folder, **SMALL)
    Run(folder).add_score("test/100", SCORE)
    return model


class FakeHub(types.SimpleNamespace):
    """The parts of huggingface_hub that recmix calls, with folders in place of the server."""

    def __init__(self, place: Path):
        super().__init__(place=place, calls=[])
        place.mkdir(exist_ok=True)

    def HfApi(self, **how):
        self.calls.append(("HfApi", how))
        return self

    def create_repo(self, repo, *, private, exist_ok):
        assert exist_ok
        self.calls.append(("create_repo", private))
        (self.place / repo).mkdir(parents=True, exist_ok=True)

    def upload_folder(
        self, *, repo_id, folder_path, revision, commit_message, allow_patterns, delete_patterns
    ):
        self.calls.append(("upload_folder", revision, commit_message))
        for name in delete_patterns:
            (self.place / repo_id / name).unlink(missing_ok=True)
        for path in Path(folder_path).iterdir():
            assert path.name in allow_patterns
            (self.place / repo_id / path.name).write_bytes(path.read_bytes())

    def snapshot_download(self, repo, *, revision, allow_patterns, local_files_only, **library):
        self.calls.append(("snapshot_download", revision, allow_patterns, local_files_only))
        if not (self.place / repo).is_dir():
            raise OSError(f"404 {repo}\nmore lines")
        return str(self.place / repo)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    hub = FakeHub(tmp_path / "repositories")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.delenv("RECMIX_OFFLINE", raising=False)
    return hub


def test_a_model_comes_back_from_the_hub(stored, fake):
    address = stored.push_to_hub("me/vae", private=True, message="First", token="hf_secret")
    assert address == "hf://me/vae"
    assert fake.calls[0][1]["token"] == "hf_secret"
    assert fake.calls[1:] == [("create_repo", True), ("upload_folder", None, "First")]
    found = recmix.load(address, device="cpu")
    x = images(5, seed=1)
    assert np.allclose(found.posterior(x).mean, stored.posterior(x).mean)
    assert found.history == stored.history
    assert fake.calls[-1] == ("snapshot_download", None, list(SHARED), False)


def test_a_model_without_a_folder_can_be_uploaded(stored, fake):
    refined = stored.using(refine=1)
    assert refined.folder is None
    found = recmix.load(refined.push_to_hub("me/refined", revision="dev"), device="cpu")
    assert found.inference.refine == 1
    assert fake.calls[-1][:2] == ("snapshot_download", "dev")
    names = {path.name for path in (fake.place / "me" / "refined").iterdir()}
    assert names == {"README.md", "spec.json", "weights.safetensors", "history.json", "status.json"}


def test_a_loaded_model_writes_nothing_into_the_cache(stored, fake, tmp_path):
    found = recmix.load(stored.push_to_hub("me/vae"), device="cpu")
    assert found.folder is None
    with pytest.raises(ConfigError, match="this model has no folder yet"):
        found.export(format="torchscript")
    assert found.save(tmp_path / "mine") == tmp_path / "mine"


def test_only_known_files_without_paths_of_this_machine_are_uploaded(stored, tmp_path):
    continued = recmix.fit("vae", images(40), init=stored, out=tmp_path / "next", **SMALL)
    (tmp_path / "next" / "notes.txt").write_text("private")
    for model in (stored, continued):
        out = tmp_path / f"upload {model.spec.label}"
        names = prepare_upload(model.folder, out)
        assert {"README.md", "spec.json", "weights.safetensors"} <= set(names)
        assert not {"notes.txt", "checkpoint.safetensors", "log.jsonl", ".lock"} & set(names)
        for name in names:
            content = (out / name).read_bytes()
            assert b"secret" not in content, name
            assert str(tmp_path).encode() not in content, name
    assert Run(tmp_path / "upload VAE").spec().data["path"] == "faces.npy"
    assert Run(tmp_path / "upload VAE+").spec().init["run"] == "vae"
    with pytest.raises(RunError, match="is not empty"):
        prepare_upload(stored.folder, out)


def test_scores_of_an_earlier_upload_are_removed(stored, fake):
    stored.push_to_hub("me/vae")
    assert (fake.place / "me" / "vae" / "scores.json").exists()
    stored.using(scale=1.1).push_to_hub("me/vae")
    assert not (fake.place / "me" / "vae" / "scores.json").exists()


def test_the_model_card_has_the_options_and_the_scores(stored):
    card = model_card(stored.spec, Run(stored.folder).scores(), repo="me/vae", licence="mit")
    header = card.split("---\n")[1]
    assert json.loads(header.split("tags: ")[1].splitlines()[0])[-1] == "vae"
    assert 'license: "mit"' in header
    assert "| test | 100 | encoder | 12 | -3.25 ± 0.50 | -2.50 ± 0.25 |" in card
    assert "| latent | 2 |" in card
    assert "| name | faces |" in card
    assert 'recmix.load("hf://me/vae")' in card


def test_a_name_cannot_add_markup_to_the_card(stored):
    from dataclasses import replace

    data = {**stored.spec.data, "name": "a|b\n\n# <script>x</script> [y](z)"}
    card = model_card(replace(stored.spec, data=data), {"nonsense": {}, "test/5": {}})
    assert r"| name | a\|b # \<script\>x\</script\> \[y\](z) |" in card
    assert "| test | 5 | encoder | not recorded |" in card


@pytest.mark.parametrize(
    "address",
    ["hf://vae", "hf://a/b/c", "hf://../x", "hf://a/..", "hf://a/b@../../x", "hf://a/b@", "hf:///a/b"],
)
def test_strange_addresses_are_refused(address, fake):
    with pytest.raises(ConfigError, match="expected hf://user/name"):
        recmix.load(address)
    assert not fake.calls


def test_errors(stored, fake, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="repo is 'vae'; expected user/name"):
        stored.push_to_hub("vae")
    with pytest.raises(RunError, match="could not download hf://me/none: 404 me/none$"):
        recmix.load("hf://me/none")
    (fake.place / "me" / "other").mkdir(parents=True)
    with pytest.raises(RunError, match="hf://me/other does not hold a run"):
        recmix.load("hf://me/other")
    with pytest.raises(RunError, match="does not hold a run"):
        upload_run(tmp_path / "nowhere", "me/vae")
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    with pytest.raises(RunError):
        download_run("hf://me/none")
    assert fake.calls[-1][-1] is True
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'recmix\[hub\]'"):
        recmix.load("hf://me/vae")


def test_a_pickle_in_the_place_of_weights_is_refused(stored, fake):
    import pickle

    stored.push_to_hub("me/vae")
    (fake.place / "me" / "vae" / "weights.safetensors").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(RunError, match="weights.safetensors"):
        recmix.load("hf://me/vae", device="cpu")


REAL = """
import sys
from recmix.runs.hub import download_run, upload_run
print(upload_run(sys.argv[1], "me/vae", token="hf_none"))
print(download_run("hf://me/vae"))
"""


def test_the_real_client_with_a_stand_in_of_the_server(stored, tmp_path):
    pytest.importorskip("huggingface_hub")
    with serve() as hub:
        hub.files["me/vae"] = {"gap.json": b"{}", "evil.py": b"exit(1)", "sub/spec.json": b"{}"}
        environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "RECMIX_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", REAL, stored.folder],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        address, folder = done.stdout.splitlines()[-2:]
        assert address == "hf://me/vae"
        assert Path(folder).is_relative_to(tmp_path / "home")
        names = {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}
        uploaded = set(hub.files["me/vae"])
    expected = {"spec.json", "weights.safetensors", "history.json", "status.json", "scores.json"}
    assert names == expected  # not the card, and no file of the repository that a run does not have
    assert uploaded == {
        *expected,
        "README.md",
        "evil.py",
        "sub/spec.json",
    }  # the old gap.json is deleted
    x = images(5, seed=1)
    found = recmix.load(folder, device="cpu")
    assert np.allclose(found.posterior(x).mean, stored.posterior(x).mean)


def test_commands_and_fit_take_an_address(stored, fake, tmp_path, capsys):
    address = stored.push_to_hub("me/vae")
    data = Path(stored.spec.data["path"])
    assert call("evaluate", address, "--samples", 3, "--data", data, "--json") == 0
    assert json.loads(capsys.readouterr().out)["run"] == address
    assert list(load_models([address])) == ["vae"]
    words = ("train", "--method", "residual", "--epochs", 1, "--data", data, "--init", address)
    assert call(*words, "--out", tmp_path / "run") == 0
    assert call("train", "--resume", "--epochs", 2, "--out", tmp_path / "run") == 0
    assert recmix.load(tmp_path / "run").spec.init["run"] == address
    assert not (fake.place / "me/vae/training_examples.json").exists()
    words = ("train", "--method", "curvature", "--epochs", 1, "--data", data, "--init", address)
    assert call(*words, "--out", tmp_path / "curvature") == 0
    assert call("train", "--resume", "--epochs", 2, "--out", tmp_path / "curvature") == 0
    assert len(recmix.load(tmp_path / "curvature").history) == 2


def test_reports_are_shared(stored, tmp_path):
    Run(stored.folder).add_reports("test/100", {"latent": {"kl": 1.0}})
    assert "reports.json" in prepare_upload(stored.folder, tmp_path / "upload")
    (stored.folder / "reports.json").unlink()
