"""Up to which dimension the gradient of learned refinement is faster from the decoder's Jacobian."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import torch

from benchmarks.blocks import make_data, make_method, pixels, statistics_of
from benchmarks.clock import interleave, medians, ratio
from benchmarks.measures.posteriors import call_block, capture_failure
from benchmarks.registry import Context, Measurement, benchmark
from recmix.accelerate import newton
from recmix.inference import Inference
from recmix.methods.method import infer_no_grad

WAYS = {"jacobian": 10**6, "autograd": 0}
"""Values of `newton.JACOBIAN_UP_TO` that select one way for every dimension."""


@benchmark(
    "posterior with 4 steps of learned refinement: largest dimension up to which a gradient from the "
    "decoder's Jacobian is faster than by autograd",
    unit="dimensions",
    device="cuda",
)
def jacobian_limit(context: Context) -> Measurement:
    s = context.sizes
    x = (torch.from_numpy(pixels(s.batch, s.shape)).float() / 255).to(context.device)
    statistics = statistics_of(make_data(s.batch, s.shape))
    inference = Inference(how="learned", refine=4, checks=0)
    ratios: dict[int, tuple[float, float]] = {}
    ms: dict[str, float] = {}
    not_captured: dict[str, str] = {}
    for latent in s.gradient_latents:
        blocks = {}
        for way, limit in WAYS.items():
            method = make_method(
                context.device, "vae", latent, s.shape, statistics, curvature="full"
            ).eval()
            with patch.object(newton, "JACOBIAN_UP_TO", limit):
                if why := capture_failure(method, x, inference):
                    not_captured[f"{way}, dim {latent}"] = why
            call = partial(infer_no_grad, method, inference=inference)
            blocks[f"{way}, dim {latent}"] = call_block(context, call, [x], wait=True)
        times = interleave(context, blocks, repeats=s.repeats, seconds=s.seconds / 3)
        ms |= medians(times)
        by_jacobian, by_autograd = times.values()
        ratios[latent] = ratio(by_autograd, by_jacobian)
    faster = [n for n in ratios if all(ratios[m][0] > 1 for m in ratios if m <= n)]
    detail = {
        "ms": ms,
        "autograd_over_jacobian": {str(n): list(found) for n, found in ratios.items()},
        "limit": newton.JACOBIAN_UP_TO,
        "not_captured": not_captured,
        "batch": s.batch,
        "repeats": s.repeats,
    }
    return Measurement(float(max(faster, default=0)), 0.0, detail)
