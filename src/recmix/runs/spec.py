"""`Spec`: everything that defines a run, as values that can be written to JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from recmix._version import __version__
from recmix.errors import ConfigError, RunError, unknown
from recmix.inference import Inference
from recmix.model.options import ModelOptions
from recmix.runs.training_options import Training

__all__ = ["FORMAT", "Spec", "check_format"]

FORMAT = 2
"""Version of the folder's layout. A folder of another version is refused."""
GROUPS = {"model": ModelOptions, "training": Training, "inference": Inference}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that defines a run, as values that can be written to JSON.

    Args:
        method: name of the method.
        label: name of the run in the tables of results, such as ``VAE+``.
        shape: shape of one example, such as (C, H, W).
        options: options that belong to this method only.
        model: latent dimension, likelihood and networks. A user's own module has the name ``own``.
        training: options of training.
        inference: how the posterior is improved in training, and by default when the model is used.
        data: description of the data, and where they were read from.
        init: description of the model that the run started from, or None.
        setting: name of the option that tables compare (order, steps or flows), if any.
        auto: for ``order = "auto"``: how the order is chosen, and the result in words. Then
            `options` holds the order that was chosen.
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
        """Return the spec as JSON values."""
        return {"format": FORMAT, "recmix": __version__, **asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, content: Any, where: str = "spec") -> Spec:
        """Make a spec from JSON values, the inverse of `to_json`.

        Other format versions and unknown fields are errors.

        Args:
            content: the JSON values.
            where: name of the file, for error messages.
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
            values["inference"] = vars(Inference.from_json(values.get("inference", {"checks": 1})))
            for name, group in GROUPS.items():
                values[name] = group(**values.get(name, {}))
            values["shape"] = tuple(values["shape"])
            return cls(**values)
        except (TypeError, KeyError, ConfigError) as error:
            raise RunError(f"{where} is incomplete or damaged: {error}") from error


def check_format(found: Any, where: str) -> None:
    """Refuse a file with another format version than this version of recmix writes.

    Args:
        found: the format number in the file.
        where: name of the file, for error messages.
    """
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
