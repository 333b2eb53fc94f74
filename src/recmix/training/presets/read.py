"""Read a preset: a sequence of trainings (stages) in a TOML file that a user can read and copy.

.. code-block:: toml

    title = "A VAE, then a mixture"
    [[stages]]
    name = "vae"           # name of the stage's folder, inside the run folder
    method = "vae"
    epochs = 300           # options of the method, of training or of inference
    [[stages]]
    name = "mixture"       # the last stage is in the run folder itself
    method = "rme"
    after = "vae"          # the stage it starts from (default: the stage before)
    order = 3
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recmix.errors import ConfigError, unknown
from recmix.inference import Inference
from recmix.runs.files import read_toml
from recmix.runs.training_options import Training
from recmix.training.arguments import read_options, split_auto

__all__ = ["Preset", "Stage", "parse", "preset_file", "presets", "read_preset"]

FOLDER = Path(__file__).parent
OWN = ("name", "method", "after")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+-]*")
"""Valid names of a stage and its folder. They cannot be paths to other folders."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One training in a preset, which is a sequence of trainings (stages).

    Attributes:
        name: name of the stage and of its folder.
        after: name of the stage whose trained weights this stage starts from; "" for the first stage.
        options: options of the method, of training and of inference, as in the TOML file.
    """

    name: str
    method: str
    after: str
    options: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A sequence of trainings (stages). The model of the last stage is the result.

    >>> [stage.name for stage in read_preset("paper").stages]
    ['vae', 'mixture']
    """

    name: str
    title: str
    stages: tuple[Stage, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the preset as JSON values, in the structure of the TOML file; `parse` reads them."""
        stages = [
            {"name": stage.name, "method": stage.method}
            | ({"after": stage.after} if stage.after else {})
            | stage.options
            for stage in self.stages
        ]
        return {"title": self.title, "stages": stages}


def presets() -> list[str]:
    """The names of the presets that come with the library.

    >>> presets()
    ['best', 'paper', 'recursive']
    """
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def preset_file(preset: str | Path) -> Path:
    """Return the path of a preset's TOML file.

    Args:
        preset: the name of a preset of the library, or the path of a user's TOML file. Text with a
            slash or the ending ``.toml`` is a path.
    """
    name = str(preset)
    if isinstance(preset, Path) or "/" in name or name.endswith(".toml"):
        return Path(preset)
    if name not in presets():
        message = unknown("preset", name, presets())
        raise ConfigError(f"{message}; or give the path of your own, such as ./{name or 'mine'}.toml")
    return FOLDER / f"{name}.toml"


def read_preset(preset: str | Path) -> Preset:
    """Read a preset, a sequence of trainings in a TOML file, and check its options.

    Args:
        preset: the name of a preset of the library, or the path of a user's TOML file.
    """
    if not isinstance(preset, str | Path):
        raise ConfigError(f"preset must be a name or the path of a TOML file, got {preset!r}")
    file = preset_file(preset)
    content = read_toml(file, "the preset")
    return parse(content, file.stem, str(file))


def parse(content: Any, name: str, where: str) -> Preset:
    """Make a `Preset` (a sequence of trainings) from the parsed TOML of its file, and check its options.

    Args:
        content: what `tomllib.load` returned for the file.
        name: the name of the preset.
        where: the name of the file, for error messages.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} is not a preset: expected a title and [[stages]]")
    for key in content:
        if key not in ("title", "stages"):
            raise ConfigError(f"{where}: {unknown('key', key, ['title', 'stages'])}")
    title, entries = content.get("title", name), content.get("stages")
    if not isinstance(title, str):
        raise ConfigError(f"{where}: title must be text, got {title!r}")
    if not isinstance(entries, list) or not entries or not all(isinstance(e, Mapping) for e in entries):
        raise ConfigError(f"{where}: a preset needs at least one [[stages]] table")
    stages: list[Stage] = []
    for entry in entries:
        try:
            stages.append(_stage(entry, [stage.name for stage in stages]))
        except ConfigError as error:
            called = entry.get("name", len(stages) + 1)
            raise ConfigError(f"{where}, stage {called!r}: {error}") from error
    return Preset(name=name, title=title, stages=tuple(stages))


def _stage(entry: Mapping[str, Any], before: list[str]) -> Stage:
    """Make a stage from one [[stages]] table of the TOML file, and check its options.

    Args:
        entry: the table, {name: value}.
        before: the names of the stages before this one.
    """
    for key in ("name", "method"):
        if not isinstance(entry.get(key), str):
            raise ConfigError(f"{key} must be text, got {entry.get(key)!r}: every stage has one")
    name, method = entry["name"], entry["method"]
    if not NAME.fullmatch(name) or name == "tensorboard":
        raise ConfigError(
            f"name is that of a folder in the run's: letters, digits, + and -, and not tensorboard, "
            f"got {name!r}"
        )
    if name in before:
        raise ConfigError("there is a stage of this name before it: give each its own")
    after = entry.get("after", before[-1] if before else "")
    if after not in before and (before or "after" in entry):
        found = ", ".join(before) or "none, for it is the first"
        raise ConfigError(f"after must name a stage before it ({found}), got {after!r}")
    options = {key: value for key, value in entry.items() if key not in OWN}
    check_options(method, options)
    return Stage(name=name, method=method, after=after, options=options)


def check_options(method: str, options: Mapping[str, Any]) -> None:
    """Raise a ConfigError if an option is unknown or a value is not valid.

    Args:
        options: options of the method, of training and of inference, {name: value}.
    """
    given = read_options(method, options, OWN)
    split_auto(given.method)
    Training(**given.training)
    Inference(**given.inference)
