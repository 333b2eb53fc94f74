"""Training on data of any kind, with every likelihood and prior."""

import numpy as np
import pytest
import torch
from cases.likelihoods import CASES, StudentT
from torch import nn
from torch.distributions import MultivariateNormal

import recmix
from recmix.errors import ConfigError, DataError
from recmix.model.likelihoods import LIKELIHOODS, Gaussian

FAST = {"epochs": 2, "latent": 2, "batch_size": 20, "progress": False, "device": "cpu"}


def table(count=60, features=6):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(count, 2))
    return (z @ rng.normal(size=(2, features)) * [1, 10, 0.5, 1, 5, 1] + 100).astype(np.float32)


def counts(count=60):
    return np.random.default_rng(0).poisson(3.0, size=(count, 6))


@pytest.mark.parametrize("name", sorted(LIKELIHOODS))
def test_every_likelihood_trains_scores_refines_and_loads(name, tmp_path):
    case = CASES[name]
    x = case.examples(case.model(), 60).float().numpy()
    if name.startswith("logistic"):
        x = np.round(np.random.default_rng(0).random((60, 1, 8, 8)) * 255).astype(np.uint8)
    extra = {
        "decoder": nn.Sequential(nn.Linear(2, x[0].size), nn.Sigmoid(), nn.Unflatten(1, x.shape[1:]))
    }
    own = extra if name == "bernoulli-probabilities" else {}
    sizes = {"node_classes": 3, "edge_classes": 2} if name == "graph" else {}
    folder = tmp_path / "run"
    model = recmix.fit("vae", x, likelihood=name, out=folder, **own, **sizes, **FAST)
    assert model.spec.model.likelihood == name
    assert model.log_likelihood(x[:5], 5).isfinite().all()
    assert model.refined(1).elbo(x[:5], 5).isfinite().all()
    assert model.gap(x[:2], samples=20, check=0).elbo.isfinite().all()
    again = recmix.load(folder, **own, device="cpu")
    torch.testing.assert_close(again.log_likelihood(x[:5], 5), model.log_likelihood(x[:5], 5))


@pytest.mark.parametrize("method", ["rme", "me", "residual", "sa", "full", "iaf", "hf", "wide", "vlae"])
@pytest.mark.parametrize("kind", ["vectors", "counts"])
def test_methods_train_on_vectors_and_counts(method, kind):
    x = table() if kind == "vectors" else counts()
    model = recmix.fit(method, x, vae_epochs=1, **FAST)
    assert model.spec.model.likelihood == ("gaussian" if kind == "vectors" else "poisson")
    assert model.log_likelihood(x[:5], 5).isfinite().all()


@pytest.mark.parametrize("prior", ["mixture", "vamp", "flow"])
@pytest.mark.parametrize("method", ["vae", "rme", "sa"])
def test_every_prior_trains_and_loads(prior, method, tmp_path):
    folder = tmp_path / "run"
    options = {"prior": prior, "prior_components": 4, "vae_epochs": 1, **FAST}
    model = recmix.fit(method, table(), out=folder, **options)
    still = recmix.fit("vae", table(), **options | {"learning_rate": 1e-30})
    changed = [
        not torch.equal(a, b)
        for a, b in zip(
            model.latent_model.prior.parameters(), still.latent_model.prior.parameters(), strict=True
        )
    ]
    assert any(changed)  # the prior is trained
    again = recmix.load(folder, device="cpu")
    torch.testing.assert_close(again.log_likelihood(table(5), 5), model.log_likelihood(table(5), 5))
    assert model.refined(1).elbo(table(5), 5).isfinite().all()
    assert model.sample(3).shape == (3, 6)


