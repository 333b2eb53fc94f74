"""Change the source in small ways and count the changes that the tests notice.

``python -m tests.mutation --room inference --sample 40 --seed 1`` copies the tree to a scratch folder,
measures once which tests run which lines, draws mutants of cosmic-ray's operators at random, runs the
tests of each mutated line, and prints what survives. It needs ``pip install cosmic-ray coverage``.

Left out are mutants of annotations, docstrings, messages (``raise``, ``warn``, ``log``), ``__repr__``
and ``strict=``, and exchanges that can only crash or change nothing (``+`` by ``<<``, ``is`` by ``==``).
A place in the source is drawn first, then one of its mutants. A test that fails without a mutant, too,
is not used. Delete the scratch folder after a change of the source or of the tests.
"""

import argparse
import ast
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from pathlib import Path

ROOMS = {
    **{
        room: [room]
        for room in ("model", "posteriors", "inference", "methods", "training", "evaluation")
    },
    "objectives": ["objectives.py"],
    "statistics": [f"reports/{name}.py" for name in ("paired", "statistics", "summary", "reach")],
}
MIRROR = {"objectives": "methods", "statistics": "reports"}
"""The folder of tests of a room, where it has another name."""
BROADER = ("inference", "methods", "evaluation", "honesty", "training")
"""Folders of tests that survivors are shown to."""
SLOW = {"test_browser.py", "test_page.py", "test_figures.py", "test_parallel.py"}
FIRST, SECONDS = 12, 30.0
"""So many tests of a line are run first, the fastest ones; then others, for so many seconds in all."""
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}
LOADED = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis is imported before the fork
SOUND = set()
"""Tests that were seen to pass without a mutant."""
QUIET = {"warn", "debug", "info", "warning", "log", "cast", "TypeVar"}


# ---- which tests run which lines ----


def measure(paths, into):
    """Run these tests. Write, per test that passes, its seconds and its lines of src/recmix."""
    import coverage
    import pytest

    measured = coverage.Coverage(source=["src/recmix"], data_file=None, config_file=False)
    seconds, passed = {}, set()

    class Record:
        now = ""

        def switch(self, context):
            before, self.now = self.now, context
            measured.switch_context(context)
            return before

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_protocol(self, item):
            self.switch(item.nodeid)
            start = time.process_time()
            yield
            seconds[item.nodeid] = time.process_time() - start
            self.switch("")

        @pytest.hookimpl(hookwrapper=True)
        def pytest_fixture_setup(self, fixturedef):
            """Lines of a fixture that several tests share count for all tests of the file."""
            shared = fixturedef.scope != "function"
            before = self.switch(self.now.split("::")[0] if shared else self.now)
            yield
            self.switch(before)

        def pytest_runtest_logreport(self, report):
            if report.when == "call" and report.passed:
                passed.add(report.nodeid)

    measured.start()
    pytest.main(["-q", "-p", "no:cacheprovider", *paths], plugins=[Record()])
    measured.stop()
    data, lines = measured.get_data(), defaultdict(lambda: defaultdict(list))
    for file in data.measured_files():
        name = os.path.relpath(file)
        for line, tests in data.contexts_by_lineno(file).items():
            for test in tests:
                lines[test][name].append(line)
    found = {}
    for test in passed:
        own, shared = lines[test], lines[test.split("::")[0]]
        all_lines = {file: sorted({*own[file], *shared[file]}) for file in {*own, *shared}}
        found[test] = {"seconds": seconds[test], "lines": all_lines}
    Path(into).write_text(json.dumps(found), encoding="utf-8")


def suite_files(scratch, suite):
    """The test files of a folder, and the source files of its room, whose examples are tests too."""
    tests = [
        path for path in sorted((scratch / "tests" / suite).glob("test_*.py")) if path.name not in SLOW
    ]
    source = [scratch / "src/recmix" / name for name in ROOMS.get(suite, [])]
    source += [scratch / "src/recmix/objectives.py"] if suite == "methods" else []
    return [str(path.relative_to(scratch)) for path in tests + source]


