"""`Run`: the folder of one run. Reading it needs no torch.

==========================  ====================================================================
``spec.json``               method and its options; options of model, training, inference and data
``history.json``            one row per epoch
``status.json``             running, interrupted, failed or done, with the reason
``scores.json``             results of `recmix evaluate`, by name, see `recmix.runs.scores`
``reports.json``            results of `recmix evaluate --report`, {score name: {report name: result}}
``gap.json``                results of `recmix evaluate --gap`
``vocabulary.json``         how texts are written as numbers, if the data are texts
``training_examples.json``  hashes of the training examples, if they were in memory
``tuned.json``              the refinement that `recmix tune` chose, with its time and bound
``weights.safetensors``     the weights of the best validation epoch
``checkpoint.safetensors``  everything needed to continue training
``log.jsonl``               times and events; not part of what must be reproducible
``order.json``              how the number of components was chosen (``order = "auto"``)
``preset.json``             all stages of a preset, in the folder of its last stage
``.lock``                   the process that trains now; it holds a lock on this file
==========================  ====================================================================
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recmix.errors import ConfigError, DataError, NonFiniteError, RunError, shown
from recmix.inference import Inference
from recmix.model.vocabulary import Vocabulary, vocabulary_from_json
from recmix.runs.files import make_folder, read_json, remove_parts, update_json, write_json
from recmix.runs.lock import has_lock, lock, unlock
from recmix.runs.spec import Spec

__all__ = ["PRESET", "TRAINING_EXAMPLES", "TUNED", "VOCABULARY", "Run", "check_finite"]

PRESET = "preset.json"
"""Name of the file that holds a preset (a sequence of trainings). It is in the run folder of the last
training. The other trainings have folders inside this folder."""
TRAINING_EXAMPLES = "training_examples.json"
"""Name of the file that holds hashes of the training examples, if these were in memory."""
TUNED = "tuned.json"  # name of the file that holds the inference that `recmix tune` chose
VOCABULARY = "vocabulary.json"  # name of the file that holds the vocabulary of a model of texts
VOCABULARY_BYTES = 1 << 28  # largest size of this file
SHOWN = 5  # runs in a folder of runs that an error message names


class Run:
    """Reads and writes the folder of one run (one training of one model, with its results).

    >>> import tempfile
    >>> run = Run(Path(tempfile.mkdtemp()) / "vae")
    >>> run.exists
    False

    Args:
        folder: the folder. It need not exist yet.
    """

    FILES = (
        "spec.json",
        "history.json",
        "status.json",
        "scores.json",
        "reports.json",
        "gap.json",
        TRAINING_EXAMPLES,
        TUNED,
        VOCABULARY,
        "log.jsonl",
        "order.json",
        "weights.safetensors",
        "checkpoint.safetensors",
    )

    def __init__(self, folder: str | Path) -> None:
        if not isinstance(folder, str | os.PathLike):
            raise ConfigError(f"the folder of a run must be text or a path, got {shown(folder)}")
        self.folder = Path(folder)
        self.weights = self.folder / "weights.safetensors"  # of the best epoch
        self.checkpoint = self.folder / "checkpoint.safetensors"

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run, that is, a file ``spec.json``."""
        return (self.folder / "spec.json").exists()

    def create(
        self, spec: Spec, *, overwrite: bool = False, vocabulary: Vocabulary | None = None
    ) -> None:
        """Make the folder of a new run and write the spec of the run into it.

        Args:
            spec: the options of the run and a description of its data.
            overwrite: whether to replace a run that is in the folder. If False, raise a RunError if
                there is one.
            vocabulary: the vocabulary of the data, if they are texts.
        """
        self.check_free(overwrite=overwrite)
        make_folder(self.folder)
        self.lock()
        try:
            self.check_free(overwrite=overwrite)  # another process may have been faster
            if self.exists:
                self.clear()
            write_json(self.folder / "spec.json", spec.to_json())
            self.set_vocabulary(vocabulary)
        except BaseException:
            self.unlock()
            raise

    def check_free(self, *, overwrite: bool = False) -> None:
        """Raise a RunError if a new run cannot be written into the folder.

        There are three reasons: the folder is a file; it holds files of a run, but no ``spec.json``; or
        it holds a run and `overwrite` is False.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file: give the name of a folder")
        if self.exists:
            if not overwrite:
                raise RunError(
                    f"{self.folder} already holds a run: continue it with --resume (resume=True), "
                    "replace it with --overwrite (overwrite=True), or give another folder"
                )
        elif self.folder.exists() and any(p.name in self.FILES for p in self.folder.iterdir()):
            raise RunError(f"{self.folder} holds part of a run without its spec: give another folder")

    def clear(self) -> None:
        """Remove the files of the run from the folder. Other files in it are kept.

        ``status.json`` is removed first and ``spec.json`` last. If the process is killed in between, the
        rest is still a run that can be resumed or overwritten.
        """
        if not self.folder.is_dir():
            return
        held = has_lock(self.folder)
        self.lock()
        others = [name for name in (*self.FILES, PRESET) if name not in ("status.json", "spec.json")]
        try:
            for name in ("status.json", *others, "spec.json"):
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
        except OSError as error:
            raise RunError(f"could not remove {error.filename}: {error.strerror}") from error
        finally:
            if not held:
                unlock(self.folder)

    def lock(self) -> None:
        """Reserve the folder for this process, so that no other process trains in it.

        The reservation ends when this process ends, also if it is killed, or when `set_status` writes a
        status other than "running". If another process has reserved the folder, raise a RunError that
        names the other process.
        """
        lock(self.folder)
        remove_parts(*(self.folder / name for name in (*self.FILES, PRESET)))

    def unlock(self) -> None:
        """End the reservation that `lock` made, if this process has reserved the folder."""
        unlock(self.folder)

    def spec(self) -> Spec:
        """Read ``spec.json``: the options of the run and a description of its data."""
        if not self.exists:
            raise RunError(f"{self.folder} does not hold a run: {self._why_not()}")
        path = self.folder / "spec.json"
        return Spec.from_json(read_json(path), str(path))

    def _why_not(self) -> str:
        """Say why the folder does not hold a run, and name the runs in folders inside it."""
        if not self.folder.is_dir():
            return (
                "it is a file; expected a folder that recmix wrote (recmix.wrap reads other models)"
                if self.folder.exists()
                else "it does not exist"
            )
        inside = sorted(path.parent.name for path in self.folder.glob("*/spec.json"))
        if not inside:
            return "there is no spec.json in it"
        names = ", ".join(inside[:SHOWN]) + ", ..." * (len(inside) > SHOWN)
        return f"it is a folder of runs: {names}. Give one of them, such as {self.folder / inside[0]}"

    def history(self) -> list[dict[str, float]]:
        """Read the metrics of each epoch so far, one dict per epoch."""
        path = self.folder / "history.json"
        rows: list[dict[str, float]] = read_json(path) if path.exists() else []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise RunError(f"{path} is damaged: expected a list with an object for each epoch")
        return rows

    def status(self) -> dict[str, Any]:
        """Read the status of the run, as {"status": ..., further values}.

        The status is new, running, interrupted, failed or done. Further values are, for example, the
        epoch and the reason why the run stopped.
        """
        path = self.folder / "status.json"
        state: dict[str, Any] = read_json(path) if path.exists() else {"status": "new"}
        if not isinstance(state, dict) or not isinstance(state.get("status"), str):
            raise RunError(
                f"{path} is damaged: expected an object with the text 'status'. Delete the file, and "
                "continue the run with --resume"
            )
        return state

    def set_status(self, status: str, **more: Any) -> None:
        """Write the status of the run, such as "running", with further values such as the epoch.

        A status other than "running" also ends the reservation of the folder that `lock` made.
        """
        write_json(self.folder / "status.json", {"status": status, **more})
        if status != "running":
            self.unlock()

    def scores(self) -> dict[str, Any]:
        """Read all results of ``recmix evaluate``, as {score name: result}.

        Score names are explained in `recmix.runs.scores.ScoreKey`.
        """
        return self._by_score("scores.json")

    def add_score(self, key: str, score: dict[str, Any]) -> None:
        """Add one evaluation result to the folder, or replace the result with this name.

        Raise a NonFiniteError if one of the bounds ``elbo`` and ``iwae`` is not finite.
        """
        check_finite(score, str(self.folder))
        update_json(self.folder / "scores.json", lambda: {**self.scores(), key: score})

    def reports(self) -> dict[str, Any]:
        """Read the results of ``recmix evaluate --report``, as {score name: {report name: result}}."""
        return self._by_score("reports.json")

    def _by_score(self, name: str) -> dict[str, Any]:
        """Read the JSON file `name` of the run, as {score name: object}.

        The result is empty if there is no such file.
        """
        path = self.folder / name
        found: dict[str, Any] = read_json(path) if path.exists() else {}
        if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
            raise RunError(
                f"{path} is damaged: expected an object with an object for each score. Delete the file, "
                "and evaluate again"
            )
        return found

    def add_reports(self, key: str, reports: Mapping[str, Any]) -> None:
        """Add results {report name: result} to those of the score with the name `key`.

        If a report already has a result, the result is replaced.
        """

        def change() -> dict[str, Any]:
            found = self.reports()
            return {**found, key: {**found.get(key, {}), **reports}}

        update_json(self.folder / "reports.json", change)

    def tuned(self) -> Inference | None:
        """Read the inference settings that ``recmix tune`` chose; None if there are none.

        They say how the posterior is refined and calibrated.
        """
        path = self.folder / TUNED
        if not path.exists():
            return None
        try:
            content = read_json(path)
            if not isinstance(content, dict) or not isinstance(content.get("inference"), dict):
                raise RunError(f"{path} does not name an inference")
            return Inference(**content["inference"])
        except (RunError, ConfigError, TypeError) as error:
            problem = str(error) if str(path) in str(error) else f"{path} is damaged: {error}"
            raise RunError(
                f"{problem}. Delete the file, or run: recmix tune {self.folder} --reset"
            ) from error

    def set_tuned(self, inference: Inference, **more: Any) -> None:
        """Write inference settings into ``tuned.json``. They are used each time the run is loaded.

        The settings say how the posterior q(z | x) is refined and calibrated. `more` are
        further values for the file, such as measured times and bounds.
        """
        write_json(self.folder / TUNED, {"inference": inference.to_json(), **more})

    def vocabulary(self) -> Vocabulary | None:
        """Read the vocabulary, which converts texts to numbers; None if the data are not texts.

        Raise a RunError if the file holds another vocabulary than the run was trained with.
        """
        described = self.spec().data.get("vocabulary")
        if described is None:
            return None
        path = self.folder / VOCABULARY
        try:
            found = vocabulary_from_json(read_json(path, VOCABULARY_BYTES))
        except (DataError, ConfigError) as error:
            raise RunError(f"{path} is damaged ({error}): restore it from a copy") from error
        if found.digest != described.get("sha256"):
            raise RunError(
                f"{path} is not the vocabulary that the run was trained with: its SHA-256 digest is not "
                "that in spec.json. Restore it from a copy"
            )
        return found

    def set_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Write the vocabulary of the run to a file. Do nothing if `vocabulary` is None."""
        if vocabulary is not None:
            write_json(self.folder / VOCABULARY, vocabulary.describe())

    def reset_tuned(self) -> bool:
        """Delete ``tuned.json``, the choice of ``recmix tune``; return whether the file existed."""
        path = self.folder / TUNED
        there = path.exists()
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"could not remove {path}: {error.strerror}") from error
        return there

    def log(self, event: str, **more: Any) -> None:
        """Append one line to ``log.jsonl``: the event, the date and time, and further values."""
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **more}
        if event == "start":
            line["host"] = {"python": platform.python_version(), "machine": platform.machine()}
        path = self.folder / "log.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(f"could not write {path}: {error.strerror}") from error

    def events(self) -> list[dict[str, Any]]:
        """Return the events of ``log.jsonl``; damaged lines are left out."""
        found = []
        with contextlib.suppress(OSError):
            for line in (self.folder / "log.jsonl").read_bytes().splitlines():
                with contextlib.suppress(ValueError, RecursionError):
                    found.append(json.loads(line))
        return [event for event in found if isinstance(event, dict)]


def check_finite(score: Mapping[str, Any], of: str) -> None:
    """Raise a NonFiniteError if a bound in an evaluation result is not a finite number.

    `of` names the run in the error message.

    >>> check_finite({"elbo": -90.0, "iwae": float("nan")}, "runs/vae")
    Traceback (most recent call last):
        ...
    recmix.errors.NonFiniteError: the iwae of runs/vae is nan, not a finite number: ...
    """
    for name in ("elbo", "iwae"):
        if name in score and not math.isfinite(score[name]):
            raise NonFiniteError(
                f"the {name} of {of} is {score[name]}, not a finite number: the weights are damaged, or "
                "the data lie far from the training data. Nothing was stored"
            )
