"""Hooks of MkDocs: what the site has besides the pages in this folder.

- One page for each method, with a head from the registry and the section of its family's page.
- The tutorials, from the notebooks.
- A page for each file of the repository that another page links to, such as CONTRIBUTING.md.
- Formulas as MathML, which browsers show without scripts and fonts from the network.

Links in the pages are relative to the repository, so that they work on GitHub. `site_links` changes
those that leave this folder.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:)([^)\s#]*)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
LETTER = re.compile(
    r"\\(mathcal|mathbb) (\w)"
)  # the converter makes Unicode letters of braced ones only
FUNCTION = re.compile(r"(<mi>(?:log|exp|det)</mi>)(?=<m(?:i|row|sup|sub)>)")
TABLE = re.compile(r"<!-- table:options-[\w-]+ -->\n.*?<!-- /table -->\n*", re.S)
LONG = 60
"""Formulas in a line of text with more LaTeX characters than this can be wider than a phone."""
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}

TITLES = {
    page: title
    for title, page in re.findall(r"^ +- ([^:]+): (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
}
"""For each page of the navigation: its title there."""

origins: dict[str, str] = {}
"""For each page that is made here: the file of the repository that its text comes from."""


# Links


def site_address(path: str) -> str | None:
    """The page or file of the site for a file of the repository, given by its path; None if none."""
    place = PurePosixPath(path)
    if (ROOT / path).is_dir():
        return None
    if path == "docs/README.md":
        return "index.md"
    if place.parts[0] == "docs" and place.suffix == ".ipynb":
        return str(place.relative_to("docs").with_suffix(".md"))
    if place.parts[0] == "docs" and (place.suffix != ".py" or "tutorials" in place.parts):
        return str(place.relative_to("docs"))
    return f"repository/{path}" if place.suffix == ".md" else f"repository/{path}.md"


def targets(text: str, origin: str) -> set[str]:
    """The files of the repository that a text links to; `origin` is the file of the text."""
    found = LINK.findall(FENCE.sub("", text))
    return {_path(origin, target) for _, _, target, _ in found if target}


def _path(origin: str, target: str) -> str:
    return os.path.normpath(PurePosixPath(origin).parent / target)


def site_links(text: str, origin: str, page: str) -> str:
    """The text of `page`, with links to pages and files of the site."""

    def changed(link: re.Match[str]) -> str:
        mark, words, target, anchor = link.groups()
        path = _path(origin, target) if target else origin
        if not target and page not in origins:
            return link[0]
        if not (ROOT / path).exists():
            return link[0]  # MkDocs reports it
        address = site_address(path)
        if address is None:
            return words  # a folder
        if words.endswith(".md"):  # the name of a file says little on the site
            words = TITLES.get(address, words)
        return f"{mark}[{words}]({os.path.relpath(address, PurePosixPath(page).parent)}{anchor or ''})"

    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(changed, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, LINK.sub(changed, text[last:])])


# Pages


def method_pages() -> dict[str, str]:
    """A page for each method: head and options from the registry, text from the page of its family."""
    sys.path.insert(0, str(ROOT / "docs"))
    import code_tables

    from recmix.methods.registry import METHODS

    families = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    made = {}
    for name, cls in sorted(METHODS.items()):
        heading = re.compile(rf"^## (.*`{name}`.*:.*)\n((?:(?!## ).*\n?)*)", re.M)
        family, section = next(
            (page, m) for page, text in families.items() if (m := heading.search(text))
        )
        start = f"a trained [`{cls.starts_from}`]({cls.starts_from}.md)" if cls.starts_from else None
        on_page = f"{family}#{github_slug(section[1])}"
        rows = [
            ["what it is", cls.title],
            ["starts from", start or "random weights"],
            ["option that tables vary", f"`{cls.setting}`" if cls.setting else "–"],
            ["reference", cls.reference],
            ["described on", f"[{family.removesuffix('.md').replace('_', ' ')}]({on_page})"],
        ]
        page = f"methods/{name}.md"
        origins[page] = f"docs/{family}"
        made[page] = METHOD_PAGE.format(
            name=name,
            title=cls.title,
            head=code_tables.table([f"`{name}`", ""], rows),
            first='vae = recmix.fit("vae", "digits")\n' if cls.starts_from else "",
            init=", init=vae" if cls.starts_from else "",
            options=code_tables.options_of_method(name),
            body=TABLE.sub("", section[2]).strip(),
            path=f"{cls.__module__}.{cls.__qualname__}",
        )
    return made


METHOD_PAGE = """# `{name}`: {title}

