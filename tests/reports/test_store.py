"""Reading a store: each folder becomes a record, or a message if it cannot be read."""

import json
import os
import subprocess
import sys

import pytest
from cases.reports import add_run, fill, write

from recmix.errors import RunError
from recmix.reports.read_store import CURVE_POINTS, read_store
from recmix.reports.records import Row, TableColumn
from recmix.reports.store_files import LOG_HEAD, LOG_TAIL
from recmix.runs.spec import FORMAT


def change(path, **values):
    write(path, json.loads(path.read_text()) | values)


def messages(store):
    return dict(problem.split(": ", 1) for problem in read_store(store).problems)


def test_reports_do_not_import_torch():
    code = (
        "import sys, pkgutil, importlib, recmix.reports as r\n"
        "for m in pkgutil.iter_modules(r.__path__, 'recmix.reports.'): importlib.import_module(m.name)\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_store_is_read_into_records(tmp_path):
    count = fill(tmp_path, sets=("mnist",), dims=(20,), splits=2, restarts=2)
    found = read_store(tmp_path)
    assert len(found.records) == count
    assert not found.problems
    record = next(r for r in found.records if r.row == Row("RME", 5) and (r.split, r.restart) == (1, 1))
    assert record.column == TableColumn(data="mnist", latent=20)
    assert record.status == "done"
    assert record.score("test/100", "iwae") == pytest.approx(945, abs=10)
    assert record.score("test/5000", "iwae") is None
    assert record.environment[0]["torch"] == "2.13.0"
    assert record.continued


def test_spec_gives_row_and_column_without_a_job(tmp_path):
    add_run(tmp_path, "RME", 5, split=3, restart=2, job=False, name="a")
    add_run(tmp_path, "VAE", None, job=False, name="b")
    add_run(tmp_path, "VAE+", None, job=False, name="c", decoder_network="dense")
    found = {r.folder: r for r in read_store(tmp_path).records}
    assert (found["a"].row, found["a"].split, found["a"].restart) == (Row("RME", 5), 3, 2)
    assert found["b"].row == Row("VAE")
    assert not found["b"].continued
    assert found["c"].row == Row("VAE+")
    assert found["c"].column.title == "MNIST, dense decoder"


def test_label_and_setting_of_the_job_replace_those_of_the_spec(tmp_path):
    folder = add_run(tmp_path, "RME", 5, name="a")
    job = json.loads((folder / "job.json").read_text())
    write(folder / "job.json", job | {"label": "RME-jitter", "setting": None})
    assert read_store(tmp_path).records[0].row == Row("RME-jitter", None)


def test_job_cannot_make_another_run_the_control(tmp_path):
    folder = add_run(tmp_path, "VAE+ objective=iwae", None, name="a", method="vae")
    change(folder / "job.json", label="VAE+")
    assert read_store(tmp_path).records[0].row == Row("VAE+ objective=iwae")
    change(folder / "spec.json", label="VAE+")
    assert read_store(tmp_path).records[0].row == Row("VAE+")


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda f: (f / "spec.json").write_text('{"method": "rme", '), "not readable JSON"),
        (lambda f: (f / "spec.json").write_text(""), "not readable JSON"),
        (lambda f: (f / "spec.json").write_bytes(b"\xff\xfe\x00"), "not readable JSON"),
        (lambda f: (f / "spec.json").write_text("[" * 100_000), "not readable JSON"),
        (lambda f: (f / "spec.json").write_text("[1, 2]"), "not the spec of a run"),
        (lambda f: write(f / "spec.json", {"format": FORMAT, "method": "rme"}), "incomplete or damaged"),
        (lambda f: write(f / "spec.json", {"format": 1, "method": "rme"}), "reads format 2"),
        (lambda f: change(f / "spec.json", data=[1]), "data must be an object"),
        (lambda f: change(f / "spec.json", inference={"refine": -1}), "refine must be at least 0"),
        (lambda f: (f / "job.json").unlink() or change(f / "spec.json", label=""), "'' as label"),
        (lambda f: write(f / "spec.json", {"format": FORMAT + 1, "method": "x"}), "upgrade recmix"),
        (lambda f: write(f / "job.json", {"label": 3, "data": "mnist"}), "as label: expected str"),
        (lambda f: write(f / "job.json", {"latent": "20; rm"}), "as latent: expected int"),
        (lambda f: [(f / n).unlink() for n in ("spec.json", "job.json")], "half written"),
        (lambda f: (f / "spec.json").rename(f / "x") and os.mkfifo(f / "spec.json"), "not a plain file"),
    ],
)
def test_broken_folder_gets_a_message_and_the_others_are_read(tmp_path, break_it, says):
    add_run(tmp_path, name="good")
    break_it(add_run(tmp_path, name="broken", split=1))
    assert [r.folder for r in read_store(tmp_path).records] == ["good"]
    found = messages(tmp_path)
    assert list(found) == ["broken"]
    assert says in found["broken"]


@pytest.mark.parametrize("name", ["status.json", "history.json", "scores.json", "failed.json"])
@pytest.mark.parametrize("content", ["{", "null", "3", '"text"', "[[]]", '{"test/100": 4}'])
def test_run_is_read_without_its_damaged_file(tmp_path, name, content):
    folder = add_run(tmp_path, name="a")
    (folder / name).write_text(content)
    assert [r.folder for r in read_store(tmp_path).records] == ["a"]


