"""Tables of docs/structured.md, made from the JSON files that docs/structured.py writes."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from code_tables import table

from recmix.evaluation.molecules import ROWS

__all__ = ["gaps", "longer", "molecules", "published", "rows", "training"]

RESULTS = Path(__file__).resolve().parent / "results" / "structured"
KINDS = {
    "text": "sentences",
    "strings": "molecules as strings, token by token",
    "parallel": "molecules as strings, all tokens at once",
    "graphs": "molecules as graphs",
}
FEW = "VAE+, few examples"
PUBLISHED = {
    "CVAE (characters)": ("", "0.7"),
    "GVAE (grammar)": ("", "7.2"),
    "SD-VAE (syntax and semantics)": ("", "43.5"),
    "JT-VAE (parts of molecules)": ("76.7", "100.0"),
}
"""Reconstruction and validity on ZINC250k in per cent, as published; docs/molecules.md says where."""


def rows(kind: str, study: str = "") -> str:
    """The bounds of all rows of one kind of data, and their differences from VAE+.

    Args:
        kind: the kind of data.
        study: beginning of the file's name, if it is not the main study.
    """
    found = _read(f"{study}{kind}")
    times = {time["row"]: time["microseconds"] for time in found["times"]}
    by_name = _by_name(found["rows"])
    several = max(len(part) for part in by_name.values())
    lines = []
    for name, part in by_name.items():
        few = part[0]["examples"] < by_name["VAE"][0]["examples"]
        control = FEW if few else "VAE+"
        line = [name if len(part) == several else f"{name} ({len(part)} of {several} splits)"]
        line.append(str(part[0]["examples"]))
        for bound in ("elbo", "iwae"):
            known = name != control and control in by_name
            gain = _gain(part, by_name[control], bound, paired=few) if known else ""
            line += [f"{statistics.mean(row[bound] for row in part):.2f}", gain]
        lines.append([*line, f"{times[name]:,.0f}" if name in times else ""])
    heads = ["row", "examples", "ELBO", "over VAE+", "IWAE-100", "over VAE+", "µs"]
    if not times:
        heads, lines = heads[:-1], [line[:-1] for line in lines]
    return table(heads, lines, numbers=len(heads) - 1)


def _gain(part: list[dict[str, Any]], control: list[dict[str, Any]], bound: str, *, paired: bool) -> str:
    """The mean difference from the control, with its standard error.

    Args:
        part: the row, in one or several splits.
        control: the control, in all splits.
        bound: elbo or iwae.
        paired: whether the error is that over test examples; else it is that over splits.
    """
    of = {row["split"]: row[bound] for row in control}
    gains = [row[bound] - of[row["split"]] for row in part]
    if paired:
        error = math.hypot(*(row[f"{bound}_gain_error"] for row in part)) / len(part)
    elif len(part) > 1:
        error = statistics.stdev(gains) / len(part) ** 0.5
    else:
        return f"{gains[0]:.2f}"
    return f"{statistics.mean(gains):.2f} ± {error:.2f}"


def longer() -> str:
    """The methods that continue from VAE+, and their differences from VAE+ that continues as long."""
    lines = []
    for kind in ("parallel", "graphs"):
        by_name = _by_name(_read(f"longer_{kind}")["rows"])
        control = "VAE+ longer"
        for name in (name for name in by_name if name.endswith(" longer")):
            line = [KINDS[kind], name]
            for bound in ("elbo", "iwae"):
                gain = _gain(by_name[name], by_name[control], bound, paired=False)
                line.append(f"{statistics.mean(row[bound] for row in by_name[name]):.2f}")
                line.append(gain if name != control else "")
            lines.append(line)
    return table(["data", "row", "ELBO", "gain", "IWAE-100", "gain"], lines, numbers=4)


def gaps() -> str:
    """The gap of VAE+ and its two parts, for each kind of data."""
    lines = []
    for kind, words in KINDS.items():
        if not (found := _read(kind)["gaps"]):
            continue
        line = [words, str(sum(split["examples"] for split in found))]
        for key in ("total", "amortisation", "approximation", "approximation_full"):
            error = math.hypot(*(split[key]["se"] for split in found)) / len(found)
            line.append(f"{statistics.mean(split[key]['mean'] for split in found):.2f} ± {error:.2f}")
        lines.append(line)
    heads = ["data", "examples", "gap", "amortisation", "approximation", "... of full Gaussians"]
    return table(heads, lines, numbers=5) if lines else "Not measured.\n"


def molecules() -> str:
    """The scores of molecules, for each way to write them, as means over splits in per cent."""
    measured = {words: _read(kind)["molecules"] for kind, words in KINDS.items()}
    kept = {words: found for words, found in measured.items() if found}
    lines = []
    for key, name in ROWS.items():
        shares = [statistics.mean(split[key] for split in found) for found in kept.values()]
        lines.append([name, *(f"{100 * share:.1f}" for share in shares)])
    return table(["per cent", *kept], lines, numbers=len(kept)) if kept else "Not measured.\n"


def published() -> str:
    """Published reconstruction and validity in per cent, and those of VAE+ beside them."""
    lines = [[name, *scores] for name, scores in PUBLISHED.items()]
    for kind, words in KINDS.items():
        if found := _read(kind)["molecules"]:
            shares = [
                statistics.mean(split[key] for split in found) for key in ("reconstruction", "validity")
            ]
            lines.append([f"VAE+, {words}", *(f"{100 * share:.1f}" for share in shares)])
    return table(["model", "reconstruction", "validity"], lines, numbers=2)


def training() -> str:
    """How far the VAE of each kind of data was trained, and what its latent variable holds."""
    lines = []
    for kind, words in KINDS.items():
        found = _read(kind)
        history = found["history"]
        last = [max(split) - max(split[:-3]) for split in history if len(split) > 3]
        rise = f"{statistics.mean(last):.2f}" if last else ""
        more = found.get("second_history", {}).get("VAE+", [])
        gains = [max(second) - max(first) for first, second in zip(history, more, strict=False)]
        gained = f"{statistics.mean(gains):.2f}" if gains else ""
        epochs = ", ".join(str(1 + split.index(max(split))) for split in history)
        line = [words, epochs or str(found["about"].get("epochs", "")), rise, gained]
        for row, key, digits in (("VAE", "kl", 1), ("VAE+", "kl", 1), ("VAE+", "perplexity", 2)):
            reports = [report for report in found["reports"] if report["row"] == row]
            values = [report[key] for report in reports if report.get(key) is not None]
            line.append(f"{statistics.mean(values):.{digits}f}" if values else "")
        lines.append(line)
    heads = ["data", "best epoch", "gain of the last 3 epochs", "gain of VAE+"]
    return table([*heads, "KL of VAE", "KL of VAE+", "perplexity"], lines, numbers=6)


def _read(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{kind}.json").read_text())
    return found


def _by_name(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The results of each row, one for each split."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["row"], []).append(row)
    return found
