"""Tables in the paper's layout and colours, in four forms, with all names escaped."""

import io
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from cases.reports import SETTINGS, add_run, add_scores, fill
from rich.console import Console

from recmix.reports.forms import to_markdown, to_terminal
from recmix.reports.latex import latex_document, to_latex
from recmix.reports.page import TEMPLATES
from recmix.reports.read_store import read_store
from recmix.reports.records import CONTROL, Row, TableColumn
from recmix.reports.statistics import summarise
from recmix.reports.tables import LEVELS, all_tables, gain_table, level_of, likelihood_table, time_table

NASTY = r"<script>alert(1)</script> & $x_1^2$ 50% #{~} \input{/etc/passwd} | `*[a](b)* 中文 é"
MNIST = TableColumn(data="mnist", latent=20)


def to_html(table):
    """The table as the page shows it."""
    return str(TEMPLATES.get_template("table.html").module.draw(table, LEVELS))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    fill(store, sets=("mnist", "omniglot"), dims=(20, 50), splits=7, restarts=1)
    return summarise(read_store(store).records)


def column(tmp_path, **rows):
    """Results of rows given by their scores on each split."""
    for name, values in rows.items():
        label, _, setting = name.partition("_")
        for split, value in enumerate(values):
            label_now = "VAE+" if label == "PLUS" else label
            add_run(
                tmp_path,
                label_now,
                int(setting) if setting else None,
                split=split,
                test=value,
                name=f"{name}-{split}",
            )
    return summarise(read_store(tmp_path).records)


def entry(table, row, i=0):
    return next(line.entries[i] for line in table.lines if line.row == row)


def shown(table, width=200):
    console = Console(file=io.StringIO(), width=width, color_system="truecolor", force_terminal=True)
    console.print(to_terminal(table, width))
    return console.file.getvalue()


def test_colours_are_those_of_the_paper():
    assert LEVELS["best"].colour == "rgb(255,0,0)"
    assert not LEVELS["strong"].colour
    assert LEVELS["weak"].colour == "rgb(255,217,0)"
    assert LEVELS["hint"].colour == "rgb(255,153,0)"
    assert LEVELS["little"].colour == "rgb(255,51,0)"
    limits = {0.0: "strong", 0.01: "strong", 0.0101: "weak", 0.05: "weak", 0.0501: "hint"}
    limits |= {0.1: "hint", 0.101: "little", 1.0: "little"}
    assert {p: level_of(p).name for p in limits} == limits
    assert level_of(None) is None


def test_rows_and_columns_are_those_of_the_paper(results):
    table = likelihood_table(results)
    rows = [str(line.row) for line in table.lines]
    expected = []
    for label, (_, _, settings) in SETTINGS.items():
        expected += [str(Row(label, setting)) for setting in settings]
    assert rows == expected
    assert [title for title, _ in table.groups] == ["MNIST", "OMNIGLOT"]
    assert [c.latent for c in table.columns] == [20, 50, 20, 50]
    assert [line.first for line in table.lines[:7]] == [True, True, True, False, False, False, True]


def test_each_column_has_one_best_row_and_colours_show_p(results):
    table = likelihood_table(results)
    for i, here in enumerate(table.columns):
        entries = [line.entries[i] for line in table.lines]
        assert sum(e.level is LEVELS["best"] for e in entries) == 1
        assert sum(e.bold for e in entries) == 1
        for line in table.lines:
            cell = results.cells[line.row, here]
            if not cell.best:
                assert line.entries[i].level is level_of(cell.versus_best.p)
                assert line.entries[i].p.startswith("p ")


def test_cell_has_the_papers_number_and_the_difference(tmp_path):
    table = likelihood_table(column(tmp_path, VAE=[932.7], PLUS=[940.0], RME_4=[945.0]))
    vae = entry(table, Row("VAE"))
    assert (vae.text, vae.paper, vae.paper_spread, vae.difference) == ("932.7", "930.7", "3.9", "+2.0")
    assert entry(table, Row("RME", 4)).difference == "-0.2"
    assert entry(table, CONTROL).paper == ""


def test_every_table_has_vae_plus_and_a_note_if_it_has_no_score(tmp_path):
    results = column(tmp_path, VAE=[1.0] * 6, RME_5=[2.0] * 6)
    for table in all_tables(results):
        assert CONTROL in [line.row for line in table.lines]
        assert any("VAE+ has no score" in note for note in table.notes)


def test_few_splits_give_a_note_instead_of_colours(tmp_path):
    table = likelihood_table(column(tmp_path, VAE=[1.0] * 5, PLUS=[2.0] * 5, RME_5=[3.0] * 5))
    assert not table.coloured
    assert all(e.level is None and e.p in ("", "best") for line in table.lines for e in line.entries)
    assert entry(table, Row("RME", 5)).bold
    assert any("fewer than 6 splits" in note and "MNIST, dim 20 (5)" in note for note in table.notes)
    assert "color{" not in to_latex(table).replace("color{gray}", "")
    assert "38;2" not in shown(table)
    assert "level-" not in to_html(table)


