"""The explorer over HTTP says what the library says in Python."""

import asyncio
import io
import re

import httpx
import numpy as np
import pytest
import torch
from explore_case import NPY, app_of, ask, digits, npy, save

import recmix
from recmix.evaluation.bounds import bounds_of
from recmix.inference.gauss_newton import climb
from recmix.posteriors.full import FullGaussian

CLOSE = {"rtol": 1e-6, "atol": 1e-6}
METHODS = {
    "vae": {},
    "rme": {"order": 3},
    "me": {"order": 2},
    "full": {},
    "hf": {"flows": 2},
    "iaf": {"flows": 1},
    "vlae": {"steps": 1},
    "sa": {"steps": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, options in METHODS.items():
        save(root / name, name, latent=4, **options)
    save(root / "plane", "rme", latent=2, order=3)
    save(root / "line", "vae", latent=1)
    return root


@pytest.fixture(scope="module")
def app(runs):
    return app_of(*(runs / name for name in (*METHODS, "plane", "line")))


def load(runs, name):
    return recmix.load(runs / name, device="cpu")


@pytest.mark.parametrize("name", METHODS)
def test_the_posterior_is_that_of_python(app, runs, name):
    x = digits(3)
    answer = ask(app, "POST", "/posterior", json={"images": x.tolist(), "run": name})
    assert answer.status_code == 200, answer.text
    found, q = answer.json(), load(runs, name).posterior(x)
    np.testing.assert_allclose(found["weights"], q.weights, **CLOSE)
    np.testing.assert_allclose(found["mean"], q.mean, **CLOSE)
    assert np.shape(found["means"]) == (3, q.weights.shape[1], 4)
    assert found["exact"] is (name != "iaf")
    if name not in ("iaf", "sa"):
        known = q.as_distribution()
        if name in ("rme", "me"):
            np.testing.assert_allclose(found["means"], known.component_distribution.mean, **CLOSE)
            np.testing.assert_allclose(
                found["variances"], known.component_distribution.variance, **CLOSE
            )
        else:
            np.testing.assert_allclose(np.squeeze(found["means"], 1), known.mean, **CLOSE)
            np.testing.assert_allclose(np.squeeze(found["variances"], 1), known.variance, **CLOSE)
        if found["covariances"] is not None:
            np.testing.assert_allclose(
                np.squeeze(found["covariances"], 1), known.covariance_matrix, **CLOSE
            )


def test_where_a_spread_is_sampled_it_is_that_of_samples(app, runs):
    x = digits(2)
    found = ask(app, "POST", "/posterior", json={"images": x.tolist(), "run": "iaf"}).json()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        z, _ = load(runs, "iaf").posterior(x).rsample_and_log_prob(20000, generator=generator)
    ratio = np.squeeze(found["variances"], 1) / z.var(0).numpy()
    assert (abs(ratio - 1) < 0.5).all()  # 256 draws: five standard errors of a variance


@pytest.mark.parametrize("name", ["vae", "rme", "vlae"])
def test_reconstructions_and_scores_are_those_of_python(app, runs, name):
    x, fitted = digits(5), load(runs, name)
    found = ask(app, "POST", "/reconstruct", json={"images": x.tolist(), "run": name}).json()
    np.testing.assert_allclose(found["images"], fitted.reconstruct(x), **CLOSE)
    q = fitted.posterior(x)
    parts = q.components if name == "rme" else [q]
    for k, part in enumerate(parts):
        decoded = fitted.decode(part.mean)
        np.testing.assert_allclose(np.array(found["components"])[:, k], decoded, **CLOSE)
    asked = {"images": x.tolist(), "run": name, "samples": 7, "seed": 5}
    found = ask(app, "POST", "/score", json=asked).json()
    elbo, iwae = fitted.bounds(x, 7, seed=5)
    np.testing.assert_allclose(found["elbo"], elbo, **CLOSE)
    np.testing.assert_allclose(found["iwae"], iwae, **CLOSE)


def test_decoder_and_prior_are_those_of_python(app, runs):
    fitted = load(runs, "rme")
    z = np.random.default_rng(0).normal(size=(600, 4))  # more than pass the decoder at a time
    found = ask(app, "POST", "/decode", json={"z": z.tolist(), "run": "rme"}).json()
    np.testing.assert_allclose(found["images"], fitted.decode(z), **CLOSE)
    found = ask(app, "POST", "/sample", json={"count": 5, "seed": 8, "run": "rme"}).json()
    np.testing.assert_allclose(found["images"], fitted.sample(5, seed=8), **CLOSE)
    np.testing.assert_allclose(fitted.decode(found["z"]), found["images"], **CLOSE)
    one, two = (ask(app, "POST", "/sample?run=rme").json() for _ in range(2))
    assert one["seed"] != two["seed"]
    assert np.shape(one["images"]) == (16, 1, 8, 8)


def test_npy_goes_in_and_out(app, runs):
    x, fitted = digits(3), load(runs, "rme")
    kinds = {"content-type": NPY, "accept": NPY}
    path = "/reconstruct?run=rme"
    for given in (x, np.asfortranarray(x), x.astype(">f8"), x[:, 0]):
        answer = ask(app, "POST", path, content=npy(given), headers=kinds)
        assert answer.headers["content-type"] == NPY
        found = np.load(io.BytesIO(answer.content), allow_pickle=False)
        np.testing.assert_allclose(found, fitted.reconstruct(x), **CLOSE)
    grey = (255 * x).astype(np.uint8)
    answer = ask(app, "POST", path, content=npy(grey), headers=kinds)
    found = np.load(io.BytesIO(answer.content), allow_pickle=False)
    np.testing.assert_allclose(found, fitted.reconstruct((grey / 255).astype(np.float32)), **CLOSE)
    answer = ask(
        app, "POST", "/score?run=rme&samples=3&seed=2", content=npy(x), headers={"content-type": NPY}
    )
    np.testing.assert_allclose(answer.json()["iwae"], fitted.bounds(x, 3, seed=2)[1], **CLOSE)
    answer = ask(app, "POST", "/sample?count=2&seed=1&run=rme", headers={"accept": NPY})
    np.testing.assert_allclose(np.load(io.BytesIO(answer.content)), fitted.sample(2, seed=1), **CLOSE)
    assert ask(app, "POST", "/posterior", content=npy(x), headers=kinds).status_code == 406


def test_requests_that_wait_together_share_passes_and_get_their_own_answers(app, runs):
    x = digits(40)
    names = ["vae", "rme"]
    expected = {name: load(runs, name).posterior(x).mean.numpy() for name in names}
    before = ask(app, "GET", "/health").json()

    async def go():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asked = [
                client.post(
                    "/posterior", json={"images": x[i : i + 2].tolist(), "run": names[i % 4 // 2]}
                )
                for i in range(0, 40, 2)
            ]
            return await asyncio.gather(*asked)

    for i, answer in zip(range(0, 40, 2), asyncio.run(go()), strict=True):
        name = names[i % 4 // 2]
        assert answer.json()["run"] == name
        np.testing.assert_allclose(answer.json()["mean"], expected[name][i : i + 2], **CLOSE)
    after = ask(app, "GET", "/health").json()
    assert after["answered"] - before["answered"] == 20
    assert after["passes"] - before["passes"] < 10


def test_runs_and_their_images(app, runs, tmp_path):
    found = ask(app, "GET", "/runs").json()
    assert found["default"] == "vae"
    about = {run["name"]: run for run in found["runs"]}
    assert about["rme"]["components"] == 3
    assert about["rme"]["shape"] == [1, 8, 8]
    assert about["rme"]["latent"] == 4
    part = ask(app, "GET", "/runs/rme/images?start=2&count=3").json()
    assert part["total"] == 297
    np.testing.assert_allclose(part["images"], digits(5)[2:], **CLOSE)
    assert ask(app, "GET", "/runs/rme/images?start=297").json()["images"] == []
    assert ask(app, "GET", "/runs/nothing/images").status_code == 404
    assert "did you mean 'rme'" in ask(app, "POST", "/sample?run=rne").json()["error"]


def test_a_run_whose_data_are_elsewhere_says_so(tmp_path):
    arrays = recmix.data.from_arrays(np.random.default_rng(0).random((30, 1, 8, 8)).astype(np.float32))
    gone = recmix.data.load("digits").describe() | {"kind": "path", "path": str(tmp_path / "gone.npy")}
    one = save(tmp_path / "a" / "run", "vae", data=arrays.describe())
    two = save(tmp_path / "b" / "run", "vae", data=gone)
    app = app_of(one, two)
    assert [run["name"] for run in ask(app, "GET", "/runs").json()["runs"]] == ["run", "run-2"]
    for name in ("run", "run-2"):
        answer = ask(app, "GET", f"/runs/{name}/images")
        assert answer.status_code == 404
        assert "not on this machine" in answer.json()["error"]
    assert ask(app, "POST", "/sample").status_code == 200


# --- one image looked at closely -------------------------------------------------------------------


def explained(app, **more):
    answer = ask(app, "POST", "/explain", json={"image": digits(1)[0].tolist(), **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_in_two_dimensions_the_plane_shows_the_true_posterior(app, runs):
    found, fitted = explained(app, run="plane", grid=100, samples=500), load(runs, "plane")
    plane = found["plane"]
    assert plane["kind"] == "latent"
    assert plane["labels"] == ["z1", "z2"]
    xs, ys, density = np.array(plane["x"]), np.array(plane["y"]), np.array(plane["density"])
    cell = (xs[1] - xs[0]) * (ys[1] - ys[0])
    assert density.sum() * cell == pytest.approx(1)
    j, i = 70, 20
    z = torch.tensor([[[xs[i], ys[j]]]])
    log_joint = float(fitted.log_joint(digits(1), z))
    assert plane["log_joint"][j][i] == pytest.approx(log_joint, abs=1e-6)
    assert np.log(density[j, i]) == pytest.approx(log_joint - plane["log_evidence"], abs=1e-6)
    assert plane["log_q"][j][i] == pytest.approx(
        float(fitted.posterior(digits(1)).log_prob(z)), abs=1e-6
    )
    # Importance sampling from Laplace's Gaussian estimates the same log p(x).
    assert found["refinement"][-1]["iwae"] == pytest.approx(plane["log_evidence"], abs=0.3)


def test_in_more_dimensions_the_plane_is_that_of_the_widest_directions(app, runs):
    found, fitted = explained(app, run="rme", grid=12), load(runs, "rme")
    plane, q = found["plane"], fitted.posterior(digits(1))
    assert plane["kind"] == "slice"
    assert plane["density"] is None
    axes, origin = np.array(plane["axes"]), np.array(plane["origin"])
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(origin, q.mean[0], **CLOSE)
    covariance = q.as_distribution().variance  # only its diagonal
    whole = sum(
        q.weights[0, k] * (torch.diag(p.log_variance[0].exp()) + torch.outer(d, d))
        for k, p in enumerate(q.components)
        for d in [p.mean[0] - q.mean[0]]
    )
    np.testing.assert_allclose(whole.diagonal(), covariance[0], **CLOSE)
    widest = torch.linalg.eigvalsh(whole).flip(0)[:2]
    np.testing.assert_allclose((axes @ whole.numpy() @ axes.T).diagonal(), widest, rtol=1e-5)
    z = origin + plane["x"][3] * axes[0] + plane["y"][5] * axes[1]
    expected = float(fitted.log_joint(digits(1), z[None, None]))
    assert plane["log_joint"][5][3] == pytest.approx(expected, abs=1e-5)
    part = found["components"][1]
    np.testing.assert_allclose(part["plane"], (np.array(part["mean"]) - origin) @ axes.T, atol=1e-6)
    np.testing.assert_allclose(
        part["covariance"], axes @ np.diag(part["variance"]) @ axes.T, rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("name", ["line", "iaf", "vlae"])
def test_any_posterior_can_be_looked_at(app, name):
    found = explained(app, run=name, grid=9, steps=1, samples=5)
    rows = 1 if name == "line" else 9
    assert np.shape(found["plane"]["log_joint"]) == (rows, 9)
    if name == "line":
        xs = found["plane"]["x"]
        assert np.sum(found["plane"]["density"]) * (xs[1] - xs[0]) == pytest.approx(1)


def test_refinement_is_the_climb_step_by_step(app, runs):
    found, fitted = explained(app, run="rme", steps=3, samples=20, seed=4, grid=8), load(runs, "rme")
    x = torch.from_numpy(digits(1)).double()
    q = fitted.posterior(digits(1))
    assert found["bounds"]["elbo"] == pytest.approx(
        float(fitted.bounds(digits(1), 20, seed=4)[0]), abs=1e-6
    )
    heights = [step["log_joint"] for step in found["refinement"]]
    assert heights == sorted(heights)
    for step in found["refinement"]:
        with torch.no_grad():
            z, at = climb(fitted.model, x, q.mean, steps=step["step"], reuse=fitted.method.reuse)
            laplace = FullGaussian.from_precision(z, at.precision)
            generator = torch.Generator().manual_seed(4)
            elbo, iwae = bounds_of(fitted.model, x, laplace, 20, generator, 10**6)
        np.testing.assert_allclose(step["z"], z[0], **CLOSE)
        np.testing.assert_allclose(step["reconstruction"], fitted.decode(z)[0], **CLOSE)
        assert step["elbo"] == pytest.approx(float(elbo), abs=1e-6)
        assert step["iwae"] == pytest.approx(float(iwae), abs=1e-6)


def test_interpolation_goes_from_one_mean_to_the_other(app, runs):
    x, fitted = digits(2), load(runs, "rme")
    asked = {"images": x.tolist(), "run": "rme", "steps": 5}
    found = ask(app, "POST", "/interpolate", json=asked).json()
    mean = fitted.posterior(x).mean
    np.testing.assert_allclose([found["z"][0], found["z"][-1]], mean, **CLOSE)
    np.testing.assert_allclose(found["z"][2], mean.mean(0), **CLOSE)
    np.testing.assert_allclose(found["images"], fitted.decode(found["z"]), **CLOSE)


# --- the page ---------------------------------------------------------------------------------------


def test_the_page_and_the_description_need_nobody_else(app):
    for path in ("/", "/docs", "/docs.css"):
        answer = ask(app, "GET", path)
        assert answer.status_code == 200
        assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", answer.text)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "http" not in policy
        assert "unsafe" not in policy
    described = ask(app, "GET", "/openapi.json").json()
    assert {"/posterior", "/reconstruct", "/score", "/decode", "/sample", "/runs", "/health"} <= set(
        described["paths"]
    )
    for path in described["paths"]:
        assert path in ask(app, "GET", "/docs").text
