"""Molecules as graphs: convert SMILES strings to classes of atoms and bonds and back, with RDKit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from recmix.errors import ConfigError, DataError
from recmix.model.vocabulary import Encoded, Vocabulary

__all__ = ["BONDS", "AtomType", "MoleculeGraphs", "canonical_smiles", "quiet", "read_molecule"]
__all__ += ["require_rdkit"]

BONDS = ("none", "single", "double", "triple")
"""The classes of edges. Aromatic rings are stored with alternating single and double bonds."""
OTHER_BONDS = frozenset("<>~$")
"""Characters that stand for dative, unspecified or quadruple bonds in a SMILES string."""
MOST_ATOMS = 512
"""Largest number of atoms of a graph. An example with n atoms has about n²/2 values."""
LONGEST = 4_000
"""Largest number of characters of a SMILES string that RDKit gets. Much longer strings can crash it."""


class AtomType(NamedTuple):
    """A type of atom, which is one node class of a molecule graph.

    Attributes:
        symbol: the chemical element, such as "N".
        charge: the formal charge.
        hydrogens: number of hydrogens on the atom. None means that the number follows from the bonds, as
            for most atoms.
    """

    symbol: str
    charge: int = 0
    hydrogens: int | None = None


class _Graph(NamedTuple):
    types: list[AtomType]
    edges: np.ndarray  # bond classes of the upper triangle, row by row, (n(n-1)/2,)


class MoleculeGraphs(Vocabulary):
    """A vocabulary that writes molecules as graphs of up to n atoms, without hydrogens. It needs RDKit.

    An example has the fields ``nodes``, (n,), and ``edges``, (n(n-1)/2,): the upper triangle of the n by
    n matrix of bonds, row by row. Both are packed into one vector of n(n+1)/2 class numbers. Node class
    0 means "no atom"; the other node classes are the atom types. `BONDS` lists the edge classes. Atoms
    come in the order of RDKit's canonical SMILES string. The first "no atom" ends the molecule. Later
    nodes, and bonds to atoms that do not exist, are -1.

    Bonds of aromatic rings are stored as single and double bonds (Kekulé form). Then the numbers of
    hydrogens follow from the bonds, and a graph with one wrong bond is a valid molecule more often.
    Stereochemistry and isotopes are lost.

    Args:
        types: the atom types, for the node classes 1, 2, ...
        length: n, the largest number of atoms.

    >>> graphs = MoleculeGraphs([AtomType("C"), AtomType("O")], length=4)
    >>> x = graphs.encode(["OCC", "C=O", "not a molecule"]).x
    >>> x.astype(int).tolist()  # nodes C, C, O, none; edges 01, 02, 03, 12, 13, 23
    [[1, 1, 2, 0, 1, 0, -1, 1, -1, -1], [1, 2, 0, -1, 2, -1, -1, -1, -1, -1]]
    >>> graphs.decode(x)
    ['CCO', 'C=O']
    """

    kind: ClassVar[str] = "molecule-graphs"
    molecules: ClassVar[bool] = True
    stereo: ClassVar[bool] = False  # stereochemistry is not kept

    def __init__(self, types: Sequence[AtomType], length: int) -> None:
        if not 2 <= length <= MOST_ATOMS:
            raise DataError(f"graphs of length={length} atoms: expected 2 to {MOST_ATOMS}")
        if not types:
            raise DataError("there are no atom types; expected at least one, such as AtomType('C')")
        self.types = tuple(types)
        self.length = length
        self.shape = (length * (length + 1) // 2,)
        self.fields = {"nodes": (length,), "edges": (length * (length - 1) // 2,)}
        self._classes = {kind: k for k, kind in enumerate(self.types, 1)}

    @classmethod
    def from_texts(cls, texts: Sequence[str], length: int | None = None) -> MoleculeGraphs:
        """Make the vocabulary with all atom types of the training molecules, most frequent first.

        Args:
            texts: SMILES strings. Invalid strings are left out.
            length: the largest number of atoms; by default the size of the largest molecule, at most
                `MOST_ATOMS`. Molecules with more atoms are left out.
        """
        limit = MOST_ATOMS if length is None else length
        found: Counter[AtomType] = Counter()
        most = 0
        with quiet():
            for text in texts:
                graph = _graph(text)
                types = [] if isinstance(graph, str) else graph.types
                if types and len(types) <= limit:
                    found.update(types)
                    most = max(most, len(types))
        if not found:
            raise DataError(
                f"none of {len(texts):,} texts is the SMILES string of a molecule with at most "
                f"{limit} atoms"
            )
        ordered = sorted(found, key=lambda kind: (-found[kind], str(kind)))
        return cls(ordered, max(2, most) if length is None else length)

    @classmethod
    def normal_forms(cls, texts: Sequence[str]) -> list[str]:
        """Convert each text to its canonical SMILES string without stereochemistry.

        Texts with the same canonical string describe the same graph. An invalid text is returned
        unchanged.
        """
        return [form or text for form, text in zip(canonical_smiles(texts), texts, strict=True)]

    @property
    def node_classes(self) -> int:
        """The number of node classes, "no atom" included."""
        return 1 + len(self.types)

    @property
    def edge_classes(self) -> int:
        """The number of edge classes, "no bond" included."""
        return len(BONDS)

    def model_options(self) -> dict[str, Any]:
        """The numbers of classes as model options: ``{"node_classes": A, "edge_classes": E}``."""
        return {"node_classes": self.node_classes, "edge_classes": self.edge_classes}

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Convert SMILES strings to packed graphs, float32 (N, n(n+1)/2), of at most n atoms.

        A text is left out if it is not a valid SMILES string, or if its molecule has more than n atoms,
        an atom of an unknown type, or a bond that is not single, double or triple.
        """
        x = np.full((len(texts), *self.shape), -1, np.float32)
        kept: list[int] = []
        problems: Counter[str] = Counter()
        with quiet():
            for place, text in enumerate(texts):
                problem = self._write(text, x[len(kept)])
                if problem:
                    problems[problem] += 1
                else:
                    kept.append(place)
        return Encoded(x[: len(kept)], np.array(kept, np.int64), dict(problems))

    def decode(self, x: np.ndarray) -> list[str]:
        """Convert N packed graphs (N, n(n+1)/2) to canonical SMILES strings without stereochemistry.

        The string is "" if the graph has no atom, if a value is not a class number, or if the graph is
        not a valid molecule for RDKit. RDKit accepts no atom with too many bonds, and no aromatic ring
        without a Kekulé form.
        """
        rows = self._rows(x)
        with quiet():
            atoms = [_atom(kind) for kind in self.types]
            return [self._text(row, atoms) for row in rows]

    def to_json(self) -> dict[str, Any]:
        """The atom types and the largest number of atoms: ``{"types": [...], "length": n}``."""
        return {"types": [list(kind) for kind in self.types], "length": self.length}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> MoleculeGraphs:
        """Make the vocabulary again from the result of `to_json`. Other content raises a `DataError`."""
        types, length = stored.get("types"), stored.get("length")
        if not isinstance(length, int) or not isinstance(types, list) or not all(map(_is_type, types)):
            raise DataError(
                "this is not a stored vocabulary of molecule graphs: expected 'length', a whole number, "
                "and 'types', a list of [symbol, charge, hydrogens] such as [\"C\", 0, null]"
            )
        return cls([AtomType(*kind) for kind in types], length)

    def __repr__(self) -> str:
        return f"MoleculeGraphs({len(self.types)} atom types, up to {self.length} atoms)"

    def _write(self, text: str, row: np.ndarray) -> str:
        """Write a molecule, given as a SMILES string, into `row`, a vector of -1.

        Return "" on success, else the reason why the molecule cannot be encoded.
        """
        graph = _graph(text)
        if isinstance(graph, str):
            return graph
        count = len(graph.types)
        if count > self.length:
            return f"with more than {self.length} atoms"
        classes = [self._classes.get(kind, 0) for kind in graph.types]
        if 0 in classes:
            return "with an atom type that no training molecule has"
        row[:count] = classes
        row[count : self.length][:1] = 0
        row[self.length + _places(count, self.length)] = graph.edges
        return ""

    def _text(self, row: np.ndarray, atoms: Sequence[Any]) -> str:
        nodes, edges = row[: self.length], row[self.length :]
        ends = np.flatnonzero(nodes <= 0)
        count = int(ends[0]) if len(ends) else self.length
        used = edges[_places(count, self.length)]
        known = np.isin(nodes[:count], range(1, self.node_classes)).all()
        if not (known and np.isin(used, range(len(BONDS))).all()):
            return ""
        rows, columns = _upper(count)
        bonded = np.flatnonzero(used > 0)
        bonds = (rows[bonded].tolist(), columns[bonded].tolist(), used[bonded].astype(int).tolist())
        return _smiles([atoms[int(k) - 1] for k in nodes[:count]], zip(*bonds, strict=True))


