"""How the time of a training step grows with the order, the latent dimension and the image size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from benchmarks.blocks import literal_block, training_block
from benchmarks.clock import Block, interleave, median_and_spread, medians
from benchmarks.registry import Context, Measurement, benchmark
from recmix.training.freed_memory import keep_freed_memory


@benchmark(
    "training step of RME against its order: exponent p of time ~ order^p over the upper half of "
    "orders 1 to 8 (1 is linear)",
    unit="exponent",
    target="<= 1.1",
)
def growth_in_order(context: Context) -> Measurement:
    s = context.sizes
    engine = "graph" if context.cuda else "eager"

    def ours(**more: Any) -> Block:
        return training_block(context, "rme", engine, **more)

    def time_blocks(blocks: dict[Any, Block]) -> dict[Any, list[float]]:
        return interleave(context, blocks, repeats=s.growth_repeats, seconds=s.growth_seconds)

    with nullcontext() if context.cuda else keep_freed_memory():  # as while a model is trained
        both = time_blocks(
            {("recmix", n): ours(order=n) for n in s.orders}
            | {("literal", n): literal_block(context, n) for n in s.orders}
        )
        latents = time_blocks({n: ours(order=s.order, latent=n) for n in s.latents})
        sides = time_blocks({n: ours(order=s.order, shape=(1, n, n)) for n in s.sides})
    orders, literal = ({n: both[side, n] for n in s.orders} for side in ("recmix", "literal"))
    upper = [n for n in s.orders if n >= max(s.orders) / 2]
    value, spread = median_and_spread(
        [exponent(upper, [orders[n][r] for n in upper]) for r in range(s.growth_repeats)]
    )

    def typical(times: dict[int, list[float]]) -> list[float]:
        return [statistics.median(t) for t in times.values()]

    detail = {
        "engine": engine,
        "orders": medians(orders),
        "literal_orders": medians(literal),
        "latents": medians(latents),
        "sides": medians(sides),
        "linear_fit_r_squared": _r_squared(list(orders), typical(orders)),
        "literal_exponent": exponent(upper, [statistics.median(literal[n]) for n in upper]),
        "latent_exponent": exponent(list(latents), typical(latents)),
        "pixel_exponent": exponent([n * n for n in sides], typical(sides)),
        "batch": s.batch,
        "order": s.order,
        "latent": s.latent,
        "repeats": s.growth_repeats,
    }
    return Measurement(value, spread, detail)


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The exponent p of times ~ sizes^p, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def _r_squared(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The share of the variance of the times that a straight line explains."""
    residual = np.asarray(times) - np.polyval(np.polyfit(sizes, times, 1), sizes)
    return float(1 - residual.var() / np.var(times))
