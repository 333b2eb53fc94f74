"""Disturb trainings, grids and exports at random moments, and compare what they end with.

A scene knows the command of an undisturbed run (`first`) and the command that continues it
(`again`). The undisturbed run is done once and is the reference. A round starts the command, lets
faults happen to it and to its files, continues it without faults, and compares the folders.
"""

import json
import os
import random
import re
import shutil
import signal
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from torture.processes import CRASH, is_running, send, start, wait

KILLS = ("SIGKILL", "kill", "SIGTERM", "SIGINT", "twice", "SIGKILL of a worker")
"""Names of faults that end a process."""
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
TINY = "--data digits --latent 2 --network mlp --widths 8 --batch-size 256 --device cpu"
TRAININGS = {
    "vae": "--method vae --epochs 5",
    "rme": "--method rme --order 2 --vae-epochs 2 --epochs 3",
    "average": "--method vae --epochs 4 --weight-average 0.9 --schedule cosine --checkpoint-every 2",
    "muon": "--method vae --epochs 3 --optimizer muon --patience 1 --dtype float64",
    "auto": "--method rme --order auto --max-order 2 --vae-epochs 1 --epochs 1",
}
TOML = """
protocol = { splits = 1, restarts = 1, samples = [3] }
[budget]
first = { epochs = 4, batch_size = 64 }
second = { epochs = 3, batch_size = 64, learning_rate = 1e-4 }
[[columns]]
data = "DATA"
latent = 2
[[methods]]
name = "rme"
order = 2
"""


class Difference(AssertionError):
    """Something was lost, wrong without a message, or left behind."""


