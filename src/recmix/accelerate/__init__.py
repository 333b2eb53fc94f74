"""Optional faster versions of plain functions: CUDA graphs, Triton kernels, stacked networks.

Nothing imports this folder by name. `recmix.model.replaceable` loads it once, if it is installed.
Its modules then register faster versions of plain functions. Without this folder everything works,
only slower.
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
