"""How time and memory of each kind of refinement grow with the size of the problem."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks import limits
from benchmarks.blocks import curvature_kind, make_method, pixels
from benchmarks.clock import Block, interleave, median_and_spread
from benchmarks.measures.growth import exponent
from benchmarks.measures.posteriors import capture_failure
from benchmarks.registry import Context, Measurement, benchmark
from recmix.inference import Inference
from recmix.inference.inference import REFINEMENT
from recmix.methods.method import Method, infer, infer_no_grad

STEPS = 2
"""Refinement steps of every measurement."""
MIB = 2**20
LARGE = 100
"""Latent dimensions from here on give the exponents without most of the constant costs."""

Results = dict[int, dict[str, float] | str]
"""By size: milliseconds and MiB, or why it was skipped."""


class Point(NamedTuple):
    """What one measurement refines: the kind of refinement and the sizes.

    Args:
        how: kind of refinement.
        latent: dimension of z.
        shape: (C, H, W) of an image.
        batch: images in a call.
        examples: images in a pass, one batch after another; 0 means a single call.
    """

    how: str
    latent: int
    shape: tuple[int, int, int]
    batch: int
    examples: int = 0

    @property
    def inference(self) -> Inference:
        """The refinement."""
        return Inference(how=self.how, refine=STEPS)

    @property
    def images(self) -> int:
        """Number of images that are refined."""
        return self.examples or self.batch

    def make(self, device: torch.device) -> tuple[Method, torch.Tensor]:
        """A VAE and a batch of images."""
        kind = curvature_kind(self.how, self.latent)
        variance = {"variance": 0.1}
        method = make_method(device, "vae", self.latent, self.shape, variance, curvature=kind).eval()
        return method, torch.from_numpy(pixels(self.batch, self.shape)).to(device).float() / 255


@benchmark(
    "posterior with 2 steps of each kind of refinement against the latent dimension, the image size, "
    "the batch and the number of examples: exponent p of time ~ dimension^p of the kind learned",
    unit="exponent",
    target="<= 0.5",
)
def refinement_scale(context: Context) -> Measurement:
    s = context.sizes
    sizes = s.scale
    axes: dict[str, tuple[Sequence[int], Callable[[str, int], Point]]] = {
        "latents": (sizes.latents, lambda how, n: Point(how, n, s.shape, sizes.batch)),
        "sides": (sizes.sides, lambda how, n: Point(how, s.latent, (s.shape[0], n, n), sizes.batch)),
        "batches": (sizes.batches, lambda how, n: Point(how, s.latent, s.shape, n)),
        "examples": (sizes.examples, lambda how, n: Point(how, s.latent, s.shape, sizes.batch, n)),
    }
    detail: dict[str, Any] = {axis: {} for axis in axes}
    detail |= {"exponents": {}, "exponents_from_100": {}, "not_captured": {}}
    value: tuple[float, float] | None = None
    for axis, (values, point) in axes.items():
        for how in REFINEMENT:
            points = {n: point(how, n) for n in sorted(values)}
            found, times = measure(context, points, detail["not_captured"])
            detail[axis][how] = found
            if axis == "latents" and len(times) > 1:
                value_here = median_and_spread([exponent(list(times), row) for row in _rows(times)])
                detail["exponents"][how] = value_here[0]
                value = value_here if how == "learned" else value
                large = {n: t for n, t in times.items() if n >= LARGE}
                if len(large) > 1:
                    typical = [statistics.median(t) for t in large.values()]
                    detail["exponents_from_100"][how] = exponent(list(large), typical)
    if value is None:
        raise RuntimeError(f"the kind learned was not measured: {detail['latents']['learned']}")
    detail |= {
        "streaming_memory": {how: _growth(found) for how, found in detail["examples"].items()},
        "steps": STEPS,
        "batch": sizes.batch,
        "latent": s.latent,
        "shape": list(s.shape),
        "limits": {
            "call_s": sizes.call_limit,
            "pass_s": sizes.pass_limit,
            "gib": sizes.memory_limit / limits.GIB,
        },
        "repeats": sizes.repeats,
    }
    return Measurement(*value, detail)


def measure(
    context: Context, points: dict[int, Point], not_captured: dict[str, str]
) -> tuple[Results, dict[int, list[float]]]:
    """Time per example and peak memory of points that differ in one size.

    The first point over a limit is skipped, and so are all larger ones. Single calls are then timed in
    turn. A pass over many examples is timed once.

    Args:
        context: device and sizes.
        points: what is measured, by size, in ascending order.
        not_captured: gets the reason, by kind of refinement, if a CUDA graph cannot be captured.

    Returns:
        Milliseconds per example and MiB by size, or why a size was skipped; and for the others, the
        milliseconds of each repetition.
    """
    costs, found = _costs(context, points)
    times = {n: [1e3 * cost.seconds] for n, cost in costs.items()}
    single = [n for n in costs if not points[n].examples]
    if single:
        try:
            times = _times(context, {n: points[n] for n in single}, not_captured)
        except torch.OutOfMemoryError:
            return found | dict.fromkeys(single, "skipped: out of memory while it was timed"), {}
    for n, cost in costs.items():
        each = statistics.median(times[n]) / points[n].images
        found[n] = {"ms": each, "mib": cost.bytes / MIB}
    return dict(sorted(found.items())), times


def _costs(context: Context, points: dict[int, Point]) -> tuple[dict[int, limits.Cost], Results]:
    """The cost of one call at each size, up to the first size over a limit; and why others have none."""
    sizes = context.sizes.scale
    costs: dict[int, limits.Cost] = {}
    skipped: Results = {}
    why = ""
    for n, point in points.items():
        if why:
            skipped[n] = why
            continue
        seconds = sizes.pass_limit if point.examples else sizes.call_limit
        if point.examples and costs:
            last, cost = next(reversed(costs.items()))
            if cost.seconds * n / last > seconds:  # the time is proportional to the number of examples
                skipped[n] = why = limits.too_long(seconds)
                continue
        cost_or_why = limits.cost_of_call(
            context.device, make_work, point._asdict(), seconds=seconds, memory=sizes.memory_limit
        )
        if isinstance(cost_or_why, str):
            skipped[n] = why = cost_or_why
        else:
            costs[n] = cost_or_why
    return costs, skipped


def make_work(device: torch.device, **point: Any) -> limits.Work:
    """The refinement of a point, eagerly. Images come in batches; only the posterior's mean is used."""
    at = Point(**{**point, "shape": tuple(point["shape"])})
    method, x = at.make(device)

    @torch.no_grad()
    def work() -> None:
        for start in range(0, at.images, at.batch):
            q = infer(method, x[: at.images - start], at.inference)
            if not bool(q.mean.isfinite().all()):
                raise RuntimeError("the refined posterior is not finite")

    with torch.no_grad():
        infer(method, x[:1], at.inference)  # memory that libraries allocate once is not counted
    return work


