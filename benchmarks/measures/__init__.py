"""The benchmarks, by subject. Importing this package registers them."""

from benchmarks.measures import (
    growth,
    jacobian_limit,
    memory,
    paper_times,
    posteriors,
    profile,
    pythae,
    refinement,
    replicas,
    scale,
    serve,
    training,
)

__all__ = [
    "growth",
    "jacobian_limit",
    "memory",
    "paper_times",
    "posteriors",
    "profile",
    "pythae",
    "refinement",
    "replicas",
    "scale",
    "serve",
    "training",
]
