"""What docs/columns.py and docs/recursion_study.py share: data, a time limit, training, weights.

A study has a folder. Each trained model has a run folder in it, ``ROW_SPLIT``, which `recmix.load`
reads. A model that is complete is not trained again; one that was stopped goes on in the next call.
"""

from __future__ import annotations

import io
import json
import re
import signal
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import recmix
from recmix.data import Data
from recmix.data.formats import read_cifar
from recmix.errors import Interrupted, NonFiniteError, RecmixError
from recmix.runs.folder import Run
from recmix.training import job
from recmix.training.checkpoint import save_weights

__all__ = ["HALF", "PART", "Clock", "Folder", "half", "pack", "read", "say", "write"]

STARTED = time.time()
HALF = 4096
"""Tensors with at least so many numbers are stored with half precision."""
PART = 15 * 2**20
"""Bytes of a part of packed weights."""
SAME_RESULT = ("checkpoint_every", "engine")
"""Options that may differ when a folder is used again: they change how a model is trained, not what."""
EVALUATION_BATCH = 2000
"""Validation images at a time. The networks are small, so large batches save most of the time."""
MEMORY = 4 * 2**30
"""Bytes of the decoder's activations at a time on a GPU, when bounds are computed."""


def say(*words: Any) -> None:
    """Print a line with the seconds since the start, at once."""
    print(f"{time.time() - STARTED:6.0f} s", *words, flush=True)


