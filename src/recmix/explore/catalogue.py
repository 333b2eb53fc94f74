"""The models that a server offers, by name, with their test images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from recmix.data import Examples, check_examples, rebuild
from recmix.data.examples import to_unit
from recmix.errors import ConfigError, DataError, RecmixError, unknown
from recmix.explore.wire import Array, Refused
from recmix.methods.method import Method
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior
from recmix.runs.spec import Spec

__all__ = ["LARGEST_LATENT", "Catalogue", "ExplorableModel", "ServedRun"]

LARGEST_LATENT = 1000
"""Latent vectors must lie within this many prior standard deviations of 0."""


class ExplorableModel(Protocol):
    """What the explorer needs of a model; `recmix.Model` has all of it."""

    method: Method
    spec: Spec
    history: list[dict[str, float]]

    @property
    def latent_model(self) -> LatentModel:
        """p(x, z)."""

    def posterior(self, x: Any) -> Posterior:
        """q(z | x) for x (B, C, H, W), without gradients."""

    def bounds(self, x: Any, samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """ELBO and IWAE-`samples`, (B,) each."""

    def decode(self, z: Any) -> Tensor:
        """E[x | z]: (..., D) -> (..., C, H, W)."""


@dataclass(eq=False)
class ServedRun:
    """One model of a server.

    Args:
        name: by which requests choose it.
        label: by which a page shows it.
        model: the model.
        data_root: folder of the named data sets; by default where they were in training.
    """

    name: str
    label: str
    model: ExplorableModel
    data_root: Path | None = None

    def __post_init__(self) -> None:
        blank = np.zeros((1, *self.model.spec.shape), np.float32)
        self.components = self.model.posterior(blank).weights.shape[1]  # this also warms up the networks

    def describe(self) -> dict[str, Any]:
        """The run's settings as plain values."""
        spec, data = self.model.spec, self.model.spec.data
        return {
            "name": self.name,
            "label": self.label,
            "method": spec.method,
            "title": self.model.method.title,
            "options": spec.options,
            "setting": spec.setting,
            "components": self.components,
            "inference": spec.inference.to_json(),
            "latent": spec.model.latent,
            "likelihood": self.model.latent_model.likelihood.name,
            "shape": list(spec.shape),
            "epochs": len(self.model.history),
            "data": {"name": data.get("name"), "counts": data.get("counts")},
        }

    @cached_property
    def _images(self) -> Examples | str:
        """The test images, or the validation images if there is no test set; or why they are missing."""
        try:
            data = rebuild(self.model.spec.data, root=self.data_root, download=False)
        except (RecmixError, OSError) as error:
            return str(error)
        return data.x_val if data.x_test is None else data.x_test

    def test_images(self, start: int, count: int) -> dict[str, Any]:
        """Part of the test images. The data are read by the first call, and never downloaded."""
        images = self._images
        if isinstance(images, str):
            name = self.model.spec.data.get("name", "of this run")
            raise Refused(404, f"the data {name} are not on this machine: {images}")
        part = images[start : start + count] if start < len(images) else np.zeros((0, 1, 1, 1))
        return {"start": start, "total": len(images), "images": np.ascontiguousarray(part)}

    def check(self, name: str, rows: Array, most: int) -> Array:
        """Check the array of a request and return it in the form that the model takes.

        Args:
            name: ``image`` (C, H, W), ``images`` (B, C, H, W) or ``z`` (B, D).
            rows: the array.
            most: the largest B.
        """
        spec, latent = self.model.spec, self.model.spec.model.latent
        rows = rows[None] if name == "image" else rows
        if rows.ndim and len(rows) > most:
            raise Refused(413, f"{len(rows)} rows of {name} are too many: at most {most} at a time")
        if name != "z":
            try:
                with np.errstate(over="ignore"):  # check_examples reports values that are too large
                    return to_unit(check_examples(rows, what=name, shape=spec.shape))
            except DataError as error:
                raise Refused(422, str(error)) from None
        if rows.ndim != 2 or rows.shape[1] != latent or len(rows) < 1:
            raise Refused(422, f"z has shape {rows.shape}, expected (B, {latent}) with B of 1 or more")
        if rows.dtype.kind != "f" or not (np.abs(rows) <= LARGEST_LATENT).all():
            limits = f"-{LARGEST_LATENT} and {LARGEST_LATENT}"
            raise Refused(422, f"z must hold finite numbers between {limits}")
        return rows.astype(spec.training.dtype)


class Catalogue:
    """The runs of a server by name; the first is the default.

    A run is shown by its label. If several runs have the same label, the name is added to it.

    Args:
        models: the models by name.
        data_root: folder of the named data sets; by default where they were in training.
    """

    def __init__(self, models: Mapping[str, ExplorableModel], *, data_root: Path | None = None) -> None:
        if not models:
            raise ConfigError("the explorer got no models: give at least one")
        labels = {name: model.spec.label or name for name, model in models.items()}
        uses = Counter(labels.values())
        shown = {n: label if uses[label] == 1 else f"{label} ({n})" for n, label in labels.items()}
        self.runs = {n: ServedRun(n, shown[n], model, data_root) for n, model in models.items()}
        self.default = next(iter(models))

    def sizes(self) -> dict[str, int]:
        """Channels C, height H, width W and latent dimension D, where all runs have the same."""
        specs = [run.model.spec for run in self.runs.values()]
        each = [dict(zip("CHWD", (*spec.shape, spec.model.latent), strict=True)) for spec in specs]
        return {axis: size for axis, size in each[0].items() if all(one[axis] == size for one in each)}

    def find(self, name: str | None) -> ServedRun:
        """The run of this name; the default for None."""
        if name is None:
            name = self.default
        if name not in self.runs:
            raise Refused(404, unknown("run", name[:80], self.runs))
        return self.runs[name]
