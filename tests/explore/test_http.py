"""The explorer's answers over HTTP are those of `recmix.Model` in Python."""

import io
import re

import numpy as np
import pytest
import torch
from cases.contract import distribution_of
from cases.explore import NPY, app_of, ask, ask_together, digits, npy, save

import recmix
from recmix.evaluation.bounds import bounds_of
from recmix.inference.gauss_newton import ascend
from recmix.methods.registry import METHODS
from recmix.posteriors import FullGaussian

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A small model of every method by name, a mixture, and models with few latent dimensions."""
    root = tmp_path_factory.mktemp("runs")
    for name in sorted(METHODS):
        save(root / name, name, latent=4)
    save(root / "mixture", "rme", latent=4, order=3, label="RME", inference=recmix.Inference(reuse=1))
    save(root / "plane", "rme", latent=2, order=3)
    save(root / "line", "vae", latent=1)
    return {folder.name: recmix.load(folder, device="cpu") for folder in root.iterdir()}


@pytest.fixture(scope="module")
def app(models):
    return app_of(*(models[name].folder for name in ("vae", *sorted(set(models) - {"vae"}))))


def answer_to(app, path, run, **fields):
    answer = ask(app, "POST", path, json={"run": run, **fields})
    assert answer.status_code == 200, answer.text
    return {name: np.array(v) if isinstance(v, list) else v for name, v in answer.json().items()}


@pytest.mark.parametrize("name", [*sorted(METHODS), "mixture"])
def test_posterior_is_the_same_as_in_python(app, models, name):
    x = digits(3)
    found, q = answer_to(app, "/posterior", name, images=x.tolist()), models[name].posterior(x)
    np.testing.assert_allclose(found["weights"], q.weights, **CLOSE)
    np.testing.assert_allclose(found["mean"], q.mean, **CLOSE)
    assert found["means"].shape == found["variances"].shape == (3, q.weights.shape[1], 4)
    assert found["exact"] is all(part.describe() is not None for part in q.components)
    for k, part in enumerate(q.components):
        np.testing.assert_allclose(found["means"][:, k], part.mean, **CLOSE)
        if part.describe() is None:
            continue
        known = distribution_of(part.describe())
        np.testing.assert_allclose(found["variances"][:, k], known.variance, **CLOSE)
        if found["covariances"] is not None:
            np.testing.assert_allclose(found["covariances"][:, k], known.covariance_matrix, **CLOSE)
        else:
            assert "scale_tril" not in part.describe()


def test_variance_without_closed_form_is_estimated_from_samples(app, models):
    x = digits(2)
    found = answer_to(app, "/posterior", "iaf", images=x.tolist())
    assert found["exact"] is False
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        z, _ = models["iaf"].posterior(x).rsample_and_log_prob(20000, generator=generator)
    ratio = found["variances"][:, 0] / z.var(0).numpy()
    assert (abs(ratio - 1) < 0.5).all()  # 256 samples: five standard errors of a variance


@pytest.mark.parametrize("name", ["vae", "mixture", "vlae"])
def test_reconstructions_and_scores_are_the_same_as_in_python(app, models, name):
    x, model = digits(5), models[name]
    found = answer_to(app, "/reconstruct", name, images=x.tolist())
    np.testing.assert_allclose(found["images"], model.reconstruct(x), **CLOSE)
    parts = model.posterior(x).components
    assert found["components"].shape == (5, len(parts), 1, 8, 8)
    for k, part in enumerate(parts):
        np.testing.assert_allclose(found["components"][:, k], model.decode(part.mean), **CLOSE)
    found = answer_to(app, "/score", name, images=x.tolist(), samples=7, seed=5)
    elbo, iwae = model.bounds(x, 7, seed=5)
    np.testing.assert_allclose(found["elbo"], elbo, **CLOSE)
    np.testing.assert_allclose(found["iwae"], iwae, **CLOSE)


def test_decoder_and_prior_samples_are_the_same_as_in_python(app, models):
    model = models["mixture"]
    z = np.random.default_rng(0).normal(size=(600, 4))  # more than the decoder takes at a time
    found = answer_to(app, "/decode", "mixture", z=z.tolist())
    np.testing.assert_allclose(found["images"], model.decode(z), **CLOSE)
    found = answer_to(app, "/sample", "mixture", count=5, seed=8)
    np.testing.assert_allclose(found["images"], model.sample(5, seed=8), **CLOSE)
    np.testing.assert_allclose(model.decode(found["z"]), found["images"], **CLOSE)
    one, two = (ask(app, "POST", "/sample?run=mixture").json() for _ in range(2))
    assert one["seed"] != two["seed"]
    assert np.shape(one["images"]) == (16, 1, 8, 8)


def test_npy_is_read_and_sent(app, models):
    x, model = digits(3), models["mixture"]

    def send(path, content=None, **headers):
        content = None if content is None else npy(content)
        answer = ask(app, "POST", path, content=content, headers={"content-type": NPY, **headers})
        if answer.headers["content-type"] == NPY:
            return np.load(io.BytesIO(answer.content), allow_pickle=False)
        return answer

    path = "/reconstruct?run=mixture"
    for given in (x, np.asfortranarray(x), x.astype(">f8"), x[:, 0]):
        np.testing.assert_allclose(send(path, given, accept=NPY), model.reconstruct(x), **CLOSE)
    grey = (255 * x).astype(np.uint8)
    expected = model.reconstruct((grey / 255).astype(np.float32))
    np.testing.assert_allclose(send(path, grey, accept=NPY), expected, **CLOSE)
    scores = send("/score?run=mixture&samples=3&seed=2", x).json()
    np.testing.assert_allclose(scores["iwae"], model.bounds(x, 3, seed=2)[1], **CLOSE)
    sampled = send("/sample?count=2&seed=1&run=mixture", accept=NPY)
    np.testing.assert_allclose(sampled, model.sample(2, seed=1), **CLOSE)
    explained = send("/explain?run=mixture&grid=8&steps=0&samples=1", x[0])
    np.testing.assert_allclose(explained.json()["mean"], model.posterior(x).mean[0], **CLOSE)
    assert send("/posterior", x, accept=NPY).status_code == 406


def test_waiting_requests_share_passes_and_get_their_own_answers(app, models):
    x = digits(40)
    requests = [(("vae", "mixture")[i % 4 // 2], x[i : i + 2]) for i in range(0, 40, 2)]
    before = ask(app, "GET", "/health").json()
    contents = [{"images": part.tolist(), "run": name} for name, part in requests]
    found = ask_together(app, [("POST", "/posterior", {"json": content}) for content in contents])
    for (name, part), answer in zip(requests, found, strict=True):
        assert answer.json()["run"] == name
        np.testing.assert_allclose(answer.json()["mean"], models[name].posterior(part).mean, **CLOSE)
    after = ask(app, "GET", "/health").json()
    assert after["answered"] - before["answered"] == 20
    assert after["passes"] - before["passes"] < 10


def test_runs_and_their_test_images_are_listed(app, models):
    found = ask(app, "GET", "/runs").json()
    assert found["default"] == "vae"
    about = {run["name"]: run for run in found["runs"]}
    assert set(about) == set(models)
    mixture = about["mixture"]
    assert (mixture["label"], about["vae"]["label"]) == ("RME", "vae")  # without a label: the name
    assert (mixture["components"], mixture["shape"], mixture["latent"]) == (3, [1, 8, 8], 4)
    assert mixture["inference"] == recmix.Inference(reuse=1).to_json()
    assert mixture["title"] == METHODS["rme"].title
    part = ask(app, "GET", "/runs/mixture/images?start=2&count=3").json()
    assert part["total"] == 297
    np.testing.assert_allclose(part["images"], digits(5)[2:], **CLOSE)
    assert ask(app, "GET", "/runs/mixture/images?start=297").json()["images"] == []
    assert ask(app, "GET", "/runs/nothing/images").status_code == 404
    assert "did you mean 'rme'" in ask(app, "POST", "/sample?run=rne").json()["error"]


def test_missing_data_and_equal_names_and_labels(tmp_path):
    arrays = recmix.data.from_arrays(np.random.default_rng(0).random((30, 1, 8, 8)).astype(np.float32))
    gone = recmix.data.load("digits").describe() | {"kind": "path", "path": str(tmp_path / "gone.npy")}
    one = save(tmp_path / "a" / "run", "vae", data=arrays.describe(), label="VAE")
    two = save(tmp_path / "b" / "run", "vae", data=gone, label="VAE")
    app = app_of(one, two)
    shown = {run["name"]: run["label"] for run in ask(app, "GET", "/runs").json()["runs"]}
    assert shown == {"run": "VAE (run)", "run-2": "VAE (run-2)"}
    for name in shown:
        answer = ask(app, "GET", f"/runs/{name}/images")
        assert answer.status_code == 404
        assert "not on this machine" in answer.json()["error"]
    assert ask(app, "POST", "/sample").status_code == 200


# --- one image in detail ----------------------------------------------------------------------------


def explained(app, run, **more):
    answer = ask(app, "POST", "/explain", json={"image": digits(1)[0].tolist(), "run": run, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_plane_of_two_dimensions_shows_the_true_posterior(app, models):
    found, model = explained(app, "plane", grid=100, samples=500), models["plane"]
    plane = found["plane"]
    assert (plane["kind"], plane["labels"]) == ("latent", ["z1", "z2"])
    xs, ys, density = np.array(plane["x"]), np.array(plane["y"]), np.array(plane["density"])
    cell = (xs[1] - xs[0]) * (ys[1] - ys[0])
    assert density.sum() * cell == pytest.approx(1)
    j, i = 70, 20
    z = torch.tensor([[[xs[i], ys[j]]]])
    log_joint = float(model.log_joint(digits(1), z))
    assert plane["log_joint"][j][i] == pytest.approx(log_joint, abs=1e-6)
    assert np.log(density[j, i]) == pytest.approx(log_joint - plane["log_evidence"], abs=1e-6)
    log_q = float(model.posterior(digits(1)).log_prob(z))
    assert plane["log_q"][j][i] == pytest.approx(log_q, abs=1e-6)
    # Importance sampling from the Laplace approximation estimates the same log p(x).
    assert found["refinement"][-1]["iwae"] == pytest.approx(plane["log_evidence"], abs=0.3)


def test_plane_of_more_dimensions_has_the_widest_directions(app, models):
    found, model = explained(app, "mixture", grid=12), models["mixture"]
    plane, q = found["plane"], model.posterior(digits(1))
    assert plane["kind"] == "slice"
    assert plane["density"] is None
    axes, origin = np.array(plane["axes"]), np.array(plane["origin"])
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(origin, q.mean[0], **CLOSE)
    offsets = [p.mean[0] - q.mean[0] for p in q.components]
    covariance = sum(
        weight * (torch.diag(p.variance[0]) + torch.outer(offset, offset))
        for weight, p, offset in zip(q.weights[0], q.components, offsets, strict=True)
    )
    np.testing.assert_allclose(covariance.diagonal(), distribution_of(q.describe()).variance[0], **CLOSE)
    widest = torch.linalg.eigvalsh(covariance).flip(0)[:2]
    np.testing.assert_allclose((axes @ covariance.numpy() @ axes.T).diagonal(), widest, rtol=1e-5)
    z = origin + plane["x"][3] * axes[0] + plane["y"][5] * axes[1]
    expected = float(model.log_joint(digits(1), z[None, None]))
    assert plane["log_joint"][5][3] == pytest.approx(expected, abs=1e-5)
    part = found["components"][1]
    np.testing.assert_allclose(part["plane"], (np.array(part["mean"]) - origin) @ axes.T, atol=1e-6)
    np.testing.assert_allclose(
        part["covariance"], axes @ np.diag(part["variance"]) @ axes.T, rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("name", ["line", *sorted(METHODS)])
def test_any_posterior_can_be_explained(app, name):
    plane = explained(app, name, grid=9, steps=1, samples=5)["plane"]
    assert np.shape(plane["log_joint"]) == (1 if name == "line" else 9, 9)
    assert np.isfinite(plane["log_q"]).all()
    if name == "line":
        assert np.sum(plane["density"]) * (plane["x"][1] - plane["x"][0]) == pytest.approx(1)


def test_refinement_shows_each_gauss_newton_step(app, models):
    model = models["mixture"]
    found = explained(app, "mixture", steps=3, samples=20, seed=4, grid=8)
    x = torch.from_numpy(digits(1)).double()
    q = model.posterior(digits(1))
    elbo = float(model.elbo(digits(1), 20, seed=4))
    assert found["bounds"]["elbo"] == pytest.approx(elbo, abs=1e-6)
    joints = [step["log_joint"] for step in found["refinement"]]
    assert joints == sorted(joints)
    for number, step in enumerate(found["refinement"]):
        assert step["step"] == number
        with torch.no_grad():
            z, at = ascend(model.latent_model, x, q.mean, steps=number, reuse=model.inference.reuse)
            laplace = FullGaussian.from_precision(z, at.precision)
            generator = torch.Generator().manual_seed(4)
            elbo, iwae = bounds_of(model.latent_model, x, laplace, 20, generator, 10**6)
        np.testing.assert_allclose(step["z"], z[0], **CLOSE)
        np.testing.assert_allclose(step["reconstruction"], model.decode(z)[0], **CLOSE)
        assert step["log_joint"] == pytest.approx(float(model.log_joint(x, z[None])), abs=1e-6)
        assert step["elbo"] == pytest.approx(float(elbo), abs=1e-6)
        assert step["iwae"] == pytest.approx(float(iwae), abs=1e-6)


def test_interpolation_goes_from_one_mean_to_the_other(app, models):
    x, model = digits(2), models["mixture"]
    found = answer_to(app, "/interpolate", "mixture", images=x.tolist(), steps=5)
    mean = model.posterior(x).mean
    np.testing.assert_allclose(found["z"][[0, -1]], mean, **CLOSE)
    np.testing.assert_allclose(found["z"][2], mean.mean(0), **CLOSE)
    np.testing.assert_allclose(found["images"], model.decode(found["z"]), **CLOSE)


def test_pages_load_nothing_from_other_servers(app):
    for path in ("/", "/docs", "/docs.css"):
        answer = ask(app, "GET", path)
        assert answer.status_code == 200
        assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", answer.text)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "http" not in policy
        assert "unsafe" not in policy
    paths = ask(app, "GET", "/openapi.json").json()["paths"]
    wanted = {"/posterior", "/reconstruct", "/score", "/decode", "/sample", "/runs", "/health"}
    assert wanted <= set(paths)
    docs = ask(app, "GET", "/docs").text
    assert all(path in docs for path in paths)
