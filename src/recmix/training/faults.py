"""Raise errors with advice if memory is too small or an operation is not deterministic."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from recmix.errors import ConfigError, OutOfMemory, memory_advice
from recmix.training.job import Job

__all__ = ["deterministic", "faults", "same_noise"]

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Environment variable of cuBLAS. With ":4096:8" the products of matrices are deterministic."""


@contextmanager
def faults(jobs: Sequence[Job]) -> Iterator[None]:
    """Context in which trainings run. If they cannot run, it raises an error with advice for the user.

    In case of such an error, trainings that have not ended get the status "failed". Their last
    checkpoints are kept.

    Args:
        jobs: the trainings. All or none of them are deterministic.

    Raises:
        OutOfMemory: the memory is too small.
        ConfigError: the trainings must be deterministic, but an operation of torch is not.
    """
    wanted = jobs[0].training.deterministic
    if wanted and jobs[0].world.size > 1:
        raise ConfigError("sums over several processes may have any order: leave deterministic out")
    advice = _what_to_lower(jobs)
    try:
        with deterministic(wanted), memory_advice(advice):
            yield
    except (OutOfMemory, ConfigError) as error:
        text = str(error)
        if isinstance(error, OutOfMemory):  # a validation has advice of its own, for `evaluate`
            text = f"{text.partition('): ')[0]}): {advice}"
        continued = [job.fail(text) for job in jobs if job.active]
        if isinstance(error, ConfigError):
            raise
        raise OutOfMemory(" ".join([text, *continued])) from error


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Context in which repeating a computation gives exactly the same bits.

    If torch has no deterministic version of an operation, a ConfigError names the operation.

    Args:
        wanted: if False, nothing is changed.
    """
    if not wanted:
        yield
        return
    cudnn, memory = torch.backends.cudnn, cast(Any, torch.utils.deterministic)
    enabled, filled = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        flags = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
        precision = torch.get_float32_matmul_precision()
    except RuntimeError as error:  # torch refuses to mix its two ways to set a precision
        raise ConfigError(
            "deterministic needs torch.set_float32_matmul_precision, but fp32_precision of "
            "torch.backends is set: leave that out"
        ) from error
    workspace = os.environ.get(WORKSPACE)
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # slow, and nothing reads such memory
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = True, False, False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    except RuntimeError as error:
        if found := re.match(r"(\S+) does not have a deterministic implementation", str(error)):
            raise ConfigError(
                f"the training cannot be deterministic: the operation {found[1]} of torch is not. Leave "
                "deterministic out, use device = 'cpu', or replace the network that uses it"
            ) from error
        if WORKSPACE in str(error):  # cuBLAS reads it once, when it is used first
            raise ConfigError(
                "the training cannot be deterministic: this program has used cuBLAS before. Set the "
                f"environment variable {WORKSPACE}=:4096:8 before Python starts"
            ) from error
        raise
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=only_warns)
        memory.fill_uninitialized_memory = filled
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = flags
        torch.set_float32_matmul_precision(precision)
        if workspace is None:
            del os.environ[WORKSPACE]


@contextmanager
def same_noise(jobs: Sequence[Job]) -> Iterator[None]:
    """Context for training steps: raise a ConfigError if they use torch's global random generator.

    The check is made for deterministic trainings only. A checkpoint stores the state of the training's
    own random generator, but not of the global generator. So a layer that uses the global generator,
    such as dropout, would get other noise after a resume.

    Args:
        jobs: the trainings. All or none of them are deterministic.
    """
    if not jobs[0].training.deterministic:
        yield
        return
    before = _global_state(jobs[0].device)
    yield
    if not torch.equal(before, _global_state(jobs[0].device)):
        raise ConfigError(
            "the training cannot be deterministic: a network or a likelihood draws from torch's global "
            "random generator, for example dropout. Leave deterministic out, or use dropout = 0"
        )


def _global_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _what_to_lower(jobs: Sequence[Job]) -> str:
    """Return advice for the user: which options to lower so that a training step needs less memory.

    The options are those of the first job.
    """
    training, inference = jobs[0].training, jobs[0].objective.inference
    words = [f"batch_size (now {training.batch_size})"]
    if training.objective == "iwae":
        words.append(f"objective_samples (now {training.objective_samples})")
    if inference.restarts > 1:
        words.append(f"restarts (now {inference.restarts})")
    if len(jobs) > 1:
        words.append(f"the number of models that are trained at once (now {len(jobs)})")
    graph = jobs[0].device.type == "cuda" and training.engine != "eager"
    return f"lower {' or '.join(words)}{', or use engine = eager' if graph else ''}."
