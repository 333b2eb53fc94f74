"""Training and IWAE estimates, compared with those of pythae around the same networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.blocks import RATE, epochs_block, make_data, make_jobs, make_method, pixels
from benchmarks.clock import Block, interleave, medians, ratio, time_work
from benchmarks.peer import Peer
from benchmarks.registry import Context, Measurement, benchmark
from recmix.evaluation.bounds import bounds
from recmix.methods.method import Method


def _peer(context: Context) -> Peer:
    assert context.pythae is not None
    return context.pythae


def _pythae_vae(context: Context, method: Method) -> Any:
    """pythae's VAE around copies of a method's networks."""
    return _peer(context).vae(
        _contiguous_copy(method.base_encoder),
        _contiguous_copy(method.model.decoder),
        latent=context.sizes.latent,
        shape=context.sizes.shape,
    )


def _contiguous_copy(network: nn.Module) -> nn.Module:
    """A copy in torch's usual memory layout, as pythae's users have it."""
    copied = copy.deepcopy(network)
    copied.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return copied


def compare_training(context: Context) -> Measurement:
    """Time of an epoch of pythae's trainer divided by the time of an epoch of the library's engine."""
    s = context.sizes
    engine = "compile" if context.cuda else "eager"
    data = make_data(s.batch * s.peer_steps, s.shape)
    jobs = make_jobs(context, "vae", data, latent=s.latent)
    model = _pythae_vae(context, jobs[0].method)
    images = torch.from_numpy(np.array(data.x_train))
    ours = epochs_block(context, engine, jobs, fixed=s.peer_steps)
    with _peer(context).training(
        model, images, batch=s.batch, learning_rate=RATE, cuda=context.cuda
    ) as epoch:
        theirs = Block(lambda _units: epoch(), fixed=s.peer_steps)
        times = interleave(
            context, {"pythae": theirs, "recmix": ours}, repeats=s.repeats, seconds=s.seconds
        )
    detail = {
        "ms": medians(times),
        "engine": engine,
        "batch": s.batch,
        "latent": s.latent,
        "pythae": _peer(context).version,
        "images": len(images),
        "repeats": s.repeats,
    }
    return Measurement(*ratio(times["pythae"], times["recmix"]), detail)


@benchmark(
    "training step of the VAE, batch 128, same networks: pythae / recmix (compile engine)",
    unit="x",
    target=">= 8",
    device="cuda",
    pythae=True,
)
def train_pythae_over_recmix_gpu(context: Context) -> Measurement:
    return compare_training(context)


@benchmark(
    "training step of the VAE, batch 128, same networks: pythae / recmix (eager engine), CPU",
    unit="x",
    target=">= 1.2",
    device="cpu",
    pythae=True,
)
def train_pythae_over_recmix_cpu(context: Context) -> Measurement:
    return compare_training(context)


@benchmark(
    "IWAE-100 of 1,000 images, same networks: pythae get_nll / recmix, CPU",
    unit="x",
    target=">= 1.5",
    device="cpu",
    pythae=True,
)
def iwae_pythae_over_recmix_cpu(context: Context) -> Measurement:
    s = context.sizes
    # pythae's model has no mean image and unit variance: with the same, the two estimates must agree.
    method = make_method(context.device, "vae", s.latent, s.shape, {}).eval()
    model = _pythae_vae(context, method).eval()
    images = torch.from_numpy(pixels(s.nll_images, s.shape, 1)).float() / 255
    generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def theirs(x: Tensor) -> float:
        return float(model.get_nll(x, n_samples=s.nll_samples, batch_size=s.nll_samples))

    def ours(x: Tensor) -> float:
        return float(bounds(method, x, samples=s.nll_samples, generator=generator).iwae.mean())

    parts = images.chunk(s.nll_parts)
    times, nats = _time_estimates(context, {"pythae": theirs, "recmix": ours}, parts)
    if abs(nats["pythae"] - nats["recmix"]) > 1.0:
        raise RuntimeError(f"pythae and recmix estimate different values: {nats} nats per image")
    detail = {
        "ms": medians(times),
        "nats": nats,
        "images": len(images),
        "samples": s.nll_samples,
        "pythae": _peer(context).version,
        "latent": s.latent,
        "repeats": len(parts),
    }
    return Measurement(*ratio(times["pythae"], times["recmix"]), detail)


def _time_estimates(
    context: Context, estimators: dict[str, Callable[[Tensor], float]], parts: tuple[Tensor, ...]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Milliseconds per image for each part, and the mean estimate per image, by estimator."""
    times: dict[str, list[float]] = {name: [] for name in estimators}
    totals = dict.fromkeys(estimators, 0.0)
    for estimate in estimators.values():
        estimate(parts[0][:2])
    for turn, x in enumerate(parts):
        for name in estimators if turn % 2 == 0 else reversed(estimators):

            def work(units: int, name: str = name, x: Tensor = x) -> None:
                totals[name] += units * estimators[name](x)

            times[name].append(1e3 * time_work(context, work, len(x)) / len(x))
    images = sum(len(x) for x in parts)
    return times, {name: total / images for name, total in totals.items()}
