"""A run is a folder: what was asked, what happened, what was learned. Reading it needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from recmix._version import __version__
from recmix.errors import RunError, unknown
from recmix.runs.options import Training

__all__ = ["FORMAT", "Spec", "check_format"]


FORMAT = 1
"""Version of the folder's layout; a folder of a newer one is refused."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that defines a run, as plain values.

    Args:
        method: name of the method.
        options: the method's own options.
        latent: dimension of z.
        likelihood: ``gaussian`` or ``bernoulli``.
        network: ``conv``, ``dense`` or ``own`` for a user's modules.
        decoder_network: the same for the decoder.
        shape: (C, H, W) of an image.
        training: how it is trained.
        data: what the data said of itself, and where it was read from.
        init: the run it started from, or nothing.
        setting: which of the options the tables vary (order, steps, flows), if any.
        auto: the options by which one was chosen (``order = "auto"``), as they were asked, and why it
            was chosen so; `options` holds what was chosen. For a step of such a choice, of which.
    """

    method: str
    latent: int
    likelihood: str
    shape: tuple[int, int, int]
    network: str = "conv"
    decoder_network: str = "conv"
    options: dict[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    data: dict[str, Any] = field(default_factory=dict)
    init: dict[str, Any] | None = None
    setting: str | None = None
    auto: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"format": FORMAT, "recmix": __version__, **asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, content: Any, where: str = "spec") -> Spec:
        """The inverse of `to_json`; refuses a newer format and unknown fields."""
        if not isinstance(content, dict) or "method" not in content:
            raise RunError(f"{where} is not the spec of a run: expected a JSON object with 'method'")
        check_format(content.get("format", 0), where)
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in content.items() if k not in ("format", "recmix")}
        for key in values:
            if key not in known:
                raise RunError(f"{where}: {unknown('field', key, known)}")
        try:
            values["training"] = Training(**values.get("training", {}))
            values["shape"] = tuple(values["shape"])
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise RunError(f"{where} is incomplete or damaged: {error}") from error


def check_format(found: Any, where: str) -> None:
    """Refuse what a newer version wrote."""
    if not isinstance(found, int) or found < 1:
        raise RunError(f"{where} has no format number: it was not written by recmix, or is damaged")
    if found > FORMAT:
        raise RunError(
            f"{where} has format {found}, newer than this version of recmix reads ({FORMAT}): "
            "upgrade recmix to open it"
        )
