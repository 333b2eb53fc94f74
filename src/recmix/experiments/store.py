"""The store: a folder of run folders, named by digest, that several drivers may use at once.

=====================  =============================================================================
``grid-NAME.json``     the runs of a grid, with their rows and columns
``DIGEST/``            an ordinary run folder (see `recmix.run`), and in it
``DIGEST/job.json``    what the run is: row, setting, column, split, restart, its whole definition
``DIGEST/log.txt``     what its worker wrote
``DIGEST/failed.json`` why it failed, with the traceback, if it did
``DIGEST/lock``        locked for as long as somebody works on it; who that is or was
=====================  =============================================================================

The checkpoint of a run is removed once the run is done and scored: only its weights are wanted then.
Reading a store needs no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recmix.errors import RunError
from recmix.experiments.grid import FORMAT, Grid, Job, digest_of, told
from recmix.runs.files import read_json, write_bytes, write_json
from recmix.runs.folder import Run
from recmix.runs.options import REUSE
from recmix.runs.scores import ScoreKey

__all__ = ["Claim", "State", "Store", "scored"]

DIGEST = re.compile(r"[0-9a-f]{16}")
PLAIN = re.compile(r"[A-Za-z0-9][\w.+-]*")
STATUS = "status.json"
FOLLOWS_THE_RUN = (*Run.FILES, "job.json", "failed.json", "log.txt")
"""The files that travel when a run is done elsewhere."""


@dataclass(frozen=True)
class State:
    """How a run stands in the store, and why."""

    kind: Literal["done", "failed", "damaged", "begun", "new"]
    reason: str = ""


class Claim:
    """The right to work on a run, held while its file is open in this process or in a child.

    The kernel gives it back when the last process that holds it ends, however it ends.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def note(self, **more: Any) -> None:
        """Write down who holds it, for people."""
        about = {"host": socket.gethostname(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **more}
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps(about).encode(), 0)

    def release(self) -> None:
        """Give it back, as far as this process is concerned."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def scored(
    key: str, scores: Mapping[str, Any], training: Mapping[str, Any], *, chained: bool = False
) -> bool:
    """Whether a score is there, and if it is one of climbs or of chains, of such as are asked for now.

    Args:
        key: of the score.
        scores: those of the run.
        training: what is asked for.
        chained: whether the run has chains of corrections, which may begin from several starts.

    >>> scores = {"test/100/refine 4": {"iwae": 1.0, "reuse": 2, "starts": 1}}
    >>> [scored("test/100/refine 4", scores, {"reuse": 2, "starts": n}) for n in (1, 4)]
    [True, False]
    """
    if not isinstance(found := scores.get(key), Mapping):
        return False
    of = ScoreKey.parse(key)
    if of is not None and of.calibrated and "widen_tilt" not in found:
        return False  # of an earlier calibration, by one factor of all standard deviations
    climbs = of is not None and bool(of.refine)
    if climbs and found.get("reuse", 0) != training.get("reuse", REUSE):
        return False
    return not (climbs or chained) or found.get("starts", 1) == training.get("starts", 1)


class Store:
    """A folder of runs.

    >>> import tempfile
    >>> Store(Path(tempfile.mkdtemp())).folder("../elsewhere")
    Traceback (most recent call last):
        ...
    recmix.errors.RunError: '../elsewhere' is not the name of a run: expected 16 hexadecimal digits
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    # --- names --------------------------------------------------------------------------------

    def folder(self, digest: str) -> Path:
        """The folder of a run."""
        if not DIGEST.fullmatch(digest):
            raise RunError(f"{digest!r} is not the name of a run: expected 16 hexadecimal digits")
        return self.root / digest

    def run(self, digest: str) -> Run:
        """A run of the store."""
        return Run(self.folder(digest))

    def grid_file(self, name: str) -> Path:
        """Where the runs of a grid are listed."""
        if not PLAIN.fullmatch(name):
            raise RunError(
                f"{name!r} is not the name of a grid: expected letters, digits, dots, + and -, "
                "starting with a letter or digit; rename the file"
            )
        return self.root / f"grid-{name}.json"

    def log(self, digest: str) -> Path:
        """What the worker of a run wrote."""
        return self.folder(digest) / "log.txt"

    # --- grids --------------------------------------------------------------------------------

    def keep(self, grid: Grid) -> Path:
        """List the runs of a grid in the store."""
        path = self.grid_file(grid.name)
        self._make(self.root)
        write_json(path, grid.to_json())
        return path

    # --- runs ---------------------------------------------------------------------------------

    def state(self, job: Job) -> State:
        """How a run stands; it is done when it is trained and all that is asked of it is measured."""
        run = self.run(job.digest)
        if failure := self.failure(job.digest):
            return State("failed", str(failure.get("reason", "unknown")))
        try:
            status, scores = _mapping(run, "status.json"), _mapping(run, "scores.json")
        except RunError as error:
            return State("damaged", str(error))
        if status.get("status") == "done" and run.weights.exists():
            for name in ("weights.safetensors", "spec.json", "history.json"):
                path = run.folder / name
                if problem := _problem(path) if path.exists() else "it is not there":
                    return State("damaged", f"{path}: {problem}")
            how = job.definition["training"]
            missing = [k for k in job.evaluate if not scored(k, scores, how, chained=job.chained)]
            return State("begun", f"not scored: {', '.join(missing)}") if missing else State("done")
        return State("begun" if run.exists else "new")

    def prepare(self, job: Job, threads: int) -> None:
        """Write down what a run is, for its worker and its readers; needs the claim.

        A run that was begun keeps its number of threads: sums are rounded differently by another.
        """
        old = self.job_file(job.digest)
        if old and told(old.get("definition") or {}) != told(job.definition):
            raise RunError(
                f"{self.folder(job.digest)} is the folder of another run with the same digest: "
                "use another store"
            )
        evaluate = dict.fromkeys([*job.evaluate, *old.get("evaluate", ())])
        begun = self.run(job.digest).exists
        self._write_job(
            job.digest,
            {
                "format": FORMAT,
                **job.to_json(),
                "evaluate": list(evaluate),
                "definition": job.definition,
                "apart": job.apart,
                "threads": old.get("threads", threads) if begun else threads,
                "seconds": old.get("seconds"),
            },
        )

    def job_file(self, digest: str) -> dict[str, Any]:
        """What `prepare` wrote; empty if there is nothing or it cannot be read."""
        path = self.folder(digest) / "job.json"
        with contextlib.suppress(RunError):
            found = read_json(path)
            if isinstance(found, dict) and digest_of(found.get("definition") or {}) == digest:
                return found
        return {}

    def complete(self, digest: str) -> None:
        """Note how long a finished run took and remove what only an unfinished one needs."""
        seconds = sum(self.seconds(digest))
        self._write_job(digest, {**self.job_file(digest), "seconds": round(seconds, 3)})
        self.run(digest).checkpoint.unlink(missing_ok=True)

    def seconds(self, digest: str) -> Iterator[float]:
        """The times in a run's log: of each epoch and each measurement."""
        with contextlib.suppress(OSError):
            for line in (self.folder(digest) / "log.jsonl").read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError, AttributeError):
                    yield float(json.loads(line).get("seconds", 0.0))

    def last_epoch(self, digest: str) -> tuple[int, float]:
        """The number of epochs done and the seconds of the last one; zeros if there is none."""
        with contextlib.suppress(OSError), (self.folder(digest) / "log.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            for line in reversed(file.read().splitlines()):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    event = json.loads(line)
                    return int(event["epoch"]), float(event["seconds"])
        return 0, 0.0

    def _write_job(self, digest: str, content: dict[str, Any]) -> None:
        self._make(self.folder(digest))
        write_json(self.folder(digest) / "job.json", content)

    # --- failures -----------------------------------------------------------------------------

    def failure(self, digest: str) -> dict[str, Any]:
        """Why a run failed; empty if it did not."""
        path = self.folder(digest) / "failed.json"
        if path.exists():
            with contextlib.suppress(RunError):
                found = read_json(path)
                return found if isinstance(found, dict) else {}
        return {}

    def fail(self, digest: str, reason: str, trace: str = "") -> None:
        """Write down why a run failed."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self._make(self.folder(digest))
        content = {"reason": reason, "time": now, "traceback": trace}
        write_json(self.folder(digest) / "failed.json", content)

    def forget_failure(self, digest: str) -> None:
        """Let a failed run be tried again."""
        (self.folder(digest) / "failed.json").unlink(missing_ok=True)

    def mend(self, digest: str) -> list[str]:
        """Remove what is damaged so that the run can go on or begin again; needs the claim.

        Returns:
            What was found, for the log.
        """
        run = self.run(digest)
        for part in run.folder.glob(".*.part"):
            part.unlink()
        found = []

        def bad(name: str) -> bool:
            problem = _problem(run.folder / name)
            if problem:
                found.append(f"{name} is damaged ({problem})")
            return bool(problem)

        here = [name for name in Run.FILES if (run.folder / name).exists()]
        again = False
        if bad("scores.json"):
            (run.folder / "scores.json").unlink()
        if bad("status.json"):
            (run.folder / "status.json").unlink()
        done = run.status().get("status") == "done"
        if here and "spec.json" not in here:
            found.append("there is no spec.json")
            again = True
        again |= bad("spec.json") or bad("history.json")
        if done and "history.json" not in here:
            found.append("there is no history.json")
            again = True
        if done and ("weights.safetensors" not in here or bad("weights.safetensors")):
            found.append("it has no weights")
            (run.folder / "status.json").unlink()
            done = False
            again |= "checkpoint.safetensors" not in here
        again |= not done and bad("checkpoint.safetensors")
        if again:
            found.append("it begins again")
            run.clear()
        return found

    # --- claims -------------------------------------------------------------------------------

    def claim(self, digest: str) -> Claim | None:
        """The right to work on a run, or None if somebody else has it."""
        folder = self.folder(digest)
        self._make(folder)
        path = folder / "lock"
        descriptor = -1
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise RunError(f"{path} cannot be locked: {error.strerror}") from error
        return Claim(descriptor)

    def holder(self, digest: str) -> str:
        """Who works on a run now; empty if nobody does."""
        path = self.folder(digest) / "lock"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ValueError, OSError):
                about = json.loads(path.read_text(encoding="utf-8"))
                return f"{about['host']}, process {about.get('pid', 'unknown')}"
            return "another driver"
        finally:
            os.close(descriptor)
        return ""

    # --- runs that are done elsewhere ---------------------------------------------------------

    def pack(self, digest: str, names: tuple[str, ...] = FOLLOWS_THE_RUN) -> dict[str, bytes]:
        """Files of a run, to be sent; the status is read first, for the run may go on meanwhile."""
        found = {}
        for name in sorted(names, key=lambda name: name != STATUS):
            with contextlib.suppress(FileNotFoundError):
                found[name] = (self.folder(digest) / name).read_bytes()
        return found

    def unpack(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Files of a run that were received; the status is written last, after what it speaks of.

        Else a process killed in between would leave earlier weights beside the status of a trained run.
        """
        folder = self.folder(digest)
        self._make(folder)
        for name, content in sorted(files.items(), key=lambda item: item[0] == STATUS):
            if name not in FOLLOWS_THE_RUN:
                raise RunError(f"{name!r} is not the name of a file of a run")
            write_bytes(folder / name, content)

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"could not make the folder {folder}: {error.strerror}") from error


def _mapping(run: Run, name: str) -> dict[str, Any]:
    path = run.folder / name
    if not path.exists():
        return {}
    found = read_json(path)
    if not isinstance(found, dict):
        raise RunError(f"{path} is not a JSON object: the file is damaged")
    return found


def _problem(path: Path) -> str:
    """What is wrong with a file of a run; nothing if it is whole or not there."""
    if not path.exists():
        return ""
    if path.suffix == ".json":
        try:
            expected = list if path.name == "history.json" else dict
            return "" if isinstance(read_json(path), expected) else "not what is expected in it"
        except RunError as error:
            return str(error)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy"):
            return ""
    except (SafetensorError, OSError) as error:
        return str(error) or type(error).__name__