def environment(scratch):
    """The variables of a process that imports the copy. Plugins of pytest would take seconds."""
    path = os.pathsep.join([str(scratch / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    plain = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**os.environ, "PYTHONPATH": path, **plain}


def measured_lines(scratch, suites):
    """Measure folders of tests, once. Return the seconds per test, and the tests per file and line."""
    (scratch / "coverage").mkdir(exist_ok=True)
    seconds, lines = {}, defaultdict(lambda: defaultdict(set))
    for suite in suites:
        into = scratch / "coverage" / f"{suite}.json"
        if not into.exists():
            command = [
                sys.executable,
                "-m",
                "tests.mutation",
                "--measure",
                str(into),
                *suite_files(scratch, suite),
            ]
            with open(into.with_suffix(".log"), "w", encoding="utf-8") as log:
                subprocess.run(
                    command, cwd=scratch, env=environment(scratch), stdout=log, stderr=log, check=False
                )
        for test, record in json.loads(into.read_text(encoding="utf-8")).items():
            seconds[test] = record["seconds"]
            for file, numbers in record["lines"].items():
                for line in numbers:
                    lines[file][line].add(test)
    return seconds, lines


# ---- mutants ----


def left_out(tree):
    """Positions (first, last) of annotations, messages and representations."""
    found = []
    for node in ast.walk(tree):
        called = getattr(node, "func", None)
        if (
            isinstance(node, ast.Raise | ast.Assert)
            or getattr(node, "name", "") == "__repr__"
            or getattr(called, "attr", getattr(called, "id", "")) in QUIET
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ):
            found.append(node)
        if getattr(node, "arg", "") == "strict":  # of `zip`: an assertion
            found.append(node)
        for name in ("annotation", "returns"):
            if isinstance(getattr(node, name, None), ast.AST):
                found.append(getattr(node, name))
    return [((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)) for node in found]


def sensible(name):
    """Whether an operator makes mutants that may run and may differ."""
    if name in ("VariableReplacer", "VariableInserter"):
        return False
    if match := re.match(r"ReplaceBinaryOperator_(\w+)_(\w+)", name):
        return (match[1] in ARITHMETIC) == (match[2] in ARITHMETIC)
    if match := re.match(r"ReplaceComparisonOperator_(\w+)_(\w+)", name):
        kinds = [{"Is": 0, "IsNot": 0, "In": 1, "NotIn": 1}.get(part, 2) for part in match.groups()]
        return kinds[0] == kinds[1]
    return True


def mutants_of(source):
    """All mutants of a text: {position: [(operator, occurrence)]}."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    hidden, tree, provider = left_out(ast.parse(source)), get_ast(source), OperatorProvider()
    nodes, found = list(ast_nodes(tree)), defaultdict(list)
    for name in filter(sensible, provider):
        positions = [place for node in nodes for place in provider[name]().mutation_positions(node)]
        for occurrence, (start, end) in enumerate(positions):
            if not any(first <= start and end <= last for first, last in hidden):
                found[start, end].append((name, occurrence))
    return found


def draw(scratch, room, size, seed):
    """A random sample of mutants that can be compiled: [(file, line, operator, occurrence)]."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    places, texts = [], {}
    for name in ROOMS[room]:
        path = scratch / "src/recmix" / name
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            key = str(file.relative_to(scratch))
            texts[key] = file.read_text(encoding="utf-8")
            mutants = mutants_of(texts[key])
            places += [(key, place, mutants[place]) for place in sorted(mutants)]
    print(f"{room}: {len(places)} places, {sum(len(kinds) for *_, kinds in places)} mutants", flush=True)
    chance, chosen = random.Random(f"{room} {seed}"), []
    chance.shuffle(places)
    for file, (start, _), kinds in places:
        if len(chosen) == size:
            break
        name, occurrence = chance.choice(kinds)
        changed = mutate_code(texts[file], OperatorProvider()[name](), occurrence)
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(texts[file]))
        except SyntaxError:  # the star of keyword-only arguments is no product
            continue
        if not same:
            chosen.append((file, start[0], name, occurrence))
    return sorted(chosen)


def statement_lines(source, line):
    """The lines of the statement at a line (of its head, if it has a body); None at import."""
    best, inside = None, False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            if line <= last:
                best = range(node.lineno, last + 1) if best is None or node.lineno >= best[0] else best
            elif isinstance(node, ast.FunctionDef):
                inside = True
    return best if inside else None


# ---- run ----


def run_tests(scratch, tests, seconds, log):
    """Run these tests in a fork, fastest first, until one fails: "killed", "timed out" or "survived"."""
    order = {test: index for index, test in enumerate(tests)}
    limit = 20 + 3 * sum(seconds[test] for test in tests)
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(handle, stream)
        import pytest

        class Chosen:
            def pytest_collection_modifyitems(self, items):
                items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])

            def pytest_runtest_logreport(self, report):
                if report.failed:
                    (scratch / "failed").write_text(report.nodeid, encoding="utf-8")

        files = sorted({test.split("::")[0] for test in tests})
        code = 1
        try:
            code = int(
                pytest.main(
                    ["-x", "-q", "-p", "no:cacheprovider", "-W", LOADED, *files], plugins=[Chosen()]
                )
            )
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + 20 * limit  # for a test that waits; others may use this machine too
    done = 0
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return {0: "survived", -signal.SIGXCPU: "timed out", -signal.SIGKILL: "timed out"}.get(
                    code, "killed"
                )
            time.sleep(0.05)
        return "timed out"
    finally:
        if not done:  # it takes too long, or this program was stopped
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def passes(scratch, test, seconds):
    """Whether a test passes without a mutant; a test that fails is never used again."""
    if test not in SOUND:
        if run_tests(scratch, [test], seconds, scratch / "tests.log") != "survived":
            print(f"this test also fails without a mutant, see tests.log: {test}", flush=True)
            del seconds[test]
            return False
        SOUND.add(test)
    return True


