"""Networks for graphs: invariances, derivatives, and wrong sizes."""

import numpy as np
import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

from recmix.data import check_values
from recmix.errors import ConfigError, DataError
from recmix.methods.gates import Gate, WeightNet, token_classes
from recmix.methods.residual import Corrector
from recmix.model.encoder_decoder import reset
from recmix.model.fields import Fields
from recmix.model.graph_networks import graph_decoder, graph_encoder
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Categorical
from recmix.model.likelihoods.graph import CategoricalGraph
from recmix.model.similar_encoder import similar_encoder

SIZES = {"node_classes": 4, "edge_classes": 3, "units": 8, "blocks": 1}
NODES, SHAPE, FIELDS = 5, (15,), Fields({"nodes": (5,), "edges": (10,)})
LIKELIHOOD = CategoricalGraph(NODES, 4, 3)


def graphs_of(count, seed=0):
    decoded = torch.zeros(count, *LIKELIHOOD.output_shape(SHAPE)).double()
    decoded[:, [0, 4, 8]] = -3  # few small graphs
    return LIKELIHOOD.sample(decoded, torch.Generator().manual_seed(seed))


def encoder_of(nodes=NODES):
    torch.manual_seed(0)
    return graph_encoder((nodes * (nodes + 1) // 2,), 2, **SIZES).double().eval()


def unordered(nodes=NODES):
    """An encoder that does not use the indices of the nodes."""
    encoder = encoder_of(nodes)
    torch.nn.init.zeros_(encoder.features.position.weight)
    return encoder


def square(edges, nodes):
    """Edges (B, n(n-1)/2) as symmetric matrices (B, n, n)."""
    full = torch.zeros(len(edges), nodes, nodes).to(edges)
    rows, columns = torch.triu_indices(nodes, nodes, 1)
    full[:, rows, columns] = full[:, columns, rows] = edges
    return full


def test_dicts_and_packed_graphs_are_equal():
    x = graphs_of(9)
    encoder = encoder_of()
    torch.testing.assert_close(encoder(FIELDS.unpack(x)), encoder(x))
    assert encoder(x).shape == (9, 4)
    assert encoder(x).std(0).min() > 1e-3  # graphs are distinguished


def test_without_positions_the_order_of_nodes_does_not_matter():
    x = graphs_of(30)
    x = x[(x[:, :NODES] > 0).all(1)]  # all nodes exist
    assert len(x) > 3
    order = torch.tensor([3, 0, 4, 1, 2])
    rows, columns = torch.triu_indices(NODES, NODES, 1)
    edges = square(x[:, NODES:], NODES)[:, order][:, :, order][:, rows, columns]
    permuted = torch.cat([x[:, :NODES][:, order], edges], 1)
    free, fixed = unordered(), encoder_of()
    torch.testing.assert_close(free(permuted), free(x))
    assert (fixed(permuted) - fixed(x)).abs().max() > 1e-3


@pytest.mark.parametrize("marker", [0.0, -1.0, -7.0])
def test_padding_has_no_influence(marker):
    x = graphs_of(20)
    nodes, edges = x[:, :NODES], x[:, NODES:]
    other = torch.cat([nodes.where(nodes > 0, marker), edges.where(edges > 0, marker)], 1)
    for encoder in (encoder_of(), unordered()):
        torch.testing.assert_close(encoder(other), encoder(x), rtol=0, atol=0)


def test_more_room_for_nodes_has_no_influence():
    x = graphs_of(20)
    larger = 8
    rows, columns = torch.triu_indices(larger, larger, 1)
    edges = torch.full((20, larger, larger), -1.0, dtype=torch.float64)
    edges[:, :NODES, :NODES] = square(x[:, NODES:], NODES)
    nodes = torch.cat([x[:, :NODES], torch.full((20, 3), -1.0).double()], 1)
    narrow, wide = unordered(), unordered(larger)
    weights = {k: v for k, v in narrow.state_dict().items() if "position" not in k}
    assert wide.load_state_dict(weights, strict=False).missing_keys == ["features.position.weight"]
    found = wide(torch.cat([nodes, edges[:, rows, columns]], 1))
    torch.testing.assert_close(found, narrow(x))


def test_the_kind_of_an_edge_matters():
    x = torch.tensor([[1, 1, 0, -1, -1, 1, *[-1] * 9], [1, 1, 0, -1, -1, 2, *[-1] * 9]]).double()
    first, second = encoder_of()(x)
    assert (first - second).abs().max() > 1e-4


def test_decoder_gives_what_the_likelihood_reads():
    decoder = graph_decoder(SHAPE, 2, LIKELIHOOD.output_shape(SHAPE), **SIZES).double()
    z = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    decoded = decoder(z)
    assert decoded.shape == (7, *LIKELIHOOD.output_shape(SHAPE))
    log_p = LIKELIHOOD.log_prob(graphs_of(7), decoded[None])
    assert log_p.shape == (1, 7)
    log_p.sum().backward()
    assert all(p.grad is not None for p in decoder.parameters())


def test_derivatives_of_the_decoder_agree_in_both_modes():
    torch.manual_seed(0)
    decoder = graph_decoder(SHAPE, 2, **SIZES).double()
    z = torch.randn(3, 2, dtype=torch.float64)

    def one(point):
        return decoder(point[None]).squeeze(0)

    torch.testing.assert_close(vmap(jacfwd(one))(z), vmap(jacrev(one))(z))
    twice = torch.autograd.functional.hessian(lambda p: one(p).square().sum(), z[0])
    torch.testing.assert_close(jacfwd(jacrev(lambda p: one(p).square().sum()))(z[0]), twice)


def test_reset_gives_new_parameters():
    for network in (encoder_of(), graph_decoder(SHAPE, 2, **SIZES)):
        before = {name: value.clone() for name, value in network.state_dict().items()}
        reset(network)
        moved = [name for name, value in network.state_dict().items() if (value != before[name]).any()]
        assert {name.split(".")[0] for name in moved} == {name.split(".")[0] for name in before}


def test_a_small_model_learns_graphs():
    torch.manual_seed(0)
    x = graphs_of(4)
    encoder = encoder_of()
    decoder = graph_decoder(SHAPE, 2, **SIZES).double()
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.03)
    for _ in range(100):
        optimizer.zero_grad()
        loss = -LIKELIHOOD.log_prob(x, decoder(encoder(x)[:, :2])[None]).mean()
        loss.backward()
        optimizer.step()
    found = LIKELIHOOD.most_likely(decoder(encoder(x)[:, :2]))
    torch.testing.assert_close(found, x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": 0}, "units=0"),
        ({"blocks": 0}, "blocks=0"),
        ({"units": 6, "heads": 4}, "multiple of 4"),
        ({"activation": "swoosh"}, "activation 'swoosh'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        graph_decoder(SHAPE, 2, **{**SIZES, **options})


def test_another_likelihood_is_refused():
    with pytest.raises(ConfigError, match="use likelihood 'graph'"):
        graph_decoder(SHAPE, 2, SHAPE, **SIZES)


def model_of():
    decoder = graph_decoder(SHAPE, 2, **SIZES)
    return LatentModel(decoder, LIKELIHOOD, latent=2, shape=SHAPE, fields=None)


def test_a_similar_encoder_has_the_sizes_of_the_given_one():
    given = graph_encoder(SHAPE, 2, **SIZES | {"units": 12, "blocks": 3})
    wide = similar_encoder(given, model_of(), 2.0)
    assert (wide.hidden, len(wide.features.layers)) == (24, 6)
    assert wide(graphs_of(3).float()).shape == (3, 4)


def test_gates_and_corrections_see_classes_not_their_numbers():
    """With numbers, three classes on a line would give three outputs on a line before the first ReLU."""
    torch.manual_seed(0)
    encoder = graph_encoder(SHAPE, 2, **SIZES)
    classes = token_classes(encoder)
    x = torch.ones(3, *SHAPE, dtype=torch.float64)
    x[:, 0] = torch.tensor([1.0, 2.0, 3.0])  # the class of the first node
    corrector = Corrector(model_of(), like=encoder)
    zeros = torch.zeros(3, NODES * 4 + 10 * 3, dtype=torch.float64)
    layers = [Gate(SHAPE, classes=classes).layers, WeightNet(SHAPE, 2, classes=classes).layers]
    first = [layer.double()[:2](x) for layer in layers]
    features, seen = corrector.features.double(), []
    linear = next(part for part in features.modules() if isinstance(part, torch.nn.Linear))
    linear.register_forward_hook(lambda _layer, _given, out: seen.append(out))
    features(x, zeros)
    for out in [*first, *seen]:
        assert (out[1] - (out[0] + out[2]) / 2).abs().max() > 1e-3


def test_nodes_and_edges_are_checked_against_their_own_classes():
    x = np.ones((2, *SHAPE), np.float32)
    x[1, 0] = 3  # a node class, but no edge class
    check_values(x, LIKELIHOOD.requirement, "graph")
    x[1, NODES] = 3
    with pytest.raises(DataError, match=r"from 0 to 3, then 10 edges of classes from 0 to 2.*example 1"):
        check_values(x, LIKELIHOOD.requirement, "graph")


@pytest.mark.parametrize("likelihood", [LIKELIHOOD, Categorical(3)], ids=["graph", "categorical"])
def test_classes_are_drawn_without_waiting_for_the_device(likelihood, monkeypatch):
    monkeypatch.setattr(torch, "multinomial", None)  # it copies a value to the CPU
    decoded = torch.zeros(5, *likelihood.output_shape(SHAPE))
    assert likelihood.sample(decoded).shape == (5, *SHAPE)
