"""The summary of a store: kinds of inference, gains over VAE+, and the file of runs."""

import json
import subprocess
import sys

import pytest
from cases.commands import call
from cases.reports import add_run, add_scores
from PIL import Image

from recmix.errors import RunError
from recmix.reports.forms import to_markdown
from recmix.reports.latex import latex_document
from recmix.reports.read_store import read_store
from recmix.reports.records import Row
from recmix.reports.runs import read_runs, write_runs
from recmix.reports.statistics import control_of, summarise
from recmix.reports.summary import gains, panels, summary, to_json
from recmix.reports.tables import all_tables
from recmix.reports.write_report import write_report

GAINS = {"VAE": -10.0, "VAE+": 0.0, "RME": 1.0, "REFINED": 90.0, "RESIDUAL": 60.0, "SA": 40.0}
MORE = {"VAE+": {2: 30.0, 4: 35.0}, "RESIDUAL": {2: 100.0, 4: 105.0}}


def add(store, label, split, *, data="mnist", latent=20, base=940.0):
    """A run with the scores that a run of the frontier's grid has."""
    value = base + 0.5 * split + GAINS[label] + 0.01 * split * len(label)
    inference = {"refine": 2} if label == "REFINED" else {}
    folder = add_run(
        store,
        label,
        {"RME": 5, "SA": 4}.get(label),
        data=data,
        latent=latent,
        split=split,
        test=value,
        milliseconds=0.3 + 0.01 * split,
        epochs=7,
        name=f"{label.lower()}-{data}-{latent}-{split}",
        method="vae" if label == "REFINED" else None,
        inference=inference,
    )
    add_scores(folder, part="val", samples=5, inference=inference, iwae=value - 10)
    for steps, gain in MORE.get(label, {}).items():
        refined, bound = {"refine": steps}, base + 0.5 * split + gain
        add_scores(folder, inference=refined, iwae=bound, milliseconds=3.0 * steps)
        add_scores(folder, part="val", samples=5, inference=refined, iwae=bound - 10)
    return folder


def add_gap(folder, total=12.0, **inference):
    """Write the gap of a run, measured with this inference."""
    part = {"total": {"mean": total, "se": 3.0}, "log_evidence": {"mean": 1012.0, "se": 2.0}}
    inference = {"checks": 1, **inference}
    gap = {"inference": inference, "samples": 9, "summary": {"test": part}, "images": {"test": [1] * 9}}
    (folder / "gap.json").write_text(json.dumps(gap))


def summarised(store):
    return summary(read_store(store).records)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores") / "frontier"
    for split in range(5):
        for label in GAINS:
            add(root, label, split)
        add(root, "VAE+", split, latent=50, base=1190.0)
    add_gap(root / "residual-mnist-20-0", 12.0, refine=0)
    add_gap(root / "residual-mnist-20-1", 14.0, refine=0)
    return root


@pytest.fixture(scope="module")
def rows(store):
    return summarised(store)


def row(rows, name, dim=20):
    return next(r for r in rows if (r["row"], r["dim"]) == (name, dim))


def test_kind_and_steps_come_from_the_score(rows):
    kinds = {r["row"]: (r["kind"], r["steps"]) for r in rows if r["dim"] == 20}
    assert kinds == {
        "VAE": ("encoder", 0),
        "VAE+": ("encoder", 0),
        "VAE+ +2 steps": ("refined", 2),
        "VAE+ +4 steps": ("refined", 4),
        "SA(4)": ("refined", 4),
        "RME(5)": ("encoder", 0),
        "REFINED +2 steps": ("refined", 2),
        "RESIDUAL": ("feed-forward", 0),
        "RESIDUAL +2 steps": ("refined", 2),
        "RESIDUAL +4 steps": ("refined", 4),
    }


