"""The autoregressive likelihood: probabilities of texts, causality, samples, curvature, storage."""

import itertools
import math

import pytest
import torch
from cases.likelihoods import log_marginal
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.methods.optimizers import model_groups
from recmix.model.causal_networks import CAUSAL
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Autoregressive, Categorical
from recmix.objectives import iwae
from recmix.posteriors import Gaussian

LENGTH, CLASSES, UNITS = 4, 3, 8
double = torch.float64
each_network = pytest.mark.parametrize("causal", sorted(CAUSAL))


def make(causal="transformer", **options):
    torch.manual_seed(0)
    settings = {"units": UNITS, "heads": 2, "end_token": True} | options
    made = Autoregressive((LENGTH,), CLASSES, causal=causal, **settings).double().eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return made


def contexts(count=2, seed=1):
    return torch.randn(count, UNITS, dtype=double, generator=torch.Generator().manual_seed(seed))


def all_texts():
    """Every text of at most LENGTH words and its end, and the texts that are too long for an end."""
    rows = []
    for count in range(LENGTH + 1):
        for words in itertools.product(range(1, CLASSES), repeat=count):
            row = [*words, *([0] if count < LENGTH else [])]
            rows.append(row + [-1] * (LENGTH - len(row)))
    return torch.tensor(rows).double()


@each_network
def test_probabilities_of_all_texts_sum_to_one(causal):
    likelihood, x = make(causal), all_texts()
    for context in contexts(3):
        total = likelihood.log_prob(x, context.expand(len(x), -1)).logsumexp(0)
        assert total.item() == pytest.approx(0, abs=1e-12)


@each_network
def test_log_prob_is_that_of_a_literal_loop(causal):
    likelihood, x = make(causal), all_texts()[5:12]
    context = torch.stack([contexts(len(x), seed) for seed in (1, 2)])  # (S, B, F)
    expected = torch.zeros(2, len(x), dtype=double)
    for s, b in itertools.product(range(2), range(len(x))):
        for t in range(LENGTH):
            if x[b, t] < 0:
                break
            seen = torch.where(torch.arange(LENGTH) < t, x[b], torch.zeros(LENGTH).double())
            logits = likelihood.logits(seen[None], context[s, b][None])[0, t]
            expected[s, b] += logits.log_softmax(-1)[int(x[b, t])]
    found = likelihood.log_prob(x, context)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(likelihood.log_prob(x, context[1]), expected[1])


@each_network
def test_a_token_has_no_influence_on_itself_and_on_earlier_ones(causal):
    likelihood, context = make(causal), contexts(1)
    x = torch.tensor([[1.0, 2, 1, 2]]).double()
    before = likelihood.logits(x, context)
    for t in range(LENGTH):
        other = x.clone()
        other[0, t] = 0
        after = likelihood.logits(other, context)
        torch.testing.assert_close(after[:, : t + 1], before[:, : t + 1], rtol=0, atol=1e-14)
        if t < LENGTH - 1:
            assert (after[:, t + 1 :] - before[:, t + 1 :]).abs().amax(-1).min() > 1e-9
    assert (likelihood.logits(x, 2 * context) - before).abs().amax(-1).min() > 1e-6  # z everywhere


@each_network
def test_samples_have_the_probabilities_of_log_prob(causal):
    likelihood, context, x = make(causal), contexts(1), all_texts()
    count = 20_000
    drawn = likelihood.sample(context.expand(count, -1), torch.Generator().manual_seed(0))
    rows, counts = torch.unique(drawn, dim=0, return_counts=True)
    shares = {tuple(row.tolist()): n / count for row, n in zip(rows, counts.tolist(), strict=True)}
    p = likelihood.log_prob(x, context.expand(len(x), -1)).exp()
    assert set(shares) <= {tuple(row.tolist()) for row in x}
    for row, expected in zip(x, p.tolist(), strict=True):
        error = 5 * math.sqrt(expected * (1 - expected) / count) + 1e-3
        assert abs(shares.get(tuple(row.tolist()), 0.0) - expected) < error


@each_network
def test_the_most_likely_tokens(causal):
    likelihood, context = make(causal), contexts(6)
    tokens = likelihood.most_likely(context)
    chosen = likelihood.logits(tokens, context).argmax(-1).double()
    assert torch.equal(torch.where(tokens >= 0, chosen, -1.0), tokens)
    mean = likelihood.mean(context)
    assert mean.shape == (6, LENGTH, CLASSES)
    assert torch.equal(mean.sum(-1), (tokens >= 0).double())
    assert torch.equal(mean.argmax(-1).double()[tokens >= 0], tokens[tokens >= 0])


