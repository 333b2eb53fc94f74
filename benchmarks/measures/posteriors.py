"""Posteriors q(z | x): the time of one method divided by the time of another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.blocks import curvature_kind, make_data, make_method, pixels, statistics_of, title
from benchmarks.clock import Block, interleave, medians, ratio
from benchmarks.registry import Context, Measurement, benchmark
from recmix.inference import Inference
from recmix.methods.method import Method, infer, infer_no_grad
from recmix.posteriors import Posterior

NONE: Mapping[str, Any] = MappingProxyType({})


class Choice(NamedTuple):
    """A method's name and options, and how its posterior is refined."""

    method: str
    options: Mapping[str, Any] = NONE
    inference: Inference = Inference()

    @property
    def title(self) -> str:
        """The method with the value of its option, such as ``rme5``; or the refinement, ``learned4``."""
        how = self.inference
        unchecked = "" if how.checks else ", no checks"
        return f"{how.how}{how.refine}{unchecked}" if how.refine else title(self.method, self.options)

    def make(self, context: Context, latent: int, statistics: dict[str, Any]) -> Method:
        """The method in evaluation mode, with a curvature network if the refinement needs one."""
        kind = curvature_kind(self.inference.how, latent)
        shape = context.sizes.shape
        return make_method(
            context.device, self.method, latent, shape, statistics, curvature=kind, **self.options
        ).eval()


def compare_posteriors(
    context: Context,
    latent: int,
    numerator: Choice,
    denominator: Choice,
    more: Mapping[str, Choice] = NONE,
) -> Measurement:
    """Time of one method's posterior divided by the other's, as a trained model computes it.

    On a GPU that is a CUDA graph, with its images copied in and its result copied out. Each call is
    waited for. ``detail.eager`` is the same without graphs; ``detail.streamed`` is without graphs and
    without waiting after each call. Both have a third of the repetitions.

    Args:
        context: device and sizes.
        latent: dimension of z.
        numerator: what is measured.
        denominator: what it is compared with.
        more: further choices that are compared with the denominator; their ratios are in the detail.
    """
    s = context.sizes
    batches = [torch.from_numpy(pixels(s.batch, s.shape, seed)) for seed in range(8)]
    xs = [(x.to(context.device).float() / 255) for x in batches]
    statistics = statistics_of(make_data(s.batch, s.shape))
    choices = (numerator, denominator, *more.values())
    made = {c.title: (c.make(context, latent, statistics), c.inference) for c in choices}

    def compare(
        call: Callable[..., Posterior], *, wait: bool, repeats: int
    ) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
        """The ratio of each choice to the denominator, and the median times."""
        blocks = {
            name: call_block(context, partial(call, method, inference=inference), xs, wait=wait)
            for name, (method, inference) in made.items()
        }
        times = interleave(context, blocks, repeats=repeats, seconds=s.seconds / 2)
        return {name: ratio(t, times[denominator.title]) for name, t in times.items()}, medians(times)

    failures = {}
    if context.cuda:
        failures = {name: capture_failure(m, xs[0], inference) for name, (m, inference) in made.items()}
    ratios, ms = compare(infer_no_grad, wait=True, repeats=s.repeats)
    detail: dict[str, Any] = {"ms": ms, "batch": s.batch, "latent": latent, "repeats": s.repeats}
    for name, choice in more.items():
        detail[name] = dict(zip(("value", "spread"), ratios[choice.title], strict=True))
    if context.cuda:
        detail["not_captured"] = {name: why for name, why in failures.items() if why}
        for how, wait in (("eager", True), ("streamed", False)):
            others, ms = compare(infer, wait=wait, repeats=max(2, s.repeats // 3))
            value, spread = others[numerator.title]
            detail[how] = {"value": value, "spread": spread, "ms": ms}
    return Measurement(*ratios[numerator.title], detail)


def capture_failure(method: Method, x: Tensor, inference: Inference) -> str:
    """Why the posterior cannot be captured as a CUDA graph; empty if it can.

    A batch shape is captured when it occurs for the second time.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            infer_no_grad(method, x, inference)
    texts = (str(warning.message) for warning in caught)
    return "; ".join(text for text in texts if "captured as a CUDA graph" in text)


def call_block(
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
    target={"cuda": "<= 1.3", "cpu": "<= 3.5"},
)
def posterior_rme5_over_vae(context: Context) -> Measurement:
    s = context.sizes
    return compare_posteriors(context, s.wide, Choice("rme", {"order": s.order}), Choice("vae"))


@benchmark(
    "posterior of RME(5) / posterior of SA(1), batch 128, dim 50",
    unit="ratio",
    target={"cuda": "<= 0.2"},
)
def posterior_rme5_over_sa1(context: Context) -> Measurement:
    s = context.sizes
    rme, sa = Choice("rme", {"order": s.order}), Choice("sa", {"steps": 1})
    return compare_posteriors(context, s.wide, rme, sa)


@benchmark(
    "posterior of Laplace, 2 steps, convolutional decoder / SA(2), batch 128, dim 20",
    unit="ratio",
    target={"cuda": "<= 1.0", "cpu": "<= 10"},
)
def posterior_laplace2_over_sa2(context: Context) -> Measurement:
    vlae, sa = Choice("vlae", {"steps": 2}), Choice("sa", {"steps": 2})
    return compare_posteriors(context, context.sizes.latent, vlae, sa)