def test_numbers_of_a_row(rows):
    found = row(rows, "RESIDUAL")
    values = [1000.0 + 0.5 * s + 0.08 * s for s in range(5)]
    assert found["values"] == {str(s): pytest.approx(v) for s, v in enumerate(values)}
    assert found["mean"] == pytest.approx(sum(values) / 5)
    assert found["std"] == pytest.approx(0.58 * (10 / 4) ** 0.5)
    assert (found["dataset"], found["dim"], found["method"]) == ("mnist", 20, "residual")
    assert (found["splits"], found["seeds"], found["epochs"], found["samples"]) == (5, [0], 7, 100)
    assert found["elbo"] == pytest.approx(found["mean"] - 20)
    assert found["milliseconds"] == pytest.approx(0.32)  # the median
    assert found["difference"] == pytest.approx(60 + 0.04 * 2)
    assert found["difference_std"] == pytest.approx(0.04 * (10 / 4) ** 0.5)
    assert found["gap"] == {
        "total": 13.0,
        "se": pytest.approx(3 / 2**0.5),
        "reference": 1012.0,
        "runs": 2,
    }
    refined = row(rows, "RESIDUAL +2 steps")
    assert refined["gap"] is None  # it was measured without refinement
    assert refined["milliseconds"] == 6.0
    assert refined["difference"] == pytest.approx(100 - 0.04 * 2)


def test_five_splits_give_exact_p_without_significance(rows):
    found = row(rows, "RESIDUAL")
    assert found["p_vae_plus"] == 1 / 32
    assert found["significant"] is None
    assert "5 paired splits, fewer than 6" in found["reason"]
    assert found["reason"].endswith("the smallest possible p is 0.031")
    assert row(rows, "VAE")["p_vae_plus"] == 1.0
    control = row(rows, "VAE+")
    assert (control["difference"], control["p_vae_plus"]) == (0.0, None)
    assert control["reason"] == "the control itself"


def test_six_splits_can_be_significant(tmp_path):
    for split in range(6):
        for label in ("VAE", "VAE+", "RESIDUAL"):
            add(tmp_path, label, split)
    found = summarised(tmp_path)
    assert row(found, "RESIDUAL")["significant"] is True
    assert row(found, "RESIDUAL")["p_vae_plus"] == 1 / 64
    assert row(found, "VAE")["significant"] is False


def test_no_gain_without_control(tmp_path):
    add(tmp_path, "RESIDUAL", 0)
    (found,) = [r for r in summarised(tmp_path) if r["row"] == "RESIDUAL"]
    assert (found["difference"], found["p_vae_plus"], found["std"]) == (None, None, None)
    assert found["reason"] == "no score of VAE+"
    assert panels([found]) == {}
    assert gains([found])[1][0][4] == "–"


def test_unfinished_run_is_left_out(tmp_path):
    for split in range(2):
        add(tmp_path, "VAE+", split)
    add_run(tmp_path, "VAE+", None, split=2, status="running", name="running")
    assert row(summarised(tmp_path), "VAE+")["splits"] == 2


# --- the file of runs --------------------------------------------------------------------------------


def test_file_of_runs_gives_the_same_summary(store, rows, tmp_path):
    write_runs(read_store(store).records, tmp_path / "runs.json")
    again = read_runs(tmp_path / "runs.json")
    assert to_json(summary(again)) == to_json(rows)
    write_runs(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "runs.json").read_bytes()
    content = json.loads((tmp_path / "runs.json").read_text())
    assert len(content["runs"]) == 35
    run = next(r for r in content["runs"] if r["folder"] == "refined-mnist-20-3")
    assert run["training"] == {"epochs": 7, "learning_rate": 1e-5}
    assert run["inference"] == {"refine": 2, "checks": 1}
    assert (run["split"], run["restart"], run["best_epoch"]) == (3, 0, 7)
    assert run["environment"]["torch"] == "2.13.0"
    assert (tmp_path / "runs.json").stat().st_size < 1750 * 35


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        '{"format": 99, "runs": []}',
        '{"format": 1, "runs": []}',
        '{"format": 2, "runs": [{"label": "VAE"}]}',
        "{",
    ],
)
def test_file_without_runs_is_refused(content, tmp_path):
    (tmp_path / "runs.json").write_text(content)
    with pytest.raises(RunError, match=r"runs\.json"):
        read_runs(tmp_path / "runs.json")


# --- tables, figure, command -------------------------------------------------------------------------


