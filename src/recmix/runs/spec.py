"""`Spec`: everything that defines a run, as plain values."""

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
    """Everything that defines a run, as plain values.

    Args:
        method: name of the method.
        label: name of the run's row in tables, such as ``VAE+``.
        shape: of an example, such as (C, H, W).
        options: the method's own options.
        model: latent dimension, likelihood and networks; a user's own modules are called ``own``.
        training: how it is trained.
        inference: how the posterior is improved, in training and by default when it is used.
        data: what describes the data, and where they were read from.
        init: the run it started from, or None.
        setting: the option that tables vary (order, steps, flows), if any.
        auto: for ``order = "auto"``: the options of the choice and its result. `options` holds the
            order that was chosen.
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
        """As plain JSON values."""
        return {"format": FORMAT, "recmix": __version__, **asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, content: Any, where: str = "spec") -> Spec:
        """The inverse of `to_json`; refuses other formats and unknown fields."""
        if not isinstance(content, dict) or "method" not in content:
            raise RunError(f"{where} is not the spec of a run: expected a JSON object with 'method'")
        check_format(content.get("format", 0), where)
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in content.items() if k not in ("format", "recmix")}
        for key in values:
            if key not in known:
                raise RunError(f"{where}: {unknown('field', key, known)}")
        try:
            for name, group in GROUPS.items():
                values[name] = group(**values.get(name, {}))
            values["shape"] = tuple(values["shape"])
            return cls(**values)
        except (TypeError, KeyError, ConfigError) as error:
            raise RunError(f"{where} is incomplete or damaged: {error}") from error


def check_format(found: Any, where: str) -> None:
    """Refuse a file that another version of the layout wrote."""
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
