"""Imports point one way, and what needs no torch does not load it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import recmix

SOURCE = Path(recmix.__file__).parent
# A room may import from its own level only if it is the same room, and from any level below.
LEVELS = [
    {"errors", "_version", "pages"},
    {"model"},
    {"posteriors"},
    {"inference", "objectives"},
    {"methods", "runs"},
    {"data"},
    {"evaluation"},
    {"training"},
    {"experiments", "reports", "explore", "exports"},
    {"api"},
    {"adapters", "sklearn"},
    {"commands"},
    {"cli", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
ROOT_FILES = {"__init__", "_version", "objectives", "errors", "cli"}


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path):
    """Every room that a file imports, also inside functions and for type checking."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "recmix" and len(parts) > 1:
                yield parts[1]


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    here = room(path)
    if here == "accelerate":  # it registers replacements for functions of all rooms
        return
    for other in imports(path):
        if other in (here, "__version__"):
            continue
        assert other != "accelerate", "accelerate is loaded by model.replaceable, and imported by nobody"
        if here == "__init__" and other in recmix.__all__:
            continue
        assert LEVEL[other] < LEVEL[here], f"{here} imports {other}, which is not below it"


def test_every_room_has_a_level():
    assert {room(path) for path in FILES} == set(LEVEL) | {"accelerate"}


def test_the_root_holds_only_the_public_files():
    assert {path.stem for path in SOURCE.glob("*.py")} == ROOT_FILES


def test_no_test_file_imports_another_test_file():
    for path in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.split(".")[-1].startswith("test_"), path
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("test_") for alias in node.names), path


def test_reading_folders_and_showing_help_need_no_torch():
    code = (
        "import sys, recmix.runs.folder, recmix.runs.scores, recmix.data, recmix.cli;"
        "import recmix.reports.figures;"
        "recmix.data.inventory(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_exists():
    for name in recmix.__all__:
        assert getattr(recmix, name) is not None
    assert set(dir(recmix)) >= {"fit", "load", "data"}


def test_no_two_modules_or_public_classes_share_a_name():
    classes, modules = {}, {}
    for path in FILES:
        if path.stem != "__init__" and room(path) != "commands":  # commands have the names of commands
            modules.setdefault(path.stem, []).append(path)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(path)
    shared = {name for found in (classes, modules) for name in found if len(found[name]) > 1}
    assert shared == {"Gaussian"}  # the field's name of a likelihood and of a posterior