def test_a_prior_and_a_likelihood_of_ones_own(tmp_path):
    prior = MultivariateNormal(torch.ones(2), 2 * torch.eye(2))
    folder = tmp_path / "run"
    model = recmix.fit("vae", table(), likelihood=StudentT(), prior=prior, out=folder, **FAST)
    assert model.spec.model.likelihood == "own"
    assert model.spec.model.prior == "own"
    with pytest.raises(recmix.RecmixError, match="likelihood"):
        recmix.load(folder, device="cpu")
    again = recmix.load(folder, likelihood=StudentT(), prior=prior, device="cpu")
    torch.testing.assert_close(again.elbo(table(5), 5), model.elbo(table(5), 5))
    better = recmix.fit("rme", table(), init=model, **FAST)
    assert better.latent_model.prior.log_prob(torch.ones(1, 2)).item() == pytest.approx(
        prior.log_prob(torch.ones(2)).item()
    )


def test_options_of_a_likelihood_are_never_lost(tmp_path):
    given = recmix.likelihoods.Multinomial(coefficient=False)
    model = recmix.fit("vae", counts(), likelihood=given, out=tmp_path / "run", **FAST)
    expected = model.elbo(counts(5), 5)
    better = recmix.fit("rme", counts(), init=model, **FAST)
    assert not better.latent_model.likelihood.coefficient
    with pytest.raises(recmix.RecmixError, match="own likelihood"):
        recmix.load(tmp_path / "run", device="cpu")
    again = recmix.load(
        tmp_path / "run", likelihood=recmix.likelihoods.Multinomial(coefficient=False), device="cpu"
    )
    torch.testing.assert_close(again.elbo(counts(5), 5), expected)


def test_standardised_features_are_undone_on_output():
    x = table(200)
    model = recmix.fit("vae", x, standardise="features", **FAST)
    seen = model.latent_model.observed(torch.from_numpy(x))
    assert seen.std(0).tolist() == pytest.approx([1.0] * 6, abs=0.2)
    assert abs(float(model.sample(50).mean()) - 100) < 20
    # The density is that of x itself: the volume of the scaling is part of it.
    z = torch.zeros(1, 5, 2)
    found = model.log_joint(x[:5], z)
    inner = model.latent_model.likelihood.log_prob(seen[:5], model.latent_model.decoder_output(z))
    volume = model.latent_model.spread.log().sum()
    prior = model.latent_model.prior.log_prob(z)
    torch.testing.assert_close(found, (inner - volume + prior).detach())


def test_a_fixed_variance_is_not_trained():
    model = recmix.fit("vae", table(), variance=0.25, **FAST)
    assert model.latent_model.likelihood.variance.item() == pytest.approx(0.25)
    same = recmix.fit("vae", table(), likelihood=Gaussian(0.25, learned=False), **FAST)
    assert same.latent_model.likelihood.variance.item() == pytest.approx(0.25)
    assert same.spec.model.variance == pytest.approx(0.25)


def test_none_keeps_x_as_it_is():
    model = recmix.fit("vae", table(), standardise="none", **FAST)
    x = torch.from_numpy(table(5))
    torch.testing.assert_close(model.latent_model.observed(x), x)


def test_sparse_counts_and_a_data_frame():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    pandas = pytest.importorskip("pandas")
    sparse = scipy_sparse.csr_matrix(counts())
    one = recmix.fit("vae", sparse, likelihood="multinomial", **FAST)
    two = recmix.fit("vae", counts(), likelihood="multinomial", **FAST)
    torch.testing.assert_close(one.elbo(counts(5), 5), two.elbo(counts(5), 5))
    torch.testing.assert_close(one.elbo(sparse[:5], 5), two.elbo(counts(5), 5))
    frame = pandas.DataFrame(table(), columns=list("abcdef"))
    assert recmix.fit("vae", frame, **FAST).spec.shape == (6,)


