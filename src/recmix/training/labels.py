"""Make the name of a run in the tables of results."""

from __future__ import annotations

from typing import Any

from recmix.inference import Inference
from recmix.methods.method import Method
from recmix.runs.training_options import Training

__all__ = ["row_label"]

CHANGES = ("objective", "train", "augment", "decoder_samples", "distil")
"""Training options that change what is learned, not only how fast."""
DETAILS = {"objective_samples": "objective", "distil_steps": "distil"}
"""{option: other option}. The option changes what is learned only if the other option does not have its
default value."""


def row_label(method: type[Method], training: Training, inference: Inference, init: Any) -> str:
    """Return the name of a run in the tables of results.

    A plain VAE that continues the training of a plain VAE is called ``VAE+``. The name contains the
    options that change what is learned, such as `train` and `distil`. It contains the initial model if
    the method usually starts from another model. Other options, such as the learning rate, are not in
    the name.

    Args:
        inference: the inference options of the run: how the posterior is refined and calibrated.
        init: the initial model: its `Spec`, or its `Request` if it is not trained yet, or None.

    >>> from recmix.methods.vae import VAE
    >>> from recmix.runs.spec import Spec
    >>> vae = Spec(method="vae", label="VAE", shape=(1, 8, 8))
    >>> row_label(VAE, Training(), Inference(), vae)
    'VAE+'
    >>> row_label(VAE, Training(train="encoder"), Inference(), vae)
    'VAE+ train=encoder'
    >>> row_label(VAE, Training(train="curvature"), Inference(), vae)
    'VAE with curvature'
    """
    if training.train == "curvature" and init is not None:  # the posterior itself is that of init
        return f"{init.label or init.method.upper()} with curvature"
    label, start = method.name.upper(), "scratch" if method.starts_from else ""
    if init is not None:
        start = ""
        before = init.label or init.method.upper()
        if init.method == method.name:
            plain = before.rstrip("+") == label
            label, start = (f"{before}+", "") if plain else (f"{label}+", before)
        elif before.lower() != method.starts_from:
            start = before
    options = [f"{name}={value}" for name, value in _changes(training, inference).items()]
    return " ".join([label, *options, *(["from", start] if start else [])])


def _changes(training: Training, inference: Inference) -> dict[str, object]:
    """Return the options that change what is learned and that differ from their defaults."""
    changed = {k: v for k, v in vars(training).items() if v != getattr(type(training), k)}
    found = {k: v for k, v in changed.items() if k in CHANGES or DETAILS.get(k) in changed}
    if inference.refine or training.distil:
        used = {name: getattr(inference, name) for name in ("how", "refine", "reuse", "restarts")}
        found |= {k: v for k, v in used.items() if v != getattr(type(inference), k)}
    return found