def test_validation_bound_is_of_the_same_number_of_steps(tmp_path):
    def scored(label, test, val):
        for split in range(2):
            folder = add(tmp_path, label, split)
            for steps in (2, 4):
                add_scores(folder, inference={"refine": steps}, iwae=test + steps)
                add_scores(folder, part="val", samples=5, inference={"refine": steps}, iwae=val + steps)

    scored("VAE+", 1000.0, 900.0)
    scored("RESIDUAL", 990.0, 950.0)
    rows = summarised(tmp_path)
    assert row(rows, "RESIDUAL +4 steps")["validation"] == 954.0
    assert row(rows, "RESIDUAL")["validation"] != 954.0


def test_times_measured_alone_replace_the_others(rows):
    shared = row(rows, "VAE+")
    assert not shared["timed_alone"]
    assert gains([shared])[1][0][-1] == f"({shared['milliseconds']:.2f})"
    alone = {**shared, "row": "ALONE", "timed_alone": True}
    assert gains([alone])[1][0][-1] == f"{shared['milliseconds']:.2f}"
    assert len(panels(rows)[shared["column"] + ", machine shared"]) > 1
    assert [point.name for point in panels([*rows, alone])[shared["column"]]] == ["ALONE"]


def test_validation_bounds_of_another_inference_do_not_count(tmp_path):
    folder = add(tmp_path, "VAE+", 0)
    for part, samples in (("test", 100), ("val", 5)):
        add_scores(folder, part=part, samples=samples, inference={"refine": 4, "restarts": 4}, iwae=7.0)
    add_scores(folder, inference={"refine": 2, "restarts": 4}, iwae=8.0)
    found = summarised(tmp_path)
    assert row(found, "VAE+ +4 steps, 4 restarts")["validation"] == 7.0
    assert row(found, "VAE+ +4 steps")["validation"] == 965.0
    assert row(found, "VAE+ +2 steps, 4 restarts")["validation"] is None


def test_gap_counts_only_for_the_inference_it_was_measured_with(tmp_path):
    folder = add(tmp_path, "VAE+", 0)
    add_gap(folder, refine=4, restarts=4)
    assert row(summarised(tmp_path), "VAE+ +4 steps")["gap"] is None
    add_gap(folder, refine=4)
    assert row(summarised(tmp_path), "VAE+ +4 steps")["gap"]["total"] == 12.0
    assert row(summarised(tmp_path), "VAE+")["gap"] is None


@pytest.mark.parametrize("inference", [[1], {"refine": -1}, {"unknown": 1}, 3])
def test_damaged_gap_is_left_out(tmp_path, inference):
    folder = add(tmp_path, "VAE+", 0)
    (folder / "gap.json").write_text(json.dumps({"inference": inference, "summary": {}}))
    assert row(summarised(tmp_path), "VAE+")["gap"] is None
    add_gap(add(tmp_path, "VAE+", 1), 14.0, refine=0)
    assert row(summarised(tmp_path), "VAE+")["gap"]["total"] == 14.0


def test_times_of_another_device_are_listed_but_not_drawn(rows):
    there = {**row(rows, "RESIDUAL"), "row": "THERE", "devices": ["cpu"]}
    names = [point.name for points in panels([*rows, there]).values() for point in points]
    assert "RESIDUAL" in names
    assert "THERE" not in names
    times = {line[1]: line[-1] for line in gains([*rows, there])[1]}
    assert [name for name, time in times.items() if time.endswith(") on cpu")] == ["THERE"]


def test_table_of_gains_has_every_row(rows):
    heads, lines = gains(rows)
    assert len(lines) == len(rows)
    (line,) = [line for line in lines if line[1] == "RESIDUAL +2 steps" and "dim 20" in line[0]]
    assert dict(zip(heads, line, strict=True)) == {
        "data, dimension": "MNIST, dim 20",
        "model": "RESIDUAL +2 steps",
        "inference": "refined",
        "IWAE-100": "1041.0 ± 0.8",
        "over VAE+": "+99.9",
        "exact p": "0.031 (few)",
        "ms": "(6.00)",
    }


