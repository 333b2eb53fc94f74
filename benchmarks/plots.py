"""The page `docs/performance.md` and its pictures, from the JSON files of `recmix bench`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from recmix.errors import RunError
from recmix.reports.figures import COLOURS, STYLE
from recmix.runs.files import write_bytes

TEMPLATE = Path(__file__).parent / "performance.template.md"
Results = dict[str, dict[str, Any]]
"""The content of one file: figures by key."""


def plot(results: Path, docs: Path) -> list[Path]:
    """Write the page and its pictures; gives the files written."""
    found = read(results)
    pictures = docs / "images"
    pictures.mkdir(parents=True, exist_ok=True)
    drawn = {
        "order": _draw(found, "growth_in_order", against_order, pictures / "time-against-order.png"),
        "replicas": _draw(
            found,
            "replicas_throughput",
            against_replicas,
            pictures / "throughput-against-replicas.png",
        ),
    }
    page = docs / "performance.md"
    text = TEMPLATE.read_text(encoding="utf-8")
    text = text.replace("{{tables}}", "\n\n".join(table(one) for one in found.values()))
    for name, path in drawn.items():
        shown = f"![{CAPTIONS[name]}](images/{path.name})" if path else NOT_YET[name]
        text = text.replace("{{" + name + "}}", shown)
    write_bytes(page, text.encode())
    return [page, *(path for path in drawn.values() if path)]


def read(results: Path) -> dict[str, Results]:
    """All files of results, by name."""
    found = {}
    for path in sorted(results.glob("*.json")):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path} is not readable JSON ({error}): measure again") from error
    if not found:
        raise RunError(f"no results in {results}: run `recmix bench` first")
    # Graphics cards first: most of the figures are theirs.
    return dict(sorted(found.items(), key=lambda item: item[0].startswith("cpu")))


CAPTIONS = {
    "order": "Time of a training step against the order of the recursion",
    "replicas": "Images per second against the number of replicas",
}
NOT_YET = {
    "order": "*`growth_in_order` has not been measured yet.*",
    "replicas": "*`replicas_throughput` has not been measured yet.*",
}


def table(results: Results) -> str:
    """The figures of one device as Markdown."""
    first = next(iter(results.values()))
    lines = [
        f"### {first['device']}",
        "",
        "| figure | value | spread | reach | met | measured times |",
        "|---|---|---|---|---|---|",
    ]
    for name, entry in results.items():
        met = {True: "yes", False: "**no**", None: "-"}[entry["reached"]]
        cells = (
            f"{entry['about']}<br>`{name}`",
            f"**{_number(entry['value'])}** {entry['unit']}",
            f"± {_number(entry['spread'])}" if entry["spread"] else "-",
            entry["reach"] or "-",
            met,
            _times(entry["detail"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    versions = sorted({(e["torch"], e["python"], e["date"][:10]) for e in results.values()})
    told = "; ".join(f"torch {t}, Python {p}, {d}" for t, p, d in versions)
    quick = [name for name, entry in results.items() if entry.get("quick")]
    lines += ["", f"Measured with {told}."]
    if quick:
        lines += [f"With `--quick`, so only roughly: {', '.join(f'`{n}`' for n in quick)}."]
    return "\n".join(lines)


def _times(detail: Mapping[str, Any]) -> str:
    """The medians behind a ratio, and the same ratio by other ways of calling."""
    said = [f"{name} {_number(ms)} ms" for name, ms in detail.get("ms", {}).items()]
    for way in ("eager", "streamed"):
        found = detail.get(way)
        if isinstance(found, dict) and "value" in found:
            said.append(f"{way}: {_number(found['value'])}")
    return ", ".join(said) or "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def against_order(axes: Any, device: str, detail: Mapping[str, Any], colour: str) -> None:
    """Times of the library's engine and of the pseudocode."""
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
    axes.set_title("A training step against the order of the recursion, batch 128")


def against_replicas(axes: Any, device: str, detail: Mapping[str, Any], colour: str) -> None:
    """Images per second, a line for each method."""
    methods = [name for name, found in detail.items() if isinstance(found, dict)]
    for name, style in zip(methods, ("o-", "s--", "^:"), strict=False):
        points = _points(detail[name])
        axes.plot(*points, style, color=colour, label=f"{name} ({device})", lw=1.6, ms=4)
    axes.set(xlabel="replicas in one CUDA graph", ylabel="training images per second", yscale="log")
    axes.set_xscale("log", base=2)
    axes.set_xticks(points[0], [str(n) for n in points[0]])
    axes.set_title("Throughput of R trainings at once, batch 128 each")


def _points(values: Mapping[str, float]) -> tuple[list[int], list[float]]:
    pairs = sorted((int(n), value) for n, value in values.items())
    return [n for n, _ in pairs], [value for _, value in pairs]


def _draw(found: Mapping[str, Results], key: str, draw: Callable[..., None], path: Path) -> Path | None:
    """One picture with a colour for each device that has this key; None if none has."""
    having = [one[key] for one in found.values() if key in one]
    if not having:
        return None
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for entry, colour in zip(having, itertools.cycle(COLOURS), strict=False):
            draw(axes, entry["device"], entry["detail"], colour)
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Software": None})
        plt.close(figure)
    return path
