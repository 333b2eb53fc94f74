"""Compare run folders."""

from recmix.runs.folder import Run


def same_run(a, b):
    """Assert that two folders hold the same history, weights and checkpoint, bit for bit."""
    assert Run(a).history() == Run(b).history()
    for name in ("weights.safetensors", "checkpoint.safetensors"):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