def judge(scratch, mutant, seconds, lines):
    """Apply one mutant to the copy and run its tests. Return the verdict and the difference."""
    import difflib

    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    file, line, name, occurrence = mutant
    path = scratch / file
    source, before = path.read_text(encoding="utf-8"), path.stat()
    changed = mutate_code(source, OperatorProvider()[name](), occurrence)
    statement = statement_lines(source, line)
    tests = set().union(*(lines[file].get(number, ()) for number in statement or lines[file]))
    tests = sorted(tests & seconds.keys(), key=lambda test: (seconds[test], test))
    difference = difflib.unified_diff(
        source.split("\n"), changed.split("\n"), file, file, n=1, lineterm=""
    )
    chosen, spent = [], 0.0
    for test in tests:
        spent += seconds[test]
        if spent < SECONDS:
            chosen.append(test)
    verdict, failed = "survived", scratch / "failed"
    failed.unlink(missing_ok=True)
    try:
        path.write_text(changed, encoding="utf-8")
        for part in (chosen[:FIRST], chosen[FIRST:]):
            if part and verdict == "survived":
                verdict = run_tests(scratch, part, seconds, scratch / "tests.log")
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # its compiled file is valid again
    if failed.exists() and not passes(scratch, failed.read_text(encoding="utf-8"), seconds):
        return judge(scratch, mutant, seconds, lines)
    return verdict, "\n".join(list(difference)[2:]), f"{len(chosen)} of {len(tests)} tests"


def interval(part, whole):
    """Wilson's 95 % interval of a share."""
    share, z = part / whole, 1.959964
    middle, half = (
        share + z * z / (2 * whole),
        z * math.sqrt(share * (1 - share) / whole + (z / whole / 2) ** 2),
    )
    return tuple((middle + sign * half) / (1 + z * z / whole) for sign in (-1, 1))


def preload():
    """Import what all tests need, but not recmix, so that a fork starts quickly."""
    import importlib

    modules = "torch.func torch._dynamo torch.utils.checkpoint scipy.stats sklearn.datasets zuko pytest"
    others = "hypothesis safetensors.torch matplotlib.pyplot rich.console typer"
    for name in [*modules.split(), *others.split()]:
        importlib.import_module(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--room", choices=ROOMS, action="append", help="may be given again; all if none is given"
    )
    parser.add_argument("--sample", type=int, default=40, help="mutants per room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--own", action="store_true", help="run the tests of the room alone")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "recmix_mutation")
    parser.add_argument(
        "--measure", metavar="FILE", help="for the script itself: measure tests into a file"
    )
    parser.add_argument("tests", nargs="*")
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.tests, asked.measure)
        return
    scratch = asked.scratch.resolve()
    if not scratch.exists():
        skip = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")
        shutil.copytree(Path(__file__).parents[1], scratch, ignore=skip)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # puts the mutated file back
    sys.dont_write_bytecode = True
    os.environ.update(environment(scratch))
    sys.path.insert(0, str(scratch / "src"))
    os.chdir(scratch)
    preload()
    for room in asked.room or ROOMS:
        sample = draw(scratch, room, asked.sample, asked.seed)
        own, verdicts = MIRROR.get(room, room), {}
        for suites in ((own,), [] if asked.own else [name for name in BROADER if name != own]):
            if not suites:
                continue
            left = [mutant for mutant in sample if verdicts.get(mutant, "survived") == "survived"]
            measured = measured_lines(scratch, suites) if left else None
            for mutant in left:
                start = time.monotonic()
                verdicts[mutant], difference, shown = judge(scratch, mutant, *measured)
                spent = f"{time.monotonic() - start:.0f} s, {shown}"
                print(f"{verdicts[mutant]:9} {' '.join(map(str, mutant))}, {spent}", flush=True)
                if verdicts[mutant] == "survived" and (asked.own or suites != (own,)):
                    print(difference, flush=True)
        found = list(verdicts.values())
        gone = len(found) - found.count("survived")
        low, high = interval(gone, len(found))
        counts = ", ".join(f"{found.count(kind)} {kind}" for kind in ("killed", "timed out", "survived"))
        print(
            f"{room}: {len(found)} mutants, {counts}: {gone / len(found):.0%}, {low:.0%} to {high:.0%}\n"
        )


if __name__ == "__main__":
    main()
