"""The runs that a server was given: loaded once, known by name, with their test images."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recmix.api import Fitted, load
from recmix.data import Images, check_images, rebuild
from recmix.data.images import to_unit
from recmix.errors import DataError, RecmixError, unknown
from recmix.explore.wire import Array, Refused
from recmix.methods.registry import find_method

__all__ = ["FARTHEST", "Shelf", "Shown"]

FARTHEST = 1000
"""Prior standard deviations beyond which no one has business to look."""


@dataclass(eq=False)
class Shown:
    """One run.

    Args:
        name: by which requests choose it.
        fitted: the model.
        components: K of its posterior.
        data_root: where named data sets lie, if not where they lay.
    """

    name: str
    fitted: Fitted
    components: int
    data_root: Path | None = None
    _images: Images | None = None
    _missing: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def about(self) -> dict[str, Any]:
        """What a page or a program wants to know of it."""
        spec = self.fitted.spec
        return {
            "name": self.name,
            "method": spec.method,
            "title": find_method(spec.method).title,
            "options": spec.options,
            "setting": spec.setting,
            "components": self.components,
            "refine": spec.training.refine,
            "latent": spec.latent,
            "likelihood": spec.likelihood,
            "shape": list(spec.shape),
            "epochs": len(self.fitted.history),
            "data": {"name": spec.data.get("name"), "counts": spec.data.get("counts")},
        }

    def images(self, start: int, count: int) -> dict[str, Any]:
        """Some of its test images; refused with the reason where its data are not on this machine.

        The data are read when they are first asked for, and never downloaded.
        """
        with self._lock:
            if self._images is None and not self._missing:
                try:
                    data = rebuild(self.fitted.spec.data, root=self.data_root, download=False)
                    self._images = data.x_val if data.x_test is None else data.x_test
                except (RecmixError, OSError) as error:
                    self._missing = str(error)
        if self._images is None:
            name = self.fitted.spec.data.get("name", "of this run")
            raise Refused(404, f"the data {name} are not on this machine: {self._missing}")
        total = len(self._images)
        part = self._images[start : start + count] if start < total else np.zeros((0, 1, 1, 1))
        return {"start": start, "total": total, "images": np.ascontiguousarray(part)}

    def check(self, x: Array, what: str = "images") -> Array:
        """Images (B, C, H, W) as float32 in [0, 1]; refused if they are none of this run's."""
        try:
            with np.errstate(over="ignore"):  # it says itself what is too large
                return to_unit(check_images(x, what=what, shape=self.fitted.spec.shape))
        except DataError as error:
            raise Refused(422, str(error)) from None

    def check_latent(self, z: Array) -> Array:
        """Latent vectors (B, D), finite and within `FARTHEST` of the prior's mean."""
        latent = self.fitted.spec.latent
        if z.ndim != 2 or z.shape[1] != latent or len(z) < 1:
            raise Refused(422, f"z has shape {z.shape}, expected (B, {latent}) with B of 1 or more")
        if z.dtype.kind != "f" or not (np.abs(z) <= FARTHEST).all():
            raise Refused(422, f"z must hold finite numbers between -{FARTHEST} and {FARTHEST}")
        return z.astype(str(self.fitted.spec.training.dtype))


class Shelf:
    """The runs by name, the first of which is the default.

    Args:
        shown: the runs.
    """

    def __init__(self, shown: Sequence[Shown]) -> None:
        self.runs = {one.name: one for one in shown}
        self.first = shown[0].name

    @classmethod
    def load(
        cls, folders: Sequence[Path], *, device: str = "auto", data_root: Path | None = None
    ) -> Shelf:
        """Load runs from their folders; each is called as its folder, with a number if that is taken."""
        shown: dict[str, Shown] = {}
        for folder in folders:
            fitted = load(folder, device=device)
            base = folder.resolve().name or "run"
            names = (base, *(f"{base}-{i}" for i in range(2, len(folders) + 2)))
            name = next(name for name in names if name not in shown)
            blank = np.zeros((1, *fitted.spec.shape), np.float32)
            components = fitted.posterior(blank).weights.shape[1]  # and the networks are warm
            shown[name] = Shown(name, fitted, components, data_root)
        return cls(list(shown.values()))

    def sizes(self) -> dict[str, int]:
        """Channels C, height H, width W and latent dimensions D, as far as all runs agree on them."""
        specs = [run.fitted.spec for run in self.runs.values()]
        each = [dict(zip("CHWD", (*spec.shape, spec.latent), strict=True)) for spec in specs]
        return {axis: size for axis, size in each[0].items() if all(one[axis] == size for one in each)}

    def find(self, name: str | None) -> Shown:
        """The run of this name, or the first."""
        if name is None:
            return self.runs[self.first]
        if name not in self.runs:
            raise Refused(404, unknown("run", name[:80], self.runs))
        return self.runs[name]