class Scene:
    """A command that is disturbed, with the folder that an undisturbed one leaves.

    Args:
        name: name of the scene in the counts.
        place: folder for everything.
        first: the command; FOLDER stands for the folder in which it writes.
        again: the command that continues it.
        after: a command to run after it, such as an evaluation, which can be repeated.
        seed: of the random choices.

    Attributes:
        only_kills: whether processes are only killed, more often in each round, and files stay as
            they are.
    """

    only_kills = False
    SECOND_IS_REFUSED = True

    def __init__(self, name, place, first, again, after=None, seed=0):
        self.name, self.place = name, Path(place)
        self.place.mkdir(parents=True, exist_ok=True)
        self.first, self.again, self.after = first, again, after
        self.random = random.Random(f"{name} {seed}")
        self.counts = Counter()
        self.unnoticed = Counter()
        self.log = self.place / "output.txt"  # of the last command; short, since a fault limits its size
        self.before = self.place / "before.txt"
        self.folder = self.place / "run"
        began = time.monotonic()
        count = self.place / "count.txt"
        self.check(self.command(first, fault=("count", count)) == 0, "the undisturbed command failed")
        if after:
            self.check(self.command(after) == 0, "the undisturbed second command failed")
        self.seconds = time.monotonic() - began
        self.accesses = int(count.read_text())
        self.expected = self.snapshot()
        self.check_clean()

    def words(self, text):
        return [word.replace("FOLDER", str(self.folder)) for word in text.split()]

    def start(self, text, fault=None):
        with self.before.open("a") as file:
            file.write(self.said())
        self.log.unlink(missing_ok=True)
        return start(self.words(text), self.log, self.folder, fault)

    def command(self, text, fault=None):
        return wait(self.start(text, fault))

    def said(self):
        """The output of the last command."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def check(self, condition, problem):
        if not condition:
            said = self.before.read_text() + self.said()
            raise Difference(f"{self.name}: {problem}\n--- output:\n{said[-6000:]}")

    # What a round does

    def round(self):
        """Begin the run, disturb it a few times, complete it without faults and compare."""
        self.before.write_text("")
        shutil.rmtree(self.folder, ignore_errors=True)
        for number in range(self.random.randint(*((6, 14) if self.only_kills else (1, 4)))):
            text = self.first if number == 0 or not self.has_begun() else self.again
            if self.after and self.is_done() and self.random.random() < 0.5:
                text = self.after
            self.disturb(text)
            if self.has_begun() and not self.only_kills and self.random.random() < 0.4:
                self.damage()
        self.complete()
        self.compare()
        self.counts["rounds"] += 1

    def has_begun(self):
        return (self.folder / "spec.json").exists()

    def is_done(self):
        path = self.folder / "status.json"
        return path.exists() and json.loads(path.read_text())["status"] == "done"

    def disturb(self, text):
        """Start a command and let one fault happen to it."""
        often = ["SIGKILL", "SIGKILL", "kill", "kill", "kill"]
        others = [] if self.only_kills else ["full", "limit", "second"]
        kind = self.random.choice([*often, "SIGTERM", "SIGINT", "twice", *others])
        delay = self.random.uniform(0.0, 0.8 * self.seconds)
        if kind in ("kill", "full"):
            last = self.accesses // 3 if self.only_kills else self.accesses + 1  # not after the end
            status = self.command(text, (kind, self.random.randint(1, last)))
            happened = status == -signal.SIGKILL if kind == "kill" else status == 2
        elif kind == "limit":
            status = self.command(text, (kind, int(10 ** self.random.uniform(3.6, 5))))
            happened = status == 2
        elif kind == "second":
            happened = self.second(text, delay)
            status = 0
        else:
            pid = self.start(text)
            time.sleep(delay)
            number = SIGNALS.get(kind, signal.SIGTERM)
            send(pid, number)
            if kind == "twice":
                time.sleep(self.random.uniform(0, 0.02))
                send(pid, number)
            status = wait(pid)
            happened = status != 0
        self.counts[kind if happened else f"{kind} after the end"] += 1
        self.settle()
        self.check_end(kind, status)

    def check_end(self, kind, status):
        allowed = {0, 2, 130} | {-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM}
        self.check(status in allowed and status != CRASH, f"{kind}: exit status {status}")
        if status == 2:
            self.check("error:" in self.said(), f"{kind}: no message")

    def second(self, text, delay):
        """Stop a process at a random moment; a second one must then be refused."""
        pid = self.start(text)
        end = time.monotonic() + 10 * self.seconds
        while not (self.folder / ".lock").exists() and time.monotonic() < end and is_running(pid):
            time.sleep(0.001)
        time.sleep(delay / 4)
        send(pid, signal.SIGSTOP)
        time.sleep(0.01)
        locked = list(self.folder.rglob(".lock"))
        held = [path for path in locked if f'"pid": {pid}' in path.read_text(errors="replace")]
        found = bool(held) and self.folder / ".lock" in held
        try:
            if found:
                resumed = [self.again] if self.has_begun() else []  # else there is nothing to resume
                for more in (*resumed, self.first + " --overwrite"):
                    status = self.command(more)
                    self.check(status == 2, f"a second process got exit status {status}: {more}")
                    self.check(
                        "is in use by" in " ".join(self.said().split()), "no message on the first"
                    )
        finally:
            send(pid, signal.SIGCONT)
        status = wait(pid)
        self.check(status == 0, f"the first of two processes ended with status {status}")
        return found

    def settle(self):
        """Wait until all processes of the scene have ended."""

    def damage(self):
        """Flip a bit, cut or remove a file, and continue: an error or the same result must follow."""
        files = sorted(p for p in self.folder.rglob("*") if p.is_file() and self.can_be_damaged(p))
        if not files:
            return
        path = self.random.choice(files)
        kind = self.random.choice(["flip", "flip", "flip", "remove", "cut"])
        backup = self.place / "backup"
        shutil.copytree(self.folder, backup)
        content, where = path.read_bytes(), "whole file"
        if kind == "remove" or not content:
            path.unlink()
        elif kind == "cut":
            path.write_bytes(content[: self.random.randrange(len(content))])
        else:
            at, bit = self.random.randrange(len(content)), self.random.randrange(8)
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            near = content[max(at - 20, 0) : at + 10]
            where = f"byte {at}, bit {bit} near {near!r}"
        name = path.relative_to(self.folder)
        what = f"{kind} of {re.sub('[0-9a-f]{16}', 'RUN', str(name))}"
        self.counts[kind] += 1
        noticed = self.continue_damaged(f"{what} ({where})", path)
        self.counts[f"{kind} {noticed}"] += 1
        if noticed == "unnoticed":
            self.unnoticed[f"{what} ({where})"] += 1
        shutil.rmtree(self.folder)
        shutil.move(backup, self.folder)

    def can_be_damaged(self, path):
        return self.counts_as_file(path)

    def counts_as_file(self, path):
        return path.name not in ("log.jsonl", "log.txt", ".lock", "lock") and path.suffix != ".part"

    def continue_damaged(self, what, path):
        """Continue a run with a damaged file; return what came of it."""
        status = self.command(self.again)
        self.check(status in (0, 2), f"{what}: exit status {status}")
        if status == 2:
            self.check("error:" in self.said(), f"{what}: no message")
            return "noticed"
        if self.after:
            status = self.command(self.after)
            if status == 2:
                self.check("error:" in self.said(), f"{what}: no message")
                return "noticed"
        return self.judge(what, path)

    def judge(self, what, path):
        found = self.snapshot()
        wrong = {name for name in self.expected if found.get(name) != self.expected[name]}
        if not wrong:
            return "harmless"
        if wrong == {str(path.relative_to(self.folder))} and _is_unread(self.folder, path):
            return "noticed when read"
        # A missing history is an empty one.
        known = path == self.folder / "history.json" and not what.startswith("flip")
        self.check(known, f"{what}: not noticed, changed {sorted(wrong)}")
        return "unnoticed"

    def complete(self):
        text = self.again if self.has_begun() else self.first
        self.check(self.command(text) == 0, "the run cannot be completed")
        if self.after:
            self.check(self.command(self.after) == 0, "the second command fails")

    def compare(self):
        found = self.snapshot()
        left = {name for name in found if re.fullmatch(r"order_\d+/checkpoint.safetensors", name)}
        other = (found.keys() ^ self.expected.keys()) - left  # a step's checkpoint is no longer needed
        self.check(not other, f"files are missing or left: {sorted(other)}")
        for name, content in self.expected.items():
            self.check(content == found[name], f"{name} differs from that of the reference")
        self.check_clean()

    def check_clean(self):
        left = [str(p) for p in self.folder.rglob("*.part")]
        self.check(not left, f"files are left: {left}")

    def snapshot(self):
        """The content of all files, without times and without the place of the folder."""
        found = {}
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            if not self.counts_as_file(path):
                continue
            content = path.read_bytes()
            if path.suffix == ".json":  # its digest is checked when it is read
                content = re.sub(rb'"\w{14}": "[0-9a-f]{64}"', b"", content)
            if path.name == "scores.json":
                content = re.sub(rb'"milliseconds": [0-9.e+-]+', b"", content)
            elif path.suffix == ".pt":  # a zip file; where the code was is no part of the model
                content = [p for p in _members(path) if not p[0].endswith(("debug_pkl", "_id"))]
            elif path.name == "export.json":
                content = re.sub(rb'"sha256": "\w+"', b"", content)
            found[str(path.relative_to(self.folder))] = content
        return found


def _is_unread(folder, path):
    """Whether a damaged file that a command did not need is missing, or is an error when it is read."""
    from recmix.errors import RunError
    from recmix.runs.files import read_json
    from recmix.training.checkpoint import _read

    if not path.exists():
        return path.parent != folder or path.name in ("order.json", "checkpoint.safetensors")
    try:
        (_read if path.suffix == ".safetensors" else read_json)(path)
    except RunError:
        return True
    return False


def _members(path):
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


class Training(Scene):
    """`recmix train`, continued with --resume, then `recmix evaluate`."""

    def __init__(self, name, place, seed=0):
        first = f"train {TINY} {TRAININGS[name]} --out FOLDER"
        again = "train --resume --out FOLDER"
        super().__init__(name, place, first, again, "evaluate FOLDER --samples 3", seed)


class Export(Scene):
    """`recmix export --overwrite`, which has no state: it is done again as a whole."""

    def __init__(self, name, place, seed=0):
        place = Path(place)
        place.mkdir(parents=True, exist_ok=True)
        words = f"train {TINY} {TRAININGS['vae']} --out {place}/model"
        assert wait(start(words.split(), place / "train.txt", place)) == 0
        form = {"export": "torchscript", "export-pt2": "pt2"}[name]
        text = f"export {place}/model --format {form} --out FOLDER --overwrite"
        super().__init__(name, place, text, text, seed=seed)

    def second(self, text, delay):
        return False

    def damage(self):
        pass

    def is_done(self):
        return False

    def has_begun(self):
        return False

    def check_end(self, kind, status):
        super().check_end(kind, status)
        about = self.folder / "export.json"
        if about.exists():  # then the export is complete
            self.check(self.snapshot() == self.expected, f"{kind}: the export is complete but wrong")


class Grid(Scene):
    """`recmix grid` with two workers; the same command continues it."""

    def __init__(self, name, place, seed=0):
        place = Path(place)
        place.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(0).random((120, 1, 4, 4)).repeat(2, 2).repeat(2, 3)
        np.save(place / "mine.npy", (255 * noise).astype(np.uint8))
        (place / "small.toml").write_text(TOML.replace("DATA", str(place / "mine.npy")))
        text = f"grid {place}/small.toml --store FOLDER --workers 2 --device cpu"
        super().__init__(name, place, text, text + " --retry-failed", seed=seed)

    def has_begun(self):
        return any(self.folder.glob("*/spec.json"))

    def is_done(self):
        return False

    def can_be_damaged(self, path):
        return super().counts_as_file(path) and path.name != "failed.json"

    def counts_as_file(self, path):
        return self.can_be_damaged(path) and path.name != "checkpoint.safetensors"

    def stores(self):
        from recmix.experiments.store import Store

        store = Store(self.folder)
        return store, [path.parent.name for path in self.folder.glob("*/lock")]

    def disturb(self, text):
        if self.random.random() < 0.3:
            self.kill_worker(text)
        else:
            super().disturb(text)

    def kill_worker(self, text):
        pid = self.start(text)
        time.sleep(self.random.uniform(0.0, self.seconds))
        store, digests = self.stores()
        holders = [re.search(r"process (\d+)", store.holder(digest)) for digest in digests]
        workers = [int(found[1]) for found in holders if found]
        for worker in workers[:1]:
            send(worker, signal.SIGKILL)
        self.counts["SIGKILL of a worker"] += bool(workers)
        status = wait(pid)
        self.settle()
        self.check(status == 0, f"a grid with a killed worker ended with status {status}")

    def second(self, text, delay):
        """Two drivers share the runs."""
        pid = self.start(text)
        time.sleep(delay)
        status = self.command(text)
        both = {status, wait(pid)}
        self.check(both == {0}, f"two drivers ended with {both}")
        return True

    def settle(self):
        end = time.monotonic() + 60
        while True:
            store, digests = self.stores()
            if not any(map(store.holder, digests)):
                return
            self.check(time.monotonic() < end, "workers did not end after their driver")
            time.sleep(0.01)

    def check_end(self, kind, status):
        if kind in ("full", "limit", "kill"):  # the workers have the same faults
            self.check(status in (0, 1, 2, 130, -signal.SIGKILL), f"{kind}: exit status {status}")
        else:
            super().check_end(kind, status)

    def continue_damaged(self, what, path):
        """A grid repairs itself: only the same results are right, or a run that failed with a reason."""
        status = self.command(self.again)
        self.settle()
        if status == 1:
            why = [json.loads(p.read_text())["reason"] for p in self.folder.glob("*/failed.json")]
            self.check(why, f"{what}: exit status 1 without a reason")
            self.counts[f"{what.partition(' (')[0]} fails a run"] += 1
            return "noticed"
        self.check(status == 0, f"{what}: exit status {status}")
        return self.judge(what, path)

    def snapshot(self):
        found = super().snapshot()
        return {name: content for name, content in found.items() if not name.endswith("job.json")}


SCENES = {
    **dict.fromkeys(TRAININGS, Training),
    "grid": Grid,
    "export": Export,
    "export-pt2": Export,
}


def make(name, place, seed=0):
    """Make the scene with this name, which does its undisturbed run first."""
    return SCENES[name](name, os.path.join(place, name), seed)
