"""Scores of molecules, against models whose reconstructions and samples are known."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from cases.commands import call
from torch import nn

import recmix
from recmix.errors import ConfigError
from recmix.evaluation.molecules import molecule_scores
from recmix.model.graph_vocabulary import MoleculeGraphs, canonical_smiles
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Categorical
from recmix.model.likelihoods.graph import CategoricalGraph
from recmix.model.sequence_vocabulary import Smiles, Words
from recmix.posteriors import Gaussian, Mixture

pytest.importorskip("rdkit")

SHOWN = ["CCO", "CC=O", "C1CC1", "c1ccccc1", "CC.C"]  # what the model below knows by heart


class Nearest(nn.Module):
    """Decodes z (N, 1) to logits that are certain of the row whose number is nearest to z."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, z):
        return self.logits[z[:, 0].round().long().clamp(0, len(self.logits) - 1)]


class Known:
    """A model that encodes the molecule of row k as N(k, 0.01²), and decodes it without error.

    Where `shift` is not 0, each molecule is taken for another one.
    """

    def __init__(self, rows, likelihood, logits, vocabulary, shift=0):
        self.rows, self.vocabulary, self.shift = rows, vocabulary, shift
        self.latent_model = LatentModel(
            Nearest(logits), likelihood, latent=1, shape=rows.shape[1:]
        ).double()

    def posterior(self, x):
        x = torch.as_tensor(x)
        number = (x[:, None] == self.rows).flatten(2).all(-1).double().argmax(1)
        mean = (number + self.shift) % len(self.rows)
        return Gaussian(mean[:, None].double(), torch.full((len(x), 1), 2 * math.log(0.01)).double())


def hot(rows, classes):
    """Logits that are certain of the classes in `rows`."""
    return 50.0 * nn.functional.one_hot(rows.clamp(min=0).long(), classes).double()


def graph_model(shift=0):
    vocabulary = MoleculeGraphs.from_texts(SHOWN)
    rows = torch.from_numpy(vocabulary.encode(SHOWN).x).double()
    n = vocabulary.length
    sizes = (vocabulary.node_classes, vocabulary.edge_classes)
    parts = [hot(rows[:, :n], sizes[0]).flatten(1), hot(rows[:, n:], sizes[1]).flatten(1)]
    return Known(rows, CategoricalGraph(n, *sizes), torch.cat(parts, 1), vocabulary, shift)


def string_model(shift=0, texts=SHOWN):
    vocabulary = Smiles.from_texts(texts, length=20)
    rows = torch.from_numpy(vocabulary.encode(texts).x).double()
    return Known(
        rows,
        Categorical(vocabulary.classes, end_token=True),
        hot(rows, vocabulary.classes),
        vocabulary,
        shift,
    )


@pytest.mark.parametrize("make", [graph_model, string_model])
def test_scores_of_a_model_that_is_known(make):
    model = make()
    found = molecule_scores(model, model.rows, ["OCC"], samples=400, encodings=2, decodings=3)
    assert (found.greedy, found.reconstruction, found.validity) == (1, 1, 1)
    z = model.latent_model.prior.sample(400, generator=torch.Generator().manual_seed(0))
    assert len(set(z.round().clamp(0, 4).flatten().tolist())) in (3, 4, 5)
    drawn = set(found.examples)
    assert "CCO" in drawn
    assert drawn <= set(canonical_smiles(SHOWN))
    assert found.uniqueness == pytest.approx(len(drawn) / 400)
    assert found.novelty == pytest.approx((len(drawn) - 1) / len(drawn))
    assert found.connected == pytest.approx(1, abs=0.02)
    assert (found.molecules, found.encodings, found.decodings, found.samples) == (5, 2, 3, 400)
    assert "100.0 %" in str(found)
    assert json.loads(json.dumps(found.to_json()))["examples"] == list(found.examples)


def test_wrong_reconstructions_are_counted():
    model = graph_model(shift=1)
    found = molecule_scores(model, model.rows, samples=10)
    assert (found.greedy, found.reconstruction) == (0, 0)
    assert math.isnan(found.novelty)
    half = molecule_scores(string_model(texts=["CCO", "OCC"], shift=1), ["CCO", "OCC"], samples=5)
    assert half.reconstruction == 1  # two ways to write one molecule


def test_invalid_samples_are_counted():
    model = string_model(texts=["CCO", "C1CC", "C)"])
    found = molecule_scores(model, model.rows[:1], samples=300)
    z = model.latent_model.prior.sample(300, generator=torch.Generator().manual_seed(0))
    assert found.reconstruction == 1
    assert 0.3 < found.validity < 0.9
    assert found.uniqueness == pytest.approx(1 / (300 * found.validity))
    assert len(z) == found.samples


def test_stereochemistry_is_compared_where_the_vocabulary_keeps_it():
    pair = ["C[C@H](N)O", "C[C@@H](N)O"]
    model = string_model(texts=pair, shift=1)
    strict = molecule_scores(model, model.rows, samples=5)
    lenient = molecule_scores(model, model.rows, samples=5, stereo=False)
    assert (strict.reconstruction, lenient.reconstruction) == (0, 1)
    assert "compared with stereochemistry" in str(strict)
    assert "compared without stereochemistry" in str(lenient)


