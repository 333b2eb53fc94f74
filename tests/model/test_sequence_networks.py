"""Encoders and decoders of tokens: padding, sizes, wider copies, features of pairs."""

import pytest
import torch
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.methods.gates import Gate, WeightNet, token_classes
from recmix.model.encoder_decoder import parameter_count
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Categorical
from recmix.model.mlp import mlp_encoder
from recmix.model.networks import Encoder, make_decoder, make_encoder
from recmix.model.pair_features import TokenPairFeatures
from recmix.model.sequence_layers import GRU, TransformerBlock
from recmix.model.sequence_networks import GRUFeatures, TokenFeatures, TransformerFeatures
from recmix.model.similar_encoder import similar_encoder, token_features

LENGTH, CLASSES = 6, 5
double = torch.float64
X = torch.tensor([[3.0, 1, 4, 0, -1, -1], [2, 0, -1, -1, -1, -1], [1, 1, 2, 4, 3, 0]]).double()
each_kind = pytest.mark.parametrize("kind", ["transformer", "gru"])


def encoder(kind, length=LENGTH, **options):
    torch.manual_seed(0)
    return make_encoder(kind, (length,), 2, classes=CLASSES, units=8, **options).double().eval()


@each_kind
def test_padding_has_no_influence(kind):
    network = encoder(kind)
    expected = network(X)
    for row, text in enumerate(X):
        tokens = text[text >= 0]
        shorter = encoder(kind, len(tokens))
        state = {k: v[: len(tokens)] if "places" in k else v for k, v in network.state_dict().items()}
        shorter.load_state_dict(state)
        torch.testing.assert_close(shorter(tokens[None])[0], expected[row])
    assert not torch.allclose(network(X.clamp(min=0)), expected)


@each_kind
def test_every_token_and_its_place_are_read(kind):
    network = encoder(kind)
    text = X[2:]
    for t in range(LENGTH):
        other = text.clone()
        other[0, t] = (other[0, t] + 1) % CLASSES
        assert (network(other) - network(text)).abs().max() > 1e-6
    assert (network(text.flip(1)) - network(text)).abs().max() > 1e-6


@each_kind
def test_an_example_of_padding_alone_is_finite(kind):
    network = encoder(kind)
    network(torch.full((2, LENGTH), -1.0).double()).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


@each_kind
def test_fused_kernels_give_the_same_result(kind):
    torch.manual_seed(0)
    h = torch.randn(3, LENGTH, 8, dtype=double)
    if kind == "gru":
        layers = GRU(8).double(), GRU(8, fused=True).double()
        arguments = ()
    else:
        layers = (TransformerBlock(8, 2, fused=fused).double() for fused in (False, True))
        arguments = ((X < 0)[:, None],)
    plain, fused = layers
    fused.load_state_dict(plain.state_dict())
    torch.testing.assert_close(plain(h, *arguments), fused(h, *arguments))
    with torch.no_grad():
        torch.testing.assert_close(plain(h, *arguments), fused(h, *arguments))


def test_the_written_out_cell_is_that_of_torch():
    torch.manual_seed(0)
    layer, reference = GRU(8).double(), nn.GRU(8, 8, batch_first=True).double()
    reference.load_state_dict(layer.cell.state_dict())
    h = torch.randn(3, LENGTH, 8, dtype=double, requires_grad=True)
    torch.testing.assert_close(layer(h), reference(h)[0])
    state = torch.zeros(3, 8, dtype=double)
    for t in range(LENGTH):
        state = layer.advance(h[:, t], state)
    torch.testing.assert_close(state, reference(h)[0][:, -1])


@each_kind
def test_decoders_have_forward_mode_and_second_derivatives(kind):
    torch.manual_seed(0)
    decoder = make_decoder(kind, (LENGTH,), 2, (LENGTH, CLASSES), units=8).double()
    z = torch.randn(1, 2, dtype=double)
    forward = torch.func.jacfwd(decoder)(z)
    reverse = torch.func.jacrev(decoder)(z)
    torch.testing.assert_close(forward, reverse)
    twice = torch.func.jacfwd(torch.func.jacfwd(decoder))(z)
    again = torch.func.jacrev(torch.func.jacrev(decoder))(z)
    torch.testing.assert_close(twice, again)
    at = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(decoder(at).square().sum(), at, create_graph=True)
    torch.autograd.grad(slope.sum(), at)