def test_without_an_end_token_samples_have_no_padding():
    likelihood = make(end_token=False)
    assert (likelihood.sample(contexts(50)) >= 0).all()
    assert (make().sample(contexts(50)) < 0).any()
    logits = torch.zeros(50, LENGTH, CLASSES)
    assert (Categorical(CLASSES).sample(logits) >= 0).all()
    assert (Categorical(CLASSES, end_token=True).sample(logits) < 0).any()


def test_examples_of_several_axes_are_read_in_their_order():
    torch.manual_seed(0)
    likelihood = Autoregressive((2, 2), CLASSES, units=8).double()
    flat = Autoregressive((4,), CLASSES, units=8).double()
    flat.load_state_dict(likelihood.state_dict())
    x = torch.tensor([[[1.0, 0], [2, 1]]]).double()
    torch.testing.assert_close(
        likelihood.log_prob(x, contexts(1)), flat.log_prob(x.flatten(1), contexts(1))
    )
    assert likelihood.sample(contexts(3)).shape == (3, 2, 2)


@each_network
@pytest.mark.parametrize("noise", [1.0, 1.7])
def test_fisher_is_the_gauss_newton_matrix(causal, noise):
    likelihood = make(causal).tempered(noise)
    x, context = torch.tensor([[1.0, 0, -1, -1], [2, 1, 1, 0]]).double(), contexts(2)

    def logits(context, x):
        return likelihood.logits(x[None], context[None])[0]

    forward = torch.func.vmap(torch.func.jacfwd(logits))(context, x)
    reverse = torch.func.vmap(torch.func.jacrev(logits))(context, x)
    torch.testing.assert_close(forward, reverse)
    p = likelihood.logits(x, context).softmax(-1)
    w = (torch.diag_embed(p) - p[..., :, None] * p[..., None, :]) * (x >= 0)[..., None, None]
    expected = torch.einsum("btkf,btkl,btlg->bfg", forward, w, forward)
    vectors = torch.randn(2, UNITS, 5, dtype=double)
    torch.testing.assert_close(likelihood.fisher(x, context, vectors), expected @ vectors)
    diagonal = expected.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(likelihood.precision(x, context), diagonal)
    estimate = likelihood.mean_precision(x, context) / diagonal.mean(1)
    assert ((estimate > 0.2) & (estimate < 5)).all()


@each_network
def test_fisher_in_parts_and_with_gradients_to_the_network(causal, monkeypatch):
    likelihood = make(causal)
    x, context, vectors = all_texts()[3:6], contexts(3), torch.randn(3, UNITS, 5, dtype=double)
    whole = likelihood.fisher(x, context, vectors)
    monkeypatch.setattr("recmix.model.likelihoods.autoregressive.TANGENT_VALUES", {"cpu": 1})
    torch.testing.assert_close(likelihood.fisher(x, context, vectors), whole)
    weight = likelihood.network.inward.weight
    (slope,) = torch.autograd.grad(whole.sum(), weight)
    with torch.no_grad():
        weight[0, 1] += 1e-6
        after = likelihood.fisher(x, context, vectors).sum()
    assert slope[0, 1].item() == pytest.approx((after - whole.sum()).item() / 1e-6, rel=1e-3, abs=1e-6)


@each_network
def test_the_curvature_has_no_dropout(causal):
    likelihood = make(causal, dropout=0.5, token_dropout=0.5)
    x, context, vectors = all_texts()[3:6], contexts(3), torch.randn(3, UNITS, 5, dtype=double)
    expected = likelihood.fisher(x, context, vectors)
    torch.testing.assert_close(likelihood.train().fisher(x, context, vectors), expected)
    assert all(part.training for part in likelihood.modules())


@each_network
def test_importance_samples_agree_with_quadrature(causal):
    likelihood = make(causal)
    decoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, UNITS)).double()
    model = LatentModel(decoder, likelihood, latent=2, shape=(LENGTH,)).double()
    x = all_texts()[[1, 4, 20]]
    q = Gaussian(torch.zeros(3, 2, dtype=double), torch.full((3, 2), 0.5, dtype=double))
    with torch.no_grad():
        found = iwae(model, x, q, 20_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found, log_marginal(model, x, points=101), atol=0.03, rtol=0)


