"""Imports point one way, and what needs no torch does not load it."""

import ast
import subprocess
import sys
from pathlib import Path

import recmix

SOURCE = Path(recmix.__file__).parent
# A room may import from its own and from those before it.
ROOMS = [
    {"errors", "_version", "accelerate"},
    {"model"},
    {"posteriors"},
    {"runs", "inference"},
    {"data", "methods"},
    {"evaluation"},
    {"training"},
    {"api"},
    {"experiments", "reports", "explore", "exports"},
    {"commands", "bench", "cli", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(ROOMS) for name in names}


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path):
    """Rooms that a file imports when it is loaded (not those inside functions)."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recmix."):
            yield node.module.split(".")[1]


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        for other in imported(path):
            assert room(path) == "accelerate" or LEVEL[other] <= LEVEL[room(path)], (
                f"{path.name} imports recmix.{other}"
            )


def test_every_room_has_a_place():
    assert {room(path) for path in SOURCE.rglob("*.py")} <= set(LEVEL)


def test_reading_folders_and_showing_help_need_no_torch():
    code = (
        "import sys, recmix.runs.folder, recmix.data, recmix.cli, recmix.reports.figures;"
        "recmix.data.inventory(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_can_be_had():
    for name in recmix.__all__:
        assert getattr(recmix, name) is not None
    assert set(dir(recmix)) >= {"fit", "load", "data"}