def require_rdkit() -> Any:
    """Import and return the module `rdkit.Chem`.

    Raise a `ConfigError` that says how to install RDKit if it is missing.
    """
    try:
        from rdkit import Chem
    except ImportError as error:
        raise ConfigError("molecules need RDKit: pip install recmix[molecules]") from error
    return Chem


def canonical_smiles(texts: Sequence[str], *, stereo: bool = False) -> list[str]:
    """Convert SMILES strings to canonical SMILES strings.

    A text that RDKit cannot read gives "", and so do a molecule without atoms and a very long text.

    Args:
        texts: SMILES strings.
        stereo: whether stereochemistry and isotopes are kept.

    >>> canonical_smiles(["OCC", "C1=CC=CC=C1", "C1CC", "C[C@H](N)O"])
    ['CCO', 'c1ccccc1', '', 'CC(N)O']
    """
    chem = require_rdkit()
    with quiet():
        found = [chem.MolFromSmiles(text) if 0 < len(text) <= LONGEST else None for text in texts]
        return [
            "" if mol is None or not mol.GetNumAtoms() else chem.MolToSmiles(mol, isomericSmiles=stereo)
            for mol in found
        ]


def quiet() -> Any:
    """A context in which RDKit writes no messages."""
    require_rdkit()
    from rdkit import rdBase

    return rdBase.BlockLogs()


