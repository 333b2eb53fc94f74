"""Make docs/paper/paper.tex from docs/paper/paper.md: ``python docs/paper/to_latex.py``.

``python docs/build.py`` does it too, after it has written the tables.

It reads the part of Markdown that the page uses: headings, paragraphs, lists, tables, figures, formulas,
bold and italic text, code and links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAD = r"""% Made by docs/paper/to_latex.py from paper.md: edit that.
\documentclass[10pt]{article}
\usepackage[margin=2.2cm]{geometry}
\usepackage{amsmath,booktabs,graphicx}
\usepackage[hidelinks]{hyperref}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\setlength{\parskip}{4pt}
\setlength{\parindent}{0pt}
\sloppy
"""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "≤": r"$\le$",
    "Σ": r"$\Sigma$",
    "α": r"$\alpha$",
}
PIECES = re.compile(
    r"(?P<math>\$[^$]+\$)|(?P<code>`[^`]+`)|\*\*(?P<bold>[^*]+)\*\*|\*(?P<italic>[^*]+)\*"
    r"|\[(?P<text>[^\]]+)\]\((?P<link>[^)]+)\)"
)


def escaped(text: str) -> str:
    """Plain text with LaTeX's special characters escaped."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def inline(text: str) -> str:
    r"""One line of Markdown as LaTeX.

    >>> inline("**50 %** of $x_1$ in `a_b`")
    '\\textbf{50 \\%} of $x_1$ in \\texttt{a\\_b}'
    """
    made, end = [], 0
    for found in PIECES.finditer(text):
        made.append(escaped(text[end : found.start()]))
        end = found.end()
        if found["math"]:
            made.append(found["math"])
        elif found["code"]:
            made.append(rf"\texttt{{{escaped(found['code'][1:-1])}}}")
        elif found["bold"]:
            made.append(rf"\textbf{{{inline(found['bold'])}}}")
        elif found["italic"]:
            made.append(rf"\emph{{{inline(found['italic'])}}}")
        else:
            made.append(inline(found["text"]))
    return "".join(made) + escaped(text[end:])


def blocks(text: str) -> Iterator[list[str]]:
    """The blocks of a page: runs of lines between empty lines, without comments."""
    lines = [line for line in text.splitlines() if not line.startswith("<!--")]
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def table(lines: list[str]) -> str:
    """A Markdown table as LaTeX, as wide as the page at most."""
    rows = [[inline(cell.strip()) for cell in line.strip().strip("|").split("|")] for line in lines]
    numbers = ["r" if mark.strip().endswith(":") else "l" for mark in lines[1].strip("|").split("|")]
    body = [" & ".join(row) + r" \\" for row in rows]
    inside = "\n".join([r"\toprule", body[0], r"\midrule", *body[2:], r"\bottomrule"])
    tabular = rf"\begin{{tabular}}{{{''.join(numbers)}}}" + f"\n{inside}\n" + r"\end{tabular}"
    fitted = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" + f"\n{tabular}}}"
    return "\\begin{center}\\small" + f"\n{fitted}\n" + r"\end{center}"


WIDTHS = {"frontier.png": 0.9}
"""Widths of figures, as a share of the line; others have 0.62."""


def figure(line: str) -> str:
    """An image with its text as caption."""
    text, path = re.fullmatch(r"!\[(.*)\]\((.*)\)", line).groups()  # type: ignore[union-attr]
    width = WIDTHS.get(Path(path).name, 0.62)
    return (
        "\\begin{figure}[t]\n\\centering\n"
        f"\\includegraphics[width={width}\\linewidth]{{{path}}}\n\\caption{{{inline(text)}}}\n\\end{{figure}}"
    )


def items(lines: list[str]) -> str:
    """A list."""
    joined = re.split(r"^- ", "\n".join(lines), flags=re.MULTILINE)[1:]
    made = [r"\item " + inline(" ".join(item.split())) for item in joined]
    return "\n".join([r"\begin{itemize}", *made, r"\end{itemize}"])


def title(lines: list[str]) -> str:
    """The title, and the beginning of the document."""
    return rf"\title{{{inline(lines[0][2:])}}}" + "\n\\date{}\n\\begin{document}\n\\maketitle"


KINDS = {
    "# ": title,
    "## Abstract": lambda _: "",
    "## ": lambda lines: rf"\section*{{{inline(lines[0][3:])}}}",
    "$$": lambda lines: "\n".join(["\\[", *lines[1:-1], "\\]"]),
    "![": lambda lines: figure(lines[0]),
    "|": table,
    "- ": items,
}
"""Functions for blocks, by the beginning of their first line."""


def block(lines: list[str]) -> str:
    """One block of Markdown as LaTeX."""
    for start, made in KINDS.items():
        if lines[0].startswith(start):
            return made(lines)
    return inline(" ".join(lines))


def latex(text: str) -> str:
    """The whole page as a LaTeX document."""
    made = [block(lines) for lines in blocks(text)]
    return HEAD + "\n\n".join(part for part in made if part) + "\n\n\\end{document}\n"


def main() -> None:
    """Write paper.tex."""
    (HERE / "paper.tex").write_text(latex((HERE / "paper.md").read_text()))


if __name__ == "__main__":
    main()
