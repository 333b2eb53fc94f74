"""Optional faster versions of plain functions, by CUDA graphs, Triton kernels and stacked networks.

Stacked networks are networks of the same shape that are evaluated together. No other module imports
this folder by its name. `recmix.model.replaceable` loads the folder once, if it is installed. Its
modules then register faster versions of plain functions. Without this folder everything works, but is
slower.
"""

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
