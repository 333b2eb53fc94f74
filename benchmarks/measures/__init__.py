"""The benchmarks, by subject. Importing this package registers them."""

from benchmarks.measures import (
    growth,
    memory,
    posteriors,
    pythae,
    refinement,
    replicas,
    scale,
    serve,
    training,
)

__all__ = [
    "growth",
    "memory",
    "posteriors",
    "pythae",
    "refinement",
    "replicas",
    "scale",
    "serve",
    "training",
]
