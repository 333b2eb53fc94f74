"""The store: the folder that holds the run folders and lists of runs of one or more grids.

Several drivers (processes of `recmix grid`) can use it at the same time. The name of a run folder is the
digest (hash) of the run's definition.

=====================  =============================================================================
``grid-NAME.json``     the runs of a grid, with their rows and columns
``DIGEST/``            a run folder (see `recmix.runs.folder`), which also has the following files
``DIGEST/job.json``    row, setting, column, split and restart of the run, and its definition
``DIGEST/log.txt``     output of the worker
``DIGEST/failed.json`` why the run failed, with the traceback, if it failed
``DIGEST/lock``        locked while a process works on the run; names the last process
=====================  =============================================================================

The checkpoint of a run is removed when the run is trained and scored. Reading a store needs no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from recmix.errors import RunError
from recmix.experiments.grid import Grid, GridJob, digest_of
from recmix.runs.files import make_folder, read_json, remove_parts, write_bytes, write_json
from recmix.runs.folder import VOCABULARY, Run
from recmix.runs.spec import FORMAT, check_format

__all__ = ["Claim", "Store", "StoredState"]

DIGEST = re.compile(r"[0-9a-f]{16}")
GRID_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
STATUS = "status.json"
CHECKED = tuple(name for name in Run.FILES if name.endswith((".json", ".safetensors")))
"""Files of a run that must be readable if they exist."""
RUN_FILES = (*Run.FILES, "job.json", "failed.json", "log.txt")
"""The files that are sent when a run is done on another machine."""


class StoredState(NamedTuple):
    """The state of a run, as the files in its folder show it.

    A run is new if its folder has no run yet, begun if its training or scoring is not complete, and done
    if it is trained and scored. It is damaged if a file cannot be read or a trained run lacks a file.
    """

    kind: Literal["done", "failed", "damaged", "begun", "new"]
    reason: str = ""  # why it has this state, in words


class Claim:
    """The right of this process to work on a run: a lock on a file in the run's folder.

    Child processes can inherit the lock. The kernel releases the lock when the last process that holds
    it ends, also if this process is killed.

    Args:
        descriptor: file descriptor of the open lock file, or -1 for no lock.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self.descriptor = descriptor

    def note(self, **more: Any) -> None:
        """Write who holds the lock into the lock file: host, time, and further facts such as ``pid``."""
        about = {"host": socket.gethostname(), "time": _now(), **more}
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps(about).encode(), 0)

    def release(self) -> None:
        """Close the lock file in this process. A child process may still hold the lock."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Store:
    """The folder that holds the run folders of one or more grids.

    The argument `digest` of the methods is the name of a run and of its folder. It is a hash of the
    run's definition: everything that determines its result.

    >>> import tempfile
    >>> Store(Path(tempfile.mkdtemp())).folder("../elsewhere")
    Traceback (most recent call last):
        ...
    recmix.errors.RunError: '../elsewhere' is not the name of a run: expected 16 hexadecimal digits
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def folder(self, digest: str) -> Path:
        """Return the path of a run's folder."""
        if not DIGEST.fullmatch(digest):
            raise RunError(f"{digest!r} is not the name of a run: expected 16 hexadecimal digits")
        return self.root / digest

    def run(self, digest: str) -> Run:
        """Return the object that reads and writes the files of a run."""
        return Run(self.folder(digest))

    def grid_file(self, name: str) -> Path:
        """Return the path of ``grid-NAME.json``, which lists the runs of the grid with this name."""
        if not GRID_NAME.fullmatch(name):
            raise RunError(
                f"{name!r} is not the name of a grid: expected letters, digits, dots, + and -, "
                "starting with a letter or digit; rename the file"
            )
        return self.root / f"grid-{name}.json"

    def log(self, digest: str) -> Path:
        """Return the path of the file with the output of the worker that does a run."""
        return self.folder(digest) / "log.txt"

    def check_format(self) -> None:
        """Raise an error if another version of recmix wrote this folder, in another format."""
        for path in sorted(self.root.glob("grid-*.json")):
            if found := _mapping_or_empty(path):  # a damaged list of runs is replaced
                check_format(found.get("format", 0), f"the store {self.root} ({path.name})")

    def keep(self, grid: Grid) -> Path:
        """Write the list of a grid's runs into ``grid-NAME.json``, and return the path of this file."""
        path = self.grid_file(grid.name)
        self._write(path, grid.to_json())
        return path

    def state(self, job: GridJob) -> StoredState:
        """Find the state of a run from the files in its folder.

        A run is done if it is trained and has all scores that `job` asks for.
        """
        run = self.run(job.digest)
        if failure := self.failure(job.digest):
            return StoredState("failed", str(failure.get("reason", "unknown")))
        try:
            status, scores = _mapping(run.folder / STATUS), _mapping(run.folder / "scores.json")
        except RunError as error:
            return StoredState("damaged", str(error))
        if status.get("status") != "done" or not run.weights.exists():
            return StoredState("begun" if run.exists else "new")
        for name in ("weights.safetensors", "spec.json", "history.json"):
            path = run.folder / name
            if problem := _problem(path) if path.exists() else "the file is missing":
                return StoredState("damaged", f"{path}: {problem}")
        if missing := [key for key in job.evaluate if key not in scores]:
            return StoredState("begun", f"not scored: {', '.join(missing)}")
        return StoredState("done")

    def prepare(self, job: GridJob, threads: int) -> None:
        """Write the file ``job.json`` of a run, which tells the worker process what to train and score.

        The caller must have locked the run with `claim`. A run that was begun earlier keeps its number
        of threads, because another number changes rounding.
        """
        old = self.job_file(job.digest)
        begun = self.run(job.digest).exists
        content = {
            "format": FORMAT,
            **job.to_json(),
            "evaluate": list(dict.fromkeys([*job.evaluate, *old.get("evaluate", ())])),
            "definition": job.definition,
            "extra": job.extra,
            "threads": old.get("threads", threads) if begun else threads,
            "seconds": old.get("seconds"),
        }
        self._write(self.folder(job.digest) / "job.json", content)

    def job_file(self, digest: str) -> dict[str, Any]:
        """Return the content of a run's file ``job.json``, which says what to train and score.

        The result is empty if the file is missing, damaged or of another run.
        """
        found = _mapping_or_empty(self.folder(digest) / "job.json")
        return found if digest_of(found.get("definition") or {}) == digest else {}

    def complete(self, digest: str) -> None:
        """Write into ``job.json`` how long a finished run took, and remove its checkpoint."""
        seconds = sum(event.get("seconds", 0.0) for event in self.run(digest).events())
        content = {**self.job_file(digest), "seconds": round(seconds, 3)}
        self._write(self.folder(digest) / "job.json", content)
        self.run(digest).checkpoint.unlink(missing_ok=True)

    def last_epoch(self, digest: str) -> tuple[int, float]:
        """Return how many epochs a run has finished, and how many seconds its last epoch took.

        `digest` is the name of the run, see `Store`. Both numbers are 0 before the first epoch ends.
        """
        for event in reversed(self.run(digest).events()):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return int(event["epoch"]), float(event["seconds"])
        return 0, 0.0

    def failure(self, digest: str) -> dict[str, Any]:
        """Return the reason and the traceback of a run's failure; empty if the run did not fail."""
        return _mapping_or_empty(self.folder(digest) / "failed.json")

    def fail(self, digest: str, reason: str, trace: str = "") -> None:
        """Write into ``failed.json`` why a run failed, and the traceback if there is one."""
        content = {"reason": reason, "time": _now(), "traceback": trace}
        self._write(self.folder(digest) / "failed.json", content)

    def forget_failure(self, digest: str) -> None:
        """Remove ``failed.json``, so that a failed run can be tried again."""
        (self.folder(digest) / "failed.json").unlink(missing_ok=True)

    def repair(self, digest: str) -> list[str]:
        """Remove damaged files of a run, and return a message for each problem.

        Afterwards the run can continue or start again. The caller must have locked the run with `claim`.
        """
        run = self.run(digest)
        if run.folder.exists():
            remove_parts(*(run.folder / name for name in RUN_FILES))
        here = {name for name in Run.FILES if (run.folder / name).exists()}
        damaged = {
            name: problem for name in CHECKED if (problem := _problem(run.folder / name, whole=True))
        }
        found = [f"{name} is damaged ({problem})" for name, problem in damaged.items()]
        for name in {"scores.json", STATUS} & damaged.keys():
            (run.folder / name).unlink()
        usable = here - damaged.keys()
        done = run.status().get("status") == "done"
        needed = {"spec.json", *here & {"history.json"}}
        if done:
            needed |= {"history.json", *here & {VOCABULARY}}
        if done and "weights.safetensors" not in usable:
            found.append("it has no weights")
            (run.folder / STATUS).unlink()
            needed.add("checkpoint.safetensors")
        elif not done:
            needed |= here & {"checkpoint.safetensors"}
        if here and not needed <= usable:
            found.append(f"it starts again: it needs {', '.join(sorted(needed - usable))}")
            run.clear()
        return found

    def claim(self, digest: str) -> Claim | None:
        """Lock the folder of a run, so that no other process trains the run.

        `digest` is the name of the run, see `Store`. The result is the lock, or None if another process
        has locked the folder.
        """
        path = self.folder(digest) / "lock"
        make_folder(path.parent)
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
        """Return the host and process that work on a run now, as text; empty if no process does.

        The text is "another driver" if the lock file names none. `digest` is the name of the run.
        """
        path = self.folder(digest) / "lock"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ValueError, OSError):
                about = json.loads(os.pread(descriptor, 1000, 0))
                return f"{about['host']}, process {about.get('pid', 'unknown')}"
            return "another driver"
        finally:
            os.close(descriptor)
        return ""

    def pack(self, digest: str, names: tuple[str, ...] = RUN_FILES) -> dict[str, bytes]:
        """Read files of a run, to send them to another machine; return {name: content}.

        Missing files are left out. ``status.json`` is read first, because the run may be in progress: so
        the status is never newer than the other files.
        """
        found = {}
        for name in sorted(names, key=lambda name: name != STATUS):
            with contextlib.suppress(FileNotFoundError):
                found[name] = (self.folder(digest) / name).read_bytes()
        return found

    def unpack(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Write files {name: content}, which another machine sent, into the folder of a run.

        ``status.json`` is written last. Otherwise, if this process were killed in between, old weights
        could remain together with the status of a trained run.
        """
        folder = self.folder(digest)
        make_folder(folder)
        for name, content in sorted(files.items(), key=lambda item: item[0] == STATUS):
            if name not in RUN_FILES:
                raise RunError(f"{name!r} is not the name of a file of a run")
            write_bytes(folder / name, content)

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        make_folder(path.parent)
        write_json(path, content)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _mapping(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} if the file is missing. Raise RunError if it is damaged."""
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise RunError(f"{path} is not a JSON object: the file is damaged")
    return found


def _mapping_or_empty(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} if the file is missing or damaged."""
    with contextlib.suppress(RunError):
        return _mapping(path)
    return {}


def _problem(path: Path, *, whole: bool = False) -> str:
    """Return text that says why a file of a run cannot be read; empty if it can be read or is missing.

    If `whole` is true, tensors in the file are compared with their stored hash, too. This needs torch.
    """
    if not path.exists():
        return ""
    if path.suffix == ".json":
        try:
            if path.name == STATUS:
                Run(path.parent).status()  # raises an error if it names no status
            expected = list if path.name == "history.json" else dict
            return "" if isinstance(read_json(path), expected) else f"not a JSON {expected.__name__}"
        except RunError as error:
            return str(error)
    from safetensors import SafetensorError, safe_open

    if whole:
        from recmix.training import checkpoint

        try:
            checkpoint._read(path)
        except RunError as error:
            return str(error)
    try:
        with safe_open(path, "numpy"):
            return ""
    except (SafetensorError, OSError) as error:
        return str(error) or type(error).__name__
