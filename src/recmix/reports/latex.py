"""Tables as LaTeX, in the paper's layout and colours."""

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
    "–": "--",
    "…": r"\dots{}",
    "ε": r"$\epsilon$",
    **{c: "\\" + c for c in "{}$&#_%"},
}


def to_latex(table: Table) -> str:
    """One ``table`` environment in the paper's layout. It needs what `PREAMBLE` defines."""
    layout, spans = "l", []
    for _, places in table.groups:
        width = sum(1 + table.printed[i] for i in places)
        layout += "|" + "l" * width
        spans.append(width)
    total = sum(spans)
    groups = [
        rf"\multicolumn{{{width}}}{{c{'' if last else '|'}}}{{{_latex(title)}}}"
        for (title, _), width, last in zip(table.groups, spans, _lasts(spans), strict=True)
    ]
    dims, kinds = [], []
    for (_, places), last in zip(table.groups, _lasts(table.groups), strict=True):
        for i in places:
            end = "" if last or i != places[-1] else "|"
            latent = table.columns[i].latent
            dims.append(rf"\multicolumn{{{1 + table.printed[i]}}}{{c{end}}}{{${latent}$}}")
            kinds += ["ours", r"\color{gray} paper"] if table.printed[i] else ["ours"]
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
        rf"\cline{{2-{total + 1}}}",
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
    """A complete document with all tables."""
    body = "\n\\clearpage\n".join(to_latex(table) for table in tables)
    return (
        "\\documentclass{article}\n\\usepackage[margin=2cm,landscape]{geometry}\n"
        f"{PREAMBLE}\\begin{{document}}\n{body}\n"
        f"\\noindent Paper: {_latex(CITATION)}\n\\end{{document}}\n"
    )


def _lasts(items: Sequence[object]) -> list[bool]:
    return [i + 1 == len(items) for i in range(len(items))]


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
    more = ", ".join(word for word in (entry.p, entry.more) if word)
    shown = f"${colour}{text}$"
    return shown if not (more and entry.level is None) else shown + rf" {{\tiny {_latex(more)}}}"


def _latex_code(table: Table) -> str:
    if not table.coloured:
        return ""
    words = [r" The best (on average) is bold in {\color{red} red}; otherwise uncoloured: $p\leq 0.01$"]
    for name, title in (("weak", "yellow-orange"), ("hint", "orange"), ("little", "red orange")):
        level = LEVELS[name]
        words.append(rf"{{\color{{{level.latex}}} {title}}}: {_latex(level.words)}")
    return "; ".join(words) + "."


def _latex(text: str) -> str:
    """Text that LaTeX prints unchanged. Letters without a glyph become their code point."""
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
