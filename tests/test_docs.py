"""The documentation: tables are up to date, links resolve, examples run.

A block that needs more than the tests have is marked in the line before it, such as
``<!-- not run: needs MNIST -->``. It must still be valid: Python that compiles, flags that exist.
"""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from cases.commands import call

from recmix.cli import app
from recmix.commands.train import add_train
from recmix.methods.registry import METHODS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = r"(?:<!-- not run: (?P<why>[^\n]+) -->\n)?"
BLOCK = re.compile(rf"^{MARK}```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


class Block(NamedTuple):
    """One block of code."""

    kind: str
    text: str
    line: int  # of its first line in the page
    why: str | None  # why it is not run

    @property
    def commands(self):
        """The lines of a shell block, with continued lines joined."""
        return self.text.replace("\\\n", " ").splitlines()


def blocks(page):
    text = page.read_text()
    return [
        Block(m["kind"], m["text"], text.count("\n", 0, m.start("text")) + 1, m["why"])
        for m in BLOCK.finditer(text)
    ]


def prose(page):
    """The text of a page without its code."""
    return BLOCK.sub("", page.read_text())


def anchors(page):
    """The names of a page's headings in links, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@cache
def flags_of_commands():
    """The flags of every command."""
    add_train(app, with_options=True)
    commands = typer.main.get_command(app).commands
    return {
        name: {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        for name, command in commands.items()
    }


def run_python(page, block, names):
    """Execute a block. Line numbers in tracebacks are those of the page."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    exec(code, names)


def run_shell(block, capsys):
    """Execute `recmix`, and `cat` with a file or a here-document; other commands are not allowed."""
    lines = iter(block.commands)
    for line in lines:
        words = shlex.split(line, comments=True)
        target = Path(words[words.index(">") + 1]) if ">" in words else None
        if not words:
            continue
        if words[0] == "recmix":
            stop = words.index(">") if target else None
            capsys.readouterr()
            assert call(*words[1:stop]) == 0, f"{line}\n{capsys.readouterr().err}"
            text = capsys.readouterr().out
        elif words[0] == "cat" and words[-1].startswith("<<"):
            end = words[-1].removeprefix("<<")
            text = "".join(f"{inner}\n" for inner in iter(lambda: next(lines), end))
        elif words[0] == "cat":
            text = Path(words[1]).read_text()
        else:
            raise AssertionError(f"cannot run {line!r}: mark the block with <!-- not run: REASON -->")
        if target:
            target.write_text(text)


def run_console(block, capsys):
    """Run the `recmix` commands of a transcript and compare their output with the text after them."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        line, _, expected = part.partition("\n")
        words = shlex.split(line, comments=True)
        if words[0] != "recmix":
            continue
        capsys.readouterr()
        call(*words[1:])
        printed = capsys.readouterr()
        shown = " ".join(f"{printed.out} {printed.err}".split())
        assert " ".join(expected.split()) in shown, f"{line}\n{shown}"


def test_tables_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "build.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@each_page
def test_links_resolve(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", prose(page)):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [page.name for page in PAGES if page.parent.name == "docs" and page.name not in index]
    assert missing == ["README.md"]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_a_section_with_its_options(name):
    pages = {page: page.read_text() for page in PAGES}
    assert any(re.search(rf"^#+ .*`{name}`.*:", text, re.M) for text in pages.values())
    shared = {"bvi-er2": "bvi-er1"}  # one section and the same options
    assert any(f"<!-- table:options-{shared.get(name, name)} -->" in text for text in pages.values())


@each_page
@pytest.mark.usefixtures("few_digits", "registries")  # a page may register a method
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    if page.name == "molecules.md":
        pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    names = {"__name__": "page"}
    for block in blocks(page):
        if block.why:
            continue
        if block.kind == "python":
            run_python(page, block, names)
        elif block.kind == "sh":
            run_shell(block, capsys)
        elif block.kind == "console":
            run_console(block, capsys)


@each_page
def test_examples_that_are_not_run_are_valid(page):
    flags = flags_of_commands()
    for block in blocks(page):
        if block.why and block.kind == "python":
            compile(block.text, str(page), "exec")
        elif block.why and block.kind == "sh":
            for line in block.commands:
                words = shlex.split(line, comments=True)
                if words[:1] == ["recmix"]:
                    given = {word.partition("=")[0] for word in words if word.startswith("--")}
                    assert given <= flags[words[1]], line
