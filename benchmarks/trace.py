"""How often control returns to a part of the package that it had left: ``python -m benchmarks.trace``.

A room is the first part of a module's path below ``src/recmix``: ``training``, ``methods``, ``api``. A
training is easy to follow if it enters each room once. This script runs a small ``recmix train`` and
records, in call order, the room of each function's first call. Equal neighbours are merged. A return is
an entry whose room occurred earlier. Imports are not counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import recmix

SOURCE = Path(recmix.__file__).parent
TRAIN = "train --method rme --data digits --latent 2 --epochs 1 --vae-epochs 1 --device cpu"
WORST = 10
"""Number of pairs of rooms that are printed, those with the most returns first."""


class Call(NamedTuple):
    """The first call of a function: its room and its qualified name."""

    room: str
    function: str


def first_calls(work: Callable[[], object], source: Path = SOURCE) -> list[Call]:
    """The first call of each function below `source` while `work` runs, in call order.

    Calls from module and class bodies are part of an import and are left out. Comprehensions and
    generator expressions are part of the function that contains them.
    """
    seen: set[CodeType] = set()
    calls: list[Call] = []
    root = f"{source}/"

    def record(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not code.co_filename.startswith(root):
            return
        if code.co_name.startswith("<") and code.co_name != "<lambda>":
            return
        if not _importing(frame):
            seen.add(code)
            calls.append(Call(room_of(Path(code.co_filename), source), code.co_qualname))

    def _importing(frame: FrameType) -> bool:
        """Whether a module's code is running in this frame or in a caller of it."""
        at: FrameType | None = frame
        while at is not None and at.f_code is not first_calls.__code__:
            if at.f_code.co_name == "<module>":
                return True
            at = at.f_back
        return False

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def room_of(path: Path, source: Path = SOURCE) -> str:
    """The room of a module.

    >>> room_of(SOURCE / "training" / "loop.py"), room_of(SOURCE / "api.py")
    ('training', 'api')
    """
    return path.relative_to(source).parts[0].removesuffix(".py")


def entries(calls: Iterable[Call]) -> list[Call]:
    """The calls at which the room changes: equal neighbours are merged into the first of them.

    >>> [call.room for call in entries([Call("cli", "main"), Call("cli", "_root"), Call("api", "fit")])]
    ['cli', 'api']
    """
    return [next(same) for _, same in groupby(calls, lambda call: call.room)]


def returns(calls: Iterable[Call]) -> list[tuple[Call, Call]]:
    """The neighbouring entries (before, after) where the room of `after` occurred earlier.

    >>> calls = [Call("cli", "main"), Call("api", "fit"), Call("cli", "show"), Call("cli", "end")]
    >>> [(before.room, after.function) for before, after in returns(calls)]
    [('api', 'show')]
    """
    found = []
    visited: set[str] = set()
    for before, after in pairwise(entries(calls)):
        visited.add(before.room)
        if after.room in visited:
            found.append((before, after))
    return found


def train() -> None:
    """Run ``recmix train`` for one epoch on the bundled digits, without a GPU."""
    from recmix.cli import main

    with tempfile.TemporaryDirectory(prefix="recmix-trace-") as folder:
        try:
            main([*TRAIN.split(), "--out", f"{folder}/run"])
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"`recmix {TRAIN}` ended with status {end.code}") from end


def main() -> None:
    """Print the number of returns, the sequence of rooms and the most frequent returns."""
    calls = first_calls(train)
    rooms = [call.room for call in entries(calls)]
    found = returns(calls)
    pairs: dict[tuple[str, str], list[str]] = {}
    for before, after in found:
        pairs.setdefault((before.room, after.room), []).append(after.function)
    print(f"{len(found)} returns to a room; {len(calls)} functions in {len(set(rooms))} rooms")
    print(" > ".join(rooms))
    for (before_room, room), functions in sorted(pairs.items(), key=lambda item: -len(item[1]))[:WORST]:
        print(f"{len(functions):3} x {before_room} > {room}: {', '.join(functions)}")


if __name__ == "__main__":
    main()
