"""The report page: one file, no network, everything escaped, every run in it, written fast."""

import base64
import gzip
import hashlib
import json
import re
import time

import pytest
from cases.reports import add_run, fill, write
from rich.console import Console

from recmix.errors import ConfigError, RunError
from recmix.pages import SHARED, shared_text
from recmix.reports import page
from recmix.reports.write_report import FORMS, write_report

NASTY = "<img src=x onerror=alert(1)>'\"</script><script>alert(2)</script>&amp;"


def packs(text):
    """Return the decompressed data of the page, by the id of their element."""
    found = re.findall(r'<script type="application/octet-stream" id="([^"]+)">([^<]*)</script>', text)
    return {name: json.loads(gzip.decompress(base64.b64decode(packed))) for name, packed in found}


def page_text(tmp_path, store):
    return write_report(store, out=tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    fill(folder / "store", sets=("mnist",), dims=(20,), splits=6, restarts=2)
    return folder, page_text(folder, folder / "store")


def test_page_is_one_file_that_loads_nothing(small):
    _, text = small
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!data:|#)\w""", text)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text.replace("`url(#${clip})`", ""))
    assert "fetch(" not in text
    assert "default-src 'none'" in text


def test_page_contains_the_shared_files(small):
    _, text = small
    for name in SHARED:
        assert text.count(shared_text(name)) == 1


def test_policy_allows_only_its_own_script(small):
    _, text = small
    script = re.search(r'<script type="module">(.*?)</script>', text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert not re.search(r"<[^>]+\son\w+=", text)


def test_details_of_every_run_have_spec_environment_and_log(small):
    _, text = small
    found = packs(text)
    runs = found["index"]["runs"]
    details = [d for name, pack in found.items() if name.startswith("pack-") for d in pack]
    assert len(details) == len(runs) == 22 * 6 * 2
    for run, detail in zip(runs, details, strict=True):
        assert detail["spec"]["format"] == 2
        assert detail["environment"][0]["torch"] == "2.13.0"
        assert detail["job"]["digest"] == run[0]
        assert '"event": "start"' in detail["log"][0]


def test_selected_runs_have_curves(small):
    _, text = small
    index = packs(text)["index"]
    chosen = [i for i, run in enumerate(index["runs"]) if run[9]]
    assert len(chosen) == 22 * 6
    assert sorted(map(int, index["curves"])) == chosen


def test_run_has_the_score_of_its_own_inference(tmp_path):
    folder = add_run(tmp_path / "store", name="a", test=5.0)
    spec = json.loads((folder / "spec.json").read_text())
    write(folder / "spec.json", spec | {"inference": {**spec["inference"], "refine": 2}})
    plain = json.loads((folder / "scores.json").read_text())["test/100"]
    inference = "gauss-newton,refine=2,reuse=2,restarts=1,checks=1"
    scores = {"test/100": plain, f"test/100/{inference}": plain | {"iwae": 7.5, "milliseconds": 3.0}}
    write(folder / "scores.json", scores)
    found = packs(page_text(tmp_path, tmp_path / "store"))
    assert found["index"]["runs"][0][7:9] == [7.5, 3]
    assert found["pack-0"][0]["inference"] == inference


def test_same_store_gives_same_page(small):
    folder, text = small
    assert page_text(folder, folder / "store") == text


def test_text_from_the_store_is_escaped(tmp_path):
    store = tmp_path / "store"
    folder = add_run(store, NASTY, 5, data=NASTY, name="<b>bold")
    status = json.loads((folder / "status.json").read_text())
    write(folder / "status.json", status | {"reason": NASTY})
    (folder / "log.txt").write_text(NASTY)
    (store / "<i>broken<").mkdir()
    (store / "figures").mkdir()
    (store / "figures" / "<u>x.png").write_bytes(b"png")
    text = page_text(tmp_path, store)
    for bad in ("<img src=x", "<b>bold", "<i>broken", "<u>x", "<script>alert"):
        assert bad not in text
    assert "&lt;i&gt;broken&lt;" in text
    assert text.count('<script type="module">') == 1
    assert "<script>" not in text
    assert packs(text)["pack-0"][0]["reason"] == NASTY


def test_broken_folders_are_listed_and_other_runs_reported(tmp_path):
    store = tmp_path / "store"
    add_run(store, name="good")
    for i in range(300):
        (store / f"broken{i:03}").mkdir()
    text = page_text(tmp_path, store)
    assert "broken000: does not hold a run" in text
    assert "and 100 more" in text
    assert len(packs(text)["index"]["runs"]) == 1


def test_nan_and_infinity_become_text(tmp_path):
    folder = add_run(tmp_path / "store", name="a")
    (folder / "scores.json").write_text('{"test/100": {"iwae": NaN, "elbo": -Infinity, "batch": 128}}')
    text = page_text(tmp_path, tmp_path / "store")
    assert packs(text)["pack-0"][0]["scores"]["test/100"] == {
        "iwae": "nan",
        "elbo": "-inf",
        "batch": 128,
    }
    assert "No finished run has a test score" in text


def test_figures_are_embedded(tmp_path, monkeypatch):
    add_run(tmp_path / "store", name="a")
    figures = tmp_path / "store" / "figures"
    figures.mkdir()
    (figures / "figure_one.png").write_bytes(b"\x89PNG")
    (figures / "moves.gif").write_bytes(b"GIF89a")
    text = page_text(tmp_path, tmp_path / "store")
    assert "data:image/png;base64," in text
    assert "<figcaption>Figure one</figcaption>" in text
    assert "data:image/gif" in text
    (figures / "A & B.svg").write_text("<svg/>")
    monkeypatch.setattr(page, "MAX_FIGURE_BYTES", 5)
    text = page_text(tmp_path, tmp_path / "store")
    assert "data:image/svg+xml" not in text
    assert "A &amp; B.svg: 6 bytes, too large for the page: left out" in text
    monkeypatch.undo()
    text = page_text(tmp_path, tmp_path / "store")
    assert "data:image/svg+xml" in text
    assert "<figcaption>A &amp; B</figcaption>" in text


def test_errors_say_why_no_page_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds no runs yet"):
        write_report(tmp_path / "empty", out=tmp_path / "r.html")
    add_run(tmp_path / "store", name="a")
    with pytest.raises(RunError, match="is a folder"):
        write_report(tmp_path / "store", out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not create the folder"):
        write_report(tmp_path / "store", out=tmp_path / "file" / "r.html")


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_written_if_no_run_is_found(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    for name in "abcdef":
        (tmp_path / name).mkdir()
    add_run(tmp_path / "runs", name="vae")
    before = tmp_path / "report.html"
    before.write_text("an earlier report")
    with pytest.raises(RunError, match="has no run that can be read") as raised:
        write_report(".", form=form)
    assert "(runs: is a folder of runs (vae), which are left out: give " in str(raised.value)
    assert str(raised.value).endswith(
        "d: does not hold a run (no spec.json in it), or is only half written; and 2 more)"
    )
    assert before.read_text() == "an earlier report"


def test_thousand_runs_take_seconds(tmp_path):
    # The target is 10,000 runs in 10 seconds. This is a tenth of the runs, with time for a busy machine.
    store = tmp_path / "store"
    count = fill(store, sets=("mnist",), dims=(10, 20), splits=5, restarts=5)
    assert count >= 1000
    start = time.process_time()
    written = write_report(store, out=tmp_path / "r.html")
    assert time.process_time() - start < 2.5
    assert written.stat().st_size < 1200 * count  # bytes per run of the whole file


# --- recmix report ---------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    for split in range(6):
        add_run(tmp_path / "store", "RME", 5, split=split, name=f"a{split}", test=5.0 + split)
        add_run(tmp_path / "store", "VAE+", None, split=split, name=f"b{split}", test=4.0)
    (tmp_path / "store" / "broken").mkdir()
    return tmp_path / "store"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_written_to_a_file(store, tmp_path, form, capsys):
    out = tmp_path / "out.txt"
    assert write_report(store, out=out, form=form, holm=True) == out
    text = out.read_text()
    assert "RME" in text
    assert "Holm" in text
    printed = capsys.readouterr()
    assert "12 runs reported in" in printed.out
    assert "broken: does not hold a run" in printed.err


@pytest.mark.parametrize("form", FORMS[1:])
def test_text_forms_are_printed_without_a_file(store, form, capsys):
    wide = Console(width=200)
    assert write_report(store, form=form, console=wide) is None
    text = capsys.readouterr().out
    start = {"markdown": "## Test log-likelihood", "latex": r"\documentclass", "terminal": "Test log-"}
    assert text.startswith(start[form])


def test_html_is_written_to_report_html_by_default(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert write_report(store).name == "report.html"
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o644


def test_wrong_arguments_raise_errors(store):
    with pytest.raises(ConfigError, match="did you mean 'html'"):
        write_report(store, form="htm")
    with pytest.raises(ConfigError, match="positive"):
        write_report(store, samples=0)
    with pytest.raises(RunError, match="does not exist"):
        write_report(store / "nowhere")


def test_samples_choose_the_scores(store, tmp_path):
    add_run(store, "RME", 5, split=9, samples=5000, test=77.0, name="k")
    out = tmp_path / "r.md"
    write_report(store, out=out, form="markdown", samples=5000)
    assert "IWAE-5000" in out.read_text()
    assert "77.00" in out.read_text()