def _times(
    context: Context, points: dict[int, Point], not_captured: dict[str, str]
) -> dict[int, list[float]]:
    """Milliseconds of one call as a trained model computes it, by size, for each repetition."""
    blocks = {}
    for n, point in points.items():
        method, x = point.make(context.device)
        if context.cuda and (why := capture_failure(method, x, point.inference)):
            not_captured[point.how] = why
        blocks[n] = _calls(context, method, x, point.inference)
    sizes = context.sizes.scale
    return interleave(context, blocks, repeats=sizes.repeats, seconds=sizes.seconds)


def _calls(context: Context, method: Method, x: torch.Tensor, inference: Inference) -> Block:
    def work(units: int) -> None:
        for _ in range(units):
            infer_no_grad(method, x, inference)
            context.synchronize()

    return Block(work)


def _rows(times: dict[int, list[float]]) -> list[list[float]]:
    """The times of all sizes, for each repetition."""
    return [list(row) for row in zip(*times.values(), strict=True)]


def _growth(found: Results) -> float | None:
    """Peak memory with the most examples divided by that with the fewest; None without two sizes."""
    peaks = [cost["mib"] for cost in found.values() if not isinstance(cost, str)]
    return peaks[-1] / peaks[0] if len(peaks) > 1 and peaks[0] else None
