"""Training steps: the paper's pseudocode compared with the library's engines."""

from __future__ import annotations

from benchmarks.blocks import literal_block, training_block
from benchmarks.clock import interleave, medians, ratio
from benchmarks.registry import Context, Measurement, benchmark


def compare_with_literal(context: Context, engine: str, replicas: int = 1) -> Measurement:
    """Time of the pseudocode's step divided by the time of the engine's step, per replica."""
    s = context.sizes
    blocks = {
        "literal": literal_block(context, s.order),
        engine: training_block(context, "rme", engine, replicas=replicas, order=s.order),
    }
    times = interleave(context, blocks, repeats=s.repeats, seconds=s.seconds)
    times[engine] = [t / replicas for t in times[engine]]
    detail = {
        "ms": medians(times),
        "order": s.order,
        "batch": s.batch,
        "latent": s.latent,
        "replicas": replicas,
        "repeats": s.repeats,
    }
    return Measurement(*ratio(times["literal"], times[engine]), detail)


@benchmark(
    "training step of RME(5), batch 128: literal pseudocode / graph engine",
    unit="x",
    target=">= 20",
    device="cuda",
)
def train_literal_over_graph(context: Context) -> Measurement:
    return compare_with_literal(context, "graph")


@benchmark(
    "training step of RME(5), batch 128: literal pseudocode / graph engine per replica, 16 replicas",
    unit="x",
    target=">= 60",
    device="cuda",
)
def train_literal_over_replica(context: Context) -> Measurement:
    return compare_with_literal(context, "graph", replicas=context.sizes.replicas)


@benchmark(
    "training step of RME(5), batch 128: literal pseudocode / compile engine", unit="x", device="cuda"
)
def train_literal_over_compile(context: Context) -> Measurement:
    return compare_with_literal(context, "compile")


@benchmark(
    "training step of RME(5), batch 128: literal pseudocode / compile engine per replica, 16 replicas",
    unit="x",
    device="cuda",
)
def train_literal_over_compile_replica(context: Context) -> Measurement:
    return compare_with_literal(context, "compile", replicas=context.sizes.replicas)


@benchmark("training step of RME(5), batch 128: literal pseudocode / eager engine", unit="x")
def train_literal_over_eager(context: Context) -> Measurement:
    return compare_with_literal(context, "eager")
