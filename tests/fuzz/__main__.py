"""Read changed files for some minutes: ``python -m tests.fuzz --minutes 10``.

Each reader runs in a process of its own with limited memory. A file that crashes it, needs too much
memory or time, or raises another error than a `RecmixError` is written to a folder.
"""

import argparse
import contextlib
import faulthandler
import hashlib
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import mutate, targets

MEMORY = 1 << 30
"""Bytes of address space that a reader can use in addition to those of the imported modules."""
SECONDS = 30
"""A file must be read within this time."""


def problem_of(target, content, folder):
    """Read a file with this content. Return what is wrong with the reader; empty if nothing is."""
    from recmix.errors import RecmixError

    shutil.rmtree(folder, ignore_errors=True)
    for name, other in {**target.whole, target.file: content}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(other)
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    signal.alarm(SECONDS)
    try:
        with quiet[0], quiet[1], warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(folder)
    except RecmixError as error:
        return "" if len(str(error)) > 10 else f"no message: {error!r}"
    except Exception:
        return traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)
        for held in list(_locks()):
            from recmix.runs.lock import unlock

            unlock(held)
    return ""


def _locks():
    from recmix.runs import lock

    return lock._held


def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def fuzz(target, seconds, seed, place, found):
    """Try changed files in a fork for some time. Return the number of files and of problems."""
    choose = random.Random(f"{target.name} {seed}")
    end = time.monotonic() + seconds
    current, log = place / "current", place / "log"
    tries = problems = 0
    while time.monotonic() < end or not tries:
        log.write_text("")
        start = choose.randrange(2**62)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                faulthandler.enable(log.open("w"))
                hard = resource.getrlimit(resource.RLIMIT_AS)[1]
                resource.setrlimit(resource.RLIMIT_AS, (used() + MEMORY, hard))
                own, number, seen = random.Random(start), 0, set()
                waiting = [] if tries else [*target.seeds, *corpus(target)]
                while waiting or time.monotonic() < end or not number:
                    content = waiting.pop() if waiting else changed(target, own)
                    current.write_bytes(content)
                    if problem := problem_of(target, content, place / "folder"):
                        short = problem.strip().splitlines()[-1]
                        where = [line for line in problem.splitlines() if "File" in line][-1:]
                        if (kind := (short[:60], *where)) not in seen:
                            seen.add(kind)
                            keep(target, content, problem, found)
                    number += 1
                    log.write_text(f"{number} {len(seen)}")
                status = 0
            except BaseException:
                traceback.print_exc(file=sys.stdout)
                sys.stdout.flush()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        text = log.read_text().split("\n")[0].split()
        if len(text) == 2 and text[0].isdigit():
            tries, problems = tries + int(text[0]), problems + int(text[1])
        if status:
            tries, problems = tries + 1, problems + 1
            keep(target, current.read_bytes(), f"ended with {status}\n{log.read_text()[-3000:]}", found)
    return tries, problems


def corpus(target):
    """Files for which the reader once failed."""
    folder = Path(__file__).parent / "corpus"
    return [path.read_bytes() for path in sorted(folder.glob(f"{target.name.replace(' ', '-')}-*"))]


def changed(target, choose):
    content = choose.choice(target.seeds)
    try:
        return target.change(content, choose)
    except Exception:  # the values do not fit into the format: change bytes instead
        return mutate.change_bytes(content, choose)


def keep(target, content, problem, found):
    name = f"{target.name.replace(' ', '-')}-{hashlib.sha256(content).hexdigest()[:8]}"
    (found / name).write_bytes(content)
    print(f"PROBLEM {name} ({len(content)} bytes): {problem}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="*")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="folder for problems")
    given = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", RECMIX_OFFLINE="1", RECMIX_MAX_BYTES=str(1 << 28))
    given.found.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        import torch

        torch.set_num_threads(1)
        known = targets.make(place)
        chosen = [t for t in known if not given.targets or t.name in given.targets]
        together = sum(target.share for target in chosen)
        total = bad = 0
        for target in chosen:
            seconds = 60 * given.minutes * target.share / together
            tries, problems = fuzz(target, seconds, given.seed, Path(place), given.found)
            total, bad = total + tries, bad + problems
            print(f"{target.name}: {tries} files, {problems} problems", flush=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{total} files, {bad} problems, peak memory of a process {peak:.0f} MiB")
    if not any(given.found.iterdir()):
        given.found.rmdir()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
