"""One process that does a list of runs: ``python -m recmix.experiments.worker STORE DIGEST …``.

A driver starts it with ``--driven``: it has then inherited the claims to its runs, and stops, saving
what it has, when its standard input ends, which happens when the driver wants it or is no more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recmix.errors import Interrupted, RecmixError, RunError
from recmix.experiments.store import Store, scored
from recmix.runs.files import write_json
from recmix.runs.options import CLIMBS
from recmix.runs.scores import ScoreKey

__all__ = ["main", "stoppable", "train_together", "work", "written_to"]

FAILED = 3
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the runs that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m recmix.experiments.worker", description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("digests", nargs="+", metavar="DIGEST")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--driven", action="store_true", help="started by a driver")
    given = parser.parse_args(arguments)
    store = Store(given.store)
    with stoppable() as stopped, contextlib.ExitStack() as claims:
        if given.driven:
            pipe = sys.stdin.fileno()
            threading.Thread(target=stop_at_the_end_of, args=(pipe,), daemon=True).start()
        else:
            for digest in given.digests:
                claim = store.claim(digest)
                if claim is None:
                    raise RunError(f"somebody works on {digest} already: {store.holder(digest)}")
                claim.note(pid=os.getpid())
                claims.callback(claim.release)
        ends = []
        if len(given.digests) > 1:
            with written_to(store.log(given.digests[0])):
                end = train_together(
                    store, given.digests, given.device, given.data_root, stopped=stopped
                )
                if end == "interrupted":
                    return INTERRUPTED
        for digest in given.digests:
            with written_to(store.log(digest)):
                how = {"device": given.device, "data_root": given.data_root}
                ends.append(work(store, digest, **how, stopped=stopped))
            if ends[-1] == "interrupted":
                return INTERRUPTED
        return FAILED if "failed" in ends else 0


@contextlib.contextmanager
def stoppable() -> Iterator[threading.Event]:
    """In here SIGTERM breaks off what is done, as Ctrl-C does, and the event says that it came.

    Whatever is raised afterwards comes from breaking off: a library in the middle of its import may make
    any exception of it.
    """
    stopped = threading.Event()

    def stop(number: int, frame: Any) -> None:
        stopped.set()
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, before)


def work(
    store: Store,
    digest: str,
    *,
    device: str = "auto",
    data_root: Path | None = None,
    stopped: threading.Event | None = None,
) -> str:
    """Train and measure one run, from where it stands; its job file says what it is.

    Returns:
        ``done``, ``failed`` (the reason is in the store) or ``interrupted``.
    """
    try:
        _work(store, digest, device, data_root)
    except (Interrupted, KeyboardInterrupt) as stop:
        print(f"interrupted: {stop}", file=sys.stderr)
        return "interrupted"
    except Exception as error:  # whatever it is, it is this run's, and the others go on
        trace = traceback.format_exc()
        print(trace, file=sys.stderr)
        if stopped is not None and stopped.is_set():
            return "interrupted"
        reason = str(error) if isinstance(error, RecmixError) else f"{type(error).__name__}: {error}"
        store.fail(digest, reason or type(error).__name__, trace)
        return "failed"
    return "done"


def train_together(
    store: Store,
    digests: Sequence[str],
    device: str = "auto",
    data_root: Path | None = None,
    *,
    stopped: threading.Event | None = None,
) -> str:
    """Train several runs at once; what is left undone by a failure, `work` does one by one.

    Returns:
        ``done``, ``failed`` or ``interrupted``.
    """
    from recmix.training.fit import fit_many

    try:
        requests = [_request(store, digest, device, data_root) for digest in digests]
        fit_many(requests, progress=True)
    except (Interrupted, KeyboardInterrupt) as stop:
        print(f"interrupted: {stop}", file=sys.stderr)
        return "interrupted"
    except Exception:  # one of them is at fault: alone, each will show how it stands
        print(traceback.format_exc(), file=sys.stderr)
        return "interrupted" if stopped is not None and stopped.is_set() else "failed"
    return "done"


def _request(store: Store, digest: str, device: str, data_root: Path | None) -> dict[str, Any]:
    """What `fit` is asked for one run, by its job file."""
    import torch

    from recmix.data import load

    order = store.job_file(digest)
    if not order:
        raise RunError(f"{store.folder(digest)} has no readable job.json: start it from its grid")
    torch.set_num_threads(order["threads"])
    about = " ".join(f"{key} {order[key]}" for key in ("label", "setting", "data", "latent", "split"))
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {about}", file=sys.stderr)
    for remark in store.mend(digest):
        print(remark, file=sys.stderr)
    of = order["definition"]
    source = of["data"]
    return {
        "method": of["method"],
        "data": load(source["name"], data_root, of["split"], size=source["size"], crop=source["crop"]),
        "latent": of["latent"],
        "likelihood": of["likelihood"],
        "network": of["network"],
        "decoder_network": of["decoder_network"],
        "init": None if of["init"] is None else store.folder(of["init"]),
        "out": store.run(digest).folder,
        "resume": True,
        "device": device,
        **of["options"],
        **of["training"],
        **order["apart"],
    }


def _work(store: Store, digest: str, device: str, data_root: Path | None) -> None:
    began = time.monotonic()
    from recmix.evaluation.score import score
    from recmix.training.fit import fit

    asked = _request(store, digest, device, data_root)
    run, data = store.run(digest), asked["data"]
    ready = time.monotonic() - began
    fitted = fit(**asked, progress=True)
    run.log("ready", seconds=round(ready, 4))
    if fitted.history != run.history():  # killed between a checkpoint and the history
        write_json(run.folder / "history.json", fitted.history)
    parts: dict[str, Any] = {"test": data.x_test, "val": data.x_val}
    for key in store.job_file(digest)["evaluate"]:
        if not scored(key, run.scores(), asked, chained=fitted.method.several):
            asked_for = ScoreKey.parse(key)
            if asked_for is None or (images := parts.get(asked_for.part)) is None:
                raise RunError(f"the data {data.name} have no images to score for {key!r}")
            since = time.monotonic()
            used = fitted
            if (steps := asked_for.refine) is not None or fitted.method.several:
                how = {name: asked.get(name) for name in CLIMBS}  # as the grid says now
                used = fitted.refined(fitted.method.refine if steps is None else steps, **how)
            if asked_for.calibrated:
                used = used.calibrated(data.x_val, asked_for.samples)
            run.add_score(key, score(used.method, images, samples=asked_for.samples))
            run.log("scored", key=key, seconds=round(time.monotonic() - since, 4))
    store.complete(digest)


def stop_at_the_end_of(descriptor: int) -> None:
    """Ask this process to save and stop when nobody can write to `descriptor` any more."""
    while os.read(descriptor, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def written_to(path: Path) -> Iterator[None]:
    """All that this process writes meanwhile, from whatever library, goes to the end of a file."""
    before = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    with path.open("a") as file:
        for descriptor in before:
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, old in before.items():
            os.dup2(old, descriptor)
            os.close(old)


if __name__ == "__main__":
    sys.exit(main())
