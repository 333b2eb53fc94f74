"""Where the time of a training step goes: arithmetic, kernels by kind, and time without kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.blocks import epochs_block, make_data, make_jobs
from benchmarks.clock import Block, median_and_spread, time_work
from benchmarks.registry import Context, Measurement, benchmark

KINDS = {
    "convolutions": r"conv|cudnn|xmma|fprop|dgrad|wgrad|implicit|winograd",
    "matrix products": r"gemm|gemv|splitk|addmm|\bmm\b|bmm|cutlass|nvjet",
    "optimiser": r"adam|multi_tensor|foreach",
    "random numbers": r"philox|random|normal_",
    "sums": r"reduce|sum|mean|logsumexp",
    "copies": r"memcpy|memset|copy|transpose|nchw|nhwc|cat|index|gather|fill",
    "pointwise": r"elementwise|vectorized|pointwise|triton_",
}
"""Kinds of kernels by regular expressions of their names. The first that matches is used."""
SHOWN = 12
"""Number of kernels whose times are recorded by name."""


@benchmark(
    "training step of RME(5), batch 128: time of its arithmetic at the speed of large matrix products / "
    "time of the step",
    unit="share",
)
def train_step_profile(context: Context) -> Measurement:
    s = context.sizes
    engine = "graph" if context.cuda else "eager"
    data = make_data(s.batch * s.steps, s.shape)
    jobs = make_jobs(context, "rme", data, latent=s.latent, order=s.order)
    jobs[0].begin_epoch()
    with FlopCounterMode(display=False) as counter:
        jobs[0].step()
    flops = counter.get_total_flops()
    speed = _operations_per_second(context)
    alone = _profile(context, epochs_block(context, engine, jobs))
    arithmetic = 1e3 * flops / speed
    value, spread = median_and_spread([arithmetic / ms for ms in alone["steps"]])
    ms = {"step": alone["step"], "kernels": alone["kernels"], "arithmetic": arithmetic}
    detail: dict[str, Any] = {"engine": engine, "ms": ms, "alone": alone}
    if context.cuda:
        jobs = make_jobs(context, "rme", data, latent=s.latent, order=s.order, replicas=s.replicas)
        many = _profile(context, epochs_block(context, engine, jobs))
        detail["replicas"] = many
        ms["step per replica"] = many["step"] / s.replicas
        ms["kernels per replica"] = many["kernels"] / s.replicas
    detail |= {
        "gflop": flops / 1e9,
        "tflops": speed / 1e12,
        "order": s.order,
        "batch": s.batch,
        "latent": s.latent,
        "replica_count": s.replicas,
        "repeats": s.repeats,
    }
    return Measurement(value, spread, detail)


def _profile(context: Context, block: Block) -> dict[str, Any]:
    """Milliseconds of a step: of each repetition, of all kernels, and of each kind of kernel."""
    time_work(context, block.work, 1)
    once = time_work(context, block.work, 1)
    units = max(1, min(block.most, round(context.sizes.seconds / once)))
    steps = [1e3 * time_work(context, block.work, units) / units for _ in range(context.sizes.repeats)]
    kernels = _kernels(context, block.work)
    kinds = dict.fromkeys([*KINDS, "other"], 0.0)
    for name, (ms, _) in kernels.items():
        kinds[kind_of(name)] += ms
    longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:SHOWN]
    return {
        "steps": steps,
        "step": median_and_spread(steps)[0],
        "kernels": sum(ms for ms, _ in kernels.values()),
        "launches": sum(count for _, count in kernels.values()),
        "kinds": kinds,
        "longest": {name[:120]: {"ms": ms, "count": count} for name, (ms, count) in longest},
    }


def _kernels(context: Context, work: Callable[[int], object]) -> dict[str, tuple[float, int]]:
    """Milliseconds and number of launches of one step, by kernel; by operation on a CPU."""
    activity = ProfilerActivity.CUDA if context.cuda else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as found:  # without it torch 2.11 warns
        time_work(context, work, 1)
    events = found.key_averages()
    if context.cuda:
        chosen = [e for e in events if e.device_type.name == "CUDA"]
        times = [e.self_device_time_total for e in chosen]
    else:
        chosen = list(events)
        times = [e.self_cpu_time_total for e in chosen]
    return {e.key: (1e-3 * t, e.count) for e, t in zip(chosen, times, strict=True)}


def kind_of(kernel: str) -> str:
    """The kind of a kernel or operation, from its name.

    >>> kind_of("sm90_xmma_wgrad_implicit_gemm"), kind_of("aten::addmm"), kind_of("unknown")
    ('convolutions', 'matrix products', 'other')
    """
    matches = (kind for kind, names in KINDS.items() if re.search(names, kernel, re.IGNORECASE))
    return next(matches, "other")


def _operations_per_second(context: Context) -> float:
    """Floating-point operations per second of a large matrix product, in TF32 on a GPU."""
    side = 8192 if context.cuda else 1024
    a = torch.randn(side, side, device=context.device)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:

        def work(units: int) -> None:
            for _ in range(units):
                torch.mm(a, a)

        work(3)
        return max(2.0 * side**3 * 5 / time_work(context, work, 5) for _ in range(3))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
