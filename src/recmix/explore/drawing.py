"""Draw molecules as SVG with RDKit, if it is installed.

Only elements and attributes that are known to be harmless are kept. The page shows a drawing as an
image, in which no script can run.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from typing import Any
from xml.etree import ElementTree

from recmix.model.graph_vocabulary import quiet, read_molecule

__all__ = ["HINT", "can_draw", "draw", "is_molecule"]

HINT = "molecules are drawn if RDKit is installed: pip install 'recmix[molecules]'"
WIDTH, HEIGHT = 260, 180
MOST_ATOMS = 80
"""Molecules with more atoms are not drawn."""
NAMESPACE = "http://www.w3.org/2000/svg"
NUMBERS = re.compile(r"[0-9a-zA-Z#.,:;%() \n-]*")
ALLOWED = {
    "svg": ("width", "height", "viewBox"),
    "g": (),
    "rect": ("x", "y", "width", "height", "style"),
    "path": ("d", "style", "fill"),
    "line": ("x1", "y1", "x2", "y2", "style"),
    "ellipse": ("cx", "cy", "rx", "ry", "style"),
    "circle": ("cx", "cy", "r", "style"),
    "polygon": ("points", "style"),
    "polyline": ("points", "style"),
    "text": ("x", "y", "style"),
    "tspan": ("style",),
}
"""Elements of a drawing that are kept, and the attributes that each may have."""


@cache
def can_draw() -> bool:
    """Whether molecules can be drawn, that is, whether RDKit is installed."""
    return importlib.util.find_spec("rdkit") is not None


def is_molecule(smiles: str) -> bool:
    """Whether the first word of a text is a valid SMILES string of a molecule with at least one atom.

    The result is False if RDKit is not installed.
    """
    return _molecule(smiles) is not None


def draw(smiles: str) -> str | None:
    """Return a drawing of a molecule, given as a SMILES string, as SVG text.

    The result is None if RDKit is not installed, if the string is not valid, or if the molecule has
    more than `MOST_ATOMS` atoms or cannot be drawn.
    """
    molecule = _molecule(smiles)
    if molecule is None or molecule.GetNumAtoms() > MOST_ATOMS:
        return None
    from rdkit.Chem.Draw import rdMolDraw2D

    drawer = rdMolDraw2D.MolDraw2DSVG(WIDTH, HEIGHT)
    options: Any = drawer.drawOptions()
    options.clearBackground = False
    try:
        rdMolDraw2D.PrepareAndDrawMolecule(drawer, molecule)
    except (RuntimeError, ValueError):
        return None
    drawer.FinishDrawing()
    return sanitised(drawer.GetDrawingText())


def sanitised(drawing: str) -> str | None:
    """Return an SVG text with only the elements and attributes in `ALLOWED`; None if it is not SVG.

    >>> sanitised("<svg xmlns='http://www.w3.org/2000/svg' onload='a()'><script>a()</script></svg>")
    '<svg xmlns="http://www.w3.org/2000/svg" />'
    """
    if "<!DOCTYPE" in drawing or "<!ENTITY" in drawing:
        return None
    try:
        root = ElementTree.fromstring(drawing)
    except ElementTree.ParseError:
        return None
    if root.tag != f"{{{NAMESPACE}}}svg":
        return None
    cleaned = _clean(root)
    if cleaned is None:
        return None
    cleaned.set("xmlns", NAMESPACE)
    return ElementTree.tostring(cleaned, encoding="unicode")


def _clean(element: ElementTree.Element) -> ElementTree.Element | None:
    name = str(element.tag).removeprefix(f"{{{NAMESPACE}}}")
    if name not in ALLOWED:
        return None
    kept = {
        key: value
        for key, value in element.attrib.items()
        if key in ALLOWED[name] and NUMBERS.fullmatch(value) and "url(" not in value.lower()
    }
    made = ElementTree.Element(name, kept)
    made.text = element.text
    for child in element:
        cleaned = _clean(child)
        if cleaned is not None:
            made.append(cleaned)
    return made


def _molecule(smiles: str) -> Any:
    """Return the RDKit molecule of a SMILES string; None if it is not valid or RDKit is missing."""
    if not can_draw():
        return None
    with quiet():
        return read_molecule(smiles)