def test_tables_have_a_row_for_each_inference(store, tmp_path):
    results = summarise(read_store(store).records)
    best = Row("RESIDUAL", inference="+4 steps")
    assert best in results.rows
    assert results.best(results.columns[0]).row == best
    for table in all_tables(results):
        names = [str(line.row) for line in table.lines]
        assert names.index("VAE+ +2 steps") == names.index("VAE+") + 1
        assert all(not line.entries[0].paper for line in table.lines if line.row.inference)
        assert "RESIDUAL +2 steps" in to_markdown(table)
    assert "RESIDUAL +2 steps" in latex_document(all_tables(results))
    text = write_report(store, out=tmp_path / "report.html").read_text()
    assert "+2 steps" in text
    assert "+4 steps" in text


def test_unknown_score_names_are_ignored(tmp_path):
    folder = add(tmp_path, "VAE+", 0)
    scores = json.loads((folder / "scores.json").read_text())
    for key in (
        "test/100/refine x",
        "test/100/refine=0",
        "test/100/restarts=1",
        "test/100/gauss-newton,refine=2",
        "test/100/refine=" + "9" * 5000,
        "test/100/a/b",
    ):
        scores[key] = scores["test/100"]
    (folder / "scores.json").write_text(json.dumps(scores))
    assert [str(r) for r in summarise(read_store(tmp_path).records).rows] == [
        "VAE+",
        "VAE+ +2 steps",
        "VAE+ +4 steps",
    ]


def test_command_writes_runs_summary_and_figure(store, rows, tmp_path, capsys):
    out = tmp_path / "results"
    assert call("summary", store, "--out", out) == 0
    shown = capsys.readouterr().out
    assert "RESIDUAL" in shown
    assert "ms in brackets: other programs may have used the machine" in shown
    assert sorted(p.name for p in out.iterdir()) == [
        "frontier.png",
        "frontier_runs.json",
        "summary.json",
    ]
    with Image.open(out / "frontier.png") as picture:
        assert picture.width > picture.height
    assert (out / "summary.json").read_text() == to_json(rows)
    again = tmp_path / "again"
    assert call("summary", out / "frontier_runs.json", "--out", again) == 0
    for name in ("summary.json", "frontier.png"):
        assert (again / name).read_bytes() == (out / name).read_bytes()


def test_command_says_what_is_missing(store, tmp_path, capsys):
    assert call("summary", tmp_path / "nowhere", "--out", tmp_path) == 2
    assert "does not exist" in capsys.readouterr().err
    assert call("summary", store, "--samples", "7", "--out", tmp_path / "x") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "scored runs have no test score with 7 samples" in error
    assert "give --samples 100, or add scores with recmix evaluate RUN --samples 7" in error
    assert call("summary", store, "--samples", "0", "--out", tmp_path / "x") == 2
    assert not (tmp_path / "x").exists()


def test_command_names_other_numbers_of_epochs(tmp_path, capsys):
    for label, epochs in (("VAE", 200), ("VAE+", 4), ("RESIDUAL", 3)):
        add_run(tmp_path / "runs", label, None, epochs=epochs)
    for source in (tmp_path / "runs", tmp_path / "out" / "frontier_runs.json"):
        assert call("summary", source, "--out", tmp_path / "out") == 0
        said = " ".join(capsys.readouterr().err.split())
        assert (
            "note: Trained for different numbers of epochs: MNIST, dim 20 (VAE+ 4, RESIDUAL 3)." in said
        )


def test_samples_of_the_scores_are_used_if_all_runs_have_the_same(tmp_path, capsys):
    for label in ("VAE", "VAE+"):
        add_run(tmp_path / "runs", label, None, samples=50, test=900.0)
    assert call("summary", tmp_path / "runs", "--out", tmp_path / "small") == 0
    assert "note:" not in capsys.readouterr().err
    assert json.loads((tmp_path / "small" / "summary.json").read_text())["samples"] == 50
    page = tmp_path / "report.md"
    assert call("report", tmp_path / "runs", "--format", "markdown", "--out", page) == 0
    assert "note:" not in capsys.readouterr().err
    assert "900.0" in page.read_text()


