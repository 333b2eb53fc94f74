"""Disturb trainings, grids and exports for some minutes: ``python -m tests.torture --minutes 10``."""

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torture import processes, scenes


def kills(made):
    """The number of processes that were killed."""
    return sum(scene.counts[kind] for scene in made for kind in scenes.KILLS)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenes", nargs="*", default=list(scenes.SCENES), choices=scenes.SCENES)
    parser.add_argument("--kills", type=int, help="only kill processes, until this many were killed")
    parser.add_argument("--go-on", action="store_true", help="go on after a difference")
    given = parser.parse_args()
    processes.prepare()
    end = time.monotonic() + 60 * given.minutes
    place = tempfile.mkdtemp(prefix="torture-")
    total, unnoticed, differences = Counter(), Counter(), []
    made = []
    for name in given.scenes:
        if time.monotonic() < end:
            made.append(scenes.make(name, place, given.seed))
            made[-1].only_kills = given.kills is not None
            print(f"{name}: {made[-1].seconds:.2f} s, {made[-1].accesses} accesses", flush=True)
    number = 0
    while not number or (time.monotonic() < end and kills(made) < (given.kills or float("inf"))):
        scene = made[number % len(made)]
        number += 1
        try:
            scene.round()
        except scenes.Difference as difference:
            print(f"DIFFERENCE in round {number}, seed {given.seed}: {difference}", flush=True)
            kept = f"{place}-{len(differences)}"
            shutil.copytree(scene.place, kept, symlinks=True)
            print(f"files: {kept}", flush=True)
            differences.append(difference)
            shutil.rmtree(scene.place / "backup", ignore_errors=True)
            if not given.go_on:
                break
    for scene in made:
        total += scene.counts
        unnoticed += scene.unnoticed
        print(scene.name, dict(sorted(scene.counts.items())))
    print("together", dict(sorted(total.items())))
    for what, times in sorted(unnoticed.items()):
        print(f"not noticed: {what}, {times} times")
    print(f"{kills(made)} kills")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{number} rounds, {len(differences)} differences, peak memory of a process {peak:.0f} MiB")
    shutil.rmtree(place, ignore_errors=True)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
