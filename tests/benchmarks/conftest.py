"""The benchmarks in small sizes."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the installed package

from benchmarks.registry import Context
from benchmarks.run import run
from benchmarks.sizes import Scale, Sizes


@pytest.fixture
def sizes():
    return Sizes(
        repeats=2,
        seconds=0.0,
        steps=2,
        peer_steps=2,
        growth_repeats=2,
        growth_seconds=0.0,
        iwae_images=2,
        nll_images=4,
        nll_parts=2,
        batch=4,
        order=2,
        latent=3,
        wide=4,
        shape=(1, 8, 8),
        colour=(3, 8, 8),
        replicas=2,
        replica_counts=(1, 2),
        orders=(1, 2, 3, 4),
        latents=(2, 4),
        sides=(8, 12),
        gradient_latents=(2, 3),
        nll_samples=5,
        iwae_samples=20,
        scale=Scale(
            repeats=1,
            seconds=0.0,
            batch=2,
            latents=(2, 4),
            sides=(8,),
            batches=(2,),
            examples=(4, 8, 16),
        ),
        paper_shapes=(("mnist", (1, 8, 8)), ("omniglot", (1, 8, 8))),
        paper_batches=2,
    )


@pytest.fixture
def context(sizes):
    return Context(torch.device("cpu"), sizes)


@pytest.fixture
def run_small(sizes):
    """`run` on the CPU with small sizes: takes names and a folder."""

    def run_on_cpu(names, folder, **more):
        return run(names, out=folder, device="cpu", sizes=sizes, **more)

    return run_on_cpu
