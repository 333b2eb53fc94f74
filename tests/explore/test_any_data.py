"""The explorer with examples of any shape and values, which the HTTP interface serves."""

import io

import numpy as np
import pytest
import torch
from cases.explore import NPY, app_of, ask, npy, save
from torch import nn

import recmix
from recmix.commands.explore import shape_of
from recmix.errors import ConfigError
from recmix.explore import serve as serving
from recmix.explore.app import make_app
from recmix.explore.catalogue import Catalogue
from recmix.model.likelihoods import Categorical, Gaussian
from recmix.model.priors import GaussianMixturePrior

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
pytestmark = pytest.mark.filterwarnings("ignore:the bound .ELBO. on")  # the networks are not trained


def model(shape, likelihood, *, prior=None, seed=0):
    """A wrapped model with linear networks for examples of this shape."""
    torch.manual_seed(seed)
    size = int(np.prod(shape))
    output = shape
    if isinstance(likelihood, Categorical):
        output = likelihood.output_shape(shape)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(size, 4))
    decoder = nn.Sequential(nn.Linear(2, int(np.prod(output))), nn.Unflatten(1, output))
    example = torch.zeros(1, *shape)
    return recmix.wrap(encoder, decoder, likelihood=likelihood, example=example, prior=prior)


def app_with(**models):
    return make_app(Catalogue(models))


def answer(app, path, **fields):
    found = ask(app, "POST", path, json=fields)
    assert found.status_code == 200, found.text
    return {k: np.array(v) if isinstance(v, list) else v for k, v in found.json().items()}


@pytest.mark.parametrize("shape", [(6,), (4, 5), (2, 3, 4), (2, 2, 2, 2)])
def test_the_interface_serves_examples_of_any_shape(shape):
    made = model(shape, Gaussian(0.5))
    app = app_with(mine=made)
    x = 30 * np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)  # outside [0, 1]
    found = answer(app, "/posterior", images=x.tolist())
    np.testing.assert_allclose(found["mean"], made.posterior(x).mean, **CLOSE)
    found = answer(app, "/reconstruct", images=x.tolist())
    np.testing.assert_allclose(found["images"], made.reconstruct(x), **CLOSE)
    assert found["components"].shape == (3, 1, *shape)
    found = answer(app, "/score", images=x.tolist(), samples=5, seed=2)
    np.testing.assert_allclose(found["iwae"], made.log_likelihood(x, 5, seed=2), rtol=1e-4)
    assert answer(app, "/decode", z=[[0.0, 1.0]])["images"].shape == (1, *shape)
    assert answer(app, "/sample", count=2)["images"].shape == (2, *shape)
    found = answer(app, "/explain", image=x[0].tolist(), grid=8, steps=1)
    assert found["reconstruction"].shape == shape
    assert answer(app, "/interpolate", images=x[:2].tolist(), steps=3)["images"].shape == (3, *shape)
    sent = ask(app, "POST", "/reconstruct", content=npy(x), headers={"content-type": NPY, "accept": NPY})
    np.testing.assert_allclose(np.load(io.BytesIO(sent.content)), made.reconstruct(x), **CLOSE)


def test_values_are_checked_by_the_likelihood():
    app = app_with(
        real=model((3,), Gaussian(0.5)),
        counts=model((3,), "poisson"),
        unit=model((3,), "bernoulli"),
        classes=model((3,), Categorical(4)),
    )
    for run, good, bad, words in (
        ("real", [-7.5, 1e6, 0.0], None, ""),
        ("counts", [0, 3, 250], [0, 1.5, 0], "the poisson likelihood needs counts"),
        ("counts", [0, 3, 250], [0, -1, 0], "images has the negative value -1"),
        ("unit", [0, 0.5, 1], [0, 2, 0], "the bernoulli likelihood needs values in [0, 1]"),
        ("classes", [0, 3, 2], [0, 4, 0], "the categorical likelihood needs classes"),
    ):
        assert ask(app, "POST", "/posterior", json={"images": [good], "run": run}).status_code == 200
        if bad is not None:
            found = ask(app, "POST", "/posterior", json={"images": [bad], "run": run})
            assert found.status_code == 422
            assert words in found.json()["error"]
    found = ask(app, "POST", "/explain", json={"image": [0, 1.5, 0], "run": "counts"})
    assert "image has the value 1.5" in found.json()["error"]
    wrong = ask(app, "POST", "/posterior", json={"images": [[0.0] * 4], "run": "real"})
    assert "flat vectors of 4 values, expected 3 values" in wrong.json()["error"]


def test_runs_say_their_shape_their_values_and_why_the_page_leaves_them_out(tmp_path):
    app = app_with(
        vector=model((6,), Gaussian(0.5)),
        channels=model((2, 8, 8), Gaussian(0.5)),
        tokens=model((1, 8, 8), Categorical(3)),
        colour=model((3, 8, 8), "bernoulli"),
    )
    runs = {run["name"]: run for run in ask(app, "GET", "/runs").json()["runs"]}
    assert runs["colour"]["not_shown"] is None
    assert runs["vector"]["not_shown"].startswith(
        "the explorer shows images of one or three channels; vector has examples of shape (6,): "
    )
    assert runs["vector"]["not_shown"].endswith("give their shape, such as --shape HxW or shape=(H, W)")
    assert [run["image"] for run in runs.values()] == [None, None, None, [3, 8, 8]]
    assert "(2, 8, 8)" in runs["channels"]["not_shown"]
    assert "a decoder that gives shape (1, 8, 8, 3)" in runs["tokens"]["not_shown"]
    assert [run["values"] for run in runs.values()] == ["real", "real", "padded_classes:3", "unit"]
    assert runs["vector"]["shape"] == [6]


