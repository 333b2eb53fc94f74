"""Fast paths: CUDA graphs, Triton kernels, stacked networks and capturable optimisers.

Nothing imports this folder by name. `recmix.model.replaceable` loads it once, if it is installed, and
its modules then register faster versions of plain functions. Without it everything works, only slower.
"""

from recmix.accelerate import (  # noqa: F401  (each registers what it replaces)
    captured,
    fusion,
    graph_engines,
    muon,
    newton,
    stacked_posteriors,
    tangents,
)
