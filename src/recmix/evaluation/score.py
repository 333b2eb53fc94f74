"""Score a trained method on a set of examples: ELBO, IWAE bound and inference time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recmix.data import Examples
from recmix.errors import memory_advice
from recmix.evaluation.bounds import ADVICE, Bounds, at_once, bounds_of
from recmix.evaluation.timing import posterior_milliseconds
from recmix.inference import Inference
from recmix.methods.method import Method, infer

__all__ = ["TIMED_BATCH", "batch_of", "device_name", "mean_with_error", "score"]

AT_ONCE = 500
TIMED_BATCH = 128
"""Batch size of the paper's inference times."""


@memory_advice(ADVICE)
@torch.no_grad()
def score(
    method: Method,
    examples: Examples,
    inference: Inference | None = None,
    *,
    samples: int = 100,
    seed: int = 0,
    memory: int | None = None,
    against: Inference | None = None,
    report: Callable[[int], None] = lambda done: None,
    take: Callable[[Bounds], None] = lambda found: None,
) -> dict[str, Any]:
    """Score a method: ELBO and IWAE bound with standard errors, mixing weights and inference time.

    Args:
        examples: the examples to score the method on.
        inference: refinement and calibration of the posterior; None for neither.
        samples: K of the IWAE-K bound; the ELBO is averaged over the same samples.
        memory: bytes for the decoder's activations; by default a value that suits the device.
        against: other inference settings; the gains of `inference` over them are measured too.
        report: function that is called with the number of examples done.
        take: function that is called with the bounds of each batch of examples.

    Returns:
        A dictionary with the means over examples: ``elbo`` and ``iwae`` in nats, their standard errors
        ``elbo_se`` and ``iwae_se``, and the mixing ``weights``. ``milliseconds`` is the time to compute
        the posterior of one batch. With `against` it also has the mean gains ``elbo_gain`` and
        ``iwae_gain`` over the settings `against`, and their standard errors ``elbo_gain_se`` and
        ``iwae_gain_se``. The other entries say how this was measured.
    """
    used, centre = inference or Inference(), method.model.centre
    generator, other = (torch.Generator(centre.device).manual_seed(seed) for _ in range(2))
    count = at_once(method.model, memory)
    elbo, iwae, weights, before = [], [], [], []
    for start in range(0, len(examples), AT_ONCE):
        batch = batch_of(examples, slice(start, start + AT_ONCE), centre)
        for x in batch.split(max(1, count // used.restarts)):
            q = infer(method, x, used)
            found = bounds_of(used.model(method.model), x, q, samples, generator, count)
            elbo.append(found.elbo)
            iwae.append(found.iwae)
            take(found)
            weights.append(q.weights)
            if against is not None:
                q, model = infer(method, x, against), against.model(method.model)
                before.append(bounds_of(model, x, q, samples, other, count))
        report(min(start + AT_ONCE, len(examples)))
    timed = batch_of(examples, slice(0, TIMED_BATCH), centre)
    return {
        "images": len(examples),
        "samples": samples,
        "seed": seed,
        "inference": used.to_json(),
        **kind_of_inference(method, used),
        **mean_with_error("elbo", torch.cat(elbo)),
        **mean_with_error("iwae", torch.cat(iwae)),
        **_gains(torch.cat(elbo), torch.cat(iwae), before),
        "weights": torch.cat(weights).double().mean(0).tolist(),
        "milliseconds": posterior_milliseconds(method, timed, used),
        "batch": len(timed),
        "device": device_name(centre.device),
    }


def _gains(elbo: Tensor, iwae: Tensor, before: list[Bounds]) -> dict[str, float]:
    """Return the mean gains in ELBO and IWAE over the bounds `before`, with their standard errors.

    If `before` is empty, the result is empty.
    """
    if not before:
        return {}
    old_elbo, old_iwae = (torch.cat(column) for column in zip(*before, strict=True))
    return mean_with_error("elbo_gain", elbo - old_elbo) | mean_with_error("iwae_gain", iwae - old_iwae)


def kind_of_inference(method: Method, inference: Inference) -> dict[str, Any]:
    """How the posterior of an example is computed, as {"kind": ..., "steps": ...}.

    The kind is ``encoder`` for one pass through the encoders, ``feed-forward`` for several passes
    through encoder and decoder, and ``refined`` for optimisation steps on each example. ``steps`` is
    the number of these optimisation steps, 0 for the other kinds.
    """
    steps = method.steps_per_example + inference.refine
    usual = "feed-forward" if method.feed_forward else "encoder"
    return {"kind": "refined" if steps else usual, "steps": steps}


def device_name(device: torch.device) -> str:
    """The name of a device, to be stored with measurements: a GPU's model name, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def batch_of(examples: Examples | Tensor, index: Any, like: Tensor) -> Tensor:
    """The examples with these indices as a tensor, with the device and dtype of `like`."""
    return torch.as_tensor(examples[index]).to(like.device, like.dtype)


def mean_with_error(name: str, values: Tensor) -> dict[str, float]:
    """The mean of `values` and its standard error, as {name: mean, name_se: error}."""
    values = values.double()
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {name: float(values.mean()), f"{name}_se": error}