@each_network
def test_tokens_are_hidden_in_training_only(causal):
    likelihood, x, context = make(causal, token_dropout=0.5), all_texts()[-3:], contexts(3)
    assert torch.equal(likelihood.log_prob(x, context), likelihood.log_prob(x, context))
    before = likelihood.log_prob(x, context)
    likelihood.train()
    drawn = torch.stack([likelihood.log_prob(x, context) for _ in range(20)])
    assert drawn.std(0).min() > 0
    first = likelihood.logits(x, context)[:, 0]
    assert torch.equal(first, likelihood.eval().logits(x, context)[:, 0])  # "start" is not hidden
    torch.testing.assert_close(likelihood.log_prob(x, context), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal": "cnn"}, "unknown value of causal"),
        ({"units": 7}, "units=7, heads=2"),
        ({"token_dropout": 1.0}, "token_dropout=1.0"),
        ({"blocks": 0}, "blocks=0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)
    with pytest.raises(ConfigError, match="classes=1"):
        Autoregressive((3,), 1)


def texts():
    lines = ["a b", "b c a", "c", "a c", "b b a", "c c a", "a", "b", "b a", "c b", "a a", "c a b"]
    return recmix.data.from_texts(lines, lines, length=5)


FAST = {"latent": 2, "epochs": 1, "progress": False, "device": "cpu", "units": 8, "heads": 2}


def test_its_network_is_trained_like_the_decoder():
    model = LatentModel(nn.Linear(2, UNITS), make(), latent=2, shape=(LENGTH,))
    groups = model_groups(model, 1e-3, 10.0)
    assert {group["lr"] for group in groups} == {1e-3}
    owned = [id(p) for group in groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
    noisy = model.with_noise(2.0)
    assert [id(p) for p in noisy.parameters()] == [id(p) for p in model.parameters()]
    x, z = all_texts()[:3], torch.randn(2, 3, 2, dtype=double)
    assert not torch.allclose(noisy.double().log_joint(x, z), model.double().log_joint(x, z))


def test_options_are_stored_and_weights_are_loaded(tmp_path):
    data = texts()
    options = FAST | {"causal": "gru", "blocks": 1, "token_dropout": 0.2, "weight_average": 0.9}
    model = recmix.fit("vae", data, out=tmp_path / "run", **options)
    again = recmix.load(tmp_path / "run", device="cpu")
    network = again.latent_model.likelihood.network
    assert type(network) is CAUSAL["gru"]
    assert (len(network.layers), network.token_dropout, network.units) == (1, 0.2, 8)
    assert again.latent_model.likelihood.end_token
    torch.testing.assert_close(again.elbo(data.x_val, 5), model.elbo(data.x_val, 5))


def test_a_likelihood_given_as_an_object_is_stored_by_its_options(tmp_path):
    data = texts()
    own = Autoregressive(data.shape, data.classes, causal="gru", units=12, blocks=3)
    options = {"latent": 2, "epochs": 1, "device": "cpu"}
    model = recmix.fit("vae", data, likelihood=own, out=tmp_path / "run", **options)
    again = recmix.load(tmp_path / "run", device="cpu")
    torch.testing.assert_close(again.elbo(data.x_val, 5), model.elbo(data.x_val, 5))


def test_weights_are_copied_and_frozen():
    data = texts()
    vae = recmix.fit("vae", data, **FAST)
    start = {k: v.clone() for k, v in vae.latent_model.likelihood.state_dict().items()}
    more = {"init": vae, "epochs": 2, "learning_rate": 1e-2, "progress": False, "device": "cpu"}
    frozen = recmix.fit("rme", data, order=2, train="encoder", keep_weights="last", **more)
    trained = recmix.fit("rme", data, order=2, keep_weights="last", **more)
    found = frozen.latent_model.likelihood.state_dict()
    assert all(torch.equal(found[k], start[k]) for k in start)
    found = trained.latent_model.likelihood.state_dict()
    assert any(not torch.equal(found[k], start[k]) for k in start)


def test_plain_arrays_of_tokens():
    x = torch.randint(4, (40, 5), generator=torch.Generator().manual_seed(0)).numpy()
    model = recmix.fit("vae", x, network="gru", latent=2, epochs=1, units=8, progress=False)
    assert model.spec.model.likelihood == "autoregressive"
    assert (model.spec.model.classes, model.spec.model.end_token) == (4, False)
    model = recmix.fit("vae", x, likelihood="autoregressive", network="mlp", latent=2, epochs=1)
    assert model.log_likelihood(x[:3], 5).isfinite().all()