def test_numbers_that_are_not_finite_become_none(tmp_path):
    folder = add_run(tmp_path, name="a")
    history = '[{"epoch": 1, "val_iwae": NaN}, {"epoch": 2, "val_iwae": 3.5, "elbo": null}]'
    (folder / "history.json").write_text(history)
    (folder / "scores.json").write_text('{"test/100": {"iwae": Infinity, "batch": 1e999}}')
    (folder / "status.json").write_text('{"status": "done", "best_validation": "high"}')
    record = read_store(tmp_path).records[0]
    assert record.curve == {"epoch": [1, 2], "val_iwae": [None, 3.5], "elbo": [None, None]}
    assert record.score("test/100", "iwae") is None
    assert record.validation == 3.5  # from the history, as the status has none


def test_links_are_not_followed(tmp_path):
    store, outside = tmp_path / "store", tmp_path / "outside"
    add_run(outside, name="secret")
    add_run(store, name="good")
    (store / "escape").symlink_to(outside / "secret")
    (store / "up").symlink_to("../outside", target_is_directory=True)
    folder = add_run(store, name="half", split=1)
    (folder / "log.txt").symlink_to("/etc/passwd")
    (folder / "scores.json").unlink()
    (folder / "scores.json").symlink_to(outside / "secret" / "scores.json")
    found = read_store(store)
    assert [r.folder for r in found.records] == ["good", "half"]
    assert "not followed" in messages(store)["escape"]
    assert "not followed" in messages(store)["up"]
    assert "scores.json" in messages(store)["half"]
    assert not found.records[1].scores
    assert "root:" not in str(found.records[1].text)


def test_job_of_another_folder_gets_a_message(tmp_path):
    folder = add_run(tmp_path, name="a")
    job = json.loads((folder / "job.json").read_text())
    write(folder / "job.json", job | {"digest": "../../elsewhere"})
    assert [r.folder for r in read_store(tmp_path).records] == ["a"]
    assert "another folder" in messages(tmp_path)["a"]


def test_folder_name_that_is_not_utf8_is_read(tmp_path):
    add_run(tmp_path, name="a")
    os.rename(tmp_path / "a", os.fsencode(tmp_path) + b"/\xff<b>\n")
    record = read_store(tmp_path).records[0]
    record.folder.encode("utf-8")
    assert "<b>" in record.folder


def test_files_hidden_folders_and_figures_are_not_runs(tmp_path):
    add_run(tmp_path, name="a")
    (tmp_path / ".lock").mkdir()
    (tmp_path / "grid.json").write_text("{}")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "one.png").write_bytes(b"x")
    (tmp_path / "figures" / "notes.txt").write_bytes(b"x")
    found = read_store(tmp_path)
    assert (len(found.records), len(found.problems)) == (1, 0)
    assert [path.name for path in found.figures] == ["one.png"]


def test_failed_run_and_waiting_run_have_their_status(tmp_path):
    folder = add_run(tmp_path, name="a", status="running")
    write(folder / "failed.json", {"reason": "out of memory", "traceback": ""})
    (folder / "log.txt").write_text("Traceback ...\n")
    waiting = tmp_path / "b"
    waiting.mkdir()
    job = {"label": "RME", "setting": 2, "data": "mnist", "latent": 20, "split": 0, "restart": 0}
    write(waiting / "job.json", job)
    failed, new = read_store(tmp_path).records
    assert (failed.status, failed.reason) == ("failed", "out of memory")
    assert failed.text == ["Traceback ..."]
    assert (new.status, new.row) == ("new", Row("RME", 2))


def test_long_logs_and_curves_are_shortened(tmp_path):
    folder = add_run(tmp_path, name="a", epochs=3000)
    record = read_store(tmp_path).records[0]
    assert len(record.log) == LOG_HEAD + 1 + LOG_TAIL
    _, left_out, *words = record.log[LOG_HEAD].split()
    assert words == ["lines", "left", "out", "…"]
    assert int(left_out) == pytest.approx(3001 - LOG_HEAD - LOG_TAIL, rel=0.1)
    assert '"epoch": 3000' in record.log[-1]
    assert len(record.curve["epoch"]) <= CURVE_POINTS + 1
    assert record.curve["epoch"][0] == 1
    assert record.curve["epoch"][-1] == 3000
    assert max(record.curve["val_iwae"]) == pytest.approx(record.validation, abs=1e-3)
    (folder / "log.txt").write_text("x" * 10_000_000)
    assert len(str(read_store(tmp_path).records[0].text)) < 10_000


def test_folder_of_runs_in_a_store_is_named(tmp_path):
    add_run(tmp_path, name="a")
    add_run(tmp_path / "cmp", name="vae")
    add_run(tmp_path / "cmp", name="rme")
    found = read_store(tmp_path)
    assert [record.folder for record in found.records] == ["a"]
    assert found.problems == [
        f"cmp: is a folder of runs (rme, vae), which are left out: give {tmp_path / 'cmp'} itself"
    ]


def test_wrong_folder_is_refused(tmp_path):
    assert not read_store(tmp_path).records
    with pytest.raises(RunError, match="does not exist"):
        read_store(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        read_store(tmp_path / "file")
    folder = add_run(tmp_path / "store", name="a")
    with pytest.raises(RunError, match="folder of one run"):
        read_store(folder)
