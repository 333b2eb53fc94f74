"""Make a new method from the options of a run (its spec), and load a trained method from a folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from recmix.errors import ConfigError, RecmixError, RunError, shown, unknown
from recmix.methods.make_method import make_method, place
from recmix.methods.method import Method
from recmix.methods.registry import METHODS, find_method
from recmix.model.assembly import Own, make_model
from recmix.model.data_facts import Statistics
from recmix.model.fields import Fields
from recmix.model.replaceable import load_accelerated
from recmix.model.vocabulary import Vocabulary
from recmix.runs.hub import is_hub_address, open_run
from recmix.runs.spec import Spec
from recmix.training.checkpoint import load_weights
from recmix.training.one_module import keep_used_parts

__all__ = [
    "Trained",
    "build",
    "load_trained",
    "pick_device",
]


@dataclass(frozen=True)
class Trained:
    """A trained method, with the options, history, folder and vocabulary of its training run.

    Attributes:
        spec: everything that defines the run: its options and a description of its data.
        vocabulary: converts texts to examples and back, if the data were texts.
        outcome: the best epoch, its validation bound and why the training ended, as in
            ``status.json``; empty if the method was only loaded.
    """

    method: Method
    spec: Spec
    history: list[dict[str, float]] = field(default_factory=list)
    folder: Path | None = None
    vocabulary: Vocabulary | None = None
    outcome: dict[str, Any] = field(default_factory=dict)


def pick_device(name: str) -> torch.device:
    """Return the torch device of this name; ``auto`` means a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} does not exist: try auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} needs a GPU, but torch finds no CUDA device: try cpu")
    return device


def build(
    spec: Spec,
    *,
    own: Own = Own(),  # noqa: B008  (frozen)
    statistics: Statistics = Statistics(),  # noqa: B008  (frozen)
    method: type[Method] | None = None,
) -> Method:
    """Make a new, untrained method. Its initial weights come from torch's global random generator.

    Args:
        spec: the options of the method and of its networks.
        own: encoder, decoder, likelihood and prior that the user gave as objects.
        statistics: statistics of the training data that a new model needs, such as the mean.
        method: the class of the method, if it is not registered.
    """
    device = pick_device(spec.training.device)
    fields = Fields.from_json(spec.data["fields"]) if spec.data.get("fields") else None
    if own.encoder is not None:
        keep_used_parts(own, spec.shape, spec.model.latent)
    latent_model, encoder = make_model(
        spec.model, spec.shape, fields=fields, own=own, statistics=statistics
    )
    load_accelerated()
    made = make_method(_class_of(spec.method, method), latent_model, encoder, spec.options)
    return place(made, device, getattr(torch, spec.training.dtype))


def _class_of(name: str, given: type[Method] | None) -> type[Method]:
    """Return the class of the stored method `name`: the user's class `given`, or a registered class.

    Raise a ConfigError if the user's class has another name, or if no class of this name is registered.
    """
    if given is None:
        if name not in METHODS:
            advice = "for a class of your own use recmix.load(folder, method=YourClass)"
            raise ConfigError(f"{unknown('method', name, METHODS)}; {advice}")
        return find_method(name)
    found = getattr(given, "name", None)
    if not (isinstance(given, type) and issubclass(given, Method)) or found != name:
        called = f" with the name {found!r}" if isinstance(given, type) and found else ""
        raise ConfigError(
            f"method is {shown(given)}{called}, but the run was trained with the method {name!r}: give "
            "the Method class of this name"
        )
    return given


def load_trained(
    folder: str | Path,
    *,
    device: str = "auto",
    own: Own = Own(),  # noqa: B008  (frozen)
    method: type[Method] | None = None,
) -> Trained:
    """Load a trained method from its run folder. No code in the folder is executed.

    The inference settings say how the posterior is refined and calibrated. If ``recmix tune`` has
    chosen settings for the run, they replace the settings with which the run was trained.

    Args:
        folder: a folder written by `recmix.fit`, `recmix.Model.save` or ``recmix train``; or the
            address of a run on the Hugging Face Hub, such as ``hf://user/name``.
        own: the user's own encoder, decoder, likelihood and prior, if the method was trained with
            such objects. They must be of the same classes; their weights are replaced.
        method: the class of the method, if it is not registered.
    """
    run = open_run(folder)
    stored = run.spec()
    inference = run.tuned() or stored.inference
    training = replace(stored.training, device=str(device))  # also a torch.device
    spec = replace(stored, training=training, inference=inference)
    try:
        with torch.random.fork_rng():  # the random weights are replaced at once
            made = build(spec, own=own, method=method)
    except RecmixError:
        raise
    except (TypeError, ValueError, LookupError, RuntimeError, OverflowError, MemoryError) as error:
        raise RunError(
            f"the model of {run.folder / 'spec.json'} cannot be made ({error}): the file is damaged, or "
            "the model does not fit in memory"
        ) from error
    load_weights(run.weights, made)
    kept = None if is_hub_address(folder) else run.folder  # nothing is written into a download
    return Trained(made, spec, run.history(), kept, run.vocabulary())
