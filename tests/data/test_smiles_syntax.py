"""The syntax of SMILES strings, checked without RDKit."""

import random

import pytest

from recmix.data.text_data import read_texts
from recmix.model.sequence_vocabulary import Smiles
from recmix.model.smiles_syntax import has_smiles_syntax


@pytest.mark.parametrize(
    "text",
    [
        "C",
        "CCO",
        "C(C)(C)C",
        "c1ccccc1",
        "C%12CC%12",
        "C1CC%01",
        "[Na+].[Cl-]",
        "C[C@@H](N)C(=O)[O-]",
        "F/C=C/F",
        "C(.O)C",
        "[13CH4]",
        "[Fe++]",
        "[se]1cccc1",
        "[CH3:1]O",
        "[U@TH12H2]",
        "*C",
    ],
)
def test_valid_strings_are_accepted(text):
    assert has_smiles_syntax(Smiles.split(text))


@pytest.mark.parametrize(
    "text",
    [
        "C(",
        "C)",
        "C)(C",
        "(C)C",
        "C()C",
        "C1CC",
        "C=",
        "=C",
        "C==C",
        "C.",
        "CX",
        "xyz",
        "[Xx]",
        "[C",
        "[]",
        "C%1",
        "1CC1",
        "C(=)C",
        "cat",
        "C[C@@@H]",
    ],
)
def test_invalid_strings_are_refused(text):
    assert not has_smiles_syntax(Smiles.split(text))


def test_no_tokens_are_no_molecule():
    assert not has_smiles_syntax([])


def test_real_molecules_are_accepted(need):
    path = need("molecules/zinc250k.smi.gz") / "molecules" / "zinc250k.smi.gz"
    assert all(has_smiles_syntax(Smiles.split(text)) for text in read_texts(path)[::50])


def test_damaged_molecules_agree_with_rdkit(need):
    rdkit = pytest.importorskip("rdkit")
    from rdkit import Chem

    path = need("molecules/zinc250k.smi.gz") / "molecules" / "zinc250k.smi.gz"
    rng = random.Random(0)
    different = 0
    with rdkit.rdBase.BlockLogs():
        for text in read_texts(path)[::250]:
            tokens = Smiles.split(text)
            tokens[rng.randrange(len(tokens))] = rng.choice(["C", "(", ")", "1", "=", "[O-]", ""])
            damaged = "".join(tokens)
            read = Chem.MolFromSmiles(damaged, sanitize=False) is not None
            found = has_smiles_syntax(Smiles.split(damaged))
            assert found or not read  # what RDKit reads is never refused
            different += found != read
    assert different < 10  # of about 1,000
