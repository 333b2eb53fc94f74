"""The site of the documentation: its navigation, links, API pages and tutorials; and that it builds."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import recmix

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
PAGES = [*sorted((DOCS / "api").glob("*.md")), *sorted((DOCS / "tutorials").glob("*.md")), *TUTORIALS]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
SHORTER = {
    r'epochs("?[=:] ?)\d+': r"epochs\g<1>2",
    r'kl_warmup("?[=:] ?)\d+': r"kl_warmup\g<1>1",
    r"samples=[1-3]00\b": "samples=10",
    r"range\(100\)": "range(2)",
    r"check=5": "check=1",
    r"\[:(?:40|200)\]": "[:6]",
}
"""Changes with which a tutorial takes seconds. `make notebooks` runs the tutorials as they are."""


@cache
def site():
    """The settings in mkdocs.yml."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def entries(part):
    """All pages of a part of the navigation."""
    if isinstance(part, str):
        return [part]
    values = part.values() if isinstance(part, dict) else part
    return [page for value in values for page in entries(value)]


def load_file(name):
    """A Python file of the folder docs, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks():
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'recmix[docs]'")
    return load_file("site_hooks")


def source(page):
    """The file that a page of the navigation is made from."""
    if page.startswith("repository/"):
        return ROOT / page.removeprefix("repository/")
    if page.startswith("tutorials/") and not page.endswith("README.md"):
        return (DOCS / page).with_suffix(".ipynb")
    return DOCS / page


def anchors(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_of_the_navigation_exists():
    pages = [page for page in entries(site()["nav"]) if page != "methods/"]
    assert [page for page in pages if not source(page).exists()] == []
    assert len(pages) == len(set(pages))


def test_every_page_is_in_the_navigation():
    wanted = {
        path.relative_to(DOCS).as_posix()
        for path in [*DOCS.glob("*.md"), *PAGES]
        if path.suffix == ".md"
    }
    wanted |= {f"tutorials/{path.stem}.md" for path in TUTORIALS}
    assert wanted - set(entries(site()["nav"])) == {"README.md"}  # the index for readers on GitHub


def test_nothing_is_loaded_from_the_network():
    settings = site()
    assert settings["theme"]["font"] is False
    assert not any(
        "://" in str(address)
        for kind in ("extra_css", "extra_javascript")
        for address in settings.get(kind, ())
    )


def test_broken_links_stop_the_build():
    assert site()["strict"] is True
    assert set(site()["validation"]["links"].values()) == {"warn"}
    assert {"not_found", "anchors"} <= set(site()["validation"]["links"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_tutorials_and_api_pages_resolve(page):
    for target, anchor in LINK.findall(page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def test_names_on_the_api_pages_exist():
    paths = [path for page in PAGES for path in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)]
    assert len(paths) > 50
    assert len(paths) == len(set(paths))
    for path in paths:
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        assert found.__doc__, path


def test_every_public_name_has_an_entry_in_the_api_reference():
    text = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    modules = {"adapters", "data", "likelihoods", "methods", "objectives", "posteriors", "priors"}
    missing = [
        name
        for name in set(recmix.__all__) - modules - {"__version__"}
        if not re.search(rf"^::: .*\.{name}$", text, re.M)
    ]
    assert missing == []
    assert all(f".{name}." in text for name in modules)


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_notebooks_are_in_step_with_their_scripts(script):
    pytest.importorskip("jupytext", reason="jupytext is not installed: pip install 'recmix[docs]'")
    assert load_file("notebooks").in_step(script), "run: make notebooks"


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_notebooks_have_outputs(script):
    cells = json.loads(script.with_suffix(".ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) // 2
    assert cells[0]["source"][0].startswith("# ")


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in matplotlib
@pytest.mark.usefixtures("few_digits", "registries")
def test_tutorials_run(script, tmp_path, monkeypatch, capsys):
    """Every line of a tutorial, with fewer epochs and samples."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECMIX_OFFLINE", "1")
    text = script.read_text()
    for long, short in SHORTER.items():
        text = re.sub(long, short, text)
    try:
        exec(compile(text, str(script), "exec", dont_inherit=True), {"__name__": "tutorial"})
    except SystemExit as end:
        if end.code:  # 0: a package is missing
            raise
    finally:
        plt.close("all")
    assert capsys.readouterr().out


def test_links_that_leave_the_folder_get_pages_of_the_site(hooks):
    links = {
        "[a](../SECURITY.md#report)": "[a](repository/SECURITY.md#report)",
        "[a](../examples/text.py)": "[a](repository/examples/text.py.md)",
        "[a](../benchmarks/results)": "a",  # a folder has no page
        "[a](README.md)": "[a](index.md)",
        "[a](tutorials/first_mixture.ipynb)": "[a](tutorials/first_mixture.md)",
        "[`a`](gaps.md#definitions)": "[`a`](gaps.md#definitions)",
        "![a](images/figure1.png)": "![a](images/figure1.png)",
        "[a](https://example.org/x.md)": "[a](https://example.org/x.md)",
        "[a](nowhere.md)": "[a](nowhere.md)",  # MkDocs reports it
        "```md\n[a](../SECURITY.md)\n```": "```md\n[a](../SECURITY.md)\n```",  # code
    }
    for text, expected in links.items():
        assert hooks.site_links(text, "docs/performance.md", "performance.md") == expected
    page = "repository/CONTRIBUTING.md"
    assert hooks.site_links("[a](docs/gaps.md)", "CONTRIBUTING.md", page) == "[a](../gaps.md)"


def test_formulas_become_mathml(hooks):
    made = hooks.with_mathml(r'<p><span class="arithmatex">\(\mathcal N \log x &lt; 1\)</span></p>')
    assert made.startswith("<p><math")
    assert "&#x1D4A9;" in made  # a script N; browsers ignore mathvariant="script"
    assert "arithmatex" not in made


def test_doctests_become_blocks_of_code():
    pytest.importorskip("griffe", reason="griffe is not installed: pip install 'recmix[docs]'")
    fenced = load_file("griffe_doctests").fenced
    text = "A class.\n\n>>> f(1)\n2\n>>> g(\n...     1)\n\nMore text.\n"
    assert fenced(text) == "A class.\n\n\n```pycon\n>>> f(1)\n2\n>>> g(\n...     1)\n```\n\nMore text.\n"


def test_site_builds(tmp_path):
    for tool in ("material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(tool, reason=f"{tool} is not installed: pip install 'recmix[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {
        path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")
    }
    for name, text in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|icon|preconnect)"[^>]*href="([^"]+)"', text)
        assert [address for address in loaded if "://" in address] == [], name
    assert "Kim &amp; Pavlovic 2020" in pages["methods/rme.html"]
    assert "RecursiveMixture" in pages["methods/rme.html"]
    assert "&gt;&gt;&gt;" in pages["api/objectives.html"]
    assert not re.search(r"<blockquote>\s*<blockquote>", pages["api/objectives.html"])
    assert list((tmp_path / "tutorials").glob("first_mixture_*.png"))
