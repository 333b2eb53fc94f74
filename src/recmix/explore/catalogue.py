"""The models that the explorer's server offers, by name, with their test examples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from recmix.data import Examples, check_examples, check_values, rebuild
from recmix.data.examples import to_unit
from recmix.errors import ConfigError, DataError, RecmixError, unknown
from recmix.explore.answers import has_matrices
from recmix.explore.drawing import HINT, can_draw
from recmix.explore.wire import Array, Refused
from recmix.methods.method import Method
from recmix.model.latent import LatentModel
from recmix.model.vocabulary import Vocabulary
from recmix.posteriors import Posterior
from recmix.runs.spec import Spec

__all__ = ["LARGEST_LATENT", "Catalogue", "ExplorableModel", "ServedRun"]

CHANNELS = (1, 3)
"""The page shows images with one of these numbers of channels."""
IMAGE_AXES = ("C", "H", "W")
LARGEST_LATENT = 1000
"""Largest absolute value of the elements of latent vectors z in a request."""


class ExplorableModel(Protocol):
    """The attributes and methods that the explorer needs of a model; `recmix.Model` has them."""

    method: Method
    spec: Spec  # the description of the run: shapes, options and data
    history: list[dict[str, float]]  # the training log, one mapping per epoch
    vocabulary: Vocabulary | None  # converts texts to examples; None if the examples are not texts

    @property
    def latent_model(self) -> LatentModel:
        """The generative model p(x, z): prior, decoder and likelihood."""

    def posterior(self, x: Any) -> Posterior:
        """Return q(z | x) for examples x (B, ...), without gradients."""

    def bounds(self, x: Any, samples: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """Return ELBO (B,) and IWAE-K (B,) of examples x (B, ...), where K is `samples`."""

    def decode(self, z: Any) -> Tensor:
        """Return the mean examples E[x | z] (..., *shape) of latent vectors z (..., D)."""


@dataclass(eq=False)
class ServedRun:
    """One trained model that the explorer's server offers."""

    name: str  # name by which requests choose it
    label: str  # name that the web page shows
    model: ExplorableModel
    # folder of the named data sets; by default the folder that training used
    data_root: Path | None = None
    examples: Examples | None = None  # test examples to show; by default from the run's own data
    # shape of the images on the web page, (H, W) or (C, H, W), for a run whose examples are images in
    # another shape, such as flat vectors. It is ignored if the examples have another number of values.
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        blank = self.model.latent_model.likelihood.blank(self.model.spec.shape)
        q = self.model.posterior(blank)  # this also warms up the networks
        self.components = q.weights.shape[1]
        self.latent = q.mean.shape[1]
        self.full = has_matrices(q)  # /posterior gives covariance matrices (D, D)
        self.decoded = tuple(self.model.decode(q.mean).shape[1:])

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary that converts texts to examples; None if the run's examples are not texts."""
        return self.model.vocabulary

    @cached_property
    def image(self) -> tuple[int, ...] | None:
        """The shape (C, H, W) of the image that shows an example; None if no image can show it."""
        own = self.model.spec.shape
        if self.vocabulary is not None or self.decoded != own:
            return None
        fits = self.shape is not None and math.prod(self.shape) == math.prod(own)
        return _image_shape(self.shape if self.shape is not None and fits else own)

    @property
    def not_shown(self) -> str:
        """Text that says why the web page cannot show the run; empty if it can show the run."""
        shape = self.model.spec.shape
        if self.vocabulary is not None or self.image is not None:
            return ""
        what, remedy = f"has examples of shape {shape}", ""
        if self.decoded != shape:
            what += f" and a decoder that gives shape {self.decoded}"
        elif len(shape) == 1:
            remedy = f". If these are images, give their shape, such as {_likely_shape(shape[0])}"
        return (
            f"the explorer shows images of one or three channels; {self.name} {what}: the page leaves "
            f"it out, the HTTP interface serves it{remedy}"
        )

    def describe(self) -> dict[str, Any]:
        """Return the run's name, method, options, shapes and data as values for JSON."""
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
            "image": self.image,
            "values": self.model.latent_model.likelihood.requirement,
            "texts": None if self.vocabulary is None else _described(self.vocabulary),
            "not_shown": self.not_shown or None,
            "epochs": len(self.model.history),
            "data": {"name": data.get("name"), "counts": data.get("counts")},
        }

    @property
    def test_examples(self) -> Examples:
        """The test examples of the run's data, or the validation examples if there is no test part.

        Raises:
            Refused: if the data are not on this machine. They are never downloaded.
        """
        if isinstance(self._read_examples, str):
            raise Refused(404, self._read_examples)
        return self._read_examples

    @cached_property
    def _read_examples(self) -> Examples | str:
        """The test examples, or a text that says why they cannot be read. They are read only once."""
        if self.examples is not None:
            return self.examples
        about = self.model.spec.data
        try:
            data = rebuild(about, root=self.data_root, download=False, vocabulary=self.vocabulary)
        except (RecmixError, OSError) as error:
            name = about.get("name", "of this run")
            return f"the data {name} are not on this machine: {error}"
        return data.x_val if data.x_test is None else data.x_test

    def test_images(self, start: int, count: int) -> dict[str, Any]:
        """Return at most `count` test examples of the run's data, beginning with number `start`.

        Returns:
            ``images`` (B, ...), ``start``, and the number of all test examples as ``total``.
        """
        images = self.test_examples
        part = images[start : start + count] if start < len(images) else np.zeros((0, *images.shape[1:]))
        return {"start": start, "total": len(images), "images": np.ascontiguousarray(part)}

    def test_texts(self, start: int, count: int) -> dict[str, Any]:
        """Return at most `count` test texts of the run's data, beginning with number `start`.

        Returns:
            ``texts``, ``start``, and the number of all test texts as ``total``.
        """
        examples, vocabulary = self.test_examples, self.needed_vocabulary()
        texts = vocabulary.decode(examples[start : start + count]) if start < len(examples) else []
        return {"start": start, "total": len(examples), "texts": texts}

    def needed_vocabulary(self) -> Vocabulary:
        """Return the run's vocabulary; raise `Refused` if the run's examples are not texts."""
        if self.vocabulary is None:
            shape = tuple(self.model.spec.shape)
            raise Refused(
                422,
                f"{self.name} is no run of texts: its examples are arrays of shape {shape}, "
                "which are given in the field images or image",
            )
        return self.vocabulary

    def refuse_arrays(self) -> None:
        """Raise `Refused` if the run's examples are texts. Call this for a request with an array."""
        if self.vocabulary is not None:
            raise Refused(
                422,
                f"{self.name} is a run of texts, not of images or other arrays: give the field "
                "texts or text",
            )

    def check(self, name: str, rows: Array, most: int) -> Array:
        """Check the array of a request and return it as an array (B, ...) for the model.

        Examples must have the run's shape, or the shape of the images on the web page, and values that
        the run's likelihood accepts. Latent vectors must be finite and at most `LARGEST_LATENT` in
        absolute value. Otherwise `Refused` is raised.

        Args:
            name: ``image`` for one example (...), ``images`` for examples (B, ...), or ``z`` for
                latent vectors (B, D).
            rows: the array of the request.
            most: the largest B that is accepted.
        """
        spec, latent = self.model.spec, self.model.spec.model.latent
        rows = rows[None] if name == "image" else rows
        if rows.ndim and len(rows) > most:
            raise Refused(413, f"{len(rows)} rows of {name} are too many: at most {most} at a time")
        if name != "z":
            if self.image is not None and rows.shape[1:] == self.image:
                rows = rows.reshape(len(rows), *spec.shape)
            likelihood = self.model.latent_model.likelihood
            try:
                with np.errstate(over="ignore"):  # check_examples reports values that are too large
                    checked = check_examples(rows, what=name, shape=spec.shape)
                check_values(checked, likelihood.requirement, likelihood.name, what=name)
                return to_unit(checked)
            except DataError as error:
                raise Refused(422, str(error)) from None
        if rows.ndim != 2 or rows.shape[1] != latent or len(rows) < 1:
            raise Refused(422, f"z has shape {rows.shape}, expected (B, {latent}) with B of 1 or more")
        if rows.dtype.kind != "f" or not (np.abs(rows) <= LARGEST_LATENT).all():
            limits = f"-{LARGEST_LATENT} and {LARGEST_LATENT}"
            raise Refused(422, f"z must hold finite numbers between {limits}")
        return rows.astype(spec.training.dtype)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of an example as (C, H, W); None if it is not the shape of an image.

    >>> _image_shape((28, 28)), _image_shape((3, 32, 32)), _image_shape((784,))
    ((1, 28, 28), (3, 32, 32), None)
    """
    shape = (1, *shape) if len(shape) == 2 else shape
    return shape if len(shape) == 3 and shape[0] in CHANNELS else None


def _likely_shape(size: int) -> str:
    """Return a text with the option ``shape`` for a square image that has `size` values.

    The text shows the option for the command line and for Python.

    >>> _likely_shape(784), _likely_shape(10)
    ('--shape 28x28 or shape=(28, 28)', '--shape HxW or shape=(H, W)')
    """
    for channels in ((), (3,)):
        side = math.isqrt(size // math.prod(channels))
        image = (*channels, side, side)
        if math.prod(image) == size:
            return f"--shape {'x'.join(map(str, image))} or shape={image}"
    return "--shape HxW or shape=(H, W)"


def _described(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the properties of a vocabulary that the web page needs, as {name: value} for JSON."""
    length = math.prod(vocabulary.shape) - 1 if vocabulary.classes else None
    return {
        "kind": vocabulary.kind,
        "molecules": vocabulary.molecules,
        "length": length,
        "drawn": vocabulary.molecules and can_draw(),
        "hint": HINT if vocabulary.molecules and not can_draw() else None,
    }


