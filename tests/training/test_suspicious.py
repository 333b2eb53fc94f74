"""Warnings of data and networks that are probably a mistake."""

import numpy as np
import pytest
import torch
from torch import nn

import recmix
from recmix.data import DataWarning
from recmix.errors import ConfigError, DataError

SHORT = {"epochs": 1, "latent": 2, "device": "cpu", "progress": False}


@pytest.fixture
def bits():
    return (np.random.default_rng(0).random((20, 1, 8, 8)) < 0.5).astype(np.float32)


def test_very_few_examples(bits):
    with pytest.warns(DataWarning, match=r"only 1 training example\(s\)"):
        recmix.fit("vae", bits[:3], **SHORT)


def test_equal_values(bits):
    with pytest.warns(DataWarning, match="all values of the training data are 0"):
        recmix.fit("vae", 0 * bits, **SHORT)


@pytest.fixture
def table():
    """Rows of age, height in metres, income and a constant."""
    rng = np.random.default_rng(0)
    columns = rng.normal(40, 12, 60), rng.normal(1.7, 0.1, 60), rng.normal(4e4, 2e4, 60), np.ones(60)
    return np.stack(columns, 1)


def test_columns_of_very_different_scales(table):
    advice = (
        r'columns differ by a factor of \d\d\d,\d\d\d, .*standardise = "features" \(--standardise fea'
    )
    with pytest.warns(DataWarning, match=advice):
        model = recmix.fit("vae", table, **SHORT)
    assert model.spec.model.likelihood == "gaussian"


@pytest.mark.filterwarnings("ignore:the validation bound")
def test_columns_that_the_likelihood_fits_give_no_warning(table):
    recmix.fit("vae", table, standardise="features", **SHORT)
    recmix.fit("vae", table, likelihood="gaussian-features", **SHORT)
    recmix.fit("vae", table / [1, 0.1, 1000, 1], **SHORT)  # a constant column is ignored
    flag = np.arange(60)[:, None] == 0  # a column that is seldom above 0 has the scale of the others
    recmix.fit("vae", np.hstack([np.random.default_rng(0).normal(20, 20, (60, 1)), flag]), **SHORT)
    pictures = table[:, :3].repeat(3, 1).reshape(-1, 3, 3)
    recmix.fit("vae", recmix.data.ArrayExamples(pictures.astype(np.float32)), **SHORT)


def networks(*last):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    return encoder, nn.Sequential(nn.Linear(2, 64), nn.Unflatten(1, (1, 8, 8)), *last)


def test_a_sigmoid_before_a_bernoulli_likelihood(bits):
    encoder, decoder = networks(nn.Sigmoid())
    with pytest.warns(UserWarning, match="needs logits"):
        recmix.fit("vae", bits, encoder=encoder, decoder=decoder, **SHORT)
    encoder, decoder = networks()
    recmix.fit("vae", bits, encoder=encoder, decoder=decoder, **SHORT)  # no warning


def test_initials_are_understood(bits):
    with pytest.raises(ConfigError, match="unknown option for vae 'lr': did you mean 'learning_rate'"):
        recmix.fit("vae", bits, lr=1e-3)


@pytest.mark.parametrize("own", [True, False])
def test_logits_are_refused_where_probabilities_are_needed(bits, own, tmp_path):
    names = ("encoder", "decoder")
    given = dict(zip(names, networks(), strict=True)) if own else {}
    more = {"likelihood": "bernoulli-probabilities", "out": tmp_path / "run"}
    with pytest.raises(ConfigError, match=r"gives values from -.*use likelihood='bernoulli'"):
        recmix.fit("vae", bits, **given, **more, **SHORT)
    assert not (tmp_path / "run").exists()
    given = dict(zip(names, networks(nn.Sigmoid()), strict=True))
    recmix.fit("vae", bits, **given, **more, **SHORT)


class OtherForm(nn.Module):
    """A trained network whose output is changed."""

    def __init__(self, network, change):
        super().__init__()
        self.network, self.change = network, change

    def forward(self, given):
        return self.change(self.network(given))


@pytest.fixture(scope="module", params=["gaussian", "bernoulli", "bernoulli-probabilities"])
def trained(request):
    """The networks of a VAE trained on digits, its likelihood, and examples."""
    x = recmix.data.load("digits").x_train[:600]
    likelihood, last = request.param, []
    if likelihood == "bernoulli-probabilities":
        x, last = (x > 0.5).astype(np.float32), [nn.Sigmoid()]
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 8))
    decoder = nn.Sequential(
        *(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 64), nn.Unflatten(1, (1, 8, 8)), *last)
    )
    if likelihood == "gaussian":
        likelihood = recmix.likelihoods.Gaussian(0.05, learned=False)
    given = {"encoder": encoder, "decoder": decoder, "likelihood": likelihood, "standardise": "none"}
    how = {"epochs": 40, "batch_size": 50, "learning_rate": 3e-3, "latent": 4, "progress": False}
    recmix.fit("vae", x, device="cpu", **given, **how)
    return encoder.eval(), decoder.eval(), likelihood, torch.from_numpy(x)