@each_kind
def test_dropout_is_for_training_only(kind):
    for network in (
        encoder(kind, dropout=0.5),
        make_decoder(kind, (LENGTH,), 2, (LENGTH, 3), units=8, dropout=0.5).double().eval(),
    ):
        x = X if isinstance(network, Encoder) else torch.randn(3, 2, dtype=double)
        assert torch.equal(network(x), network(x))
        network.train()
        assert not torch.equal(network(x), network(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": 9, "heads": 2}, "units=9, heads=2"),
        ({"dropout": 1.0}, r"dropout=1.0"),
        ({"blocks": 0}, "blocks=0"),
        ({"classes": 1}, "classes=1"),
        ({"activation": "sine"}, "unknown activation"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make_encoder("transformer", (5,), 2, **({"classes": 5} | options))


def model(classes=CLASSES):
    return LatentModel(nn.Identity(), Categorical(classes), latent=2, shape=(LENGTH,))


@pytest.mark.parametrize("features", [TransformerFeatures, GRUFeatures])
def test_a_similar_encoder_is_of_the_same_kind(features):
    given = Encoder(features(LENGTH, CLASSES, units=12, heads=2, blocks=3), nn.Linear(12, 4))
    wide = similar_encoder(given, model(), 2.0)
    assert type(wide.features) is features
    assert (wide.hidden, len(wide.features.layers)) == (24, 3)
    assert parameter_count(wide) > 2 * parameter_count(given)
    assert wide(X.float()).shape == (3, 4)


def test_features_of_tokens_for_encoders_of_ones_own():
    assert isinstance(token_features(nn.Flatten(), model(), 1.0), TokenFeatures)
    assert token_features(mlp_encoder((LENGTH,), 2), model(), 1.0) is None
    assert token_classes(encoder("gru")) == CLASSES
    assert token_classes(mlp_encoder((LENGTH,), 2)) == token_classes(nn.Flatten()) == 0
    image = LatentModel(nn.Identity(), Categorical(3), latent=2, shape=(1, 8, 8))
    assert token_features(nn.Flatten(), image, 1.0) is None


@pytest.mark.parametrize("other", [(LENGTH, CLASSES), (7,)])
def test_pairs_of_tokens_and_residuals(other):
    torch.manual_seed(0)
    pair = TokenPairFeatures(TransformerFeatures(LENGTH, CLASSES, units=8), other).double()
    residual = torch.randn(3, *other, dtype=double)
    found = pair(X, residual)
    assert found.shape == (3, pair.hidden)
    assert not torch.allclose(found, pair(X, 2 * residual))
    if len(other) == 2:  # what belongs to padding is not read
        changed = torch.where((X < 0)[..., None], 5.0, residual)
        torch.testing.assert_close(found, pair(X, changed))


def test_the_fused_gru_has_the_precision_of_other_matrix_products(monkeypatch):
    layer, seen = GRU(4), []
    hook = layer.cell.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cudnn.allow_tf32))
    before = torch.backends.cudnn.allow_tf32
    with torch.no_grad():
        for precision in ("highest", "high"):
            monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda found=precision: found)
            layer(torch.zeros(2, 3, 4))
    hook.remove()
    assert seen == [False, True]
    assert torch.backends.cudnn.allow_tf32 == before


def test_gates_count_tokens():
    torch.manual_seed(0)
    for network in (Gate((LENGTH,), classes=CLASSES), WeightNet((LENGTH,), 3, classes=CLASSES)):
        scores = network.double().layers
        torch.testing.assert_close(scores(X), scores(X[:, [1, 0, 2, 3, 4, 5]]))
        assert not torch.allclose(scores(X), scores((X + 1) % CLASSES))


def test_a_vamp_prior_of_tokens_is_refused():
    data = recmix.data.from_texts(["a b", "b c a", "c", "a c", "b b", "c c a", "a", "b"])
    with pytest.raises(ConfigError, match=r"prior='vamp'.*prior='mixture'"):
        recmix.fit("vae", data, prior="vamp", epochs=1, progress=False)