class TokenEncoder(nn.Module):
    """Reads a dict with tokens and lengths."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 8), nn.Linear(8, 4)

    def forward(self, x):
        mask = torch.arange(7) < x["lengths"][:, None]
        hidden = self.embed(x["tokens"].long()) * mask[..., None]
        return self.head(hidden.sum(1) / x["lengths"][:, None])


class Bits(recmix.likelihoods.Likelihood):
    """A likelihood of two classes that does not say how many classes it has."""

    values = "classes"

    def log_prob(self, x, decoded):
        return recmix.likelihoods.sum_event(torch.distributions.Bernoulli(logits=decoded).log_prob(x), x)

    def sample(self, decoded, generator=None):
        return torch.bernoulli(decoded.sigmoid(), generator=generator)

    def mean(self, decoded):
        return decoded.sigmoid()


def test_a_likelihood_of_your_own_for_classes(tmp_path):
    x = (counts() > 3).astype(np.float32)
    model = recmix.fit("vae", x, likelihood=Bits(), **FAST)
    assert model.elbo(x).shape == (len(x),)
    model.export(tmp_path / "exported")
    with pytest.raises(DataError, match="needs class numbers"):
        recmix.fit("vae", x + 0.5, likelihood=Bits(), **FAST)


class TokenLikelihood(recmix.likelihoods.Likelihood):
    """Categorical over tokens up to the length, which is given."""

    def output_shape(self, shape):
        return (7, 5)

    def log_prob(self, x, decoded):
        mask = torch.arange(7) < x["lengths"][:, None]
        log_p = decoded.log_softmax(-1)
        chosen = x["tokens"].long().expand(log_p.shape[:-1])[..., None]
        return (log_p.gather(-1, chosen).squeeze(-1) * mask).sum(-1)

    def residual(self, x, decoded):
        mask = torch.arange(7) < x["lengths"][:, None]
        hot = torch.nn.functional.one_hot(x["tokens"].long(), 5)
        return (hot - decoded.softmax(-1)) * mask[..., None]

    def precision(self, x, decoded):
        mask = torch.arange(7) < x["lengths"][:, None]
        p = decoded.softmax(-1)
        return p * (1 - p) * mask[..., None]

    def sample(self, decoded, generator=None):
        return torch.distributions.Categorical(logits=decoded).sample().float()


@pytest.mark.parametrize("method", ["vae", "rme", "me", "residual", "sa"])
def test_examples_with_several_fields(method):
    rng = np.random.default_rng(0)
    x = {"tokens": rng.integers(0, 5, (60, 7)), "lengths": rng.integers(1, 8, 60)}
    decoder = nn.Sequential(nn.Linear(2, 35), nn.Unflatten(1, (7, 5)))
    own = {"encoder": TokenEncoder(), "decoder": decoder, "likelihood": TokenLikelihood()}
    model = recmix.fit(method, x, vae_epochs=1, **own, **FAST)
    few = {name: value[:5] for name, value in x.items()}
    assert model.log_likelihood(few, 5).shape == (5,)
    assert model.refined(1).elbo(few, 5).isfinite().all()


def test_values_that_do_not_fit_the_likelihood_are_refused():
    with pytest.raises(DataError, match="poisson likelihood needs counts"):
        recmix.fit("vae", table() - 100, likelihood="poisson", **FAST)
    with pytest.raises(DataError, match="categorical likelihood needs"):
        recmix.fit("vae", table() - 100, likelihood="categorical", classes=5, **FAST)
    with pytest.raises(DataError, match="bernoulli likelihood needs"):
        recmix.fit("vae", table(), likelihood="bernoulli", **FAST)
    with pytest.raises(ConfigError, match="unknown likelihood 'gausian'"):
        recmix.fit("vae", table(), likelihood="gausian", **FAST)
    with pytest.raises(ConfigError, match="unknown prior"):
        recmix.fit("vae", table(), prior="vampire", **FAST)


def test_small_images_use_a_network_that_fits():
    x = np.random.default_rng(0).random((40, 1, 5, 5)).astype(np.float32)
    model = recmix.fit("vae", x, **FAST)
    assert model.spec.model.network == "mlp"
    assert model.sample(2).shape == (2, 1, 5, 5)


def test_a_resnet_can_be_chosen():
    x = np.random.default_rng(0).random((40, 1, 8, 8)).astype(np.float32)
    model = recmix.fit("vae", x, network="resnet", widths="8,16", blocks=1, **FAST)
    assert model.refined(1).elbo(x[:3], 3).isfinite().all()  # also for channels-last weights
    assert model.log_likelihood(x[:3], 3).isfinite().all()
