"""The explorer with runs of texts: sentences, SMILES strings and molecules as graphs."""

import time
from itertools import product
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from cases.explore import NPY, app_of, ask, ask_together, digits, npy, save

import recmix
from recmix.explore import drawing, text_routes
from recmix.explore.app import make_app
from recmix.explore.catalogue import Catalogue
from recmix.explore.drawing import draw, is_molecule, sanitised
from recmix.explore.wire import Limits

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "one", "small", "dog", "ran", "far", "away"]
PARTS = product((1, 2, 3), ("O", "N", "(=O)", "(Cl)"), (0, 1, 2))
MOLECULES = ["C" * before + part + "C" * after for before, part, after in PARTS]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
TINY = {"latent": 3, "epochs": 1, "device": "cpu", "progress": False, "units": 8, "blocks": 1}


def sentences(count=60):
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, draw.integers(2, 7))) for _ in range(count)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of small runs by name: sentences (one Gaussian, a mixture), SMILES, and images."""
    root = tmp_path_factory.mktemp("texts")
    (root / "words.txt").write_text("\n".join(sentences()))
    (root / "molecules.smi").write_text("\n".join(MOLECULES))
    torch.manual_seed(0)
    words = recmix.data.load(root / "words.txt", length=9)
    smiles = recmix.data.load(root / "molecules.smi", length=12)
    recmix.fit("vae", words, out=root / "words", network="gru", causal="gru", **TINY)
    mixture = {"out": root / "mixture", "network": "gru", "likelihood": "categorical", "vae_epochs": 1}
    recmix.fit("me", words, order=2, **mixture, **TINY)
    recmix.fit("vae", smiles, out=root / "smiles", network="gru", causal="gru", **TINY)
    save(root / "digits", "vae", latent=2)
    names = ("words", "mixture", "smiles", "digits")
    return {name: root / name for name in names} | {"data": root}


@pytest.fixture(scope="module")
def app(runs):
    return app_of(*(runs[name] for name in ("words", "mixture", "smiles", "digits")))


@pytest.fixture(scope="module")
def models(runs):
    return {name: recmix.load(runs[name], device="cpu") for name in ("words", "mixture", "smiles")}


def answer(app, path, **fields):
    found = ask(app, "POST", path, json=fields)
    assert found.status_code == 200, found.text
    return found.json()


def error(app, path, status=422, **fields):
    found = ask(app, "POST", path, json=fields)
    assert found.status_code == status, found.text
    return found.json()["error"]


def test_runs_say_what_their_texts_are(app):
    found = {run["name"]: run for run in ask(app, "GET", "/runs").json()["runs"]}
    assert found["digits"]["texts"] is None
    assert found["words"]["texts"]["kind"] == "words"
    assert found["words"]["texts"]["length"] == 8
    assert found["smiles"]["texts"]["molecules"]
    assert all(run["not_shown"] is None for run in found.values())


@pytest.mark.parametrize("name", ["words", "mixture"])
def test_posterior_and_scores_are_the_same_as_in_python(app, models, name):
    texts, model = ["the cat sat", "one dog ran far away"], models[name]
    x = model.encode_texts(texts)
    found, q = answer(app, "/posterior", texts=texts, run=name), model.posterior(x)
    np.testing.assert_allclose(found["mean"], q.mean, **CLOSE)
    np.testing.assert_allclose(found["weights"], q.weights, **CLOSE)
    assert found["problems"] == [[], []]
    found = answer(app, "/score", texts=texts, run=name, samples=5, seed=2)
    elbo, iwae = model.bounds(x, 5, seed=2)
    np.testing.assert_allclose(found["elbo"], elbo, **CLOSE)
    np.testing.assert_allclose(found["iwae"], iwae, **CLOSE)
    one = answer(app, "/posterior", text=texts[0], run=name)
    np.testing.assert_allclose(one["mean"], q.mean[:1], **CLOSE)


@pytest.mark.parametrize("name", ["words", "mixture"])
def test_reconstructions_are_the_most_likely_texts(app, models, name):
    texts, model = ["the cat sat", "a dog"], models[name]
    found = answer(app, "/reconstruct", texts=texts, run=name)
    q = model.posterior(model.encode_texts(texts))

    def likely(z):
        decoded = model.latent_model.decoder_output(z)
        return model.decode_texts(model.latent_model.likelihood.most_likely(decoded))

    with torch.no_grad():
        assert found["texts"] == likely(q.mean)
        for k, part in enumerate(q.components):
            assert [row[k] for row in found["components"]] == likely(part.mean)
    np.testing.assert_allclose(found["weights"], q.weights, **CLOSE)


def test_explanation_of_a_text(app, models):
    found = answer(app, "/explain", text="the cat sat", run="mixture", steps=2, samples=20, seed=1)
    assert found["text"] == "the cat sat"
    assert len(found["components"]) == 2
    assert len(found["samples"]) == 4
    assert all(isinstance(text, str) for text in found["samples"])
    assert "plane" not in found
    model = models["mixture"]
    elbo, iwae = model.bounds(model.encode_texts(["the cat sat"]), 20, seed=1)
    np.testing.assert_allclose(found["bounds"]["elbo"], elbo[0], rtol=1e-4)
    np.testing.assert_allclose(found["bounds"]["iwae"], iwae[0], rtol=1e-4)
    joint = [at["log_joint"] for at in found["refinement"]]
    assert [at["step"] for at in found["refinement"]] == [0, 1, 2]
    assert joint == sorted(joint)
    assert all({"elbo", "iwae", "z", "reconstruction"} <= set(at) for at in found["refinement"])
    again = answer(app, "/explain", text="the cat sat", run="mixture", steps=2, samples=20, seed=1)
    assert again["samples"] == found["samples"]


def test_decoding_and_prior_samples_give_texts(app, models):
    found = answer(app, "/sample", run="words", count=3, seed=4)
    assert len(found["texts"]) == len(found["z"]) == 3
    assert "images" not in found
    assert answer(app, "/decode", run="words", z=found["z"])["texts"] == found["texts"]


def test_interpolation_begins_and_ends_at_the_two_texts(app):
    texts = ["the cat sat", "a dog ran"]
    found = answer(app, "/interpolate", texts=texts, run="words", steps=3)
    ends = answer(app, "/reconstruct", texts=texts, run="words")["texts"]
    assert [found["texts"][0], found["texts"][-1]] == ends
    assert len(found["z"]) == 3
    assert "two texts are needed, got 1" in error(app, "/interpolate", texts=texts[:1], run="words")


def test_neighbours_have_the_nearest_posterior_means(app, models, runs):
    data = recmix.data.load(runs["data"] / "words.txt", length=9)
    model, text = models["words"], "the cat sat"
    found = answer(app, "/neighbours", text=text, run="words", count=3)
    means = model.posterior(np.asarray(data.x_test)).mean
    far = (means - model.posterior(model.encode_texts([text])).mean).norm(dim=1)
    order = far.argsort(stable=True)[:3]
    assert [one["index"] for one in found["neighbours"]] == order.tolist()
    assert [one["text"] for one in found["neighbours"]] == [
        model.decode_texts(data.x_test[i : i + 1])[0] for i in order.tolist()
    ]
    np.testing.assert_allclose([one["distance"] for one in found["neighbours"]], far[order], **CLOSE)
    assert found["searched"] == len(data.x_test)


def test_posterior_means_of_test_texts_are_computed_once(runs, monkeypatch):
    monkeypatch.setattr(text_routes, "PIECE", 2)
    app = app_of(runs["words"], limits=Limits(searched=5))
    request = ("POST", "/neighbours", {"json": {"text": "the cat"}})
    both = ask_together(app, [request, request])
    assert both[0].json() == both[1].json()
    assert both[0].json()["searched"] == 5
    passes = ask(app, "GET", "/health").json()["passes"]
    assert passes == 3 + 2  # three pieces, and the text of each request


def test_test_texts(app, runs):
    data = recmix.data.load(runs["data"] / "words.txt", length=9)
    found = ask(app, "GET", "/runs/words/texts?start=1&count=2").json()
    assert found["texts"] == data.vocabulary.decode(data.x_test[1:3])
    assert found["total"] == len(data.x_test)
    assert ask(app, "GET", "/runs/words/texts?start=99").json()["texts"] == []


def test_unknown_words_are_named(app):
    text = "the zebra sat on a giraffe"
    (problem,) = answer(app, "/reconstruct", texts=[text], run="words")["problems"][0]
    assert problem == "not in the vocabulary, read as unknown: zebra, giraffe"
    found = answer(app, "/explain", text=text, run="words", steps=0, samples=2)
    assert found["text"] == "the <unknown> sat on a <unknown>"
    many = " ".join(f"w{i}" for i in range(8))
    (problem,) = answer(app, "/posterior", text=many, run="words")["problems"][0]
    assert problem.endswith("w5 and 2 more")


@pytest.mark.parametrize("path", ["/posterior", "/reconstruct", "/score", "/explain", "/neighbours"])
def test_texts_that_cannot_be_read_are_refused(app, path):
    assert "the text is empty: write a sentence" in error(app, path, text="  ", run="words")
    long = " ".join(["cat"] * 9)
    assert "longer than 8 tokens" in error(app, path, text=long, run="words")
    assert "a text of 2001 characters" in error(app, path, 413, text="c" * 2001, run="words")
    assert "text is 7, expected a text" in error(app, path, text=7, run="words")


def test_samples_of_one_request_are_limited(app):
    text = "the cat sat"
    message = error(app, "/score", 413, run="words", texts=[text] * 64, samples=10_000)
    assert "at most 100000 samples" in message


def test_lists_of_texts_are_checked(app):
    assert "text 2 is empty" in error(app, "/posterior", texts=["cat", ""], run="words")
    assert "65 texts are too many" in error(app, "/posterior", 413, texts=["cat"] * 65, run="words")
    for wrong in ("cat", [], [1], None, {"a": "b"}):
        message = error(app, "/posterior", texts=wrong, run="words")
        assert "expected a list of one text or more" in message
    assert "give one of them" in error(app, "/posterior", texts=["a"], text="b", run="words")
    assert "the field 'text' is missing" in error(app, "/neighbours", run="words")


@pytest.mark.parametrize("path", ["/posterior", "/reconstruct", "/score", "/interpolate"])
def test_each_kind_of_run_refuses_the_other_kind_of_examples(app, path):
    images = digits(2).tolist()
    assert "words is a run of texts" in error(app, path, images=images, run="words")
    assert "digits is no run of texts" in error(app, path, texts=["a", "b"], run="digits")


def test_other_requests_of_the_wrong_kind(app):
    image = digits(1)[0].tolist()
    assert "words is a run of texts" in error(app, "/explain", image=image, run="words")
    for path in ("/explain", "/neighbours", "/draw"):
        assert "digits is no run of texts" in error(app, path, text="a", run="digits")
    assert "words is no run of molecules" in error(app, "/draw", texts=["CCO"], run="words")
    sent = ask(
        app, "POST", "/posterior?run=words", content=npy(digits(1)), headers={"content-type": NPY}
    )
    assert sent.status_code == 422
    assert "words is a run of texts" in sent.json()["error"]
    assert ask(app, "GET", "/runs/words/images").status_code == 422
    assert ask(app, "GET", "/runs/digits/texts").status_code == 422
    refused = ask(app, "POST", "/sample", json={"run": "words"}, headers={"accept": NPY})
    assert refused.status_code == 406


def test_texts_count_for_the_limits_of_memory(runs):
    app = app_of(runs["words"], limits=Limits(answer=6000))
    assert "ask for less at a time" in error(app, "/sample", 413, count=40)
    assert len(answer(app, "/sample", count=2)["texts"]) == 2
    assert app.memory.total == 0


def test_document_names_the_fields_for_texts(app, runs):
    def body(app, path):
        paths = ask(app, "GET", "/openapi.json").json()["paths"]
        return paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]

    both = body(app, "/posterior")
    assert {"images", "texts", "text", "run"} <= set(both["properties"])
    assert both["oneOf"] == [{"required": [name]} for name in ("images", "texts", "text")]
    alone = body(app_of(runs["words"]), "/explain")
    assert "image" not in alone["properties"]
    assert alone["properties"]["text"]["maxLength"] == 2000
    assert ask(app, "GET", "/docs").status_code == 200


def test_clips_are_served_but_not_shown():
    clips = recmix.data.moving_digits(recmix.data.load("digits").x_train, 20, frames=3, side=8)
    model = recmix.fit("vae", clips, latent=2, epochs=1, units=8, device="cpu", progress=False)
    app = make_app(Catalogue({"clips": model}))
    (run,) = ask(app, "GET", "/runs").json()["runs"]
    assert "clips has examples of shape (3, 1, 8, 8)" in run["not_shown"]
    found = answer(app, "/reconstruct", images=(clips[:2] / 255).tolist())
    np.testing.assert_allclose(found["images"], model.reconstruct(clips[:2]), **CLOSE)
    image = (clips[0] / 255).tolist()
    assert answer(app, "/explain", image=image, grid=8, steps=1)["plane"]["kind"] == "latent"


# --- molecules ---------------------------------------------------------------------------------------


def test_molecules_are_drawn(app):
    pytest.importorskip("rdkit")
    found = answer(app, "/draw", texts=["CC(=O)O", "c1ccccc", "", "hello"], run="smiles")
    assert found["hint"] is None
    first, *others = found["drawings"]
    assert others == [None, None, None]
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert "script" not in first
    assert error(app, "/draw", 413, texts=["C"] * 65, run="smiles")


def test_molecules_of_up_to_80_atoms_are_drawn_one_at_a_time(runs, monkeypatch):
    pytest.importorskip("rdkit")
    assert draw("C" * 80) is not None
    assert draw("C" * 81) is None
    now, most = [], []

    def slow(text):
        now.append(text)
        most.append(len(now))
        time.sleep(0.02)
        now.remove(text)
        return text

    monkeypatch.setattr(text_routes, "draw", slow)
    fields = [{"texts": [f"{'C' * n}{end}" for end in "NO"], "run": "smiles"} for n in range(1, 4)]
    found = ask_together(app_of(runs["smiles"]), [("POST", "/draw", {"json": each}) for each in fields])
    assert [each.json()["drawings"] for each in found] == [each["texts"] for each in fields]
    assert most == [1] * 6


def test_an_explanation_without_a_cholesky_factor_is_refused(app, monkeypatch):
    def fail(*_arguments, **_options):
        raise torch.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr(text_routes.texts, "explain_text", fail)
    assert "not finite" in error(app, "/explain", 422, text="a", run="words")


def test_invalid_smiles_strings_are_reported(app):
    pytest.importorskip("rdkit")
    (problem,) = answer(app, "/reconstruct", texts=["CCO("], run="smiles")["problems"][0]
    assert problem == "not a valid SMILES string of a molecule"
    assert answer(app, "/reconstruct", texts=["CCO"], run="smiles")["problems"] == [[]]
    assert "write a SMILES string" in error(app, "/explain", text=" ", run="smiles")


def test_molecules_as_graphs():
    pytest.importorskip("rdkit")
    data = recmix.data.from_texts(MOLECULES, MOLECULES, kind="molecule-graphs", length=8)
    model = recmix.fit("vae", data, **TINY)
    app = make_app(Catalogue({"graphs": model}))
    found = answer(app, "/explain", text="CCO", steps=1, samples=5)
    assert found["text"] == "CCO"
    elbo, _ = model.bounds(model.encode_texts(["CCO"]), 5, seed=0)
    np.testing.assert_allclose(found["bounds"]["elbo"], elbo[0], rtol=1e-4)
    assert len(answer(app, "/sample", count=3)["texts"]) == 3
    assert "is no example of this run" in error(app, "/explain", text="CCO(")
    assert "is no example of this run" in error(app, "/reconstruct", texts=["C" * 30])


def test_without_rdkit_there_are_no_drawings_but_a_hint(runs, monkeypatch):
    monkeypatch.setattr(drawing.importlib.util, "find_spec", lambda name: None)
    drawing.can_draw.cache_clear()
    try:
        app = app_of(runs["smiles"])
        found = answer(app, "/draw", texts=["CCO"])
        assert found["drawings"] == [None]
        assert "pip install 'recmix[molecules]'" in found["hint"]
        (run,) = ask(app, "GET", "/runs").json()["runs"]
        assert not run["texts"]["drawn"]
        assert "RDKit" in run["texts"]["hint"]
        (problem,) = answer(app, "/reconstruct", texts=["CCO("])["problems"][0]  # by its syntax
        assert "not a valid SMILES string" in problem
        assert answer(app, "/reconstruct", texts=["CCO"])["problems"] == [[]]
    finally:
        drawing.can_draw.cache_clear()


def test_drawings_have_only_harmless_parts():
    pytest.importorskip("rdkit")
    assert is_molecule("CCO name")
    assert draw("C" * 151) is None  # too large
    wrong = (
        "<svg xmlns='http://www.w3.org/2000/svg' onload='a()'><g onclick='a()'><path d='M 0,0 L 1,1' "
        "style='fill:url(http://a)' href='http://a'/></g><foreignObject/><a><text>b</text></a>"
        "<image href='http://a'/><text x='1'>&lt;b&gt;</text></svg>"
    )
    assert sanitised(wrong) == (
        '<svg xmlns="http://www.w3.org/2000/svg"><g><path d="M 0,0 L 1,1" /></g>'
        '<text x="1">&lt;b&gt;</text></svg>'
    )
    assert sanitised("<!DOCTYPE svg [<!ENTITY a 'b'>]><svg xmlns='http://www.w3.org/2000/svg'/>") is None
    assert sanitised("<html/>") is None
    assert sanitised("<svg") is None