def test_note_says_that_six_splits_cannot_reach_one_percent(tmp_path):
    results = column(tmp_path, VAE=[1.0 + s for s in range(6)], PLUS=[9.0 + 2 * s for s in range(6)])
    table = likelihood_table(results)
    assert entry(table, Row("VAE")).level is LEVELS["weak"]
    assert any("above 0.01" in note and "0.016" in note for note in table.notes)


def test_notes_list_incomplete_rows(tmp_path):
    for split in range(6):
        add_run(tmp_path, "VAE+", None, split=split, test=1.0 + split)
        if split:
            add_run(tmp_path, "VAE", None, split=split, test=0.5)
    add_run(tmp_path, "RME", 5, split=0, status="running")
    (add_run(tmp_path, "RME", 5, split=1) / "scores.json").unlink()
    notes = " ".join(likelihood_table(summarise(read_store(tmp_path).records)).notes)
    assert "VAE on MNIST, dim 20 (5 of 6)" in notes
    assert "without a finite test score" in notes
    assert "RME(5) on MNIST, dim 20 (split 1)" in notes
    assert "not done are left out: 1." in notes


EPOCHS = (
    "Trained for different numbers of epochs: MNIST, dim 20 (VAE+ 4, RESIDUAL 3). Gains over VAE+ are "
    "comparable only for the same number."
)


def test_note_names_other_numbers_of_epochs(tmp_path):
    add_run(tmp_path, "VAE", None, epochs=200)  # the start of the others
    add_run(tmp_path, "VAE+", None, epochs=4)
    add_run(tmp_path, "RME", 5, epochs=3, training={"epochs": 4})  # stopped early
    folder = add_run(tmp_path, "RESIDUAL", None, epochs=3)
    add_scores(folder, inference={"refine": 2}, iwae=946.0)
    add_run(tmp_path, "RESIDUAL", None, epochs=5, data="omniglot")  # without a control
    results = summarise(read_store(tmp_path).records)
    for table in (likelihood_table(results), gain_table(results)):
        assert [note for note in table.notes if "epochs" in note] == [EPOCHS]
        for form in (to_markdown(table), to_html(table), " ".join(shown(table, 400).split())):
            assert EPOCHS in form.replace("\\", "")
    assert not any("epochs" in note for note in time_table(results).notes)


def test_no_note_if_the_numbers_of_epochs_are_equal(tmp_path):
    add_run(tmp_path, "VAE", None, epochs=200)
    add_run(tmp_path, "VAE+", None, epochs=4)
    add_run(tmp_path, "RESIDUAL", None, epochs=4)
    table = gain_table(summarise(read_store(tmp_path).records))
    assert not any("epochs" in note for note in table.notes)


def test_note_has_no_more_than_six_rows(tmp_path):
    add_run(tmp_path, "VAE+", None, epochs=9)
    for order in range(2, 10):
        add_run(tmp_path, "RME", order, epochs=order)
    (note,) = (n for n in gain_table(summarise(read_store(tmp_path).records)).notes if "epochs" in n)
    assert "(VAE+ 9, RME(2) 2, RME(3) 3, RME(4) 4, RME(5) 5, RME(6) 6 and 2 more)" in note


def test_gains_are_differences_from_vae_plus(tmp_path):
    results = column(
        tmp_path,
        VAE=[1.0] * 8,
        PLUS=[float(s) for s in range(8)],
        RME_5=[2.0 + s + s / 50 for s in range(8)],
    )
    table = gain_table(results)
    gain = entry(table, Row("RME", 5))
    assert (gain.text, gain.spread, gain.p, gain.more) == (
        "+2.07",
        "[+2.03, +2.11]",
        "p = 0.0039",
        "r = 1.00",
    )
    assert gain.bold
    assert not entry(table, Row("VAE")).bold
    assert entry(table, CONTROL).text == "control"


def test_times_are_shown_as_in_the_paper(tmp_path):
    for split in range(2):
        add_run(tmp_path, "RME", 5, split=split, latent=50, milliseconds=0.15 + split / 100)
        add_run(tmp_path, "SA", 8, split=split, latent=50, milliseconds=16.0, device="cpu")
    add_run(tmp_path, "VAE+", None, split=0, latent=50, batch=100)
    table = time_table(summarise(read_store(tmp_path).records))
    fast = entry(table, Row("RME", 5))
    assert (fast.text, fast.spread, fast.paper, fast.difference) == ("0.155", "0.007", "4.8", "-4.6")
    assert entry(table, Row("SA", 8)).text == "16.0"
    assert entry(table, CONTROL).text == "–"
    notes = " ".join(table.notes)
    assert "batch of 128" in table.title
    assert "NVIDIA H200; cpu" in notes or "cpu; NVIDIA H200" in notes
    assert "cannot be compared" in notes
    assert "(100)" in notes