{head}
```python
import recmix

{first}model = recmix.fit("{name}", "digits"{init})
```

```sh
recmix train --data digits --method {name} --out runs/{name}
```

## Options

{options}
## Description

{body}

## Class

::: {path}
    options:
      heading_level: 3
      members: false
"""


def tutorial_pages() -> dict[str, str | bytes]:
    """A page for each notebook, with its figures, and links to the notebook and the script."""
    made: dict[str, str | bytes] = {}
    for notebook in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        page, parts = f"tutorials/{notebook.stem}.md", []
        origins[page] = f"docs/tutorials/{notebook.name}"
        for cell in json.loads(notebook.read_text())["cells"]:
            source = "".join(cell["source"])
            parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
            for output in cell.get("outputs", ()):
                if "text" in output:
                    printed = "".join(output["text"]).rstrip()
                    parts.append(f"```{{.text .printed}}\n{printed}\n```")
                else:
                    figure = f"tutorials/{notebook.stem}_{len(made)}.png"
                    made[figure] = base64.b64decode("".join(output["data"]["image/png"]))
                    parts.append(f"![Figure](FIGURE:{PurePosixPath(figure).name})")
        downloads = f"Download: [notebook](FILE:{notebook.name}), [script](FILE:{notebook.stem}.py)."
        made[page] = "\n\n".join([parts[0], downloads, *parts[1:], ""])
    return made


def repository_pages(pages: dict[str, str]) -> dict[str, str]:
    """Pages for files outside of this folder: those in the navigation and those that pages link to.

    Args:
        pages: the text of every page, by the path of its file in the repository.
    """
    wanted = {"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}
    for origin, text in pages.items():
        wanted |= targets(text, origin)
    made: dict[str, str] = {}
    while wanted:
        path = wanted.pop()
        page = site_address(path) or ""
        if not page.startswith("repository/") or page in made or not (ROOT / path).is_file():
            continue
        text = (ROOT / path).read_text()
        origins[page] = path
        if path.endswith(".md"):
            made[page] = text
            wanted |= targets(text, path)
        else:
            made[page] = f"# `{path}`\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"
    return made


# Formulas


def with_mathml(text: str) -> str:
    """The HTML of a page, with MathML in the place of LaTeX."""

    def formula(found: re.Match[str]) -> str:
        block = found[1] == "div"
        source = LETTER.sub(r"\\\1{\2}", html.unescape(found[2]))
        made = convert(source, display="block" if block else "inline")
        made = FUNCTION.sub(r'\1<mspace width="0.17em"/>', made)
        if block:
            return f'<div class="formula">{made}</div>'
        return f'<span class="long-formula">{made}</span>' if len(source) > LONG else made

    return FORMULA.sub(formula, text)


def math_block(source: str, *arguments: Any, **options: Any) -> str:
    """A fenced block of the language `math`, as GitHub shows it."""
    return f'<div class="arithmatex">\\[{html.escape(source)}\\]</div>'


def github_slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", separator)


# The hooks


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Settings that are functions, and the methods in the navigation."""
    from recmix.methods.registry import METHODS

    fence = {"name": "math", "class": "arithmatex", "format": math_block}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    config.mdx_configs["toc"]["slugify"] = github_slug
    methods = next(part["Methods"] for part in config.nav or () if "Methods" in part)
    methods[-1]["Methods"] = [{name: f"methods/{name}.md"} for name in sorted(METHODS)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made: dict[str, str | bytes] = {**method_pages(), **tutorial_pages()}
    own = {f"docs/{page.src_uri}": page.content_string for page in files.documentation_pages()}
    own |= {
        origins[page]: text for page, text in made.items() if page in origins and isinstance(text, str)
    }
    made |= repository_pages(own)
    for address, content in made.items():
        shown = (
            InclusionLevel.NOT_IN_NAV if address.startswith("repository/") else InclusionLevel.UNDEFINED
        )
        files.append(File.generated(config, address, content=content, inclusion=shown))
    return files


def on_page_markdown(markdown: str, page: Any, **more: Any) -> str:
    """Change the links that leave this folder."""
    address = page.file.src_uri
    text = site_links(markdown, origins.get(address, f"docs/{address}"), address)
    return re.sub(r"\((?:FIGURE|FILE):", "(", text)  # marks of `tutorial_pages`: not to be changed above


def on_page_content(html: str, **more: Any) -> str:
    """Formulas as MathML; no line break between a number and its error."""
    return with_mathml(re.sub(r"(\d) ± (\d)", "\\1\u00a0±\u00a0\\2", html))
