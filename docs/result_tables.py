"""Tables of measured results, made from the JSON files in docs/results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import recursion_tables
import structured_tables
from code_tables import table

from recmix.commands.compare import markdown
from recmix.evaluation.gap import QUANTITIES
from recmix.reports.forms import to_markdown
from recmix.reports.records import Record
from recmix.reports.runs import read_runs
from recmix.reports.statistics import summarise
from recmix.reports.summary import summary
from recmix.reports.tables import gain_table, likelihood_table

__all__ = ["TABLES"]

RESULTS = Path(__file__).resolve().parent / "results"
Line = dict[str, Any]


def rows_of(name: str) -> list[Line]:
    """The rows of a file of docs/results."""
    rows: list[Line] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


def rates() -> str:
    """The second stage's learning rate, on validation and test images."""
    rows = {row["model"]: row for row in rows_of("mnist20_rates")}
    lines = []
    for rate, plus, grown in (
        ("1e-5", "VAE+", "RME(5)"),
        ("3e-6", "VAE learning_rate=3e-06 epochs=8", "RME(5) learning_rate=3e-06 epochs=8"),
        ("1e-6", "VAE learning_rate=1e-06 epochs=12", "RME(5) learning_rate=1e-06 epochs=12"),
    ):
        pair = rows[plus], rows[grown]
        lines.append([rate, *(f"{row[key]:.2f}" for key in ("best_validation", "iwae") for row in pair)])
    heads = ["rate", "VAE+, validation", "RME(5), validation", "VAE+, test", "RME(5), test"]
    return table(heads, lines, numbers=4)


def fresh() -> str:
    """The effect of a larger learning rate for new parameters."""
    rows = {row["model"]: row for row in rows_of("mnist20_rates")}
    lines = []
    for name in ("ME(3)", "IAF(2)", "HF(2)", "FULL", "RME(5)"):
        found = rows[name], rows[f"{name} fresh_rate=50.0"]
        lines.append([name, *(f"{row['best_validation']:.2f}" for row in found)])
    return table(["method", "`fresh_rate = 1`", "`fresh_rate = 50`"], lines, numbers=2)


def residual() -> str:
    """The gain from each part of the residual corrections."""
    rows = rows_of("mnist20_residual")
    lines = [[r["variant"], f"{r['iwae']:.1f}", f"{r['elbo']:.1f}"] for r in rows]
    return table(["variant", "validation IWAE-5", "validation ELBO"], lines, numbers=2)


def refined_residual() -> str:
    """IWAE-100 of validation images by refinement steps, with and without corrections."""
    found = json.loads((RESULTS / "mnist20_residual.json").read_text())["refined"]
    steps = list(next(iter(found.values())))
    lines = [[name, *(f"{row[n]:.1f}" for n in steps)] for name, row in found.items()]
    heads = ["model", *(f"{n} step{'s' * (n != '1')}" for n in steps)]
    return table(heads, lines, numbers=len(steps))


def ablation() -> str:
    """The gain from each way to train an encoder alone."""
    records = read_runs(RESULTS / "ablation_digits.json")
    bound = {(str(r.row), r.split): r.scores["val/5"]["iwae"] for r in records}
    splits = sorted({r.split for r in records})
    heads = ["row", "validation IWAE-5", "over VARIED", "test ELBO", "test IWAE-100", "over VAE+"]
    heads += ["exact p", "calibrated", "scale"]
    rows = {row["row"]: row for row in summary(records)}
    lines = []
    for name, row in rows.items():
        if row["calibrated"]:
            continue
        calibrated = rows.get(f"{name} calibrated")
        here = [bound[name, split] for split in splits]
        over = [found - bound["VARIED", split] for found, split in zip(here, splits, strict=True)]
        p = row["p_vae_plus"]
        line = [
            name,
            f"{statistics.fmean(here):.2f}",
            "–" if name == "VARIED" else _with_error(over, "", 2, sign="+"),
            f"{row['elbo']:.2f}",
            f"{row['mean']:.2f} ± {row['std']:.2f}",
            "control" if name == "VAE+" else f"{row['difference']:+.2f}",
            "–" if p is None else f"{p:.2g}",
        ]
        if calibrated is None:
            line += ["–", "–"]
        else:
            line += [
                f"{calibrated['mean']:.2f} ± {calibrated['std'] or 0:.2f}",
                f"{calibrated['scale']:.2f}",
            ]
        lines.append(line)
    return table(heads, lines, numbers=8)


