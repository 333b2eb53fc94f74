"""`recmix doctor`: check the installation, the machine and the data; say how to fix what is wrong."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from recmix._version import __version__
from recmix.commands.terminal import Json, Root, out, plain
from recmix.runs.process import cores

__all__ = ["Check", "check_packages", "doctor_command"]

COLOURS = {"ok": "green", "note": "yellow", "missing": "yellow", "broken": "red"}
HIDDEN = ("dev", "adapters")  # extras for those who work on recmix
VARIABLES = (
    "RECMIX_DATA",
    "RECMIX_OFFLINE",
    "RECMIX_MAX_BYTES",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)
MAX_ERROR = 0.05
"""Largest difference in log p(x, z) between GPU and CPU that counts as rounding, in nats."""


@dataclass(frozen=True)
class Check:
    """The result of one check of `recmix doctor`.

    Attributes:
        group: heading of the table that shows the check.
        name: what was checked, such as the name of a package.
        state: "ok"; "note", for something to know; "missing", for something optional that is not
            there; or "broken", for something needed that is missing or does not work.
        detail: what was found.
        advice: what to do; empty if there is nothing to do.
    """

    group: str
    name: str
    state: str
    detail: str
    advice: str = ""


def doctor_command(data_root: Root = None, as_json: Json = False) -> None:
    """Check the installation, GPU and data; say how to get what is missing."""
    checks = [*_program(), *check_packages(_requirements()), *_processor()]
    if not any(check.state == "broken" for check in checks):  # torch is needed from here on
        checks += [*_training(), *_gpu(), *_data(data_root)]
    broken = [check for check in checks if check.state == "broken"]
    if as_json:
        content = {"recmix": __version__, "ok": not broken, "checks": [asdict(c) for c in checks]}
        out.print_json(json.dumps(content))
    else:
        _print(checks)
        names = ", ".join(check.name for check in broken)
        out.print(f"[red]broken: {plain(names)}[/]" if broken else "[green]everything needed works[/]")
    raise typer.Exit(1 if broken else 0)


def _requirements() -> list[str]:
    """The requirements of the installed package; none if it is run from its source folder."""
    try:
        return metadata.requires("recmix") or []
    except metadata.PackageNotFoundError:
        return []


def check_packages(requirements: Iterable[str]) -> list[Check]:
    """Check whether the required packages are installed, in the required versions.

    If a package of the base installation is missing, its check has the state "broken". If a package of
    an extra, such as ``recmix[cluster]``, is missing, the state is "missing".

    Args:
        requirements: texts such as ``numpy>=1.26`` or ``ray>=2.10; extra == "cluster"``, as
            `importlib.metadata.requires` returns them.

    >>> [(check.name, check.state) for check in check_packages(["numpy>=1", "nothing-like-this>=2"])]
    [('numpy', 'ok'), ('nothing-like-this', 'broken')]
    """
    from packaging.requirements import Requirement

    needed: list[Check] = []
    extras: dict[str, list[str]] = {}
    for text in requirements:
        requirement = Requirement(text)
        problem = _problem(requirement.name, requirement.specifier)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            fix = f"pip install '{requirement.name}{requirement.specifier}'" if problem else ""
            found = problem or metadata.version(requirement.name)
            state = "broken" if problem else "ok"
            needed.append(Check("packages", requirement.name, state, found, fix))
            continue
        extra = str(marker).rpartition("extra == ")[2].strip("\"'")
        if extra not in HIDDEN:
            extras.setdefault(extra, []).extend([f"{requirement.name} {problem}"] if problem else [])
    return needed + [
        Check("extras", name, "missing", ", ".join(missing), f"pip install 'recmix[{name}]'")
        if missing
        else Check("extras", name, "ok", "installed")
        for name, missing in extras.items()
    ]


def _problem(name: str, wanted: Any) -> str:
    """Say what is wrong with a package; "" if the installed version satisfies the specifier `wanted`."""
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "is not installed"
    return "" if wanted.contains(found, prereleases=True) else f"is {found}, needs {wanted}"


def _program() -> Iterator[Check]:
    yield Check("program", "recmix", "ok", f"{__version__} in {Path(__file__).parent.parent}")
    new_enough = sys.version_info >= (3, 11)
    fix = "" if new_enough else "install Python 3.11 or newer"
    yield Check("program", "python", "ok" if new_enough else "broken", platform.python_version(), fix)
    yield Check("program", "system", "ok", platform.platform())
    for name in VARIABLES:
        if name in os.environ:
            yield Check("program", name, "ok", os.environ[name])


def _processor() -> Iterator[Check]:
    usable = cores()
    yield Check("processor", "cores", "ok", f"{usable} ({platform.machine()})")
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        busy = load > usable
        fix = "times that are measured now will be too long" if busy else ""
        yield Check("processor", "load", "note" if busy else "ok", f"{load:.2f} in the last minute", fix)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        yield Check("processor", "memory", "ok", f"{size:.1f} GiB")


def _training() -> Iterator[Check]:
    """Check torch and the training of a very small model on the CPU."""
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    yield Check("processor", "torch", "ok", f"{torch.__version__}, built for {built}")
    yield Check("processor", "threads of torch", "ok", str(torch.get_num_threads()))
    yield _attempt("processor", "training", "reinstall torch", lambda: _train("cpu")[-1])


def _gpu() -> Iterator[Check]:
    """Check the GPU: train a small model by CUDA graphs, refine posteriors, and compare with the CPU."""
    import torch

    if not torch.cuda.is_available():
        advice = "not needed: the CPU is used"
        if shutil.which("nvidia-smi"):
            advice = (
                "torch cannot use the GPU: compare `nvidia-smi` with torch's CUDA, update the driver"
            )
        yield Check("GPU", "device", "note", "no CUDA device", advice)
        return
    about = torch.cuda.get_device_properties(0)
    found = f"{about.name}, {about.total_memory / 2**30:.0f} GiB, {about.major}.{about.minor}"
    yield Check("GPU", "device", "ok", f"{torch.cuda.device_count()}: {found}")
    kept: list[Any] = []

    def train() -> str:
        *trained, text = _train("cuda")
        kept.extend(trained)
        return text

    yield _attempt("GPU", "training", "device=cpu works without the GPU", train)
    if kept:
        model, x, engine = kept
        yield Check("GPU", "CUDA graphs", "ok" if engine.startswith("graph") else "note", engine)
        advice = "device=cpu works without the GPU"
        yield _attempt("GPU", "refinement", advice, lambda: _compare(model, x))
    yield _triton()


def _triton() -> Check:
    """Check whether the GPU kernels that are written in Triton can be compiled."""
    advice = "GPU kernels of recmix are compiled with triton; without it plain torch is used, slower"
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return Check("GPU", "triton", "missing", "is not installed", advice)
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        return Check("GPU", "triton", "note", f"{version}, but no C compiler", "install gcc or clang")
    return Check("GPU", "triton", "ok", f"{version}, compiler {compiler}")


def _compare(model: Any, x: Any) -> str:
    """Refine posteriors on the device and on the CPU, and say how much log p(x, z) differs.

    log p(x, z) is computed at the posterior means and averaged over the examples. The means of single
    examples may differ, because rounding decides between steps of nearly equal value.
    """
    import torch

    refined = model.refined(2, checks=0)  # checks draw noise, which differs between devices
    here = refined.posterior(x).mean.cpu()
    there = refined.to("cpu").posterior(x).mean
    with torch.no_grad():
        joint = refined.latent_model.log_joint(torch.as_tensor(x), torch.stack([here, there]))
    error = abs(float(joint[0].mean() - joint[1].mean()))
    if not error < MAX_ERROR:
        raise ArithmeticError(f"refined log p(x, z) differs from the CPU's by {error:.2g} nats")
    return f"refined log p(x, z) equals that of the CPU up to {error:.1g} nats"


def _train(device: str) -> tuple[Any, Any, str, str]:
    """Train a small model on a device.

    Returns:
        The `recmix.Model`, the training examples, why its engine was chosen, and how long it took.
    """
    import numpy as np

    from recmix.api import fit
    from recmix.runs.folder import Run

    x = np.random.default_rng(0).random((64, 1, 8, 8), np.float32)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        model = fit(
            "vae", x, latent=2, epochs=2, batch_size=16, device=device, out=folder, progress=False
        )
        seconds = time.monotonic() - began
        events = Run(folder).events()
    engine = next(
        (event["engine"] for event in events if event.get("event") == "engine"), "unknown engine"
    )
    return model, x, engine, f"a small VAE was trained and stored in {seconds:.1f} s"


def _attempt(group: str, name: str, advice: str, work: Callable[[], str]) -> Check:
    """Call `work`, and make a check whose detail is the text that `work` returns.

    If `work` raises an error, the state of the check is "broken" and its detail is the error.
    """
    try:
        return Check(group, name, "ok", work())
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return Check(group, name, "broken", f"{type(error).__name__}: {text}", advice)


def _data(root: Path | None) -> Iterator[Check]:
    from recmix.data import inventory
    from recmix.data.fetch import offline

    for entry in inventory(root):
        if entry.usable:
            yield Check("data", entry.name, "ok", entry.state)
            continue
        fix = "downloaded when first used"
        if offline() or not entry.downloadable:
            fix = "not downloaded: `recmix data` lists the files and folders"
        yield Check("data", entry.name, "missing", "not on this machine", fix)
    yield Check("data", "your own files", "ok", "recmix train --data PATH")


def _print(checks: list[Check]) -> None:
    """Print a table for each group of checks. Checks with the same result share one row."""
    for group in dict.fromkeys(check.group for check in checks):
        table = Table("", "state", "found", "what to do", title=group, title_justify="left")
        rows: dict[tuple[str, str, str], list[str]] = {}
        for check in checks:
            if check.group == group:
                rows.setdefault((check.state, check.detail, check.advice), []).append(check.name)
        for (state, detail, advice), names in rows.items():
            table.add_row(
                plain(", ".join(names)), f"[{COLOURS[state]}]{state}[/]", plain(detail), plain(advice)
            )
        out.print(table)
