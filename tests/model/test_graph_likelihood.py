"""The likelihood of graphs: it sums to one, ignores padding, and its derivatives are exact."""

import itertools

import pytest
import torch
from torch.func import hessian, jvp

from recmix.errors import ConfigError
from recmix.model.fields import Fields
from recmix.model.likelihoods.graph import CategoricalGraph, graph_nodes
from recmix.model.likelihoods.likelihood import LIKELIHOODS

LIKELIHOOD = CategoricalGraph(3, node_classes=3, edge_classes=2)
OUTPUTS = 3 * 3 + 3 * 2
FIELDS = Fields({"nodes": (3,), "edges": (3,)})


def decoded_of(*lead, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, OUTPUTS, generator=generator, dtype=torch.float64)


def graphs_of(count, seed=1):
    """Graphs of different sizes, drawn from uniform classes."""
    return LIKELIHOOD.sample(torch.zeros(count, OUTPUTS).double(), torch.Generator().manual_seed(seed))


def all_graphs(nodes, node_classes, edge_classes):
    """All graphs of up to `nodes` nodes, packed."""
    pairs = list(itertools.combinations(range(nodes), 2))
    for size in range(nodes + 1):
        exists = [i < size and j < size for i, j in pairs]
        rest = [0] * (size < nodes) + [-1] * (nodes - size - 1)
        for kinds in itertools.product(range(1, node_classes), repeat=size):
            choices = [range(edge_classes) if there else [-1] for there in exists]
            for edges in itertools.product(*choices):
                yield [*kinds, *rest, *edges]


@pytest.mark.parametrize(("nodes", "node_classes", "edge_classes"), [(2, 3, 4), (3, 3, 2)])
def test_probabilities_of_all_graphs_sum_to_one(nodes, node_classes, edge_classes):
    likelihood = CategoricalGraph(nodes, node_classes, edge_classes)
    x = torch.tensor(list(all_graphs(nodes, node_classes, edge_classes)), dtype=torch.float64)
    (size,) = likelihood.output_shape((nodes * (nodes + 1) // 2,))
    decoded = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for noise in (1.0, 2.5):
        total = likelihood.tempered(noise).log_prob(x, decoded.expand(1, len(x), -1)).logsumexp(-1)
        torch.testing.assert_close(total, torch.zeros_like(total))


def test_dicts_and_packed_graphs_are_equal():
    x, decoded = graphs_of(20), decoded_of(4, 20)
    fields = FIELDS.unpack(x)
    torch.testing.assert_close(LIKELIHOOD.log_prob(fields, decoded), LIKELIHOOD.log_prob(x, decoded))
    assert LIKELIHOOD.log_prob(fields, decoded).shape == (4, 20)
    for name in ("residual", "precision"):
        method = getattr(LIKELIHOOD, name)
        torch.testing.assert_close(method(fields, decoded[0]), method(x, decoded[0]))


def test_samples_follow_the_probabilities_and_are_consistent():
    decoded = decoded_of()
    drawn = LIKELIHOOD.sample(decoded.expand(40_000, -1), torch.Generator().manual_seed(0))
    known = torch.tensor(list(all_graphs(3, 3, 2)), dtype=torch.float64)
    same = (drawn[:, None] == known).all(-1)
    assert (same.sum(1) == 1).all()  # each sample is one of the consistent graphs
    expected = LIKELIHOOD.log_prob(known, decoded.expand(1, len(known), -1)).exp().squeeze(0)
    torch.testing.assert_close(same.double().mean(0), expected, atol=0.01, rtol=0)


def test_most_likely_takes_the_largest_logits():
    nodes = torch.tensor([[0.0, 0, 5], [5, 0, 0], [0, 5, 0]])
    edges = torch.tensor([[0.0, 5], [0, 5], [5, 0]])
    decoded = torch.cat([nodes.flatten(), edges.flatten()])
    assert LIKELIHOOD.most_likely(decoded).tolist() == [2, 0, -1, -1, -1, -1]
    decoded[3:6] = torch.tensor([0.0, 5, 0])
    assert LIKELIHOOD.most_likely(decoded[None]).tolist() == [[2, 1, 1, 1, 1, 0]]


@pytest.mark.parametrize("noise", [1.0, 1.7])
def test_residual_and_fisher_are_the_derivatives_of_log_p(noise):
    likelihood = LIKELIHOOD.tempered(noise)
    x, decoded = graphs_of(6), decoded_of(6)

    def log_p(logits, example):
        return likelihood.log_prob(example[None], logits[None]).squeeze(0)

    slopes = torch.func.vmap(torch.func.grad(log_p))(decoded, x)
    torch.testing.assert_close(likelihood.residual(x, decoded), slopes)
    # log p is log-softmax of the logits: its Hessian does not depend on the classes of x
    curvature = -torch.stack([hessian(log_p)(d, e) for d, e in zip(decoded, x, strict=True)])
    found = likelihood.fisher(x, decoded, torch.eye(OUTPUTS).double().expand(6, -1, -1))
    torch.testing.assert_close(found, curvature)
    torch.testing.assert_close(likelihood.precision(x, decoded), curvature.diagonal(dim1=1, dim2=2))


def test_padding_has_no_influence():
    x = torch.tensor([[2.0, 0, -1, -1, -1, -1]], dtype=torch.float64)
    decoded = decoded_of(1)
    residual = LIKELIHOOD.residual(x, decoded)
    assert (residual[:, 6:] == 0).all()
    assert (residual[:, :6] != 0).all()
    changed = decoded.clone()
    changed[:, 6:] += 3
    before, after = (LIKELIHOOD.log_prob(x, value) for value in (decoded, changed))
    torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_mean_gives_class_probabilities():
    nodes, edges = LIKELIHOOD.split(LIKELIHOOD.mean(decoded_of(5)))
    assert (nodes.shape, edges.shape) == ((5, 3, 3), (5, 3, 2))
    for part in (nodes, edges):
        torch.testing.assert_close(part.sum(-1), torch.ones_like(part.sum(-1)))


def test_forward_mode_works():
    x, decoded = graphs_of(4), decoded_of(4)
    direction = decoded_of(4, seed=3)
    _, along = jvp(lambda d: LIKELIHOOD.log_prob(x, d), (decoded,), (direction,))
    torch.testing.assert_close(along, (LIKELIHOOD.residual(x, decoded) * direction).sum(-1))


def test_it_is_made_by_name_and_from_its_options():
    made = LIKELIHOODS["graph"](nodes=4, node_classes=3, edge_classes=2)
    assert made.named
    again = CategoricalGraph.for_data((10,), **made.model_options())
    assert repr(again) == repr(made)
    assert again.output_shape((10,)) == (4 * 3 + 6 * 2,)
    assert again.requirement == "graph:3*4+2*6"
    assert not list(made.state_dict())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((1, 3, 2), "nodes=1"), ((3, 1, 2), "node_classes=1"), ((3, 2, 0), "edge_classes=0")],
)
def test_wrong_sizes_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        CategoricalGraph(*sizes)


def test_other_shapes_are_refused():
    assert [graph_nodes((n * (n + 1) // 2,)) for n in range(2, 50)] == list(range(2, 50))
    for shape in [(4,), (1,), (2, 5), (1, 28, 28)]:
        with pytest.raises(ConfigError, match="expected"):
            graph_nodes(shape)