def test_progress_is_reported():
    done = []
    model = graph_model()
    molecule_scores(model, model.rows, samples=700, report=done.append)
    assert done == [5, 505, 705]


def test_test_molecules_are_counted_in_parts(monkeypatch):
    """The first two of five are wrong. The standard error is that of their shares."""
    monkeypatch.setattr("recmix.evaluation.molecules.AT_ONCE", 2)
    model, done = graph_model(), []
    right = model.posterior
    monkeypatch.setattr(model, "posterior", lambda x: right(model.rows[[1, 0]] if len(done) == 0 else x))
    few = {"samples": 3, "encodings": 2, "decodings": 1, "report": done.append}
    found = molecule_scores(model, list(model.rows.numpy()), **few)  # rows in a list are no texts
    assert done == [2, 4, 5, 7, 8]
    assert (found.greedy, found.reconstruction) == (0.6, 0.6)
    assert found.reconstruction_se == pytest.approx(math.sqrt(0.3 / 5))
    assert math.isnan(molecule_scores(model, model.rows[:1], samples=1).reconstruction_se)


def test_the_most_probable_molecule_is_that_of_the_largest_weight(monkeypatch):
    model = graph_model()
    right = model.posterior

    def posterior(x):
        q = right(x)
        wrong = Gaussian((q.mean + 1) % len(model.rows), q.log_variance)
        return Mixture([wrong, q, wrong], torch.tensor([0.3, 0.4, 0.3]).double().log().expand(len(x), 3))

    monkeypatch.setattr(model, "posterior", posterior)
    found = molecule_scores(model, model.rows, samples=1)
    assert found.greedy == 1
    assert 0.2 < found.reconstruction < 0.6


def test_same_seed_gives_same_scores():
    model = string_model(texts=["CCO", "C1CC", "C)"])
    first, again, other = (
        molecule_scores(model, model.rows[:1], samples=50, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.validity != other.validity


def test_examples_that_are_no_molecules_are_left_out():
    model = graph_model()
    rows = torch.cat([model.rows, -torch.ones_like(model.rows[:2])])
    few = {"samples": 5, "encodings": 1, "decodings": 1}
    assert molecule_scores(model, rows, **few).molecules == len(model.rows)


def test_wrong_input_is_refused():
    model = graph_model()
    with pytest.raises(ConfigError, match="samples must be positive, got 0"):
        molecule_scores(model, model.rows, samples=0)
    with pytest.raises(ConfigError, match="no test molecules"):
        molecule_scores(model, model.rows[:0])
    with pytest.raises(ConfigError, match="is a valid molecule with known tokens"):
        molecule_scores(model, -torch.ones_like(model.rows))
    for name in ("encodings", "decodings"):
        with pytest.raises(ConfigError, match=f"{name} must be positive, got 0"):
            molecule_scores(model, model.rows, **{name: 0})
    vocabulary, model.vocabulary = model.vocabulary, None
    for other in (None, Words.from_texts(SHOWN)):
        with pytest.raises(ConfigError, match="no vocabulary of molecules"):
            molecule_scores(model, model.rows, vocabulary=other)
    few = {"samples": 1, "encodings": 1, "decodings": 1}
    assert molecule_scores(model, model.rows, vocabulary=vocabulary, **few).greedy == 1


def test_without_rdkit_an_error_says_how_to_install_it(monkeypatch):
    model = graph_model()
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ConfigError, match=r"pip install recmix\[molecules\]"):
        molecule_scores(model, model.rows)


@pytest.mark.parametrize("kind", ["smiles", "molecule-graphs"])
def test_trained_models_and_the_command(kind, tmp_path, capsys, monkeypatch):
    from recmix.commands import extra_reports

    monkeypatch.setattr(extra_reports, "SAMPLES", 20)
    texts = [chain + end for chain in ("C", "CC", "CCO", "CC(C)", "C=CC") for end in "CNOF"]
    (tmp_path / "some.smi").write_text("\n".join(texts))
    data = recmix.data.load(tmp_path / "some.smi", graphs=kind == "molecule-graphs", length=12)
    options = {"epochs": 1, "progress": False, "device": "cpu"}
    vae = recmix.fit("vae", data, latent=2, units=8, blocks=1, **options)
    model = recmix.fit("rme", data, init=vae, order=2, out=tmp_path / "run", **options)
    found = molecule_scores(model, data.x_test[:3], texts, samples=5, encodings=2, decodings=2)
    assert found.stereo == (kind == "smiles")
    assert 0 <= found.validity <= 1
    assert call("evaluate", tmp_path / "run", "--samples", 5, "--report", "molecules", "--json") == 0
    printed = json.loads(capsys.readouterr().out)["reports"]["molecules"]
    assert printed["samples"] == 20
    assert np.isfinite(printed["reconstruction"])


def test_the_report_is_refused_for_other_models(tmp_path, capsys):
    x = np.random.default_rng(0).random((40, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    data = recmix.data.load(tmp_path / "x.npy")
    recmix.fit("vae", data, latent=2, epochs=1, progress=False, device="cpu", out=tmp_path / "run")
    assert call("evaluate", tmp_path / "run", "--report", "molecules") == 2
    assert "for models of molecules" in capsys.readouterr().err
