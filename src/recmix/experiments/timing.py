"""Times of finished runs, taken one after the other.

While a grid is under way its runs share the machine, and what they measure of their own speed is an
upper bound at best. Here nothing runs beside, and as in the paper's table each time is over all whole
batches of 128 test images, five times.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from recmix.experiments.grid import Job
from recmix.experiments.store import Store
from recmix.runs.scores import ScoreKey

__all__ = ["time_again"]


def time_again(
    store: Store,
    jobs: Sequence[Job],
    *,
    device: str = "auto",
    data_root: Path | None = None,
    console: Console,
) -> None:
    """Measure again how long the posteriors of finished runs take, and note it in their scores.

    Args:
        store: where the runs are.
        jobs: those that are done.
        device: where to time them.
        data_root: folder of the data sets.
        console: for the progress.
    """
    import torch

    from recmix.api import load
    from recmix.data import load as load_data
    from recmix.evaluation.score import TIMED_BATCH, device_name
    from recmix.evaluation.timing import pass_milliseconds

    images: dict[str, Any] = {}  # the test images do not depend on the split
    for job in track(jobs, "timing", console=console):
        source = job.definition["data"]
        if str(source) not in images:
            data = load_data(source["name"], data_root, 0, size=source["size"], crop=source["crop"])
            images[str(source)] = data.x_test
        run = store.run(job.digest)
        model = load(run.folder, device=device)
        centre = model.method.model.centre
        x = torch.from_numpy(images[str(source)][:]).to(centre.device, centre.dtype)
        batches = x.split(TIMED_BATCH)
        batches = [batch for batch in batches if len(batch) == len(batches[0])]  # the last may be short
        for key, found in run.scores().items():
            of = ScoreKey.parse(key)
            if of is not None and of.part == "test":
                used = model
                if of.refine is not None or model.method.several:
                    how = {"reuse": found.get("reuse"), "starts": found.get("starts", 1)}
                    used = model.refined(model.method.refine if of.refine is None else of.refine, **how)
                used = used.widened(
                    found.get("widen", 1.0),
                    tilt=found.get("widen_tilt", 0.0),
                    at=found.get("widen_at", 0.0),
                )
                times = pass_milliseconds(used.method, batches)
                taken = {
                    "milliseconds": statistics.fmean(times),
                    "passes": times,
                    "batch": len(batches[0]),
                    "device": device_name(centre.device),
                    "alone": True,
                }
                run.add_score(key, found | taken)