def _check_shape(shape: tuple[int, ...] | None, models: Mapping[str, ExplorableModel]) -> None:
    """Check a shape for the images of the web page; None is valid.

    Raise ConfigError if it is not the shape of an image, or if no model has examples with as many
    values.
    """
    if shape is None:
        return
    if min(shape, default=0) < 1 or _image_shape(shape) is None:
        raise ConfigError(f"shape must be (H, W), (1, H, W) or (3, H, W), got {shape}")
    size, found = math.prod(shape), {name: model.spec.shape for name, model in models.items()}
    if size not in map(math.prod, found.values()):
        listed = ", ".join(f"{name} {own}" for name, own in found.items())
        raise ConfigError(
            f"an image of shape {shape} has {size} values, but no run has examples with that many. "
            f"The shapes of the examples: {listed}"
        )


class Catalogue:
    """The trained models (runs) that the explorer's server offers, by name; the first is the default.

    The web page shows a run by its label. If several runs have the same label, the name is added to it.

    Args:
        models: {name: model}.
        data_root: folder of the named data sets; by default the folder that training used.
        examples: test examples to show, by name of the model; by default from its own data.
        shape: shape of the images on the page, (H, W) or (C, H, W), for runs whose examples are images
            in another shape, such as flat vectors.
    """

    def __init__(
        self,
        models: Mapping[str, ExplorableModel],
        *,
        data_root: Path | None = None,
        examples: Mapping[str, Examples] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        if not models:
            raise ConfigError("the explorer got no models: give at least one")
        _check_shape(shape, models)
        labels = {name: model.spec.label or name for name, model in models.items()}
        uses = Counter(labels.values())
        shown = {n: label if uses[label] == 1 else f"{label} ({n})" for n, label in labels.items()}
        own = examples or {}
        self.runs = {
            n: ServedRun(n, shown[n], model, data_root, own.get(n), shape) for n, model in models.items()
        }
        self.default = next(iter(models))

    @cached_property
    def array_runs(self) -> list[ServedRun]:
        """The served models whose examples are arrays, not texts."""
        return [run for run in self.runs.values() if run.vocabulary is None]

    @property
    def has_texts(self) -> bool:
        """Whether the examples of at least one served model are texts."""
        return len(self.array_runs) < len(self.runs)

    @cached_property
    def axes(self) -> tuple[str, ...] | None:
        """Names of the axes of an example, such as C, H and W; None if models have different numbers."""
        counts = {len(run.model.spec.shape) for run in self.array_runs}
        if len(counts) != 1:
            return None
        (count,) = counts
        return IMAGE_AXES if count == len(IMAGE_AXES) else tuple(f"N{i + 1}" for i in range(count))

    def sizes(self) -> dict[str, int]:
        """Return {axis: size} for the axes of an example and the latent dimension ``D``.

        A size is left out if the served models have different sizes of this axis.
        """
        shapes = [run.model.spec.shape for run in self.array_runs]
        sizes = {axis: {shape[i] for shape in shapes} for i, axis in enumerate(self.axes or ())}
        sizes["D"] = {run.model.spec.model.latent for run in self.runs.values()}
        return {axis: max(found) for axis, found in sizes.items() if len(found) == 1}

    @property
    def limits(self) -> tuple[float, float] | None:
        """The smallest and the largest value that all served models accept in examples.

        The result is None if the models accept different ranges, or only counts or classes.
        """
        needs = {run.model.latent_model.likelihood.requirement for run in self.array_runs}
        if needs <= {"unit", "eight_bit"}:
            return (0, 1)
        largest = float(np.finfo(np.float32).max)
        return (-largest, largest) if needs == {"real"} else None

    @property
    def decodes_examples(self) -> bool:
        """Whether the decoded mean E[x | z] has the shape of an example x, for all served models."""
        return all(run.decoded == run.model.spec.shape for run in self.array_runs)

    def find(self, name: str | None) -> ServedRun:
        """Return the served model of this name, or the default model for None.

        An unknown name raises `Refused`.
        """
        found = self.runs.get(self.default if name is None else name)
        if found is None:
            raise Refused(404, unknown("run", str(name)[:80], self.runs))
        return found
