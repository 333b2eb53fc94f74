"""Posteriors q(z | x): the time of one method divided by the time of another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.blocks import make_data, make_method, pixels, statistics_of, title
from benchmarks.clock import Block, interleave, medians, ratio
from benchmarks.registry import Context, Measurement, benchmark
from recmix.inference import Inference
from recmix.methods.method import Method, infer_no_grad
from recmix.posteriors import Posterior

Choice = tuple[str, dict[str, Any]]
"""A method's name and options."""


def compare_posteriors(
    context: Context, latent: int, numerator: Choice, denominator: Choice
) -> Measurement:
    """Time of one method's posterior divided by the other's, as a trained model computes it.

    On a GPU that is a CUDA graph, with its images copied in and its result copied out. Each call is
    waited for. ``detail.eager`` is the same without graphs; ``detail.streamed`` is without graphs and
    without waiting after each call.
    """
    s = context.sizes
    batches = [torch.from_numpy(pixels(s.batch, s.shape, seed)) for seed in range(8)]
    xs = [(x.to(context.device).float() / 255) for x in batches]
    statistics = statistics_of(make_data(s.batch, s.shape))
    methods = {
        title(name, options): make_method(
            context.device, name, latent, s.shape, statistics, **options
        ).eval()
        for name, options in (numerator, denominator)
    }
    first, second = methods

    def compare(blocks: dict[str, Block]) -> tuple[tuple[float, float], dict[str, float]]:
        times = interleave(context, blocks, repeats=s.repeats, seconds=s.seconds / 2)
        return ratio(times[first], times[second]), medians(times)

    failures = {name: _capture_failure(method, xs[0]) for name, method in methods.items()}
    result, ms = compare(
        {name: _calls(context, partial(_infer, m), xs, wait=True) for name, m in methods.items()}
    )
    detail: dict[str, Any] = {"ms": ms, "batch": s.batch, "latent": latent, "repeats": s.repeats}
    if context.cuda:
        detail["not_captured"] = {name: why for name, why in failures.items() if why}
        for how, wait in (("eager", True), ("streamed", False)):
            blocks = {n: _calls(context, m.posterior, xs, wait=wait) for n, m in methods.items()}
            (value, spread), ms = compare(blocks)
            detail[how] = {"value": value, "spread": spread, "ms": ms}
    return Measurement(*result, detail)


def _infer(method: Method, x: Tensor) -> Posterior:
    """The posterior as a trained model computes it."""
    return infer_no_grad(method, x, Inference())


def _capture_failure(method: Method, x: Tensor) -> str:
    """Why the posterior cannot be captured as a CUDA graph; empty if it can.

    A batch shape is captured when it occurs for the second time.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            _infer(method, x)
    return "; ".join(str(warning.message) for warning in caught)


def _calls(
    context: Context, posterior: Callable[[Tensor], Any], xs: Sequence[Tensor], *, wait: bool
) -> Block:
    """Calls of `posterior`, each with another batch."""

    @torch.no_grad()
    def work(units: int) -> None:
        for i in range(units):
            posterior(xs[i % len(xs)])
            if wait:
                context.synchronize()

    return Block(work)


@benchmark(
    "posterior of RME(5) / posterior of the VAE, batch 128, dim 50",
    unit="ratio",
    target="<= 1.5",
    target_device="cuda",
)
def posterior_rme5_over_vae(context: Context) -> Measurement:
    s = context.sizes
    return compare_posteriors(context, s.wide, ("rme", {"order": s.order}), ("vae", {}))


@benchmark(
    "posterior of RME(5) / posterior of SA(1), batch 128, dim 50",
    unit="ratio",
    target="<= 0.2",
    target_device="cuda",
)
def posterior_rme5_over_sa1(context: Context) -> Measurement:
    s = context.sizes
    return compare_posteriors(context, s.wide, ("rme", {"order": s.order}), ("sa", {"steps": 1}))


@benchmark(
    "posterior of Laplace, 2 steps, convolutional decoder / SA(2), batch 128, dim 20",
    unit="ratio",
    target="<= 1.0",
    target_device="cuda",
)
def posterior_laplace2_over_sa2(context: Context) -> Measurement:
    return compare_posteriors(
        context, context.sizes.latent, ("vlae", {"steps": 2}), ("sa", {"steps": 2})
    )