@pytest.mark.parametrize(("other", "chosen"), [(100, 100), (20, 50)])
def test_commands_name_the_samples_that_some_runs_lack(tmp_path, capsys, other, chosen):
    for i, samples in enumerate((50, 50, other)):
        add_run(tmp_path / "runs", "VAE+", None, split=i, samples=samples, test=900.0)
    for words in (("summary", "--out", tmp_path / "x"), ("report", "--format", "terminal")):
        assert call(words[0], tmp_path / "runs", *words[1:]) == 0
        shown = " ".join(capsys.readouterr().err.split())
        lack = 2 if chosen == 100 else 1
        assert f"{lack} of 3 scored runs have no test score with {chosen} samples" in shown
        assert "50 samples (2 runs)" in shown
        assert f"give --samples {150 - chosen if other == 100 else other}, or add scores" in shown
        assert f"recmix evaluate RUN --samples {chosen}" in shown


def test_runs_without_scores_name_the_command_that_scores(tmp_path, capsys):
    folder = add_run(tmp_path / "runs", "VAE+", None)
    (folder / "scores.json").unlink()
    assert call("summary", tmp_path / "runs", "--out", tmp_path / "x") == 2
    assert "no run is done and scored yet: recmix evaluate RUN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "no run of VAE+ is scored"),
        ({"VAE+": 60}, "no inference was timed with a batch of 128"),
    ],
)
def test_command_says_why_there_is_no_figure(tmp_path, capsys, more, why):
    for label, batch in {"VAE": 60, **more}.items():
        add_run(tmp_path / "runs", label, None, batch=batch)
    assert call("summary", tmp_path / "runs", "--out", tmp_path / "x") == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "note: frontier.png is not written: " in shown
    assert why in shown
    assert not (tmp_path / "x" / "frontier.png").exists()


def test_summary_needs_no_torch():
    code = (
        "import sys, recmix.reports.summary, recmix.reports.frontier;assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_calibrated_rows_are_compared_with_the_calibrated_control(tmp_path):
    def scored(label, split, gain):
        folder = add(tmp_path, label, split)
        before = json.loads((folder / "scores.json").read_text())["test/100"]["iwae"]
        add_scores(folder, calibrated=True, inference={"scale": 2.0}, iwae=before + gain)

    for split in range(6):
        scored("VAE+", split, 20.0)
        scored("RESIDUAL", split, 5.0)
    rows = summarised(tmp_path)
    plain, wide = row(rows, "RESIDUAL"), row(rows, "RESIDUAL calibrated")
    assert wide["difference"] == pytest.approx(plain["difference"] - 15)
    assert (wide["scale"], wide["calibrated"], wide["p_vae_plus"]) == (2.0, True, 1 / 64)
    assert row(rows, "VAE+ calibrated")["difference"] == pytest.approx(20)
    assert control_of(Row("VAE+", inference="+2 steps", calibrated=True)) == Row("VAE+", calibrated=True)
    names = [point.name for points in panels(rows).values() for point in points]
    assert "RESIDUAL" in names
    assert not any("calibrated" in name for name in names)
    results = summarise(read_store(tmp_path).records)
    cell = results.cells[Row("RESIDUAL", calibrated=True), results.columns[0]]
    assert cell.versus_control.difference == pytest.approx(wide["difference"])


def test_validation_bound_is_none_if_some_runs_lack_it(tmp_path):
    for split in range(2):
        folder = add(tmp_path, "VAE+", split)
        for k in (5, 100) if split else (5,):
            add_scores(folder, part="val", samples=k, inference={"refine": 4}, iwae=float(k))
        if not split:
            scores = json.loads((folder / "scores.json").read_text())
            del scores["val/5/gauss-newton,refine=2,reuse=2,restarts=1,checks=1"]
            (folder / "scores.json").write_text(json.dumps(scores))
    rows = summarised(tmp_path)
    four = row(rows, "VAE+ +4 steps")
    assert (four["validation"], four["validation_samples"]) == (5.0, 5)  # the K that both have
    assert four["validations"] == {"5": {"0": 5.0, "1": 5.0}, "100": {"1": 100.0}}
    assert row(rows, "VAE+ +2 steps")["validation"] is None
