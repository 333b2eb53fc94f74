"""Define the options for reading data, such as the size of images, with types and help texts."""

from __future__ import annotations

__all__ = ["DATA_OPTIONS"]

DATA_OPTIONS: dict[str, tuple[type, str]] = {
    "size": (int, "Resize image files to this side, after a square crop."),
    "crop": (int, "Side of the centred square that is cut from image files first."),
    "length": (
        int,
        "Texts: tokens of an example, the end token included; longer texts are left out. Graphs: atoms. "
        "(default: enough for 99 % of the training texts)",
    ),
    "vocabulary_size": (int, "Texts: number of tokens (default: 10000 words, all tokens of SMILES)."),
    "graphs": (bool, "Read SMILES strings as graphs of atoms and bonds instead of tokens."),
}
