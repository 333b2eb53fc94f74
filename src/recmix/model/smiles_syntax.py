"""Check the syntax of SMILES strings without RDKit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["has_smiles_syntax"]

_ELEMENTS = (
    " H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr "
    "Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm "
    "Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No "
    "Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og b c n o p s se as te si * "
)
"""Symbols of elements, symbols of aromatic atoms such as c, and * for any atom, between spaces."""
_BRACKET = re.compile(
    r"\[\d*([A-Z][a-z]?|[a-z]{1,2}|\*)(@{0,2}|@[A-Z]{2}\d+)(H\d*)?(\++|-+|[+-]\d+)?(:\d+)?\]", re.ASCII
)
_KINDS = (
    dict.fromkeys([*"BCNOPSFIbcnops*", "Cl", "Br"], "atom")
    | dict.fromkeys("-=#$:~/\\", "bond")
    | dict.fromkeys("0123456789", "ring")
    | {"(": "open", ")": "close", ".": "dot"}
)
_AFTER_ATOM = ("atom", "bond", "ring", "open", "close", "dot", "end")
_ALLOWED = {
    *((before, after) for before in ("atom", "ring", "close") for after in _AFTER_ATOM),
    *(("bond", after) for after in ("atom", "ring")),
    *(("open", after) for after in ("atom", "bond", "dot")),
    ("dot", "atom"),
    ("start", "atom"),
}
"""The allowed pairs (kind of a token, kind of the next token)."""


def has_smiles_syntax(tokens: Sequence[str]) -> bool:
    """Whether tokens have the syntax of a SMILES string: atoms, bonds, branches, rings and dots.

    Chemistry is not checked, for example whether a carbon atom has four bonds.

    >>> has_smiles_syntax(["C", "1", "C", "C", "1"]), has_smiles_syntax(["C", "(", "C"])
    (True, False)
    """
    kinds = ["start", *map(_kind, tokens), "end"]
    if not all(pair in _ALLOWED for pair in pairwise(kinds)):
        return False
    depth = 0
    rings: set[str] = set()
    for token, kind in zip(tokens, kinds[1:-1], strict=True):
        if kind == "ring":
            rings ^= {token.lstrip("%0") or "0"}
        elif kind in ("open", "close"):
            depth += 1 if kind == "open" else -1
            if depth < 0:
                return False
    return depth == 0 and not rings


def _kind(token: str) -> str:
    """The kind of a token, such as "atom"; "" if it cannot be part of a SMILES string."""
    if token[0] == "%":
        return "ring" if len(token) == 3 else ""
    if token[0] == "[":
        found = _BRACKET.fullmatch(token)
        return "atom" if found and f" {found[1]} " in _ELEMENTS else ""
    return _KINDS.get(token, "")
