"""The wheel and the sdist: built, checked, and installed into an environment of their own."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import recmix

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*words, **how):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with the sdist, and the wheel that was made from the sdist."""
    pytest.importorskip("build", reason="build is not installed")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    run(sys.executable, "-m", "build", "--no-isolation", source)
    return source / "dist"


def test_the_wheel_holds_every_file_of_the_package(dist):
    (wheel,) = dist.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("recmix/")}
    package = dist.parent / "src" / "recmix"
    files = {f"recmix/{p.relative_to(package)}" for p in package.rglob("*") if p.is_file()}
    assert held == files


def test_metadata(dist):
    pytest.importorskip("twine", reason="twine is not installed")
    names = sorted(path.name for path in dist.iterdir())
    version = recmix.__version__
    assert names == [f"recmix-{version}-py3-none-any.whl", f"recmix-{version}.tar.gz"]
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())


def test_the_installed_wheel_runs(dist, tmp_path):
    clean, (wheel,) = tmp_path / "clean", dist.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", clean)
    program = clean / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", program)
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(program, "-c", code))
    # Dependencies come from the environment of the tests. Its own .pth files are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    assert run(clean / "bin" / "recmix", "--version") == f"recmix {recmix.__version__}"
    found = run(program, "-c", "import recmix; print(recmix.__file__)", cwd=tmp_path)
    assert Path(found).is_relative_to(clean)


def test_the_version_is_in_one_place():
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    for name in ("CITATION.cff", "README.md", "pyproject.toml"):
        text = (ROOT / name).read_text()
        assert not re.search(rf"(?<![\d.]){re.escape(recmix.__version__)}(?![\d.])", text), name


def test_classifiers_and_continuous_integration_name_the_same_versions_of_python():
    yaml = pytest.importorskip("yaml")
    prefix = "Programming Language :: Python :: 3."
    named = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in named]
    assert PROJECT["requires-python"] == f">=3.{named[0]}"
    assert {"run": ".ci/run"} in job["steps"]


def test_forms_and_citation_are_valid_yaml():
    yaml = pytest.importorskip("yaml")
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= set(form), path.name
            assert all(part["type"] for part in form["body"])
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["title"] == PROJECT["name"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
