"""Muon: matrices are updated by the orthogonal part of their momentum, everything else by Adam.

A few directions dominate a gradient. If the momentum has the singular value decomposition U S Vᵀ,
the update U Vᵀ changes a layer about equally much in all directions. The networks here need fewer
epochs with Muon than with Adam.

References: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; Liu et
al., Muon is scalable for LLM training, 2025 (there the length of an update depends on the longer
side of the matrix).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recmix.accelerate.adam import ChunkedAdam, with_tensor_rates
from recmix.methods.optimizers import OPTIMIZERS, device_of

__all__ = ["Muon", "muon", "orthogonal", "orthogonal_batch"]

MOMENTUM = 0.95
SIZE = 0.6
"""Root mean square change of the weights of a matrix in one step, for a learning rate of 1.

The value is exact if `orthogonal` makes all singular values exactly 1.
"""
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""The coefficients of s -> a s + b s³ + c s⁵, which is applied five times to each singular value s.

Singular values above 1/650 of the matrix's norm end between 0.68 and 1.21. Smaller ones grow by a
factor of about 450 to 485.
"""
SMALLEST = 64
"""On a GPU, all matrices whose shorter side is at most this long form one batch, see `orthogonal`."""


class Muon(ChunkedAdam):
    """Muon for the parameter groups marked ``orthogonal``, Adam for the other groups.

    The weight of a convolution is treated as a matrix: the first axis gives the rows, all other axes
    together the columns. A step never makes the CPU wait for the GPU, so a CUDA graph can capture it.

    >>> layer = torch.nn.Linear(3, 2)
    >>> optimizer = muon([{"params": list(layer.parameters())}], 0.1)
    >>> [(group["orthogonal"], len(group["params"])) for group in optimizer.param_groups]
    [(True, 1), (False, 1)]
    """

    def update_group(self, group: dict[str, Any]) -> None:
        """Update one parameter group: by Muon if it is marked ``orthogonal``, else by Adam."""
        if not group.get("orthogonal", False):
            super().update_group(group)
            return
        moved = [p for p in group["params"] if p.grad is not None]
        if not moved:
            return
        for p in moved:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros((), device=p.device),  # torch's Adam expects it when loading
                    "momentum": torch.zeros_like(p, memory_format=torch.preserve_format),
                }
        momenta = [self.state[p]["momentum"] for p in moved]
        torch._foreach_lerp_(momenta, [p.grad for p in moved], 1 - MOMENTUM)
        ahead = torch._foreach_lerp([p.grad for p in moved], momenta, MOMENTUM)
        steps = orthogonal([look.flatten(1) for look in ahead])
        for p, step in zip(moved, steps, strict=True):
            length = SIZE * max(step.shape) ** 0.5
            p.sub_((step * (group["lr"] * length)).view(p.shape))


def muon(groups: Iterable[dict[str, Any]], learning_rate: float) -> torch.optim.Adam:
    """Make an optimiser that uses Muon for parameters with two or more axes, and Adam for the others.

    Each given parameter group is divided into a group for Muon and a group for Adam.
    """
    divided = []
    for group in groups:
        for matrices in (True, False):
            params = [p for p in group["params"] if (p.dim() > 1) == matrices]
            if params:
                divided.append({**group, "params": params, "orthogonal": matrices})
    on_gpu = device_of(divided).type == "cuda"
    given = divided or [{"params": []}]
    return with_tensor_rates(Muon(given, lr=learning_rate, fused=True, capturable=on_gpu))


def orthogonal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return each matrix with all its singular values changed to about 1.

    For a matrix with the singular value decomposition U S Vᵀ, the result is approximately U Vᵀ. It
    has the same shape. `QUINTIC` says how close to 1 the singular values are. On a GPU, starting many
    small products takes time. So matrices whose shorter sides have similar lengths are padded with
    zeros and computed together.

    >>> near = orthogonal([torch.diag(torch.tensor([3.0, 1.0, 2.0]))])[0]
    >>> bool((near.diag() - 1).abs().max() < 0.35)
    True
    """
    if not matrices[0].is_cuda:
        return [step for matrix in matrices for step in orthogonal_batch([matrix])]
    alike: dict[int, list[int]] = defaultdict(list)
    for i, matrix in enumerate(matrices):
        alike[max(SMALLEST, 1 << (min(matrix.shape) - 1).bit_length())].append(i)
    found: list[Tensor] = [matrices[0]] * len(matrices)
    for members in alike.values():
        for i, step in zip(members, orthogonal_batch([matrices[i] for i in members]), strict=True):
            found[i] = step
    return found


def orthogonal_batch(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Change all singular values of each matrix to about 1, for all matrices in one batch.

    All matrices are padded with zeros to the same shape. The padding is removed from the results.
    """
    flat = [m.t() if m.shape[0] > m.shape[1] else m for m in matrices]
    rows, columns = (max(m.shape[axis] for m in flat) for axis in (0, 1))
    x = torch.stack([F.pad(m, (0, columns - m.shape[1], 0, rows - m.shape[0])) for m in flat])
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp_min(1e-12)
    if x.is_cuda and x.dtype == torch.float32:
        x = x.bfloat16()  # no more precision is needed
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        inner = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, inner, x, beta=a)
    x = x.to(matrices[0].dtype)
    cut = [whole[: m.shape[0], : m.shape[1]] for whole, m in zip(x, flat, strict=True)]
    return [step.t() if m.shape[0] > m.shape[1] else step for step, m in zip(cut, matrices, strict=True)]


OPTIMIZERS["muon"] = muon
