"""Every method from one VAE under one schedule: the fair comparison, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recmix.api import Fitted, load
from recmix.data import ImageData
from recmix.errors import ConfigError, NonFiniteError
from recmix.evaluation.score import score
from recmix.methods.registry import METHODS, find_method
from recmix.runs.files import write_bytes, write_json
from recmix.runs.folder import Run
from recmix.runs.options import Training
from recmix.training.fit import fit
from recmix.training.options import read_options

__all__ = ["compare", "markdown", "parse_entry"]

Row = dict[str, Any]


def parse_entry(text: str) -> tuple[str, dict[str, Any]]:
    """A method and its options from ``name`` or ``name:option=value,option=value``.

    >>> parse_entry("rme:order=2,eps_max=0.2")
    ('rme', {'order': 2, 'eps_max': 0.2})
    """
    name, _, rest = text.partition(":")
    given = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{text!r}: expected option=value after the colon, got {part!r}")
        given[key.strip()] = value.strip()
    own, common = read_options(find_method(name), given)
    return name, {**{k: own[k] for k in given if k in own}, **common}


def compare(
    data: ImageData,
    out: Path,
    entries: Sequence[str] = (),
    *,
    init: str | Path | None = None,
    vae: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    samples: int = 100,
    progress: bool | None = None,
) -> list[Row]:
    """Train a VAE, continue it (VAE+), start every method from it, and score all on the test images.

    What is already in the folder is continued or taken as it is, so it may be interrupted.

    Args:
        data: images.
        out: folder for the runs, ``compare.json`` and ``compare.md``.
        entries: methods, as `parse_entry` reads them; by default every one with its defaults.
        init: a trained VAE to start from instead of training one here.
        vae: options of `fit` for the VAE.
        second: options of `fit` for all that start from it: the same rate and budget for all.
        samples: K of IWAE-K.
        progress: as in `fit`.

    Returns:
        A row per model: scores, the gain over VAE+, and the reason where a training failed.
    """
    find_method("vae")  # fills the registry
    if data.x_test is None:
        raise ConfigError(f"the data {data.name} have no test images to compare on")
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, got {samples}")
    Training(**read_options(find_method("vae"), second or {})[1])  # before hours of training
    if init is not None:
        spec = Run(init).spec()
        if spec.method != "vae" or spec.shape != data.shape:
            raise ConfigError(
                f"init must be a VAE of these images {data.shape}; "
                f"{init} is {spec.method} of images {spec.shape}"
            )
    chosen = [parse_entry(text) for text in entries or sorted(set(METHODS) - {"vae"})]
    both: dict[str, Any] = {"resume": True, "progress": progress}
    first = load(init) if init else fit("vae", data, out=out / "vae", **(vae or {}), **both)
    rows = [_row("VAE", first, data, samples)]
    for label, name, options in [("VAE+", "vae", {}), *((_label(n, o), n, o) for n, o in chosen)]:
        asked = (second or {}) | options
        if "learning_rate" in (second or {}) and "learning_rate" not in options:
            asked["learning_rate"] *= find_method(name).rate_factor
        try:
            model = fit(name, data, init=first, out=out / _folder(label), **asked, **both)
            shown = label.replace("(auto)", f"(auto: {model.spec.options.get('order')})")
            rows.append(_row(shown, model, data, samples))
        except NonFiniteError as error:
            rows.append({"model": label, "reason": str(error)})
        plus = rows[1].get("iwae")
        for row in rows:
            row["gain"] = row["iwae"] - plus if plus is not None and "iwae" in row else None
        write_json(out / "compare.json", {"data": data.describe(), "rows": rows})
        write_bytes(out / "compare.md", markdown(rows).encode())
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    samples, batch = rows[0]["samples"], rows[0]["batch"]
    lines = [
        f"| model | ELBO | IWAE-{samples} | over VAE+ | ms per batch of {batch} | best epoch |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "iwae" not in row:
            lines.append(f"| {row['model']} | failed: {row['reason']} | | | | |")
            continue
        lines.append(
            f"| {row['model']} | {row['elbo']:.2f} ± {row['elbo_se']:.2f} "
            f"| {row['iwae']:.2f} ± {row['iwae_se']:.2f} | {_signed(row['gain'])} "
            f"| {row['milliseconds']:.2f} | {row['best_epoch']} |"
        )
    return "\n".join(lines) + "\n"


def _row(label: str, model: Fitted, data: ImageData, samples: int) -> Row:
    assert data.x_test is not None
    found = score(model.method, data.x_test, samples=samples)
    status: dict[str, Any] = {}
    if model.folder is not None:
        run = Run(model.folder)
        run.add_score(f"test/{samples}", found)
        status = run.status()
    kept = {key: status.get(key) for key in ("best_epoch", "best_validation")}
    return {"model": label, **kept, **found}


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def _label(name: str, options: dict[str, Any]) -> str:
    setting = find_method(name).setting
    shown = dict(options)
    value = shown.pop(setting, None) if setting else None
    if setting and value is None:
        value = read_options(find_method(name), {})[0][setting]
    more = "".join(f" {key}={option}" for key, option in shown.items())
    return name.upper() + (f"({value})" if setting else "") + more


def _folder(label: str) -> str:
    """A folder name for a row: letters, digits and a few signs."""
    return "".join(c if c.isalnum() or c in "+-_." else "-" for c in label.lower()).strip("-")