def test_small_scores_have_two_decimals(tmp_path):
    more = {"data": "binary-mnist", "latent": 50, "likelihood": "bernoulli"}
    add_run(tmp_path, "RME", 4, test=-82.891, **more)
    table = likelihood_table(summarise(read_store(tmp_path).records))
    best = entry(table, Row("RME", 4))
    assert (best.text, best.paper, best.difference) == ("-82.89", "-83.09", "+0.20")
    assert table.columns[0].title == "Binary MNIST"


# --- forms -----------------------------------------------------------------------------------------


def test_terminal_shows_colours_p_and_the_papers_numbers(results):
    text = shown(likelihood_table(results))
    assert "38;2;255;51;0" in text  # red-orange
    assert re.search(r"1;38;2;255;0;0m945", text)  # the best, bold and red
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "p = 0.0078" in plain
    assert "930.7 (" in plain


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_narrow_terminal_cuts_nothing_off(results, width):
    for table in all_tables(results):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown(table, width))
        assert "…" not in plain
        for line in table.lines:
            assert all(entry.text in plain for entry in line.entries)


def test_wide_letters_in_row_names_are_within_the_terminal(tmp_path):
    for latent in (2, 5, 10):
        add_run(tmp_path, "中" * 24, 5, latent=latent, test=100.0, name=f"a{latent}")
    table = likelihood_table(summarise(read_store(tmp_path).records))
    assert "…" not in shown(table, 80)


def test_markdown_rows_have_equal_length(results):
    lines = to_markdown(likelihood_table(results)).splitlines()
    head = lines.index("| method | dim 20 | paper (difference) | dim 50 | paper (difference) |")
    widths = {line.count("|") for line in lines[head : head + 24]}
    assert widths == {6}
    assert re.search(r"\*\*945\.\d\*\* ± \d\.\d \(best\)", "\n".join(lines))


class Cells(HTMLParser):
    """Counts the columns of each row, and the tags."""

    def __init__(self):
        super().__init__()
        self.rows, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += int(dict(attrs).get("colspan", 1))


def test_html_is_complete_and_has_p_as_text(results):
    text = to_html(likelihood_table(results))
    cells = Cells()
    cells.feed(text)
    assert set(cells.rows[3:]) == {9}
    assert cells.rows[0] == 9
    assert cells.rows[1] == cells.rows[2] == 8  # the first column spans the head
    assert "<caption>" in text
    assert text.count('aria-sort="ascending"') == 1
    assert text.count('class="sort"') == 9
    assert "p = 0.0078" in text
    assert 'class="edge level-best"' in text


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    store = tmp_path_factory.mktemp("nasty")
    for split in range(6):
        add_run(store, NASTY, 5, data=NASTY, split=split, test=5.0 + split, name=f"a{split}", job=True)
        add_run(store, "VAE", None, data=NASTY, split=split, test=1.0, name=f"b{split}")
    return summarise(read_store(store).records)


def test_names_are_escaped(nasty):
    for table in all_tables(nasty):
        assert "<script" not in to_html(table)
        assert "&lt;script&gt;" in to_html(table)
        markdown = to_markdown(table)
        assert "<script" not in markdown
        assert "](b)" not in markdown.replace(r"\](b)", "")
        latex = to_latex(table)
        assert r"\input" not in latex
        assert r"\textbackslash{}input\{" in latex
        assert latex.isascii()
        assert "<script>alert(1)</script>" in shown(table, width=400)


def test_latex_is_balanced(results, nasty):
    for table in (*all_tables(results), *all_tables(nasty)):
        text = to_latex(table)
        assert text.count(r"\begin{") == text.count(r"\end{")
        plain = re.sub(r"\\[{}\\]", "", text)
        assert plain.count("{") == plain.count("}")
        body = text[text.index(r"\hline\hline") : text.index(r"\bottomrule")]
        columns = {re.sub(r"\\&", "", row).count("&") for row in body.splitlines()[1:]}
        assert len(columns) == 1


def test_latex_has_an_en_dash(results):
    table = replace(likelihood_table(results), title="2–5 steps--or more")
    assert r"\caption{2\textendash{}5 steps-{}-or more." in to_latex(table)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path, results, nasty):
    tables = [*all_tables(results), *all_tables(nasty)]
    (tmp_path / "t.tex").write_text(latex_document(tables))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "t.tex"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert (tmp_path / "t.pdf").stat().st_size > 10_000


def test_empty_store_gives_empty_tables():
    for table in all_tables(summarise([])):
        assert len(table.lines) == 1
        to_html(table)
        to_markdown(table)
        shown(table)
