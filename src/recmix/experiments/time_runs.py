"""Measure the inference times of the finished runs of a grid, one run after the other.

While a grid is trained, its runs share the machine, so the times in their scores are too long. Here only
one run uses the machine at a time. As in Kim and Pavlovic (2020), a time is measured in five passes over
all full batches of 128 test examples.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from recmix.experiments.grid import GridJob
from recmix.experiments.store import Store
from recmix.inference import Inference
from recmix.runs.scores import ScoreKey

__all__ = ["time_runs"]


def time_runs(
    store: Store,
    jobs: Sequence[GridJob],
    *,
    device: str = "auto",
    data_root: Path | None = None,
    console: Console,
) -> None:
    """Measure the time to compute the posteriors of runs, and write it into their test scores."""
    import torch

    from recmix.data import load
    from recmix.evaluation.score import TIMED_BATCH, device_name
    from recmix.evaluation.timing import pass_milliseconds
    from recmix.training.build import load_trained

    examples: dict[str, Any] = {}  # test examples by data; the split does not matter for times
    for job in track(jobs, "timing", console=console):
        source = job.definition["data"]
        if str(source) not in examples:
            examples[str(source)] = load(root=data_root, **source).x_test
        run = store.run(job.digest)
        method = load_trained(run.folder, device=device).method
        x = torch.from_numpy(examples[str(source)][:]).to(method.model.centre)
        batches = x.split(TIMED_BATCH)
        batches = [batch for batch in batches if len(batch) == len(batches[0])]  # the last may be short
        for name, found in run.scores().items():
            key = ScoreKey.parse(name)
            if key is not None and key.part == "test":
                times = pass_milliseconds(method, batches, Inference.from_json(found["inference"]))
                measured = {
                    "milliseconds": statistics.fmean(times),
                    "passes": times,
                    "batch": len(batches[0]),
                    "device": device_name(x.device),
                    "alone": True,
                }
                run.add_score(name, found | measured)
