"""Optional faster versions of plain functions, by CUDA graphs, Triton kernels and stacked networks.

Stacked networks are networks of the same shape that are evaluated together. No other module imports
this folder by its name. `recmix.model.replaceable` loads the folder once, if it is installed. Its
modules then register faster versions of plain functions. Without this folder everything works, but is
slower.
"""

import torch

from recmix.accelerate import (  # noqa: F401  (each registers what it replaces)
    captured,
    chain_log_joint,
    fusion,
    graph_engines,
    muon,
    newton,
    quasi_newton,
    stacked_posteriors,
    tangents,
)

torch.empty(2**25 - 2**14, dtype=torch.uint8)
"""This array, made and freed once, makes the C library of Linux keep the memory of freed arrays.

Otherwise it returns large arrays to the system. To get their memory again takes up to a quarter of the
time of a posterior or a training step on a CPU.
"""
