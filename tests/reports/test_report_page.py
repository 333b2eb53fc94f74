"""The page: one file, nothing from outside, nothing unescaped, every run in it, and quickly."""

import base64
import gzip
import hashlib
import json
import re
import time

import pytest
from rich.console import Console
from synthetic_store import add_run, fill, write

from recmix.errors import ConfigError, RunError
from recmix.reports.page import report
from recmix.reports.write import FORMS, write_report

NASTY = "<img src=x onerror=alert(1)>'\"</script><script>alert(2)</script>&amp;"


def packs(text):
    """What the page has packed, by the name of the pack."""
    found = re.findall(r'<script type="application/octet-stream" id="([^"]+)">([^<]*)</script>', text)
    return {name: json.loads(gzip.decompress(base64.b64decode(packed))) for name, packed in found}


def made(tmp_path, store, **more):
    return report(store, tmp_path / "report.html", **more).path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    fill(folder / "store", sets=("mnist",), dims=(20,), splits=6, restarts=2)
    return folder, made(folder, folder / "store")


def test_it_is_one_file_that_needs_no_network(small):
    _, text = small
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!data:|#)\w""", text)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text.replace("`url(#${clip})`", ""))
    assert "fetch(" not in text
    assert "default-src 'none'" in text


def test_only_its_own_script_may_run(small):
    _, text = small
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert not re.search(r"<[^>]+\son\w+=", text)


def test_every_run_has_its_spec_environment_and_log(small):
    _, text = small
    found = packs(text)
    runs = found["index"]["runs"]
    details = [d for name, pack in found.items() if name.startswith("pack-") for d in pack]
    assert len(details) == len(runs) == 22 * 6 * 2
    for run, detail in zip(runs, details, strict=True):
        assert detail["spec"]["format"] == 1
        assert detail["environment"][0]["torch"] == "2.13.0"
        assert detail["job"]["digest"] == run[0]
        assert '"event": "start"' in detail["log"][0][0]


def test_selected_runs_have_curves(small):
    _, text = small
    index = packs(text)["index"]
    chosen = [i for i, run in enumerate(index["runs"]) if run[9]]
    assert len(chosen) == 22 * 6
    assert sorted(map(int, index["curves"])) == chosen


def test_the_same_store_gives_the_same_page(small):
    folder, text = small
    assert made(folder, folder / "store") == text


def test_everything_is_escaped(tmp_path):
    store = tmp_path / "store"
    folder = add_run(store, NASTY, 5, data=NASTY, name="<b>bold")
    status = json.loads((folder / "status.json").read_text())
    write(folder / "status.json", status | {"reason": NASTY})
    (folder / "log.txt").write_text(NASTY)
    (store / "<i>broken<").mkdir()
    (store / "figures").mkdir()
    (store / "figures" / "<u>x.png").write_bytes(b"png")
    text = made(tmp_path, store)
    for bad in ("<img src=x", "<b>bold", "<i>broken", "<u>x", "<script>alert"):
        assert bad not in text
    assert "&lt;i&gt;broken&lt;" in text
    assert text.count("<script>") == 1
    assert packs(text)["pack-0"][0]["reason"] == NASTY


def test_broken_folders_are_listed_and_the_rest_is_reported(tmp_path):
    store = tmp_path / "store"
    add_run(store, name="good")
    for i in range(300):
        (store / f"broken{i:03}").mkdir()
    text = made(tmp_path, store)
    assert "broken000: does not hold a run" in text
    assert "and 100 more" in text
    assert len(packs(text)["index"]["runs"]) == 1


def test_numbers_that_json_does_not_have(tmp_path):
    folder = add_run(tmp_path / "store", name="a")
    (folder / "scores.json").write_text('{"test/100": {"iwae": NaN, "elbo": -Infinity, "batch": 128}}')
    text = made(tmp_path, tmp_path / "store")
    assert packs(text)["pack-0"][0]["scores"]["test/100"] == {
        "iwae": "nan",
        "elbo": "-inf",
        "batch": 128,
    }
    assert "No finished run has a score" in text


def test_figures_are_embedded(tmp_path):
    add_run(tmp_path / "store", name="a")
    figures = tmp_path / "store" / "figures"
    figures.mkdir()
    (figures / "figure_one.png").write_bytes(b"\x89PNG")
    (figures / "moves.gif").write_bytes(b"GIF89a")
    text = made(tmp_path, tmp_path / "store")
    assert "data:image/png;base64," in text
    assert "<figcaption>Figure one</figcaption>" in text
    assert "data:image/gif" in text
    other = tmp_path / "other.svg"
    other.write_text("<svg/>")
    text = made(tmp_path, tmp_path / "store", figures={"A & B": other, "gone": tmp_path / "missing.png"})
    assert "data:image/svg+xml" in text
    assert "<figcaption>A &amp; B</figcaption>" in text
    assert "missing.png: could not read it" in text
    assert "figure_one" not in text


def test_a_page_that_cannot_be_made(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds no runs yet"):
        report(tmp_path / "empty", tmp_path / "r.html")
    add_run(tmp_path / "store", name="a")
    with pytest.raises(RunError, match="is a folder"):
        report(tmp_path / "store", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not make the folder"):
        report(tmp_path / "store", tmp_path / "file" / "r.html")


def test_a_thousand_runs_in_a_second_or_so(tmp_path):
    # The target is 10,000 runs in ten seconds; this is a tenth of it with room for a busy machine.
    store = tmp_path / "store"
    count = fill(store, sets=("mnist",), dims=(10, 20), splits=5, restarts=5)
    assert count >= 1000
    start = time.process_time()
    written = report(store, tmp_path / "r.html")
    assert time.process_time() - start < 2.5
    assert written.size < 1200 * count  # bytes a run, everything included


# --- the command's function ------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    for split in range(6):
        add_run(tmp_path / "store", "RME", 5, split=split, name=f"a{split}", test=5.0 + split)
        add_run(tmp_path / "store", "VAE+", None, split=split, name=f"b{split}", test=4.0)
    (tmp_path / "store" / "broken").mkdir()
    return tmp_path / "store"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_to_a_file(store, tmp_path, form, capsys):
    out = tmp_path / "out.txt"
    assert write_report(store, out=out, form=form, holm=True) == out
    text = out.read_text()
    assert "RME" in text
    assert "Holm" in text
    printed = capsys.readouterr()
    assert "12 runs reported in" in printed.out
    assert "broken: does not hold a run" in printed.err


@pytest.mark.parametrize("form", FORMS[1:])
def test_text_goes_to_the_terminal(store, form, capsys):
    wide = Console(width=200)
    assert write_report(store, form=form, console=wide) is None
    text = capsys.readouterr().out
    start = {"markdown": "## Test log-likelihood", "latex": r"\documentclass", "terminal": "Test log-"}
    assert text.startswith(start[form])


def test_html_has_a_usual_name(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert write_report(store).name == "report.html"
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o644


def test_wrong_words(store):
    with pytest.raises(ConfigError, match="did you mean 'html'"):
        write_report(store, form="htm")
    with pytest.raises(ConfigError, match="positive"):
        write_report(store, samples=0)
    with pytest.raises(RunError, match="does not exist"):
        write_report(store / "nowhere")


def test_other_samples(store, tmp_path):
    add_run(store, "RME", 5, split=9, samples=5000, test=77.0, name="k")
    out = tmp_path / "r.md"
    write_report(store, out=out, form="markdown", samples=5000)
    assert "IWAE-5000" in out.read_text()
    assert "77.00" in out.read_text()
