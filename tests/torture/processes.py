"""Child processes that run a command of recmix, and what can happen to them.

This process imports everything once and trains nothing. Each command runs in a fork of it, which
starts in milliseconds, so many processes can be killed in a short time.
"""

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

CRASH = 70
"""Exit status of a child that ended with an exception that is not an error message."""


def prepare():
    """Import what the commands need. Threads would not survive a fork, so there is one."""
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", RECMIX_OFFLINE="1")
    import sklearn.datasets  # noqa: F401
    import torch._dynamo

    import recmix.api
    import recmix.cli
    import recmix.evaluation.score
    import recmix.experiments.driver
    import recmix.experiments.worker
    import recmix.exports
    import recmix.training.presets  # noqa: F401

    torch.set_num_threads(1)


class Watch:
    """An audit hook that counts writing accesses to files under a folder and acts at one of them.

    Args:
        folder: accesses to other folders are not counted.
        kind: "kill" sends SIGKILL to this process before access number `at`; "full" refuses this
            access and all later ones, except removals, like a full disk; "count" only counts.
        at: number of the access, from 1.
    """

    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

    def __init__(self, folder, kind, at=0):
        self.folder, self.kind, self.at = str(folder), kind, at
        self.count = 0
        sys.addaudithook(self)

    def __call__(self, event, args):
        if event == "open":
            path, _, flags = args
            if not flags & self.WRITES:
                return
        elif event in ("os.rename", "os.remove", "os.mkdir"):
            path = args[0]
        else:
            return
        if not str(path).startswith(self.folder):
            return
        self.count += 1
        if self.kind == "kill" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "full" and self.count >= self.at and event not in ("os.remove", "os.rename"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def start(words, log, folder, fault=None):
    """Start `recmix WORDS` in a fork and return its process number.

    Args:
        words: the command.
        log: file for its output.
        folder: the folder in which it writes.
        fault: None, or ("kill", n), ("full", n) and ("count", file) as in `Watch`, or
            ("limit", bytes) for the largest file that it can write.
    """
    pid = os.fork()
    if pid:
        return pid
    status = CRASH
    try:
        for number in (signal.SIGTERM, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        print("$ recmix", *words, fault or "", flush=True)
        status = _run(words, folder, fault)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _run(words, folder, fault):
    import traceback

    from recmix.cli import main
    from recmix.experiments import local_workers

    local_workers.subprocess = _Forks
    kind, value = fault or ("", 0)
    watch = Watch(folder, kind, value) if kind in ("kill", "full", "count") else None
    if kind == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (value, resource.RLIM_INFINITY))
    try:
        main(words)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = CRASH
    if kind == "count":
        Path(value).write_text(str(watch.count))
    return status


class _Fork:
    """Like `subprocess.Popen` for a worker of a grid, but a fork: nothing is imported again."""

    def __init__(self, command, *, stdout, env, pass_fds, **others):
        assert command[1:3] == ["-m", "recmix.experiments.worker"], others
        here, there = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = CRASH
            try:
                os.environ.update(env)
                os.setsid()
                for number, to in ((here, 0), (stdout.fileno(), 1), (stdout.fileno(), 2)):
                    os.dup2(number, to)
                low = 3
                for kept in (*sorted(pass_fds), 4096):
                    os.closerange(low, kept)
                    low = kept + 1
                from recmix.experiments.worker import main

                status = main(command[3:])
            finally:
                os._exit(status)
        os.close(here)
        self.stdin = os.fdopen(there, "wb")
        self.returncode = None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class _Forks:
    Popen = _Fork
    PIPE = subprocess.PIPE


def ended(pid):
    """The exit status of a child if it has ended, else None. A killed child has -signal."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def wait(pid, seconds=120):
    """Wait for a child and return its exit status. One that does not end is an error."""
    end = time.monotonic() + seconds
    while (status := ended(pid)) is None:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"process {pid} did not end within {seconds} seconds")
        time.sleep(0.005)
    return status


def is_running(pid):
    """Whether a child has not ended yet. Its exit status can still be read with `wait`."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is None


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