@cache
def _upper(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column indices of the upper triangle of a `count` by `count` matrix, row by row."""
    return np.triu_indices(count, 1)


@cache
def _places(count: int, length: int) -> np.ndarray:
    """The indices of the pairs of the first `count` nodes in the list of all pairs of `length` nodes."""
    return np.flatnonzero(_upper(length)[1] < count)


def _is_type(kind: Any) -> bool:
    """Whether a stored value describes an `AtomType`."""
    if not isinstance(kind, list) or len(kind) != 3:
        return False
    symbol, charge, hydrogens = kind
    whole = [type(n) is int and abs(n) <= 20 for n in (charge, 0 if hydrogens is None else hydrogens)]
    return isinstance(symbol, str) and bool(re.fullmatch(r"\*|[A-Z][a-z]?", symbol)) and all(whole)


def read_molecule(text: str) -> Any:
    """Read the first word of a text, a SMILES string, as an RDKit molecule.

    The result is None if the word is not a valid SMILES string or is too long.
    """
    words = text.split(None, 1)
    mol = require_rdkit().MolFromSmiles(words[0]) if words and len(words[0]) <= LONGEST else None
    return mol if mol is not None and mol.GetNumAtoms() else None


def _graph(text: str) -> _Graph | str:
    """Convert a SMILES string to atom types and bonds, with the atoms in canonical order.

    If this is not possible, return the reason as a text.
    """
    chem = require_rdkit()
    mol = read_molecule(text)
    if mol is None:
        long = len(text.split(None, 1)[0]) > LONGEST if text.strip() else False
        return f"longer than {LONGEST:,} characters" if long else "not a valid SMILES string"
    written = chem.MolToSmiles(mol, isomericSmiles=False)
    if OTHER_BONDS.intersection(written):
        return "with a bond that is not single, double, triple or aromatic"
    options = chem.SmilesParserParams()
    options.sanitize, options.removeHs = False, False
    mol = chem.MolFromSmiles(written, options)  # with its atoms in canonical order
    types = _types(mol)
    orders = chem.GetAdjacencyMatrix(mol, useBO=True)
    return _Graph(types, orders[_upper(len(types))])


def _types(mol: Any) -> list[AtomType]:
    """The types of all atoms of a molecule. The function changes the molecule to its Kekulé form."""
    mol.UpdatePropertyCache(False)
    require_rdkit().Kekulize(mol, clearAromaticFlags=True)
    return [
        _bracket_type(atom) if atom.GetNoImplicit() else AtomType(atom.GetSymbol())
        for atom in mol.GetAtoms()
    ]


def _bracket_type(atom: Any) -> AtomType:
    """The type of an atom whose number of hydrogens is written in the SMILES string, as in [NH4+].

    The type holds this number only if it does not follow from the bonds.
    """
    given = atom.GetTotalNumHs()
    atom.SetNoImplicit(False)
    atom.SetNumExplicitHs(0)
    atom.SetNumRadicalElectrons(0)
    atom.UpdatePropertyCache(False)
    implied = atom.GetTotalNumHs() == given
    return AtomType(atom.GetSymbol(), atom.GetFormalCharge(), None if implied else given)


def _atom(kind: AtomType) -> Any:
    """Make an RDKit atom of this type; raise a `DataError` if RDKit does not know the element."""
    try:
        atom = require_rdkit().Atom(kind.symbol)
    except RuntimeError as error:
        raise DataError(f"{kind.symbol!r} is not a chemical element that RDKit knows") from error
    atom.SetFormalCharge(kind.charge)
    if kind.hydrogens is not None:
        atom.SetNumExplicitHs(kind.hydrogens)
        atom.SetNoImplicit(True)
    return atom


def _smiles(atoms: Sequence[Any], bonds: Iterable[tuple[int, int, int]]) -> str:
    """The canonical SMILES string of a graph, or "" if the graph is not a valid molecule for RDKit.

    Each bond is a tuple (index of an atom, index of the other atom, edge class).
    """
    if not atoms:
        return ""
    chem = require_rdkit()
    kinds = (None, chem.BondType.SINGLE, chem.BondType.DOUBLE, chem.BondType.TRIPLE)
    mol = chem.RWMol()
    for atom in atoms:
        mol.AddAtom(atom)
    for first, second, order in bonds:
        mol.AddBond(first, second, kinds[order])
    if chem.SanitizeMol(mol, catchErrors=True):
        return ""
    text: str = chem.MolToSmiles(mol, isomericSmiles=False)
    return text if chem.MolFromSmiles(text) is not None else ""  # what is written can be read
