"""`recmix generate`: new texts, pictures and arrays from a run."""

import numpy as np
import pytest
import torch
from cases.commands import call

import recmix
from recmix.commands import terminal

TINY = {"epochs": 1, "latent": 2, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of three untrained runs: texts with brackets, images and vectors."""
    place = tmp_path_factory.mktemp("runs")
    x = np.random.default_rng(0).random((12, 1, 8, 8), np.float32)
    texts = recmix.data.from_texts(["[b] a", "a [b]", "a a", "[b] [b]"] * 5)
    made = {
        "texts": recmix.fit("vae", texts, units=8, heads=2, blocks=1, **TINY),
        "images": recmix.fit("vae", x, **TINY),
        "vectors": recmix.fit("vae", x[:, 0, 0], **TINY),
    }
    for name, model in made.items():
        model.save(place / name)
    return place


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_texts_go_to_the_terminal_or_to_a_file(runs, capsys):
    assert call("generate", runs / "texts", "--count", 5, "--seed", 3, "--device", "cpu") == 0
    shown = capsys.readouterr().out.splitlines()
    expected = recmix.load(runs / "texts", device="cpu").sample_texts(5, seed=3)
    assert shown == [text for text in expected if text]
    words = ["generate", runs / "texts", "--count", 5, "--seed", 3, "--device", "cpu"]
    assert call(*words, "--out", "new/texts.txt") == 0
    with open("new/texts.txt", encoding="utf-8") as lines:
        assert lines.read().splitlines() == shown


def test_smiles_strings_with_a_wrong_syntax_are_counted(tmp_path, capsys):
    smiles = recmix.data.from_texts(["C(C)O", "CC(O)C", "C1CC1", "OCC"] * 5, kind="smiles")
    model = recmix.fit("vae", smiles, units=8, heads=2, blocks=1, **TINY)
    model.save(tmp_path / "run")
    texts = [text for text in model.sample_texts(30, seed=0) if text]
    wrong = smiles.vocabulary.encode(texts).problems["that are not valid SMILES strings"]
    assert 0 < wrong < len(texts)
    assert call("generate", tmp_path / "run", "--count", 30, "--seed", 0, "--device", "cpu") == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert f"note: {30 - len(texts)} of 30 draws are no text and are left out" in shown
    assert f"note: {wrong} of these {len(texts)} do not have the syntax of a SMILES string" in shown


def test_pictures_are_a_grid_and_arrays_are_stored(runs, tmp_path):
    assert call("generate", runs / "images", "--count", 3, "--device", "cpu") == 0
    assert (tmp_path / "samples.png").read_bytes().startswith(b"\x89PNG")
    for name in ("images", "vectors"):
        words = ["generate", runs / name, "--count", 3, "--seed", 4, "--device", "cpu"]
        assert call(*words, "--out", f"{name}.npy") == 0
        expected = recmix.load(runs / name, device="cpu").sample(3, seed=4)
        torch.testing.assert_close(torch.from_numpy(np.load(f"{name}.npy")), expected)


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("texts", "a.png", "give a .txt or .smi file"),
        ("vectors", "a.png", "are no pictures: give a .npy file"),
        ("images", "a.txt", "expected a file that ends in .png"),
        ("images", "folder.npy", "could not write"),
    ],
)
def test_wrong_files_are_refused(runs, tmp_path, capsys, name, file, message):
    (tmp_path / "folder.npy").mkdir()
    assert call("generate", runs / name, "--out", file, "--device", "cpu") == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "text", [r"CC\[nH]C[C@@H]", r"a\\[red]b", ":dog: [bold]x[/]", "[", r"\[/", "a\tb\\"]
)
def test_texts_are_printed_as_they_are(text, capsys):
    terminal.out.print(terminal.plain(text), highlight=False, soft_wrap=True)
    assert capsys.readouterr().out == f"{text}\n".expandtabs(8)


def test_control_characters_are_printed_as_escapes(capsys):
    terminal.out.print(terminal.plain("a\x1b[31mb\x00\x9bc"), highlight=False)
    assert capsys.readouterr().out == "a\\x1b[31mb\\x00\\x9bc\n"
