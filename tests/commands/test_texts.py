"""The command line with texts: training, resuming, evaluating, comparing and grids."""

import json

import pytest
from cases.commands import call
from cases.grids import run_jobs

import recmix
from recmix.errors import ConfigError
from recmix.experiments.grid import check, expand
from recmix.reports.read_store import read_store
from recmix.reports.statistics import summarise
from recmix.runs.folder import Run

SHORT = ["--epochs", "1", "--latent", "2", "--units", "8", "--blocks", "1", "--device", "cpu"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A current directory with a file of texts and a file of molecules."""
    monkeypatch.chdir(tmp_path)
    texts = [f"{animal} {verb}" for animal in "abcde" for verb in "fghij"]
    (tmp_path / "texts.txt").write_text("\n".join([*texts, "", "a b c d e f"]) + "\n")
    (tmp_path / "other.txt").write_text("a f\nb new\nc h\n")
    molecules = [f"{'C' * count}{last}" for count in range(1, 7) for last in ("O", "N", "Cl")]
    (tmp_path / "molecules.smi").write_text("\n".join(molecules) + "\n")
    return tmp_path


def train(*words, out="runs/vae", data="texts.txt", method="vae"):
    return call("train", "--data", data, "--method", method, *words, "--out", out)


@pytest.mark.filterwarnings("always::recmix.data.DataWarning")  # shown as a note
def test_texts_from_training_to_evaluation(place, capsys):
    assert train("--length", "4", "--vocabulary-size", "8", *SHORT) == 0
    assert "2 of 27 texts are left out (1 empty, 1 longer than 3 tokens)" in capsys.readouterr().err
    spec = Run("runs/vae").spec()
    assert spec.shape == (4,)
    assert spec.data["options"] == {"length": 4, "vocabulary_size": 8}
    assert recmix.load("runs/vae", device="cpu").vocabulary.classes == 10
    assert call("train", "--resume", "--out", "runs/vae", "--epochs", "2") == 0
    assert len(Run("runs/vae").history()) == 2
    small = ["--epochs", "1", "--device", "cpu"]
    assert train("--init", "runs/vae", "--order", "2", *small, out="runs/rme", method="rme") == 0
    assert Run("runs/rme").vocabulary() == Run("runs/vae").vocabulary()
    assert call("evaluate", "runs/rme", "--samples", "3") == 0
    assert call("evaluate", "runs/rme", "--samples", "3", "--data", "other.txt", "--split", "train") == 0
    texts = [f"{animal} {verb}" for animal in "abc" for verb in "fghijklm"]
    (place / "long.txt").write_text("\n".join([*texts, "a b c d e f"]))
    capsys.readouterr()
    assert call("evaluate", "runs/rme", "--samples", "3", "--data", "long.txt") == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "1 longer than 3 tokens); the length is that of the trained model" in shown
    assert "give length" not in shown
    assert "give a folder with the files train.txt and test.txt (.smi for molecules)" in shown
    assert "numpy" not in shown
    assert call("export", "runs/rme", "--out", "exported") == 0
    vocabulary = json.loads((place / "exported/vocabulary.json").read_text())
    assert vocabulary["tokens"] == list(Run("runs/vae").vocabulary().tokens)
    assert json.loads((place / "exported/export.json").read_text())["vocabulary"] == "vocabulary.json"


def test_run_that_was_killed_before_its_vocabulary_was_written_is_resumed(place):
    assert train("--length", "4", *SHORT) == 0
    (place / "runs/vae/vocabulary.json").unlink()
    assert call("train", "--resume", "--out", "runs/vae", "--epochs", "2") == 0
    assert Run("runs/vae").vocabulary() is not None


def test_second_stage_on_other_texts_keeps_the_vocabulary_and_can_be_resumed(place):
    assert train(*SHORT) == 0
    small = ["--init", "runs/vae", "--epochs", "1", "--device", "cpu"]
    assert train(*small, out="runs/plus", data="other.txt") == 0
    assert Run("runs/plus").vocabulary() == Run("runs/vae").vocabulary()
    assert call("train", "--resume", "--out", "runs/plus", "--epochs", "2") == 0
    assert call("evaluate", "runs/plus", "--samples", "3") == 0


def test_options_in_a_configuration_file(place):
    (place / "run.toml").write_text('data = "texts.txt"\nlength = 4\n[method]\nname = "vae"\n')
    assert call("train", "--config", "run.toml", *SHORT, "--out", "runs/vae") == 0
    assert Run("runs/vae").spec().data["options"] == {"length": 4}


def test_graphs_flag(place, capsys):
    pytest.importorskip("rdkit")
    assert train("--graphs", "--length", "8", *SHORT, data="molecules.smi") == 0
    assert Run("runs/vae").spec().data["vocabulary"]["kind"] == "molecule-graphs"
    assert call("evaluate", "runs/vae", "--samples", "3") == 0
    assert train("--graphs", *SHORT, out="runs/no") == 2
    assert "graphs is for molecules" in capsys.readouterr().err


def test_compare_on_texts(place, capsys):
    words = ["--latent", "2", "--vae-epochs", "1", "--epochs", "1", "--samples", "3", "--device", "cpu"]
    assert call("compare", "hf", "--data", "texts.txt", "--length", "4", *words, "--out", "all") == 0
    assert "2 of 27 texts are left out (1 empty, 1 longer than 3 tokens)" in capsys.readouterr().err
    rows = json.loads((place / "all" / "compare.json").read_text())
    assert rows["data"]["options"] == {"length": 4}
    assert all("iwae" in row for row in rows["rows"])


def grid(**column):
    content = {
        "columns": [{"latent": 2} | column],
        "methods": [{"name": "vae"}],
        "protocol": {"splits": 1, "restarts": 1},
    }
    return expand(content, "small")


def test_grid_with_texts(place):
    found = grid(data="texts.txt", length=[4, 5], vocabulary_size=8)
    assert {job.definition["data"]["length"] for job in found.jobs} == {4, 5}
    assert {job.column["vocabulary_size"] for job in found.jobs} == {8}
    molecules = grid(data="zinc250k", graphs=True)
    check(molecules.jobs)
    assert molecules.jobs[0].definition["data"] == {"name": "zinc250k", "graphs": True}
    assert "likelihood" not in molecules.jobs[0].definition["model"]
    plain = grid(data="zinc250k", graphs=False)
    assert plain.jobs[0].digest == grid(data="zinc250k").jobs[0].digest


@pytest.mark.parametrize("wrong", [{"graphs": 1}, {"length": 0}, {"vocabulary_size": "many"}])
def test_wrong_options_of_a_grid_are_refused(place, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        grid(data="texts.txt", **wrong)


def test_data_command_lists_the_sets(tmp_path, capsys):
    assert call("data", "--data-root", str(tmp_path), "--json") == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["wikitext2"]["shape"] == [41]
    assert sum(found["zinc250k"]["counts"].values()) == 249_456


def test_preset_on_texts(place):
    (place / "mine.toml").write_text(
        """
        [[stages]]
        name = "vae"
        method = "vae"
        epochs = 1
        [[stages]]
        name = "rme"
        method = "rme"
        order = 2
        epochs = 1
        """
    )
    words = ["--latent", "2", "--units", "8", "--blocks", "1", "--device", "cpu"]
    assert call("train", "--data", "texts.txt", "--preset", "mine.toml", *words, "--out", "run") == 0
    assert Run("run").vocabulary() == Run("run/vae").vocabulary()
    assert call("train", "--resume", "--out", "run") == 0


def test_splits_with_different_vocabularies_are_one_column(place):
    molecules = ["CC", "CCC", "CCCC", "CO", "CCO", "CN", "CCN", "CF", "CCl", "CBr", "CI", "CS"]
    (place / "rare.smi").write_text("\n".join(molecules))
    column = {"data": "rare.smi", "latent": 2, "length": 8, "units": 8, "blocks": 1}
    content = {
        "columns": [column],
        "methods": [{"name": "vae"}],
        "protocol": {"splits": 3, "restarts": 1, "samples": [3]},
        "budget": {"first": {"epochs": 1}, "second": {"epochs": 1}},
    }
    store = run_jobs(place / "store", expand(content, "small").jobs)
    assert len({run.spec().model.classes for run in map(Run, store.root.glob("*/")) if run.exists}) > 1
    (found,) = summarise(read_store(place / "store").records).columns
    assert "length=8" in str(found)
    assert "classes" not in str(found)