def test_flat_vectors_are_shown_as_images_of_the_given_shape():
    models = {"flat": model((36,), Gaussian(0.5)), "matrix": model((4, 5), Gaussian(0.5))}
    runs = ask(make_app(Catalogue(models)), "GET", "/runs").json()["runs"]
    assert runs[0]["not_shown"].endswith("such as --shape 6x6 or shape=(6, 6)")
    assert [run["image"] for run in runs] == [None, [1, 4, 5]]
    app = make_app(Catalogue(models, shape=(3, 3, 4)))
    runs = ask(app, "GET", "/runs").json()["runs"]
    assert [run["image"] for run in runs] == [[3, 3, 4], [1, 4, 5]]
    assert [run["not_shown"] for run in runs] == [None, None]
    x = np.random.default_rng(0).random((2, 36), np.float32)
    found = [answer(app, "/reconstruct", images=some.tolist()) for some in (x, x.reshape(2, 3, 3, 4))]
    np.testing.assert_array_equal(found[0]["images"], found[1]["images"])
    assert found[0]["images"].shape == (2, 36)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((7, 7), r"shape \(7, 7\) has 49 values, but no run .* flat \(36,\)"),
        ((36,), r"must be \(H, W\), \(1, H, W\) or \(3, H, W\), got \(36,\)"),
        ((6, 3, 2), "must be"),
        ((0, 6), "must be"),
    ],
)
def test_a_shape_that_fits_no_run_is_refused(shape, words):
    with pytest.raises(ConfigError, match=words):
        Catalogue({"flat": model((36,), Gaussian(0.5))}, shape=shape)


@pytest.mark.parametrize("text", ["12", "12x", "2x3x4x5", "-1x4", "12 12"])
def test_shapes_on_the_command_line_are_checked(text):
    assert (shape_of("12x13"), shape_of("3X32X32")) == ((12, 13), (3, 32, 32))
    with pytest.raises(ConfigError, match="expected HxW or CxHxW, such as 28x28"):
        shape_of(text)


def schema(app, path, field):
    document = ask(app, "GET", "/openapi.json").json()
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return document["info"]["description"], body["properties"][field]


def test_the_document_gives_shape_and_range_as_far_as_the_runs_agree():
    about, found = schema(app_with(a=model((6,), "bernoulli")), "/posterior", "images")
    assert "[0, 1]" not in about
    assert "values" in about
    assert found["description"] == "(B, N1)"
    assert found["items"]["minItems"] == found["items"]["maxItems"] == 6
    assert found["items"]["items"] == {"type": "number", "minimum": 0, "maximum": 1}
    _, found = schema(app_with(a=model((6,), Gaussian(0.5))), "/posterior", "images")
    assert found["items"]["items"]["minimum"] < -1e38
    _, found = schema(app_with(a=model((1, 8, 8), "poisson")), "/explain", "image")
    assert found["description"] == "(C, H, W)"
    assert found["items"]["items"]["items"] == {"type": "number"}
    both = app_with(a=model((6,), "bernoulli"), b=model((1, 8, 8), "bernoulli"))
    _, found = schema(both, "/posterior", "images")
    assert found["description"] == "(B, ...), see the shape of the run in /runs"


def test_prior_samples_are_those_of_the_model():
    torch.manual_seed(0)
    made = model((6,), Gaussian(0.5), prior=GaussianMixturePrior(2, 3))
    found = answer(app_with(mine=made), "/sample", count=5, seed=8)
    np.testing.assert_allclose(found["images"], made.sample(5, seed=8), **CLOSE)


def test_values_that_overflow_are_refused(tmp_path):
    """The largest values of float32 give results that are not finite, in which no plane exists."""
    encoder, decoder = nn.Linear(6, 6), nn.Linear(3, 6)
    nn.init.constant_(encoder.weight, 10.0)
    made = recmix.wrap(encoder, decoder, likelihood=Gaussian(0.5), example=torch.zeros(1, 6))
    found = ask(app_with(mine=made), "POST", "/explain", json={"image": [3e38] * 6})
    assert found.status_code == 422
    assert "give values like those of its data" in found.json()["error"]


def test_test_examples_of_a_table(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.save(tmp_path / "table.npy", x)
    data = recmix.data.load(tmp_path / "table.npy")
    how = {"latent": 3, "epochs": 1, "device": "cpu", "progress": False, "widths": (8,)}
    recmix.fit("vae", data, out=tmp_path / "run", **how)
    app = app_of(tmp_path / "run")
    found = ask(app, "GET", "/runs/run/images?start=1&count=3").json()
    np.testing.assert_allclose(found["images"], data.x_test[1:4], rtol=1e-6)
    assert ask(app, "GET", "/runs/run/images?start=99").json()["images"] == []
    explained = answer(app, "/explain", image=x[0].tolist(), grid=8, steps=1)
    assert explained["plane"]["kind"] == "slice"


def test_server_names_the_runs_that_the_page_leaves_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serving, "_run", lambda server, listening: None)
    opened = []
    monkeypatch.setattr(serving.webbrowser, "open", opened.append)
    vector = model((6,), Gaussian(0.5))
    serving.serve({"table": vector}, port=0, browser=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("table: http://")
    assert second.startswith("note: the explorer shows images of one or three channels; table has")
    image = recmix.load(save(tmp_path / "rme", latent=3, order=2), device="cpu")
    assert opened == []
    serving.serve({"table": vector, "rme": image}, port=0, browser=True)
    assert capsys.readouterr().out.count("note:") == 1
    assert len(opened) == 1