def write(path: Path, content: Any) -> None:
    """Write JSON so that a stop in the middle leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


def read_json(path: Path) -> Any:
    """The content of a JSON file, or an empty dict."""
    return json.loads(path.read_text()) if path.exists() else {}


def read(dataset: str, split: int, root: Path | None, *, test: bool, most: int | None = None) -> Data:
    """The data of one split.

    All splits have the same test images. The test images of CIFAR-10 are its fifth training batch if
    that is there, and those of CelebA are the last tenth of ``celeba/celeba_64x64.npz``.

    Args:
        dataset: name of a data set of the paper.
        split: seed of the division into training and validation images.
        root: folder of the data sets.
        test: whether the test images are read. While models are trained they are not.
        most: only so many images of each part, to try the command.
    """
    folder = recmix.data.data_root(root)
    batches = sorted((folder / "cifar10" / "cifar-10-batches-bin").glob("data_batch_*.bin"))
    faces = folder / "celeba" / "celeba_64x64.npz"
    if dataset == "cifar10" and len(batches) == 5:
        images = [read_cifar(path) for path in batches]
        held_out = images.pop()
        data = recmix.data.from_arrays(np.concatenate(images), None, held_out, seed=split, name=dataset)
    elif dataset == "celeba" and faces.exists():
        with np.load(faces) as arrays:
            images = arrays["images"].transpose(0, 3, 1, 2)
        last = len(images) * 9 // 10
        data = recmix.data.from_arrays(images[:last], None, images[last:], seed=split, name=dataset)
    else:
        data = recmix.data.load(dataset, root=root, seed=split)
    if most is not None:
        few = {
            name: getattr(data, name).subset(np.arange(most)) for name in ("x_train", "x_val", "x_test")
        }
        data = replace(data, **few)
    return data if test else replace(data, x_test=None)


class Clock:
    """The time limit of one call.

    Args:
        seconds: from the start of the process until everything must be stored.
    """

    def __init__(self, seconds: float) -> None:
        self.deadline = STARTED + seconds
        self._asked = False
        self._epoch, self._began, self._longest = -1, time.time(), 0.0

    def left(self) -> float:
        """Seconds until the end."""
        return self.deadline - time.time()

    def begin(self) -> None:
        """Call this before models are trained."""
        self._epoch, self._began, self._longest, self._asked = -1, time.time(), 0.0, False

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """After an epoch: ask the training to stop if there is no time for the next one."""
        if epoch != self._epoch:
            now = time.time()
            self._longest = max(0.5 * self._longest, now - self._began)
            self._epoch, self._began = epoch, now
        if self.left() < 10 + 1.3 * self._longest and not self._asked:
            self._asked = True
            signal.raise_signal(signal.SIGINT)  # the training stores its state, and stops


class Folder:
    """The run folders of a study.

    Args:
        place: the folder.
        clock: the time limit.
        own: makes the arguments of `recmix.load` for parts of your own, such as a decoder.
    """

    def __init__(self, place: Path, clock: Clock, own: Callable[[], dict[str, Any]] = dict) -> None:
        self.place, self.clock, self.own = place, clock, own
        self.times = place / "times.json"
        self.broken = place / "broken.json"  # the errors of rows whose training broke off

    def run(self, row: str, split: int) -> Run:
        """The run of one row and split."""
        name = re.sub(r"[^a-z0-9.]+", "-", row.lower().replace("+", " plus")).strip("-")
        return Run(self.place / f"{name}_{split}")

    def done(self, row: str, split: int) -> bool:
        """Whether a model is trained."""
        return self._state(row, split) == "done"

    def failed(self, row: str, split: int) -> bool:
        """Whether the training of a model ended with numbers that are not finite."""
        return self._state(row, split) == "failed"

    def _state(self, row: str, split: int) -> str:
        run = self.run(row, split)
        return str(run.status()["status"]) if run.exists else "new"

    def load(self, row: str, split: int) -> recmix.Model:
        """A trained model, with its large tensors rounded to half precision, as they are packed."""
        model = recmix.load(self.run(row, split).folder, **self.own())
        model.method.load_state_dict(half(model.method.state_dict()))
        return model

    def train(self, requests: Mapping[tuple[str, int], dict[str, Any]]) -> bool:
        """Train some models together, as far as the time allows.

        If the training of a model fails, the others go on. If an error ends the whole group, its rows
        are trained one after the other, and a row that fails then is left out from then on.

        Args:
            requests: by row and split, the arguments of `recmix.fit` without those of the folder.

        Returns:
            Whether all are trained (or failed); False if the time is over.
        """
        for key in requests:
            if self.done(*key):
                self._check(self.run(*key), requests[key])
        rows = list(dict.fromkeys(row for row, _ in requests))
        broken = read_json(self.broken)
        together = [row for row in rows if row not in broken]
        alone = [[row] for row in rows if len(broken.get(row, [])) == 1]
        for group in [together, *alone]:
            chosen = {key: value for key, value in requests.items() if key[0] in group}
            if not self._train(chosen):
                return False
        if any(row in read_json(self.broken) for row in together):
            return self.train(requests)
        return True

    def _train(self, requests: Mapping[tuple[str, int], dict[str, Any]]) -> bool:
        """Train these models in one call; False if the time is over."""
        open_ = [k for k in requests if not self.done(*k) and not self.failed(*k)]
        if not open_:
            return True
        rows = list(dict.fromkeys(row for row, _ in open_))
        if self.clock.left() < 20:
            return False
        say("train", *rows, f"({len(open_)} models)")
        began = time.time()
        self.clock.begin()
        how = {"resume": True, "callbacks": [self.clock]}
        state = "trained"
        job.EVALUATION_BATCH = EVALUATION_BATCH
        try:
            recmix.fit_many([requests[k] | how | {"out": self.run(*k).folder} for k in open_])
        except Interrupted:
            state = "stopped"
        except NonFiniteError as error:
            say("failed:", error)
        except (RecmixError, RuntimeError) as error:
            say("error:", str(error)[:300])
            broken = read_json(self.broken)
            write(self.broken, broken | {row: [*broken.get(row, []), str(error)[:300]] for row in rows})
            if "CUDA error" in str(error):  # nothing works after it in this process
                raise SystemExit(3) from error
        self._add_time(rows, time.time() - began, len(open_))
        for key in open_:
            if self.done(*key):
                self.run(*key).checkpoint.unlink(missing_ok=True)
        say(state, self._engine(open_[0]), *(f"{k[0]} {k[1]}: {self._best(k):.2f}," for k in open_))
        left = [k for k in open_ if not self.done(*k) and not self.failed(*k)]
        if state == "trained" and left and len(left) < len(open_) and not self._broke(left):
            return self._train(requests)  # a failure that ended the others too
        return state == "trained"

    def _best(self, key: tuple[str, int]) -> float:
        """The best validation bound of a run so far."""
        return max((row["val_iwae"] for row in self.run(*key).history()), default=0.0)

    def _broke(self, keys: Sequence[tuple[str, int]]) -> bool:
        broken = read_json(self.broken)
        return any(row in broken for row, _ in keys)

    @staticmethod
    def _check(run: Run, request: Mapping[str, Any]) -> None:
        """Refuse a finished run that was trained with other options than the request has."""
        spec = run.spec()
        known = vars(spec.training) | spec.options
        for name, value in request.items():
            if name in known and name not in SAME_RESULT and known[name] != value:
                raise SystemExit(
                    f"{run.folder} was trained with {name} = {known[name]}, not {value}: remove it, or "
                    "give another folder as --out"
                )

    def _add_time(self, rows: Sequence[str], seconds: float, models: int) -> None:
        times = read_json(self.times)
        for row in rows:
            before = times.get(row, {"seconds": 0.0})
            times[row] = {"seconds": round(before["seconds"] + seconds, 1), "models together": models}
        write(self.times, times)

    def _engine(self, key: tuple[str, int]) -> str:
        """How the last training ran, from the log of the run."""
        lines = (self.run(*key).folder / "log.jsonl").read_text().splitlines()
        return next(
            (
                str(found["engine"])
                for line in reversed(lines)
                if "engine" in (found := json.loads(line))
            ),
            "",
        )


def half(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with large tensors rounded to half precision."""
    return {
        k: v.half() if v.dtype == torch.float32 and v.numel() >= HALF else v for k, v in weights.items()
    }


def pack(runs: Sequence[Run], out: Path, name: str) -> list[Path]:
    """Write run folders with half-precision weights as one tar file, in parts of at most `PART` bytes.

    ``cat NAME.tar.* | tar x`` gives folders that `recmix.load` reads.

    Args:
        runs: the run folders.
        out: folder of the parts.
        name: their name.
    """
    out.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for run in runs:
            for path, content in _files(run, out):
                about = tarfile.TarInfo(path)
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
    whole = stream.getvalue()
    parts = [whole[i : i + PART] for i in range(0, len(whole), PART)]
    paths = [out / f"{name}.tar.{i:03d}" for i in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    return paths


def _files(run: Run, out: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a run that are packed, with half-precision weights."""
    model = recmix.load(run.folder, device="cpu")
    weights = out / "weights.safetensors"
    save_weights(weights, half(model.method.state_dict()))
    name = run.folder.name
    yield f"{name}/{run.weights.name}", weights.read_bytes()
    weights.unlink()
    for path in sorted(run.folder.glob("*.json")):
        yield f"{name}/{path.name}", path.read_bytes()
