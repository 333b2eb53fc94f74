"""Write the notebooks of docs/tutorials from the scripts beside them.

python docs/notebooks.py               # run every tutorial, and write its notebook with all outputs
python docs/notebooks.py first_mixture # only this one
python docs/notebooks.py --check       # fail if the cells of a notebook are not those of its script

The scripts are in jupytext's percent format. The cells are executed in this process, without a kernel:
what they print and the figures that are open after a cell become its outputs.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import sys
from pathlib import Path

import jupytext
import nbformat

TUTORIALS = Path(__file__).resolve().parent / "tutorials"


def read_script(script: Path) -> nbformat.NotebookNode:
    """The notebook of a script, without outputs."""
    notebook = jupytext.read(script)
    notebook.metadata.pop("jupytext", None)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same for every run
        cell["metadata"] = {}
    return notebook


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run the code cells, and store their outputs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names: dict[str, object] = {"__name__": "__main__"}
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell.source, f"<cell {number}>", "exec", dont_inherit=True), names)
        cell["execution_count"] = number
        if printed.getvalue():
            cell["outputs"].append(
                nbformat.v4.new_output("stream", name="stdout", text=printed.getvalue())
            )
        for figure in map(pyplot.figure, pyplot.get_fignums()):
            drawn = io.BytesIO()
            figure.savefig(drawn, dpi=90, metadata={"Software": None})
            data = {"image/png": base64.b64encode(drawn.getvalue()).decode()}
            cell["outputs"].append(nbformat.v4.new_output("display_data", data=data))
        pyplot.close("all")


def in_step(script: Path) -> bool:
    """Whether the notebook of a script exists and has the script's cells."""
    path = script.with_suffix(".ipynb")
    if not path.exists():
        return False
    pairs = [
        [(cell.cell_type, cell.source) for cell in notebook.cells]
        for notebook in (nbformat.read(path, as_version=4), read_script(script))
    ]
    return pairs[0] == pairs[1]


def main() -> None:
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    scripts = [TUTORIALS / f"{name}.py" for name in wanted] or sorted(TUTORIALS.glob("*.py"))
    if "--check" in sys.argv:
        stale = [script.stem for script in scripts if not in_step(script)]
        print("not in step:" if stale else "all notebooks are in step", *stale)
        sys.exit(bool(stale))
    os.chdir(TUTORIALS)
    for script in scripts:
        notebook = read_script(script)
        execute(notebook)
        nbformat.write(notebook, script.with_suffix(".ipynb"))
        print("wrote", script.with_suffix(".ipynb").name)


if __name__ == "__main__":
    main()
