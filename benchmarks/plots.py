"""The page ``docs/performance.md`` and its plots, from the JSON files in ``benchmarks/results/``."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from recmix.errors import RunError
from recmix.reports.figures import COLOURS, STYLE
from recmix.reports.frontier import frontiers
from recmix.reports.records import SET_TITLES, TableColumn
from recmix.reports.summary import Point
from recmix.runs.files import read_json, write_bytes

TEMPLATE = Path(__file__).parent / "performance.template.md"
CAPTIONS = {
    "order": "Time of a training step against the order of the recursion",
    "replicas": "Examples per second against the number of replicas",
    "frontier": "Gain over VAE+ against the time of a posterior",
}
MISSING = {
    "order": "*`growth_in_order` has not been measured yet.*",
    "replicas": "*`replicas_throughput` has not been measured yet.*",
    "frontier": "*No column of results has been measured yet.*",
}
Results = dict[str, dict[str, Any]]
"""The content of one file: results by benchmark."""


def write_page(folder: Path, docs: Path) -> list[Path]:
    """Write the page and its plots from the results in a folder. Returns the files written."""
    results = read(folder)
    images = docs / "images"
    images.mkdir(parents=True, exist_ok=True)
    plots = {
        "order": _plot(results, "growth_in_order", plot_orders, images / "time-against-order.png"),
        "replicas": _plot(
            results,
            "replicas_throughput",
            plot_replicas,
            images / "throughput-against-replicas.png",
        ),
        "frontier": plot_frontier(docs / "results" / "columns.json", images / "frontier.png"),
    }
    page = docs / "performance.md"
    text = TEMPLATE.read_text(encoding="utf-8")
    text = text.replace("{{tables}}", "\n\n".join(table(one) for one in results.values()))
    for name, path in plots.items():
        image = f"![{CAPTIONS[name]}](images/{path.name})" if path else MISSING[name]
        text = text.replace("{{" + name + "}}", image)
    write_bytes(page, text.encode())
    return [page, *(path for path in plots.values() if path)]


def read(folder: Path) -> dict[str, Results]:
    """All results files of a folder by name, those of GPUs first."""
    results: dict[str, Results] = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    if not results:
        raise RunError(f"there are no results in {folder}: run `python -m benchmarks` first")
    return dict(sorted(results.items(), key=lambda item: item[0].startswith("cpu")))


def table(results: Results) -> str:
    """The results of one device as a Markdown table."""
    first = next(iter(results.values()))
    lines = [
        f"### {first['device']}",
        "",
        "| benchmark | value | spread | target | reached | measured times |",
        "|---|---|---|---|---|---|",
    ]
    for name, entry in results.items():
        cells = (
            f"{entry['about']}<br>`{name}`",
            f"**{_number(entry['value'])}** {entry['unit']}",
            f"± {_number(entry['spread'])}" if entry["spread"] else "-",
            entry["reach"] or "-",
            {True: "yes", False: "**no**", None: "-"}[entry["reached"]],
            _times(entry["detail"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    versions = sorted({(e["torch"], e["python"], e["date"][:10]) for e in results.values()})
    listed = "; ".join(f"torch {t}, Python {p}, {d}" for t, p, d in versions)
    quick = [name for name, entry in results.items() if entry.get("quick")]
    lines += ["", f"Measured with {listed}."]
    if quick:
        names = ", ".join(f"`{name}`" for name in quick)
        lines += [f"Measured with `--quick`, so less precise: {names}."]
    return "\n".join(lines)


def _times(detail: Mapping[str, Any]) -> str:
    """The medians behind a ratio, and the same ratio without CUDA graphs."""
    words = [f"{name} {_number(ms)} ms" for name, ms in detail.get("ms", {}).items()]
    for how in ("eager", "streamed"):
        other = detail.get(how)
        if isinstance(other, dict) and "value" in other:
            words.append(f"{how}: {_number(other['value'])}")
    return ", ".join(words) or "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def plot_orders(axes: Any, device: str, detail: Mapping[str, Any], colour: str) -> None:
    """Time of a training step of the library's engine and of the pseudocode, for each order."""
    sides = (
        (f"recmix, {detail['engine']} engine", "orders", "o-"),
        ("literal", "literal_orders", "s--"),
    )
    for label, name, style in sides:
        points = _points(detail[name])
        axes.plot(*points, style, color=colour, label=f"{label} ({device})", lw=1.6, ms=4)
    axes.set(xlabel="order (components)", ylabel="ms per training step", yscale="log")
    axes.set_xscale("log", base=2)  # a power is a straight line, and its exponent the slope
    axes.set_xticks(points[0], [str(n) for n in points[0]])
    axes.set_title("Time of a training step against the order of the recursion, batch 128")


def plot_replicas(axes: Any, device: str, detail: Mapping[str, Any], colour: str) -> None:
    """Examples per second for each number of replicas, a line for each method."""
    methods = [name for name, rates in detail.items() if isinstance(rates, dict)]
    for name, style in zip(methods, ("o-", "s--", "^:"), strict=False):
        points = _points(detail[name])
        axes.plot(*points, style, color=colour, label=f"{name} ({device})", lw=1.6, ms=4)
    axes.set(xlabel="replicas in one CUDA graph", ylabel="training images per second", yscale="log")
    axes.set_xscale("log", base=2)
    axes.set_xticks(points[0], [str(n) for n in points[0]])
    axes.set_title("Throughput of R trainings at once, batch 128 each")


def plot_frontier(file: Path, path: Path) -> Path | None:
    """Gain over VAE+ against the time of a posterior, for each row that was timed alone.

    Args:
        file: the rows that ``docs/columns.py`` wrote, with times and the bound on each split.
        path: the file to write.

    Returns:
        The path, or None if there are no such rows.
    """
    rows = read_json(file) if file.exists() else []
    panels: dict[str, list[Point]] = {}
    order = list(SET_TITLES)
    for row in sorted(rows, key=lambda row: (order.index(row["dataset"]), row["dim"])):
        of_column = [r for r in rows if (r["dataset"], r["dim"]) == (row["dataset"], row["dim"])]
        control = next((r for r in of_column if r["row"] == "VAE+"), None)
        if control is None or row["milliseconds"] is None or not row["alone"]:
            continue
        theirs = dict(zip(control["split numbers"], control["values"], strict=True))
        pairs = zip(row["split numbers"], row["values"], strict=True)
        gains = [value - theirs[split] for split, value in pairs if split in theirs]
        if gains:
            value, std = statistics.fmean(gains), statistics.stdev(gains) if len(gains) > 1 else None
            point = Point(row["row"], row["method"], row["milliseconds"], value, std)
            title = f"{TableColumn(data=row['dataset'], latent=row['dim'])}, {row['device']}"
            panels.setdefault(title, []).append(point)
    return frontiers(panels, path) if panels else None


def _points(values: Mapping[str, float]) -> tuple[list[int], list[float]]:
    pairs = sorted((int(n), value) for n, value in values.items())
    return [n for n, _ in pairs], [value for _, value in pairs]


def _plot(
    results: Mapping[str, Results], name: str, draw: Callable[..., None], path: Path
) -> Path | None:
    """A plot with a colour for each device that has results of this benchmark; None if none has."""
    entries = [one[name] for one in results.values() if name in one]
    if not entries:
        return None
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for entry, colour in zip(entries, itertools.cycle(COLOURS), strict=False):
            draw(axes, entry["device"], entry["detail"], colour)
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Software": None})
        plt.close(figure)
    return path
