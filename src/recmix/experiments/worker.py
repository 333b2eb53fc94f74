"""A process that does a list of runs: ``python -m recmix.experiments.worker STORE DIGEST …``.

STORE is the folder of run folders, a DIGEST is the name of a run. A run trains and scores one model. A
driver (a process of `recmix grid`) starts this process with the option ``--driven``. Then this process
inherits the locks on its runs from the driver. Its standard input is closed when the driver wants it to
stop, or when the driver has ended. Then this process saves its state and stops.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recmix.errors import RecmixError, RunError
from recmix.experiments.store import Store
from recmix.runs.files import write_json
from recmix.runs.scores import ScoreKey

if TYPE_CHECKING:
    from recmix.data import Data
    from recmix.methods.method import Method

__all__ = ["main", "output_to", "sigterm_interrupts", "train_together", "work"]

FAILED = 3
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and score the runs that the command line names, and return the exit status.

    The status is 0 if all runs are done, 3 if one failed, and 130 if the process was interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m recmix.experiments.worker", description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("digests", nargs="+", metavar="DIGEST")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--driven", action="store_true", help="started by a driver")
    given = parser.parse_args(arguments)
    store = Store(given.store)
    how = {"device": given.device, "data_root": given.data_root}
    with sigterm_interrupts() as stopped, contextlib.ExitStack() as claims:
        if given.driven:
            pipe = sys.stdin.fileno()
            threading.Thread(target=_stop_when_closed, args=(pipe,), daemon=True).start()
        else:
            for digest in given.digests:
                claim = store.claim(digest)
                if claim is None:
                    raise RunError(f"another process works on {digest}: {store.holder(digest)}")
                claim.note(pid=os.getpid())
                claims.callback(claim.release)
        if len(given.digests) > 1:
            with output_to(store.log(given.digests[0])):
                if train_together(store, given.digests, **how, stopped=stopped) == "interrupted":
                    return INTERRUPTED
        results = []
        for digest in given.digests:
            with output_to(store.log(digest)):
                results.append(work(store, digest, **how, stopped=stopped))
            if results[-1] == "interrupted":
                return INTERRUPTED
        return FAILED if "failed" in results else 0


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[threading.Event]:
    """Context that yields an event. On SIGTERM, the event is set and KeyboardInterrupt is raised.

    If the event is set, the caller should treat any exception as an interruption: a library that is
    interrupted during its import may raise an exception of another type.
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
    """Train and score one run as its ``job.json`` says. A run that was begun is continued.

    If the event `stopped` is set, this process was asked to stop, and an exception is an interruption,
    not a failure.

    Args:
        digest: the name of the run in the store.

    Returns:
        ``done``, ``failed`` (the reason is in the file ``failed.json``) or ``interrupted``.
    """
    result, error = _attempt(lambda: _train_and_score(store, digest, device, data_root), stopped)
    if error is not None:
        reason = str(error) if isinstance(error, RecmixError) else f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        store.fail(digest, reason or type(error).__name__, trace)
    return result


def train_together(
    store: Store,
    digests: Sequence[str],
    *,
    device: str = "auto",
    data_root: Path | None = None,
    stopped: threading.Event | None = None,
) -> str:
    """Train several runs at once, without scoring them. The arguments and the result are as in `work`.

    Call `work` for each run afterwards. It scores the run. If training together failed, it trains the
    run first.
    """

    def train() -> None:
        from recmix.training.fit import train_models

        requests = [_request(store, digest, device, data_root) for digest in digests]
        train_models(requests, progress=True)

    return _attempt(train, stopped)[0]


def _attempt(
    action: Callable[[], None], stopped: threading.Event | None
) -> tuple[str, Exception | None]:
    """Call `action`. Return ``done``, ``failed`` or ``interrupted``, and the error if there is one.

    If the event `stopped` is set, any exception is an interruption.
    """
    try:
        action()
    except KeyboardInterrupt as stop:
        print(f"interrupted: {stop}", file=sys.stderr)
        return "interrupted", None
    except Exception as error:  # any error is a failure of the run; other runs go on
        traceback.print_exc()
        interrupted = stopped is not None and stopped.is_set()
        return ("interrupted", None) if interrupted else ("failed", error)
    return "done", None


def _request(store: Store, digest: str, device: str, data_root: Path | None) -> dict[str, Any]:
    """Read the ``job.json`` of the run `digest`; return its request for `training.fit.train_models`.

    This also loads the data, and removes damaged files of the run.
    """
    import torch

    from recmix.data import load

    job = store.job_file(digest)
    if not job:
        raise RunError(f"{store.folder(digest)} has no readable job.json: start the run from its grid")
    torch.set_num_threads(job["threads"])
    about = " ".join(f"{key} {job[key]}" for key in ("label", "setting", "data", "latent", "split"))
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {about}", file=sys.stderr)
    for message in store.repair(digest):
        print(message, file=sys.stderr)
    of = job["definition"]
    return {
        "method": of["method"],
        "data": load(root=data_root, seed=of["split"], **of["data"]),
        "init": None if of["init"] is None else store.folder(of["init"]),
        "out": store.run(digest).folder,
        "resume": True,
        **of["model"],
        **of["options"],
        **of["training"],
        **of["inference"],
        **job["extra"],
        "seed": of["restart"],
        "device": device,
    }


def _train_and_score(store: Store, digest: str, device: str, data_root: Path | None) -> None:
    began = time.monotonic()
    from recmix.training.fit import train_models

    request = _request(store, digest, device, data_root)
    run = store.run(digest)
    ready = time.monotonic() - began
    (trained,) = train_models([request], progress=True)
    run.log("ready", seconds=round(ready, 4))
    if trained.history != run.history():  # killed after the checkpoint, before the history was written
        write_json(run.folder / "history.json", trained.history)
    for name in store.job_file(digest)["evaluate"]:
        if name not in run.scores():
            began = time.monotonic()
            run.add_score(name, _score(trained.method, request["data"], name))
            run.log("scored", key=name, seconds=round(time.monotonic() - began, 4))
    store.complete(digest)


def _score(method: Method, data: Data, name: str) -> dict[str, Any]:
    """Compute the score with this name, such as ``test/100``, see `ScoreKey`.

    If the posterior is calibrated, validation data are used for this.
    """
    import torch

    from recmix.evaluation.calibrate import EXAMPLES, calibrate
    from recmix.evaluation.score import score

    key = ScoreKey.parse(name)
    examples = {"test": data.x_test, "val": data.x_val}.get(key.part) if key else None
    if key is None or examples is None:
        raise RunError(f"the data {data.name} have no part for the score {name!r}")
    inference = key.inference
    if key.calibrated:
        held_out = torch.from_numpy(data.x_val[:EXAMPLES]).to(method.model.centre)
        found = calibrate(method, held_out, inference, samples=key.samples, noise=key.noise)
        inference = found.inference
    return score(method, examples, inference, samples=key.samples)


def _stop_when_closed(descriptor: int) -> None:
    """Wait until no process can write to a pipe any more; then send SIGTERM to this process.

    `descriptor` is the file descriptor of the end of the pipe from which this process reads.
    """
    while os.read(descriptor, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Context in which all output of this process, also of C libraries, is appended to a file."""
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
