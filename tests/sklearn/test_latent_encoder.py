"""The scikit-learn transformer: scikit-learn's own checks, and what they do not show."""

import pickle

import numpy as np
import pandas as pd
import pytest
from cases.training import images
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import recmix
from recmix.errors import ConfigError
from recmix.sklearn import LatentEncoder

NOISE = "the noise of score_samples depends on the position of an example"
EXPECTED = {
    "check_methods_sample_order_invariance": NOISE,
    "check_methods_subset_invariance": NOISE,
}
SMALL = {"latent": 2, "epochs": 1, "widths": (4,), "samples": 2, "device": "cpu", "random_state": 0}
X = StandardScaler().fit_transform(load_iris().data)


def encoder(**changes):
    return LatentEncoder(**SMALL | changes)


@parametrize_with_checks(
    [encoder(options={"dtype": "float64"})], expected_failed_checks=lambda estimator: EXPECTED
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_transform_gives_the_posterior_means_of_a_model_trained_by_fit():
    found = encoder(latent=3).fit(X)
    data = recmix.data.from_arrays(X, seed=0, hold_out_test=False)
    model = recmix.fit("vae", data, latent=3, epochs=1, network="mlp", widths=(4,), device="cpu", seed=0)
    assert np.allclose(found.transform(X), model.posterior(X).mean, atol=1e-6)
    assert np.isclose(found.score(X), model.log_likelihood(X, 2, seed=0).mean(), atol=1e-5)
    assert np.isclose(
        found.set_params(bound="elbo").score(X), model.elbo(X, 2, seed=0).mean(), atol=1e-5
    )


def test_transform_does_not_depend_on_other_examples():
    found = encoder(options={"dtype": "float64"}).fit(X)
    whole = found.transform(X)
    assert np.allclose(found.transform(X[10:20]), whole[10:20], atol=1e-12)
    assert np.allclose(found.transform(X[::-1]), whole[::-1], atol=1e-12)


def test_training_raises_the_score():
    short = encoder(samples=20, learning_rate=1e-2).fit(X)
    longer = clone(short).set_params(epochs=30, widths=(32,)).fit(X)
    assert longer.score(X) > short.score(X) + 0.5


def test_more_than_one_chunk_of_examples():
    many = np.tile(X, (5, 1))
    found = encoder().fit(X)
    assert np.allclose(found.transform(many)[600:], found.transform(X), atol=1e-5)
    assert found.inverse_transform(found.transform(many)).shape == many.shape
    assert found.score_samples(many).shape == (750,)


def test_pipeline_and_grid_search():
    pipeline = make_pipeline(StandardScaler(), encoder(), LogisticRegression())
    assert pipeline.fit(X, load_iris().target).score(X, load_iris().target) > 0.3
    search = GridSearchCV(encoder(), {"latent": [1, 2], "refine": [0, 1]}, cv=2).fit(X)
    assert search.best_params_["latent"] in (1, 2)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_names_of_columns_and_data_frames():
    frame = pd.DataFrame(X, columns=list("abcd"))
    found = encoder().fit(frame)
    assert list(found.get_feature_names_out()) == ["latentencoder0", "latentencoder1"]
    assert list(found.feature_names_in_) == list("abcd")
    shown = found.set_output(transform="pandas").transform(frame)
    assert list(shown.columns) == ["latentencoder0", "latentencoder1"]
    with pytest.raises(ValueError, match="feature names should match"):
        found.transform(frame.rename(columns={"a": "z"}))


def test_images_keep_their_shape():
    x = images(40)
    found = encoder(widths=None).fit(x)
    z = found.transform(x)
    assert z.shape == (40, 2)
    assert z.dtype == np.float32
    assert found.inverse_transform(z).shape == x.shape
    assert found.sample(3, random_state=0).shape == (3, 1, 8, 8)


def test_grey_images_without_an_axis_for_channels():
    grey = (images(40)[:, 0] * 255).astype(np.uint8)
    found = encoder(widths=None).fit(grey)
    assert found.model_.spec.shape == (1, 8, 8)
    assert np.allclose(found.transform(grey), found.transform(grey / 255), atol=1e-5)
    assert found.inverse_transform(found.transform(grey)).shape == grey.shape
    assert found.sample(2).shape == (2, 8, 8)


def test_sparse_counts_give_the_same_result_as_dense_ones():
    counts = np.random.default_rng(0).poisson(0.5, (40, 6)).astype(float)
    found = encoder().fit(sparse.csr_matrix(counts))
    assert found.model_.spec.model.likelihood == "poisson"
    assert np.allclose(found.transform(sparse.csc_matrix(counts)), found.transform(counts), atol=1e-6)
    assert np.allclose(found.score_samples(sparse.csr_matrix(counts)), found.score_samples(counts))


def test_methods_that_start_from_a_vae():
    found = encoder(method="rme", options={"order": 2}).fit(X)
    assert found.model_.spec.options["order"] == 2
    assert found.model_.spec.init["epochs"] == 1
    assert encoder(method="rme", vae_epochs=2).fit(X).model_.spec.init["epochs"] == 2


def test_refinement_changes_the_means_and_not_the_training():
    plain, refined = encoder().fit(X), encoder(refine=2).fit(X)
    assert refined.model_.inference.refine == 2
    assert np.allclose(plain.model_.posterior(X).mean, refined.model_.using(refine=0).posterior(X).mean)
    assert not np.allclose(plain.transform(X), refined.transform(X))


def test_random_state():
    same = [encoder(random_state=np.random.RandomState(3)).fit(X).transform(X) for _ in range(2)]
    assert np.array_equal(*same)
    assert not np.allclose(same[0], encoder(random_state=4).fit(X).transform(X))
    free = [encoder(random_state=None).fit(X).seed_ for _ in range(2)]
    assert free[0] != free[1]


def test_a_fitted_encoder_can_be_pickled():
    found = encoder(method="rme").fit(X)
    assert np.array_equal(pickle.loads(pickle.dumps(found)).transform(X), found.transform(X))


def test_errors_name_the_option():
    with pytest.raises(ConfigError, match="bound must be one of iwae, elbo, got 'loss'"):
        encoder(bound="loss").fit(X)
    with pytest.raises(ConfigError, match="options has latent: give it as an argument"):
        encoder(options={"latent": 3}).fit(X)
    with pytest.raises(ConfigError, match="unknown option for vae 'patienc'"):
        encoder(options={"patienc": 3}).fit(X)
    found = encoder().fit(X)
    with pytest.raises(ConfigError, match=r"z must be \(..., 2\), got \(5, 3\)"):
        found.inverse_transform(np.zeros((5, 3)))