def test_a_trained_vae_gives_no_warning(trained):
    encoder, decoder, likelihood, x = trained
    for example in (x, x[:1], x[100:103], 0 * x):
        recmix.wrap(encoder, decoder, likelihood=likelihood, example=example)
    recmix.wrap(encoder, decoder, likelihood=likelihood, latent=4)


@pytest.mark.parametrize(
    "likelihood",
    ["gaussian", "gaussian-features", "gaussian-decoded", "bernoulli", "poisson", "negative-binomial"],
)
def test_a_built_in_vae_gives_no_warning(likelihood):
    x = recmix.data.load("digits").x_train[:300]
    if likelihood in ("poisson", "negative-binomial"):
        x = (16 * x).round().astype(int)
    how = {"likelihood": likelihood, "standardise": "none", "learning_rate": 1e-3}
    model = recmix.fit("vae", x, **SHORT | {"epochs": 10}, **how)
    parts = model.method.base_encoder, model.latent_model.decoder
    recmix.wrap(*parts, likelihood=model.latent_model.likelihood, example=x[:20])


def test_an_untrained_vae_gives_no_warning(trained):
    _, _, likelihood, x = trained
    for seed in range(5):
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 8))
        last = [nn.Sigmoid()] if likelihood == "bernoulli-probabilities" else []
        decoder = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 64), *last)
        decoder.append(nn.Unflatten(1, (1, 8, 8)))
        recmix.wrap(encoder, decoder, likelihood=likelihood, example=x)


@pytest.mark.parametrize(
    ("form", "advice"),
    [
        (lambda log_variance: (log_variance / 2).exp(), r"as mean and std.*\(mean, 2 \* std.log\(\)\)"),
        (lambda log_variance: log_variance.exp(), r"as mean and variance.*\(mean, variance.log\(\)\)"),
        (lambda log_variance: log_variance / 2, r"as mean and log-std.*\(mean, 2 \* log_std\)"),
    ],
    ids=["std", "variance", "log-std"],
)
def test_other_second_outputs_of_an_encoder_are_noted(trained, form, advice):
    encoder, decoder, likelihood, x = trained
    if "log-std" in advice and isinstance(likelihood, str):
        pytest.skip("the posterior is so wide that the difference is less than a nat")

    def change(out):
        mean, log_variance = out.chunk(2, 1)
        return mean, form(log_variance)

    with pytest.warns(UserWarning, match=advice):
        recmix.wrap(OtherForm(encoder, change), decoder, likelihood=likelihood, example=x)


def test_a_trained_sigmoid_before_a_bernoulli_likelihood(trained):
    """Outputs of a trained sigmoid are often exactly 0 or 1."""
    encoder, decoder, likelihood, x = trained
    if likelihood != "bernoulli-probabilities":
        pytest.skip("the decoder has no sigmoid")
    saturated = OtherForm(decoder, lambda p: torch.where(p > 0.99, 1.0, torch.where(p < 0.01, 0.0, p)))
    for how in ({"example": x}, {"example": x[:1]}, {"latent": 4}):
        with pytest.warns(UserWarning, match="use likelihood='bernoulli-probabilities'"):
            recmix.wrap(encoder, saturated, likelihood="bernoulli", **how)


def test_small_positive_logits_are_not_taken_for_probabilities():
    class Constant(nn.Module):
        """Logits between 0.9 and 1."""

        def forward(self, z):
            return 0.9 + 0.1 * z.tanh().square().repeat(1, 3)

    x = (torch.rand(200, 6, generator=torch.Generator().manual_seed(0)) < 0.72).float()
    recmix.wrap(nn.Linear(6, 4), Constant(), likelihood="bernoulli", example=x)


def test_logits_before_a_gaussian_likelihood_are_noted(trained):
    encoder, decoder, likelihood, x = trained
    if likelihood != "bernoulli":
        pytest.skip("the decoder gives no logits")
    gaussian = recmix.likelihoods.Gaussian(0.05)
    with pytest.warns(UserWarning, match=r"the decoder gives values from -\d.*if these are logits"):
        recmix.wrap(encoder, decoder, likelihood=gaussian, example=x)


def test_examples_on_another_scale_are_noted(trained):
    encoder, decoder, likelihood, x = trained
    if isinstance(likelihood, str):
        with pytest.raises(DataError, match="example has the value"):
            recmix.wrap(encoder, decoder, likelihood=likelihood, example=255 * x)
        return
    with pytest.warns(UserWarning, match="if the VAE was trained on x of another scale"):
        recmix.wrap(encoder, decoder, likelihood=likelihood, example=255 * x)


def test_an_encoder_that_is_random_is_noted(trained):
    encoder, decoder, likelihood, x = trained
    noisy = OtherForm(encoder, lambda out: nn.functional.dropout(out, 0.5, training=True))
    with pytest.warns(UserWarning, match="gives other means when it is called again"):
        recmix.wrap(noisy, decoder, likelihood=likelihood, example=x[:1] * 0)