def gaps(name: str) -> str:
    """What `recmix evaluate --gap` measured."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    parts = found["summary"]
    heads = ["test - train" if part == "difference" else part for part in parts]
    lines = [
        [words, *(f"{part[key]['mean']:.2f} ± {part[key]['se']:.2f}" for part in parts.values())]
        for key, words in QUANTITIES.items()
    ]
    text = [table(["nats per image", *heads], lines, numbers=len(heads)), "\n"]
    for part, check in found["check"].items():
        by = check["difference"]
        text.append(
            f"Annealed importance sampling of {check['images']} {part} images: log p(x) differs by "
            f"{by['mean']:+.3f} ± {by['se']:.3f} nats.\n"
        )
    return "".join(text)


@cache
def mnist20_runs() -> list[Record]:
    """The runs of `configs/gpu_mnist20.toml`."""
    return read_runs(RESULTS / "mnist20_grid" / "frontier_runs.json")


def mnist20_grid() -> str:
    """The tables of `configs/gpu_mnist20.toml`, as `recmix report --format markdown` prints them."""
    results = summarise(mnist20_runs())
    text = "\n".join(to_markdown(found) for found in (likelihood_table(results), gain_table(results)))
    return text.replace("\n## ", "\n#### ").replace("\n### ", "\n##### ").removeprefix("## ")


def muon() -> str:
    """The same trainings with Adam and with Muon."""
    both = {
        "Adam": RESULTS / "binary_adam" / "frontier_runs.json",
        "Muon": RESULTS / "binary_muon" / "frontier_runs.json",
    }
    lines = []
    for optimiser, path in both.items():
        rows = [row for row in summary(read_runs(path)) if row["dataset"] == "binary-mnist"]
        found = {row["row"]: f"{row['mean']:.2f} ± {row['std']:.2f}" for row in rows}
        lines.append([optimiser, found["VAE"], found["VAE+"]])
    return table(["optimiser", "VAE", "VAE+"], lines, numbers=2)


PILOT = ("order", "component", "bound", "eps_max", "learning_rate", "fresh_rate", "train")
"""Options that the table of the pilot shows."""


def pilot() -> str:
    """Rates, gate ranges and bounds that were tried on validation images."""
    rows = rows_of("pilot_mnist20")
    lines = [
        "| row | options | best epoch of 8 | validation IWAE-100 | ELBO | mean weights |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in rows:
        if "options" not in row or "val_iwae100" not in row:
            continue
        shown = ", ".join(
            f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}"
            for k, v in row["options"].items()
            if k in PILOT
        )
        weights = " ".join(f"{w:.2f}" for w in row["weights"])
        name = row["row"].split()[0]
        lines.append(
            f"| {name} | {shown} | {row['best_epoch']} | {row['val_iwae100']:.1f} "
            f"| {row['val_elbo100']:.1f} | {weights} |"
        )
    return "\n".join(lines) + "\n"


def resnet() -> str:
    """Binary MNIST with residual networks, one split."""
    rows = rows_of("resnet_binary")
    lines = []
    for row in rows:
        bound = f"{row['iwae']:.2f} ± {row['error']:.2f}"
        lines.append([row["row"], f"{row['images']:,}", f"{row['elbo']:.2f}", bound])
    return table(["row", "test images", "ELBO", "IWAE-100"], lines, numbers=3)


def refinements() -> str:
    """Kinds of refinement on MNIST: test IWAE-100 and share of the gain of four exact steps."""
    rows = rows_of("refinement_mnist")
    values: dict[tuple[int, str], dict[int, float]] = {}
    for row in rows:
        values.setdefault((row["dim"], row["row"]), {})[row["split"]] = row["iwae"]
    lines = []
    for name in sorted({row["row"] for row in rows}, key=_refinement_order):
        line = [name]
        for dim in (20, 50):
            found = values.get((dim, name), {})
            start, exact = values[dim, "VAE"], values[dim, "gauss-newton 4"]
            shares = [100 * (v - start[s]) / (exact[s] - start[s]) for s, v in found.items()]
            bound = share = ""
            if len(found) == 1:
                bound, share = f"{found[0]:.1f} (1 of 5 splits)", f"{shares[0]:.0f} %"
            elif found:
                bound = _with_error(list(found.values()), "")
                share = _with_error(shares, " %")
            line += [bound, share]
        lines.append(line)
    head = ["row", "dim 20", "share of the gain", "dim 50", "share of the gain"]
    return table(head, lines, numbers=4)


def _with_error(values: list[float], unit: str, digits: int = 1, sign: str = "") -> str:
    """The mean and its standard error over splits."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):{sign}.{digits}f} ± {error:.{digits}f}{unit}"


