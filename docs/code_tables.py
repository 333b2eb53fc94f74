"""Tables of methods, options, data sets and commands, made from the code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from recmix.data import SETS
from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.methods.method_options import growth_options, method_options
from recmix.methods.registry import COMPONENTS, METHODS
from recmix.model.likelihoods import LIKELIHOODS, Autoregressive, Likelihood
from recmix.model.options import ModelOptions, Option, options_of
from recmix.model.priors import PRIORS, GaussianMixturePrior, StandardNormal, VampPrior
from recmix.runs.training_options import Training
from recmix.training.presets import presets, read_preset

__all__ = ["TABLES", "table"]

NONE = "–"
LARGE = 1e9
"""A limit above this is not shown."""
SHAPE, CLASSES = (3, 8, 8), 5
"""Examples for which the table of likelihoods gives the shape of the decoder's output."""
VALUES = {
    "real": "any numbers",
    "unit": "0 to 1",
    "counts": "0, 1, 2, …",
    "classes": "0 to K - 1; below 0: padding",
    "eight_bit": "k / 255",
}
"""What `Likelihood.values` means."""


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], numbers: int = 0) -> str:
    """A Markdown table; the last `numbers` columns are aligned to the right."""
    heads = list(heads)
    lines = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, lines, *rows))


def methods() -> str:
    """Every method: what it is, its setting with the default, what it starts from, its options."""
    rows = []
    for name, cls in sorted(METHODS.items()):
        own = method_options(cls) | growth_options(cls)
        setting = f"`{cls.setting}` = {_value(own[cls.setting].default)}" if cls.setting else NONE
        others = ", ".join(f"`{option}`" for option in own if option != cls.setting)
        start = f"`{cls.starts_from}`" if cls.starts_from else "random weights"
        rows.append([f"`{name}`", cls.title, setting, start, others or NONE, cls.reference])
    return table(["method", "what it is", "setting", "starts from", "other options", "reference"], rows)


def components() -> str:
    """Every kind of component that a mixture can have."""
    rows = []
    for kind, cls in sorted(COMPONENTS.items()):
        rows.append([f"`{kind}`", _first(cls), f"`{cls.setting}`" if cls.setting else NONE])
    return table(["kind", "density", "`component_setting` is"], rows)


def options_of_method(name: str) -> str:
    """The options of one method."""
    cls = METHODS[name]
    return options((method_options(cls) | growth_options(cls)).values())


def options(found: Iterable[Option]) -> str:
    """Options with their defaults, valid values and meanings."""
    rows = [[f"`{o.name}`", f"`{_value(o.default)}`", _valid(o), _text(o.help)] for o in found]
    if not rows:
        return "This method has no options.\n"
    heads = ["option", "default", "valid values", "meaning"]
    if not any(valid for _, _, valid, _ in rows):
        heads.pop(2)
        rows = [[name, value, text] for name, value, _, text in rows]
    return table(heads, ([cell or NONE for cell in row] for row in rows))


def data_sets() -> str:
    """The named data sets."""
    rows = []
    for name, found in SETS.items():
        size = "x".join(map(str, found.shape))
        counts = " / ".join(f"{n:,}" for n in found.counts.values())
        rows.append([f"`{name}`", size, counts, found.citation])
    return table(["name", "example", "train / validation / test", "cite"], rows)


def likelihoods() -> str:
    """Every likelihood: its data, the decoder's output, its Fisher information, its noise."""
    rows = []
    for name, cls in sorted(LIKELIHOODS.items()):
        about = [f"`{name}`", f"`{cls.__name__}`", _first(cls), VALUES[cls.values]]
        rows.append([*about, _output(cls), _fisher(cls), "yes" if cls.can_temper else "no"])
    heads = ["name", "class", "what it is", "values of x", f"decoder output for x {SHAPE}"]
    return table([*heads, "Fisher information", "noise"], rows)


def _output(cls: type[Likelihood]) -> str:
    """The shape of a likelihood's decoder output for examples of the shape `SHAPE`."""
    try:
        return str(cls.for_data(SHAPE, classes=CLASSES).output_shape(SHAPE))
    except ConfigError:  # only for graphs
        return NONE


def _fisher(cls: type[Likelihood]) -> str:
    """How a likelihood computes its Fisher information in the decoder's output."""
    if cls is Autoregressive:
        return "matrix, derivatives"
    if cls.fisher is not Likelihood.fisher:
        return "blocks, formula"
    if cls.precision is not Likelihood.precision:
        return "diagonal, formula"
    return "blocks, from samples" if cls.blocks is not Likelihood.blocks else "diagonal, from samples"


def priors() -> str:
    """The priors that options can give."""
    kinds = {cls.name: cls for cls in (StandardNormal, GaussianMixturePrior, VampPrior)}
    texts = {name: _first(cls) for name, cls in kinds.items()} | {"flow": "A neural spline flow of zuko"}
    classes = {name: f"`{cls.__name__}`" for name, cls in kinds.items()}
    rows = [[f"`{name}`", classes.get(name, "`OwnPrior`"), texts[name]] for name in PRIORS]
    return table(["name", "class", "what it is"], rows)


def commands() -> str:
    """The commands of the program."""
    from recmix.cli import app
    from recmix.commands.train import add_train

    add_train(app, with_options=False)
    rows = []
    for command in sorted(app.registered_commands, key=lambda command: str(command.name)):
        rows.append([f"`recmix {command.name}`", _first(command.callback)])
    return table(["command", "what it does"], rows)


def preset_list() -> str:
    """The presets and their stages."""
    rows = []
    for name in presets():
        preset = read_preset(name)
        stages = ", then ".join(f"`{stage.method}`" for stage in preset.stages)
        rows.append([f"`{name}`", preset.title, stages])
    return table(["preset", "what it is", "methods"], rows)


def _value(value: Any) -> str:
    """A default value as the command line takes it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _valid(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    limits = ((words, limit) for words, limit in option.limits.items() if limit is not None)
    return ", ".join(f"{words} {limit:g}" for words, limit in limits if limit < LARGE)


def _first(documented: Any) -> str:
    """The first paragraph of a docstring as one Markdown cell."""
    return _text((inspect.getdoc(documented) or "").partition("\n\n")[0])


def _text(words: str) -> str:
    """A docstring's text as one Markdown cell."""
    return " ".join(words.split()).replace("``", "`").replace("|", "\\|").replace("*", "\\*").rstrip(".")


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods,
    "components": components,
    "model-options": lambda: options(options_of(ModelOptions).values()),
    "training-options": lambda: options(options_of(Training).values()),
    "inference-options": lambda: options(options_of(Inference).values()),
    "auto-options": lambda: options(list(growth_options(METHODS["rme"]).values())[1:]),
    "data-sets": data_sets,
    "likelihoods": likelihoods,
    "priors": priors,
    "commands": commands,
    "presets": preset_list,
    **{f"options-{name}": lambda name=name: options_of_method(name) for name in METHODS},
}
"""Functions that make each table, by its name in the pages."""
