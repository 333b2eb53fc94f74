"""`Spec`: everything that defines a run, as values that can be written to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from recmix._version import __version__
from recmix.errors import ConfigError, RunError, unknown
from recmix.inference import Inference
from recmix.model.options import ModelOptions
from recmix.runs.data_options import DATA_OPTIONS
from recmix.runs.training_options import Training

__all__ = ["FORMAT", "Spec", "check_description", "check_format"]

FORMAT = 2  # version of the folder's layout. A folder of another version is an error.
MAX_VALUES = 10**7
"""Largest number of values of one example. A spec with a larger shape is rejected before any memory is
allocated for it."""
GROUPS = {"model": ModelOptions, "training": Training, "inference": Inference}
KIND_NAMES = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
KINDS: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "label": (str,),
    "options": (dict,),
    "data": (dict,),
    "init": (dict, type(None)),
    "setting": (str, type(None)),
    "auto": (dict, type(None)),
}
"""The JSON types of the fields of a spec that are not groups of options."""
DATA_KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "kind": (str,),
    "fingerprint": (str,),
    "path": (str,),
    "root": (str, type(None)),
    "seed": (int,),
    "options": (dict,),
    "columns": (list,),
    "vocabulary": (dict,),
}
"""The JSON types of fields of the description of the data."""
LOAD_KINDS: dict[str, tuple[type, ...]] = {
    **{name: (kind, type(None)) for name, (kind, _) in DATA_OPTIONS.items()},
    "stream": (bool, str),
    "split_name": (str,),
    "hold_out_test": (bool,),
}
"""The JSON types of the options with which the data were read."""
VOCABULARY_KINDS: dict[str, tuple[type, ...]] = {"kind": (str,), "sha256": (str,)}
"""The JSON types of the description of a vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that defines a run, as values that can be written to JSON.

    Args:
        method: name of the method.
        label: name of the run in the tables of results, such as ``VAE+``.
        shape: shape of one example, such as (C, H, W), with at most 10,000,000 values.
        options: options that belong to this method only.
        model: latent dimension, likelihood and networks. A user's own module has the name ``own``.
        training: options of training.
        inference: how the posterior is refined and calibrated in training, and by default when the model
            is used.
        data: description of the data, and where they were read from.
        init: description of the model that the run started from, or None.
        setting: name of the method's option that differs between rows of the tables of results (order,
            steps or flows), or None.
        auto: for ``order = "auto"``: how the number of mixture components is chosen, and the result in
            words. Then `options` holds the number that was chosen. None otherwise.
    """

    method: str
    shape: tuple[int, ...]
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    model: ModelOptions = field(default_factory=ModelOptions)
    training: Training = field(default_factory=Training)
    inference: Inference = field(default_factory=Inference)
    data: dict[str, Any] = field(default_factory=dict)
    init: dict[str, Any] | None = None
    setting: str | None = None
    auto: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the options of the run and the description of its data as JSON values."""
        return {"format": FORMAT, "recmix": __version__, **asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, content: Any, where: str = "spec") -> Spec:
        """Make a spec from JSON values, the inverse of `to_json`.

        Args:
            where: name of the file, for error messages.

        Raises:
            RunError: the format version is another one, a field is unknown, or a value is not valid.
        """
        if not isinstance(content, dict) or "method" not in content:
            raise RunError(f"{where} is not the spec of a run: expected a JSON object with 'method'")
        check_format(content.get("format", 0), where)
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in content.items() if k not in ("format", "recmix")}
        for key in values:
            if key not in known:
                raise RunError(f"{where}: {unknown('field', key, known)}")
        try:
            _check_kinds(values, KINDS)
            check_description(values.get("data", {}))
            _check_shape(values["shape"])
            values["inference"] = vars(Inference.from_json(values.get("inference", {"checks": 1})))
            for name, group in GROUPS.items():
                values[name] = group(**values.get(name, {}))
            values["shape"] = tuple(values["shape"])
            return cls(**values)
        except KeyError as error:
            raise RunError(f"{where} is incomplete or damaged: it has no {error}") from error
        except (TypeError, ValueError) as error:
            raise RunError(f"{where} is incomplete or damaged: {error}") from error


def check_description(data: Mapping[str, Any]) -> None:
    """Raise a ConfigError if a data description has an unknown option or a value that is not valid.

    Missing fields are allowed.
    """
    _check_kinds(data, DATA_KINDS)
    _check_kinds(data.get("options", {}), LOAD_KINDS)
    _check_kinds(data.get("vocabulary", {}), VOCABULARY_KINDS)
    if not all(isinstance(name, str) for name in data.get("columns", [])):
        raise ConfigError(f"columns must be a list of names, got {data['columns']!r:.80}")
    for name in data.get("options", {}):
        if name not in LOAD_KINDS:
            raise ConfigError(unknown("option of the data", name, LOAD_KINDS))
    if data.get("seed", 0) < 0:
        raise ConfigError(f"the seed of the data must be at least 0, got {data['seed']}")


def _check_kinds(values: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Raise a ConfigError if a value does not have one of the types that `kinds` lists for its name."""
    for name, expected in kinds.items():
        value = values.get(name)
        if name in values and type(value) not in expected:
            words = " or ".join(KIND_NAMES[kind] for kind in expected)
            raise ConfigError(f"{name} must be {words}, got {value!r:.80}")


def _check_shape(shape: Any) -> None:
    whole = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not whole or math.prod(shape) > MAX_VALUES:
        raise ConfigError(
            f"shape must be a list of sizes with at most {MAX_VALUES:,} values together, "
            f"got {shape!r:.80}"
        )


def check_format(found: Any, where: str) -> None:
    """Raise a RunError if the format number `found` in a file is not the one that recmix writes."""
    if not isinstance(found, int) or found < 1:
        raise RunError(f"{where} has no format number: it was not written by recmix, or is damaged")
    if found > FORMAT:
        raise RunError(
            f"{where} has format {found}, newer than this version of recmix reads ({FORMAT}): "
            "upgrade recmix to open it"
        )
    if found < FORMAT:
        raise RunError(
            f"{where} has format {found}, this version of recmix reads format {FORMAT}: train the run "
            "again, or open it with an older version of recmix"
        )
