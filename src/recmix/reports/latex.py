"""Write the tables of a report as LaTeX, in the layout and colours of Kim and Pavlovic (2020)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from recmix.reports.forms import one_line
from recmix.reports.published import CITATION
from recmix.reports.tables import EMPTY, LEVELS, Line, Table, TableEntry

__all__ = ["PREAMBLE", "latex_document", "to_latex"]

PREAMBLE = r"""\usepackage{booktabs,graphicx,xcolor}
\definecolor{lor}{rgb}{1,0.85,0}
\definecolor{or}{rgb}{1,0.60,0}
\definecolor{dor}{rgb}{1,0.20,0}
"""
ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "–": r"\textendash{}",
    "…": r"\dots{}",
    "ε": r"$\epsilon$",
    **{c: "\\" + c for c in "{}$&#_%"},
}


def to_latex(table: Table) -> str:
    """Write a table of a report as one LaTeX ``table``, in the layout of Kim and Pavlovic (2020).

    The LaTeX document must contain `PREAMBLE`, which loads packages and defines colours.
    """
    widths = [1 + printed for printed in table.printed]
    layout, groups, dims, kinds = "l", [], [], []
    for title, places in table.groups:
        rule = "" if places[-1] == len(widths) - 1 else "|"  # between two data sets
        width = sum(widths[i] for i in places)
        layout += "|" + "l" * width
        groups.append(_span(width, rule, _latex(title)))
        for i in places:
            dims.append(_span(widths[i], rule * (i == places[-1]), f"${table.columns[i].latent}$"))
            kinds += ["ours", r"\color{gray} paper"][: widths[i]]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(table.title)}. {_latex(table.caption)}{_latex_code(table)}}}",
        rf"\label{{tab:{table.key}}}",
        r"\begin{scriptsize}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        f"Dataset & {' & '.join(groups)} " + r"\\",
        rf"\cline{{2-{sum(widths) + 1}}}",
        r"\ \ $\textrm{dim}({\bf z})$ & " + " & ".join(dims) + r" \\",
    ]
    if any(table.printed):
        lines.append(" & ".join(["", *kinds]) + r" \\")
    lines.append(r"\hline\hline")
    for number, line in enumerate(table.lines):
        rule = r"\hline " if line.first and number else ""
        strut = r"\rule{0pt}{2.9ex}" if line.first else ""  # keeps superscripts away from the rule
        lines.append(f"{rule}{strut}{_latex_row(table, line)} " + r"\\")
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{scriptsize}"]
    lines += [rf"\par\smallskip{{\footnotesize {_latex(note)}\par}}" for note in table.notes]
    lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def latex_document(tables: Sequence[Table]) -> str:
    """Write tables of a report as a complete LaTeX document, one table per page."""
    body = "\n\\clearpage\n".join(to_latex(table) for table in tables)
    return (
        "\\documentclass{article}\n\\usepackage[margin=2cm,landscape]{geometry}\n"
        f"{PREAMBLE}\\begin{{document}}\n{body}\n"
        f"\\noindent Paper: {_latex(CITATION)}\n\\end{{document}}\n"
    )


def _span(width: int, rule: str, text: str) -> str:
    """Return a centred LaTeX cell over `width` columns.

    If `rule` is ``|``, the cell has a vertical line on its right. If it is empty, there is no line.
    """
    return rf"\multicolumn{{{width}}}{{c{rule}}}{{{text}}}"


def _latex_row(table: Table, line: Line) -> str:
    name = _latex(line.row.label)
    if line.row.setting is not None:
        name += rf"$^{{(\textrm{{{_latex(str(line.row.setting))}}})}}$"
    if line.row.use:
        name += f" {_latex(line.row.use)}"
    cells = [name]
    for entry, printed in zip(line.entries, table.printed, strict=True):
        cells.append(_latex_cell(entry))
        if printed:
            paper = f"${entry.paper}$" if entry.paper else ""
            if entry.difference:
                paper += rf" $({entry.difference})$"
            cells.append(rf"\color{{gray}} {paper}" if paper else "")
    return " & ".join(cells)


def _latex_cell(entry: TableEntry) -> str:
    if entry.value is None:
        return "--" if entry.text == EMPTY else _latex(entry.text)
    colour = ""
    if entry.level is not None and entry.level.latex:
        colour = rf"\color{{{entry.level.latex}}} "
    text = rf"{{\bf {entry.text}}}" if entry.bold else entry.text
    if entry.spread.startswith("["):
        text += rf"\ {entry.spread}"
    elif entry.spread:
        text += f"^{{{entry.spread}}}"
    more = ", ".join(entry.details) if entry.level is None else ""
    return f"${colour}{text}$" + (rf" {{\tiny {_latex(more)}}}" if more else "")


def _latex_code(table: Table) -> str:
    if not table.coloured:
        return ""
    words = [r" The best (on average) is bold in {\color{red} red}; otherwise uncoloured: $p\leq 0.01$"]
    for name, title in (("weak", "yellow-orange"), ("hint", "orange"), ("little", "red orange")):
        level = LEVELS[name]
        words.append(rf"{{\color{{{level.latex}}} {title}}}: {_latex(level.words)}")
    return "; ".join(words) + "."


def _latex(text: str) -> str:
    """Return LaTeX code that prints this text.

    Accents are dropped. Other letters without an ASCII form are printed as ``[U+4E2D]``, for example.
    """
    parts = []
    for c in one_line(text):
        if c in ESCAPES:
            parts.append(ESCAPES[c])
        elif c.isascii():
            parts.append(c)
        else:
            plain = unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode()
            parts.append("".join(ESCAPES.get(p, p) for p in plain) or f"[U+{ord(c):04X}]")
    return "".join(parts).replace("--", "-{}-")
