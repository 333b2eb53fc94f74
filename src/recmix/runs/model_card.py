"""Write the model card of a run: the README.md that the Hugging Face Hub shows. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from recmix._version import __version__
from recmix.runs.scores import ScoreKey
from recmix.runs.spec import Spec

__all__ = ["model_card"]


def model_card(
    spec: Spec, scores: Mapping[str, Any], *, repo: str = "USER/NAME", licence: str | None = None
) -> str:
    """Return the model card of a run as Markdown with a YAML header.

    >>> card = model_card(Spec(method="vae", label="VAE", shape=(1, 8, 8)), {}, repo="me/vae")
    >>> 'recmix.load("hf://me/vae")' in card
    True

    Args:
        spec: the options of the run and a description of its data.
        scores: the evaluation results of the run, {score name: result}.
        repo: the repository on the Hub. The card shows how to load the model from there.
        licence: the licence of the weights, such as ``apache-2.0``; None to name no licence.
    """
    header = {"library_name": "recmix", "tags": ["recmix", "variational-autoencoder", spec.method]}
    if licence is not None:
        header["license"] = licence
    lines = ["---", *(f"{name}: {json.dumps(value)}" for name, value in header.items()), "---", ""]
    lines += [
        f"# {_cell(repo)}",
        "",
        f"A model of the method `{_cell(spec.method)}`, trained with recmix.",
    ]
    lines += ["", "## Use", "", "```python", "import recmix", "", f'model = recmix.load("hf://{repo}")']
    lines += ["model.posterior(x)  # q(z | x) of examples x", "model.log_likelihood(x)", "```", ""]
    if own := [name for name, value in vars(spec.model).items() if value == "own"]:
        lines += [
            f"This model has classes of its author's own: {', '.join(own)}. Give them to `load`.",
            "",
        ]
    lines += ["## Model", "", *_table(["option", "value"], _model(spec)), ""]
    lines += ["## Data", "", *_table(["", ""], _data(spec)), ""]
    lines += ["## Scores", ""]
    if rows := _scores(scores):
        heads = ["data", "K", "inference", "examples", "ELBO (nats)", "IWAE-K (nats)"]
        lines += [*_table(heads, rows), "", "Means over the examples, ± standard error.", ""]
    else:
        lines += ["No scores were stored.", ""]
    lines += ["## Training", "", "Options that differ from the defaults:", ""]
    lines += [*_table(["option", "value"], spec.training.changed().items()), ""]
    lines += [f"Written by recmix {__version__}. `spec.json` has all options.", ""]
    return "\n".join(lines)


def _model(spec: Spec) -> Iterable[tuple[str, Any]]:
    yield "method", spec.method
    yield "name in tables", spec.label
    yield "shape of an example", "x".join(map(str, spec.shape))
    yield from spec.options.items()
    yield "latent", spec.model.latent
    yield from ((name, value) for name, value in spec.model.changed().items() if name != "latent")
    if spec.inference.key:
        yield "inference", spec.inference.key


def _data(spec: Spec) -> Iterable[tuple[str, Any]]:
    yield "name", spec.data.get("name", "not recorded")
    for part, count in spec.data.get("counts", {}).items():
        yield f"{part} examples", "none" if count is None else count
    yield "seed of the split", spec.data.get("seed", "not recorded")
    yield "fingerprint", str(spec.data.get("fingerprint", "not recorded"))[:16]


def _scores(scores: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    rows = []
    for name, found in scores.items():
        key = ScoreKey.parse(name)
        if key is None:
            continue
        how = "/".join(name.split("/")[2:]) or "encoder"
        bounds = (f"{_number(found.get(b))} ± {_number(found.get(b + '_se'))}" for b in ("elbo", "iwae"))
        rows.append((key.part, key.samples, how, found.get("images", "not recorded"), *bounds))
    return rows


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "not recorded"


def _table(heads: list[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(_cell(value) for value in line)} |" for line in lines]


def _cell(value: Any) -> str:
    """Return a value as text for a table cell, without line breaks, Markdown or HTML."""
    text = " ".join(str(value).split())
    for character in "\\|`<>[]":
        text = text.replace(character, " " if character == "`" else f"\\{character}")
    return text
