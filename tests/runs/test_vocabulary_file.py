"""The vocabulary in a run folder: written, read, and refused if it is damaged or another one."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import recmix
from recmix.data import from_texts
from recmix.errors import ConfigError, DataError, RunError
from recmix.model.sequence_vocabulary import Words
from recmix.runs.files import read_json, write_json
from recmix.runs.folder import VOCABULARY, Run

TEXTS = [f"{animal} {verb} {place}" for animal in "abc" for verb in "def" for place in ("here", "there")]
SMALL = {"latent": 2, "epochs": 1, "units": 8, "blocks": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "vae"
    return recmix.fit("vae", from_texts(TEXTS), out=folder, **SMALL)


def test_vocabulary_is_stored_and_loaded(trained, tmp_path):
    words = trained.vocabulary
    assert isinstance(words, Words)
    assert read_json(trained.folder / VOCABULARY) == words.describe()
    assert Run(trained.folder).spec().data["vocabulary"]["sha256"] == words.digest
    loaded = recmix.load(trained.folder, device="cpu")
    assert loaded.vocabulary == words
    assert loaded.using(scale=1.1).vocabulary == words
    assert recmix.load(loaded.save(tmp_path / "copy"), device="cpu").vocabulary == words
    torch.testing.assert_close(loaded.log_likelihood(TEXTS[:3], 4), trained.log_likelihood(TEXTS[:3], 4))


def test_texts_in_and_out(trained):
    x = trained.encode_texts(["a d here", "b x there"])
    assert x.shape == (2, *trained.vocabulary.shape)
    assert trained.decode_texts(x) == ["a d here", "b <unknown> there"]
    assert trained.decode_texts(x.numpy()) == trained.decode_texts(x)
    torch.testing.assert_close(trained.elbo(["a d here"], 3), trained.elbo(x[:1], 3))
    drawn = trained.sample_texts(5, seed=1)
    assert len(drawn) == 5
    assert drawn == trained.sample_texts(5, seed=1)
    assert len(trained.sample_texts(2)) == 2
    made = trained.reconstruct_texts(TEXTS[:3])
    assert len(made) == 3
    assert made == trained.reconstruct_texts(TEXTS[:3])
    assert all(word in trained.vocabulary.tokens for text in drawn + made for word in text.split())


def test_one_text_without_a_list_is_refused_with_advice(trained):
    with pytest.raises(DataError, match="expected a list of texts.*write .'one text'."):
        trained.elbo("a d here")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a d here", "", "a"], "1 of 3 texts cannot be encoded .1 empty.*the first is text 1, ''"),
        (["a b c d e f"], "1 of 1 texts cannot be encoded .1 longer than 3 tokens"),
        (["a d here", 3], "text 1 is a int; expected a list of str"),
        ("a d here", "expected a list of texts.*write .'one text'."),
        ([], "expected a list of texts, at least one"),
    ],
)
def test_texts_that_cannot_be_encoded_are_refused(trained, texts, message):
    with pytest.raises(DataError, match=message):
        trained.encode_texts(texts)


def test_model_of_numbers_has_no_vocabulary():
    model = recmix.fit("vae", torch.rand(30, 4), latent=2, epochs=1, device="cpu")
    assert model.vocabulary is None
    for call in (lambda: model.encode_texts(["a"]), lambda: model.sample_texts(1)):
        with pytest.raises(ConfigError, match="was not trained on texts"):
            call()


def test_stages_keep_the_vocabulary(trained, tmp_path):
    data = from_texts(TEXTS)
    small = {"epochs": 1, "device": "cpu"}
    plus = recmix.fit("rme", data, init=trained.folder, order=2, out=tmp_path / "rme", **small)
    assert plus.vocabulary == trained.vocabulary
    assert Run(tmp_path / "rme").vocabulary() == trained.vocabulary
    assert recmix.fit("rme", data, order=2, vae_epochs=1, **SMALL).vocabulary == trained.vocabulary
    more = from_texts(TEXTS, TEXTS * 2, vocabulary=trained.vocabulary)
    auto = recmix.fit(
        "rme", more, init=trained, order="auto", max_order=2, out=tmp_path / "auto", **small
    )
    assert auto.vocabulary == recmix.load(tmp_path / "auto", device="cpu").vocabulary == data.vocabulary


def test_start_with_another_vocabulary_is_refused(trained):
    other = [text.replace("a", "z") for text in TEXTS]
    with pytest.raises(ConfigError, match="init was trained with another vocabulary.*vocabulary=init"):
        recmix.fit("vae", other, init=trained, epochs=1, device="cpu")
    data = from_texts(other, vocabulary=trained.vocabulary)
    assert recmix.fit("vae", data, init=trained, epochs=1, device="cpu").vocabulary == trained.vocabulary


def test_interrupted_run_gets_its_vocabulary_again(tmp_path):
    folder = tmp_path / "run"
    recmix.fit("vae", from_texts(TEXTS), out=folder, **SMALL)
    (folder / VOCABULARY).unlink()
    more = SMALL | {"epochs": 2}
    model = recmix.fit("vae", from_texts(TEXTS), out=folder, resume=True, **more)
    assert Run(folder).vocabulary() == model.vocabulary
    recmix.fit("vae", torch.rand(30, 4), latent=2, epochs=1, out=folder, overwrite=True, device="cpu")
    assert not (folder / VOCABULARY).exists()


@pytest.fixture
def folder(trained, tmp_path):
    return trained.save(tmp_path / "copy")


def refused(folder, message):
    with pytest.raises(RunError, match=message):
        recmix.load(folder, device="cpu")


def test_missing_vocabulary_is_refused(folder):
    (folder / VOCABULARY).unlink()
    refused(folder, r"vocabulary\.json does not exist")


def test_vocabulary_of_another_run_is_refused(folder):
    (folder / VOCABULARY).write_text(json.dumps(Words(["z", "y"], 4).describe()))
    refused(folder, "is not the vocabulary that the run was trained with")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"kind": "words"}', '{"kind": ["words"]}', "[" * 100_000]
)
def test_damaged_vocabulary_is_refused(folder, content):
    (folder / VOCABULARY).write_text(content)
    refused(folder, r"vocabulary\.json is (damaged|not readable JSON)")


def test_huge_vocabulary_is_refused(folder, monkeypatch):
    monkeypatch.setattr("recmix.runs.folder.VOCABULARY_BYTES", 10)
    refused(folder, r"more than recmix reads \(10\)")


@pytest.mark.parametrize("described", [3, "words", [], {"sha256": 3}, {"kind": {}}])
def test_wrong_description_of_the_vocabulary_is_refused(folder, described):
    spec = json.loads((folder / "spec.json").read_text())
    spec["data"]["vocabulary"] = described
    write_json(folder / "spec.json", spec)
    refused(folder, r"spec\.json is incomplete or damaged")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60))
def test_any_content_of_the_file_is_a_run_error(folder, content):
    (folder / VOCABULARY).write_bytes(content)
    with pytest.raises(RunError):
        Run(folder).vocabulary()
