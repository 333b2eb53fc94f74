"""Check and describe the trained model whose weights a new run starts from."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

from recmix.data import Data
from recmix.data.columns import check_columns
from recmix.errors import ConfigError
from recmix.methods.method import Method, same_shapes
from recmix.runs.spec import Spec
from recmix.training.build import Trained

__all__ = ["check_architecture", "check_data", "check_instance", "check_options", "origin"]


def check_data(start: Trained, data: Data) -> None:
    """Raise an error if the trained model to start from has another vocabulary, or other columns.

    Also warn if the test examples of the data were probably training examples of this model.
    """
    theirs, ours = start.vocabulary, data.vocabulary
    if theirs is not None and ours is not None and theirs.digest != ours.digest:
        raise ConfigError(
            f"init was trained with another vocabulary, {theirs!r}, than that of the data, {ours!r}: "
            "load the data with vocabulary=init.vocabulary"
        )
    if data.columns and (columns := start.spec.data.get("columns")):
        check_columns(data.columns, columns, f"the data {data.name}", 'init.spec.data["columns"]')
    counts = start.spec.data.get("counts") or {}
    if data.x_test is None or not counts or counts.get("test"):
        return
    parts = (data.x_train, data.x_val, data.x_test)
    if sum(count or 0 for count in counts.values()) == sum(map(len, parts)):
        warnings.warn(
            "the model to start from was trained on data without a test part. These data have as many "
            "examples, so that their test examples were probably training examples of that model. Use "
            "recmix.data.from_arrays(x, hold_out_test=False), or test examples of their own",
            stacklevel=2,
        )


def check_instance(method: Method, data: Data) -> None:
    """Raise a ConfigError unless the method instance was made for examples of the data's shape."""
    if method.model.shape != data.shape:
        raise ConfigError(
            f"the {method.name} instance was made for examples of shape {method.model.shape}, these "
            f"have shape {data.shape}: give data of that shape, or the method's name or class"
        )


def check_options(start: Spec, spec: Spec, *, networks: bool) -> None:
    """Raise a ConfigError if the trained model to start from has options that do not fit the new run.

    Args:
        networks: if True, all model options must be equal. If False, only the latent dimension and the
            likelihood must be equal. Options of the curvature network are never compared.
    """
    if start.shape != spec.shape:
        raise ConfigError(
            f"init was trained on examples of shape {start.shape}, these have shape {spec.shape}: give "
            "data of that shape, or leave init out"
        )
    for name, value in vars(start.model).items():
        ours = getattr(spec.model, name)
        if name.startswith("curvature"):  # a model can get such a network later
            continue
        if value != ours and (networks or name in ("latent", "likelihood")):
            raise ConfigError(
                f"init was trained with {name} {value}, this run has {ours}: they must be the "
                "same; train another init, or leave the option out"
            )


def check_architecture(start: Trained, method: Method) -> None:
    """Raise a ConfigError unless the networks of `start` and of the new method have the same shapes."""
    pairs = {
        "encoder": (start.method.base_encoder, method.base_encoder),
        "decoder": (start.method.model.decoder, method.model.decoder),
    }
    for name, (one, two) in pairs.items():
        if not same_shapes(one, two):
            raise ConfigError(f"init has an {name} of another architecture: give the {name} it has")


def origin(start: Trained, address: str | None = None) -> dict[str, Any]:
    """Describe the trained model that a run starts from, as {"method", "label", "run", "weights"}.

    ``run`` is its folder or its address on the Hugging Face Hub. ``weights`` is a hash of its weights.

    Args:
        start: the trained model.
        address: the address ``hf://user/name`` of `start`, if it came from the Hub. Then `start` has no
            folder.
    """
    digest = hashlib.sha256()
    for name, value in sorted(start.method.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return {
        "method": start.spec.method,
        "label": start.spec.label,
        "run": address if start.folder is None else str(start.folder.resolve()),
        "weights": digest.hexdigest()[:16],
    }
