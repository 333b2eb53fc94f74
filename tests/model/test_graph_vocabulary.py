"""Molecules as graphs: round trips, order of atoms, and texts that cannot be encoded."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from cases.molecules import MOLECULES

from recmix.errors import ConfigError, DataError
from recmix.model.graph_vocabulary import AtomType, MoleculeGraphs, canonical_smiles, read_molecule
from recmix.model.vocabulary import vocabulary_from_json

Chem = pytest.importorskip("rdkit.Chem")

CARBON, OXYGEN, NITROGEN = AtomType("C"), AtomType("O"), AtomType("N")


def test_round_trips_are_exact_without_stereochemistry():
    graphs = MoleculeGraphs.from_texts(MOLECULES)
    found = graphs.encode(MOLECULES)
    assert found.problems == {}
    assert graphs.decode(found.x) == canonical_smiles(MOLECULES)
    assert canonical_smiles(["C[C@H](N)C(=O)O"]) == ["CC(N)C(=O)O"]
    words = graphs.encode([" CCO |^1:0| a name"])  # only the first word counts
    assert graphs.decode(words.x) == ["CCO"]


def test_round_trips_of_zinc_molecules(real_data):
    file = real_data / "molecules" / "zinc250k.smi.gz"
    if not file.exists():
        pytest.skip("the ZINC molecules are not in RECMIX_DATA")
    with gzip.open(file, "rt") as lines:
        texts = [next(lines).split()[0] for _ in range(500)]
    graphs = MoleculeGraphs.from_texts(texts, 38)
    found = graphs.encode(texts)
    assert found.problems == {}
    assert graphs.decode(found.x) == canonical_smiles(texts)


def test_the_largest_molecule_has_no_end():
    graphs = MoleculeGraphs([CARBON, OXYGEN], length=3)
    (row,) = graphs.encode(["CCO"]).x
    np.testing.assert_array_equal(row, [1, 1, 2, 1, 0, 1])


def test_the_way_a_molecule_is_written_does_not_matter():
    graphs = MoleculeGraphs.from_texts(MOLECULES)
    rng = np.random.default_rng(0)
    for text in MOLECULES:
        mol = Chem.MolFromSmiles(text)
        order = rng.permutation(mol.GetNumAtoms()).tolist()
        other = Chem.MolToSmiles(Chem.RenumberAtoms(mol, order), canonical=False)
        first, second = graphs.encode([text, other]).x
        np.testing.assert_array_equal(first, second)


def test_atom_types_are_those_of_training_molecules_and_hydrogens_follow_from_bonds():
    graphs = MoleculeGraphs.from_texts(["CCN", "c1cc[nH]c1", "C[NH3+]", "[CH3]", "wrong("])
    assert graphs.types[:2] == (CARBON, NITROGEN)
    assert set(graphs.types) == {CARBON, NITROGEN, AtomType("N", 1), AtomType("C", 0, 3)}
    assert (graphs.length, graphs.node_classes, graphs.edge_classes) == (5, 5, 4)


def test_hydrogens_of_atoms_with_unusual_valences_follow_from_the_bonds():
    texts = ["C[SH](C)(C)=O", "O=[PH](O)O", "F[SH](F)(F)(F)F", "C[IH2]=O"]
    graphs = MoleculeGraphs.from_texts(texts)
    plain = {AtomType(symbol) for symbol in "CFOPS"}
    assert set(graphs.types) == {*plain, AtomType("I", 0, 2)}
    assert graphs.decode(graphs.encode(texts).x) == canonical_smiles(texts)


def test_what_cannot_be_encoded_is_counted_and_left_out():
    graphs = MoleculeGraphs([CARBON, OXYGEN], length=3)
    found = graphs.encode(["CCO", "C1CC", "CCCC", "CN", "", "C->[Fe]", "OC name", "x" * 50])
    assert found.kept.tolist() == [0, 6]
    assert found.x.shape == (2, 6)
    assert found.x.dtype == np.float32
    assert found.problems == {
        "not a valid SMILES string": 3,
        "with more than 3 atoms": 1,
        "with an atom type that no training molecule has": 1,
        "with a bond that is not single, double, triple or aromatic": 1,
    }


def test_graphs_that_are_no_molecules_give_no_text():
    graphs = MoleculeGraphs([CARBON, OXYGEN], length=3)
    rows = {
        "no atom": [0, -1, -1, -1, -1, -1],
        "oxygen with four bonds": [2, 1, 1, 3, 3, 0],
        "no such atom": [3, 1, 1, 1, 1, 0],
        "not whole": [1.5, 0, -1, -1, -1, -1],
        "no such bond": [1, 1, 0, 4, -1, -1],
        "no whole bond": [1, 1, 0, 1.5, -1, -1],
        "not finite": [np.nan, 1, 1, 1, 1, 0],
        "padding in front": [-1, 1, 1, 1, 1, 0],
    }
    assert graphs.decode(np.array(list(rows.values()), np.float32)) == [""] * len(rows)


def test_what_follows_the_end_is_ignored():
    graphs = MoleculeGraphs([CARBON, OXYGEN], length=3)
    rows = np.array([[1, 2, 0, 2, -1, -1], [1, 2, -1, 2, 3, 3]], np.float32)
    assert graphs.decode(rows) == ["C=O", "C=O"]


def test_rdkit_writes_nothing(capfd):
    graphs = MoleculeGraphs([CARBON, OXYGEN], length=3)
    graphs.encode(["C1CC", "wrong(", "c1cc1"])
    graphs.decode(np.array([[2, 1, 1, 3, 3, 0]], np.float32))
    canonical_smiles(["wrong("])
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_json_round_trip():
    graphs = MoleculeGraphs.from_texts(MOLECULES)
    again = vocabulary_from_json(json.loads(json.dumps(graphs.describe())))
    assert again == graphs
    assert hash(again) == hash(graphs)
    assert again != MoleculeGraphs(graphs.types, graphs.length + 1)


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"types": [], "length": 5},
        {"types": [["C", 0, None]], "length": 1},
        {"types": [["C", 0, None]], "length": 10**6},
        {"types": [["C", 0, None]], "length": "5"},
        {"types": [["C", 0]], "length": 5},
        {"types": [["C", "0", None]], "length": 5},
        {"types": [["<script>", 0, None]], "length": 5},
        {"types": [["C", 10**9, None]], "length": 5},
        {"types": "C", "length": 5},
    ],
)
def test_wrong_stored_content_is_refused(stored):
    with pytest.raises(DataError):
        MoleculeGraphs.from_json(stored)


def test_wrong_input_is_refused():
    with pytest.raises(DataError, match="none of 2 texts"):
        MoleculeGraphs.from_texts(["wrong(", ""])
    with pytest.raises(DataError, match="with at most 2 atoms"):
        MoleculeGraphs.from_texts(["CCO"], length=2)
    with pytest.raises(DataError, match=r"expected numbers of shape\s+\(N, 6\)"):
        MoleculeGraphs([CARBON], length=3).decode(np.zeros((2, 5)))
    with pytest.raises(DataError, match="'Xx' is not a chemical element"):
        MoleculeGraphs([AtomType("Xx")], length=3).decode(np.ones((1, 6)))


def test_without_rdkit_an_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ConfigError, match=r"pip install recmix\[molecules\]"):
        canonical_smiles(["C"])


def test_rdkit_is_imported_only_when_it_is_used():
    code = (
        "import sys; from recmix.model.graph_vocabulary import MoleculeGraphs as G; "
        "G.from_json({'types': [['C', 0, None]], 'length': 3}); assert 'rdkit' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_very_long_strings_do_not_reach_rdkit():
    """RDKit's recursion ends the process for chains of some ten thousand atoms."""
    long = "C" * 200_000
    assert canonical_smiles(["CCO", long]) == ["CCO", ""]
    assert read_molecule(long) is None
    graphs = MoleculeGraphs.from_texts(["CCO", "C" * 600, long])
    assert graphs.length == 3
    found = graphs.encode(["CCO", "C" * 600, long])
    assert found.problems == {"with more than 3 atoms": 1, "longer than 4,000 characters": 1}
    with pytest.raises(DataError, match="a molecule with at most 512 atoms"):
        MoleculeGraphs.from_texts(["C" * 600])
