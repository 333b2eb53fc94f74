"""What the benchmarks time: data, methods with new weights, and blocks of training steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.clock import Block
from benchmarks.literal import Literal, RecMixVAE
from benchmarks.registry import Context
from recmix.data import Data, from_arrays
from recmix.methods import make_method as methods
from recmix.methods.method import Method
from recmix.methods.registry import find_method
from recmix.model.assembly import make_model
from recmix.model.curvature_network import FULL_UP_TO
from recmix.model.data_facts import Statistics
from recmix.model.options import ModelOptions
from recmix.model.replaceable import load_accelerated
from recmix.runs.spec import Spec
from recmix.runs.training_options import Training
from recmix.training.build import pick_device
from recmix.training.engines import Eager, pick_engine
from recmix.training.job import Job

RATE = 1e-5
"""Learning rate of all trainings here."""


def pixels(count: int, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Synthetic images (count, C, H, W), uint8, with structure: zeros or noise might be faster."""
    channels, height, width = shape
    rng = np.random.default_rng(seed)
    coarse = rng.random((count, channels, -(-height // 4), -(-width // 4)), dtype=np.float32) ** 2
    smooth = coarse.repeat(4, 2).repeat(4, 3)[:, :, :height, :width]
    fine = 0.1 * rng.random((count, *shape), dtype=np.float32)
    return (255 * (0.9 * smooth + fine)).astype(np.uint8)


def make_data(count: int, shape: Sequence[int]) -> Data:
    """A data set of synthetic images, `count` of them for training."""
    return from_arrays(pixels(count, shape), pixels(8, shape, 1), hold_out_test=False)


def statistics_of(data: Data) -> dict[str, Any]:
    """The mean image and the variance of the training data, as arguments of `make_method`."""
    centre = data.x_train.mean()
    return {"centre": centre, "variance": data.x_train.variance(centre)}


def make_spec(
    device: torch.device,
    name: str,
    latent: int,
    shape: tuple[int, ...],
    options: dict[str, Any],
    *,
    curvature: str = "none",
) -> Spec:
    """The spec of a method with a Gaussian likelihood."""
    return Spec(
        method=name,
        shape=shape,
        options=options,
        model=ModelOptions(latent=latent, likelihood="gaussian", curvature=curvature),
        training=Training(device=str(device)),
    )


def make_method(
    device: torch.device,
    name: str,
    latent: int,
    shape: tuple[int, ...],
    statistics: dict[str, Any],
    *,
    curvature: str = "none",
    **options: Any,
) -> Method:
    """A method with new weights, always the same ones."""
    torch.manual_seed(0)
    spec = make_spec(device, name, latent, shape, options, curvature=curvature)
    return new_method(spec, Statistics(**statistics))


def new_method(spec: Spec, statistics: Statistics) -> Method:
    """A method with new weights, as training makes it for data with these statistics."""
    model, encoder = make_model(spec.model, spec.shape, statistics=statistics)
    load_accelerated()
    made = methods.make_method(find_method(spec.method), model, encoder, spec.options)
    return methods.place(made, pick_device(spec.training.device), torch.float32)


def curvature_kind(how: str, latent: int) -> str:
    """The kind of curvature network that this kind of refinement needs, as training chooses it."""
    if how != "learned":
        return "none"
    return "full" if latent <= FULL_UP_TO else "low-rank"


def title(name: str, options: Mapping[str, Any]) -> str:
    """The method's name followed by the value of its option, such as ``rme5``."""
    return f"{name}{'' if not options else next(iter(options.values()))}"


def make_jobs(
    context: Context, name: str, data: Data, *, latent: int, replicas: int = 1, **options: Any
) -> list[Job]:
    """Trainings that differ in the order of their data and in their noise."""
    statistics = statistics_of(data)
    usual = Training(epochs=10**6, learning_rate=RATE, batch_size=context.sizes.batch)
    return [
        Job(
            make_method(context.device, name, latent, data.shape, statistics, **options),
            data,
            dataclasses.replace(usual, seed=seed),
        )
        for seed in range(replicas)
    ]


def training_block(
    context: Context,
    name: str,
    engine: str,
    *,
    replicas: int = 1,
    latent: int | None = None,
    shape: tuple[int, int, int] | None = None,
    **options: Any,
) -> Block:
    """Training by an engine. A unit is one step of all replicas, with its batch from the device."""
    s = context.sizes
    data = make_data(s.batch * s.steps, shape or s.shape)
    jobs = make_jobs(context, name, data, latent=latent or s.latent, replicas=replicas, **options)
    return epochs_block(context, engine, jobs)


def epochs_block(context: Context, engine: str, jobs: list[Job], *, fixed: int = 0) -> Block:
    """Training as the training loop does it: each block starts an epoch and checks the losses."""
    for job in jobs:
        job.begin_epoch()
    running, why = pick_engine(engine, jobs)
    if running.name != engine:
        raise RuntimeError(f"expected to measure the {engine} engine, got the {why}")

    def work(units: int) -> None:
        for job in jobs:
            job.state.epoch += 1
            job.begin_epoch()
        for _ in range(units):
            running.step()
            if isinstance(running, Eager) and not context.cuda:
                jobs[0].check()  # on a CPU the loop checks the loss after each batch
        for job in jobs:
            job.check()

    return Block(work, most=jobs[0].steps, fixed=fixed)


def literal_block(context: Context, order: int) -> Block:
    """Training by the paper's pseudocode. Its images are on the device too."""
    s = context.sizes
    data = make_data(s.batch * s.steps, s.shape)
    statistics = statistics_of(data)
    torch.manual_seed(0)
    model = RecMixVAE(order, s.latent, s.shape, variance=statistics["variance"])
    training = Literal(model.to(context.device), learning_rate=RATE)
    images = torch.from_numpy(np.array(data.x_train) - statistics["centre"]).to(context.device)
    rows = torch.randperm(len(images)).view(s.steps, s.batch).to(context.device)

    def work(units: int) -> None:
        for i in range(units):
            elbo = training.step(images[rows[i % s.steps]])
        if not math.isfinite(float(elbo)):
            raise RuntimeError("the loss of the literal training is not finite")

    return Block(work)