PARTS = {
    "VAE+ calibrated": "calibrated width",
    "VAE+ calibrated+noise": "calibrated width and noise",
    "RESIDUAL": "three residual corrections (VAE)",
    "learned 4": "4 steps with a learned curvature (VAE)",
    "gauss-newton 4": "4 Gauss-Newton steps (VAE)",
}
"""Rows of refinement_mnist.json that the table of the gain's parts shows."""


def parts() -> str:
    """Gains over VAE+ on test images of MNIST, mean and standard error over five splits."""
    rows = rows_of("refinement_mnist")
    found = {(row["dim"], row["row"], row["split"]): row for row in rows}
    lines = []
    for name, words in {"VAE": "the VAE, not trained on", **PARTS}.items():
        line = [words]
        for dim in (20, 50):
            pairs = [(found.get((dim, name, s)), found[dim, "VAE+", s]) for s in range(5)]
            for bound in ("iwae", "elbo"):
                gains = [row[bound] - control[bound] for row, control in pairs if row]
                line.append(_with_error(gains, "") if len(gains) == len(pairs) else "–")
        lines.append(line)
    heads = [f"dim {dim}: {bound}" for dim in (20, 50) for bound in ("IWAE-100", "ELBO")]
    return table(["over VAE+", *heads], lines, numbers=4)


def gap_parts() -> str:
    """The parts of the gap between log p(x) and the ELBO of test images of MNIST, 20 dimensions."""
    names = {"mnist20_gap": "VAE", "mnist20_gap_residual": "RESIDUAL", "mnist20_gap_refined": "REFINED"}
    keys = ("total", "amortisation", "approximation")
    lines = []
    for file, name in names.items():
        test = json.loads((RESULTS / f"{file}.json").read_text())["summary"]["test"]
        lines.append([name, *(f"{test[key]['mean']:.1f} ± {test[key]['se']:.1f}" for key in keys)])
    return table(["row", *keys], lines, numbers=3)


def _refinement_order(name: str) -> tuple[int, str]:
    """A sort key: controls first, then exact, learned and other steps, then residual corrections."""
    kinds = ("VAE", "gauss", "learned", "variational", "conjugate", "RESIDUAL")
    return next(i for i, kind in enumerate(kinds) if name.startswith(kind)), name


TABLES: dict[str, Callable[[], str]] = {
    **recursion_tables.TABLES,
    "refinements": refinements,
    "parts": parts,
    "gap-parts": gap_parts,
    **{f"structured-{kind}": partial(structured_tables.rows, kind) for kind in structured_tables.KINDS},
    "structured-gaps": structured_tables.gaps,
    "structured-refined-parallel": partial(structured_tables.rows, "parallel", "refined_"),
    "structured-refined-graphs": partial(structured_tables.rows, "graphs", "refined_"),
    "structured-longer": structured_tables.longer,
    "structured-molecules": structured_tables.molecules,
    "structured-published": structured_tables.published,
    "structured-training": structured_tables.training,
    "resnet": resnet,
    "pilot": pilot,
    "mnist20": lambda: markdown(rows_of("mnist20")),
    "mnist20-grid": mnist20_grid,
    "mnist20-rates": rates,
    "mnist20-fresh": fresh,
    "binary-muon": muon,
    "residual": residual,
    "residual-refined": refined_residual,
    "ablation": ablation,
    "gap-mnist20": lambda: gaps("mnist20_gap"),
    "gap-mnist20-refined": lambda: gaps("mnist20_gap_refined"),
    "gap-mnist20-residual": lambda: gaps("mnist20_gap_residual"),
}
"""Functions that make each table, by its name in the pages."""
