"""The machinery of the columns, with made-up or tiny data."""

import io
import json
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))  # scripts, not part of the package

import column_tables
import columns
import study
import time_tables
from paper.to_latex import latex

import recmix


def row(name, values, *, dim=20, dataset="mnist", **more):
    made = {
        "dataset": dataset,
        "dim": dim,
        "row": name,
        "mean": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)),
        "splits": len(values),
        "split numbers": list(range(len(values))),
        "values": values,
        "elbo": 900.0,
        "elbos": [v - 30 for v in values],
        "many": None,
        "milliseconds": 0.5,
        "alone": True,
        "best epoch": [8] * len(values),
        "epochs": [8] * len(values),
        "curve": [1.0] * 20,
        "device": "some GPU",
        "command": "python docs/columns.py mnist 20",
    }
    return made | more


def lines_of(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_the_comparison_counts_cells_and_shows_differences_from_the_paper():
    text = column_tables.comparison([row("RME(5)", [943.0, 945.0]), row("VAE+", [930.0, 932.0])])
    assert text.startswith("1 of the paper's 601 log-likelihoods have a value of ours. 1 values")
    first = next(line for line in lines_of(text) if line and line[0] == "RME(5)")
    assert first[3:5] == ["944.0 ± 1.4", "945.0 (-1.0)"]
    assert first[1:3] == ["–", "699.4"]


def test_a_column_shows_paired_gains_and_p_values_from_six_splits():
    plus = row("VAE+", [930.0, 932.0, 934.0, 930.0, 932.0, 934.0])
    other = row("IAF(2)", [931.0, 933.5, 935.0, 931.2, 933.0, 935.1])
    text = column_tables.column_table([other, plus])
    cells = {line[0]: line for line in lines_of(text) if line}
    assert cells["VAE+"][2] == "control"
    assert cells["IAF(2)"][2] == "+1.1 ± 0.1 (p = 0.016)"
    few = column_tables.column_table([row("IAF(2)", [931.0, 933.5]), row("VAE+", [930.0, 932.0])])
    assert "+1.2 ± 0.2 |" in few
    assert "p =" not in few


def test_a_column_says_that_the_bound_of_the_vae_still_rose():
    rising = row("VAE", [900.0, 901.0], curve=[float(i) for i in range(20)])
    assert "rose by 2.0 nats in the last tenth" in column_tables.column_table([rising])
    assert "rose" not in column_tables.column_table([row("VAE", [900.0, 901.0])])


def test_columns_with_20_dimensions_and_others_have_tables_of_their_own(monkeypatch):
    rows = [row("VAE+", [930.0, 932.0]), row("VAE+", [680.0, 682.0], dim=10)]
    monkeypatch.setattr(column_tables, "columns", lambda name="columns.json": rows)
    assert "MNIST, dim 20" in column_tables.TABLES["column-gains"]()
    assert "dim 10" not in column_tables.TABLES["column-gains"]()
    assert "MNIST, dim 10" in column_tables.TABLES["column-gains-other"]()
    assert "dim 20" not in column_tables.TABLES["columns-other"]()


def test_new_rows_replace_those_of_the_same_column(tmp_path):
    path = tmp_path / "columns.json"
    columns.merge([row("VAE", [1.0, 2.0]), row("VAE", [3.0, 4.0], dim=10)], path)
    columns.merge([row("VAE", [5.0, 6.0])], path)
    means = {(r["dim"], r["row"]): r["mean"] for r in study.read_json(path)["rows"]}
    assert means == {(20, "VAE"): 5.5, (10, "VAE"): 3.5}


def test_a_row_is_not_replaced_by_one_with_fewer_splits(tmp_path):
    path = tmp_path / "columns.json"
    columns.merge([row("VAE", [1.0, 2.0])], path)
    with pytest.raises(SystemExit, match="more splits of VAE"):
        columns.merge([row("VAE", [3.0, 4.0]) | {"splits": 1}], path)
    assert study.read_json(path)["rows"][0]["mean"] == 1.5


def test_rows_of_the_other_decoder_are_refused(given):
    given.rows = ["SA(1)"]
    with pytest.raises(SystemExit, match="no such row with a conv decoder: SA"):
        columns.Column(given)


def test_rows_with_another_decoder_are_rows_of_their_own(tmp_path):
    path = tmp_path / "decoders.json"
    columns.merge([row("VAE", [1.0, 2.0])], path)
    columns.merge([row("VAE", [3.0, 4.0], decoder="dense")], path)
    assert [r["mean"] for r in study.read_json(path)["rows"]] == [1.5, 3.5]


def test_fully_connected_decoders_stand_beside_the_papers_two_figures():
    place = {"dataset": "omniglot", "dim": 10, "decoder": "dense"}
    rows = [row("VAE+", [296.0, 298.0], **place), row("VLAE(4)", [319.0, 320.0], **place)]
    text = column_tables.decoders(rows)
    assert text.startswith("1 of the paper's 52 figures")
    cells = {line[0]: line for line in lines_of(text) if line}
    assert cells["VLAE(4)"][1:3] == ["319.5 ± 0.7", "+22.5 ± 0.5"]
    assert cells["VLAE(4)"][5:] == ["318.0 (+1.5)", ""]
    assert column_tables.decoders([]).startswith("0 of the paper's 52 figures")


def test_repeated_splits_are_compared_with_the_same_splits():
    same = {"dataset": "omniglot", "dim": 10, "row": "VAE"}
    first = same | {"split numbers": [0, 1, 2], "values": [1.0, 2.0, 9.0], "elbos": [0.0, 1.0, 9.0]}
    again = same | {"split numbers": [1, 0], "values": [2.5, 1.0], "elbos": [1.0, 0.0]}
    text = column_tables.repeated([first], [again])
    assert "| VAE | 1.50 | 1.75 | 0.500 | 0.50 | 0.50 | 0.000 |" in text


def test_mixtures_are_compared_with_the_control_at_their_rate():
    names = {"VAE+": 0.0, "VAE+ at rate 1e-4": 3.0, "ME(2)": 4.0, "ME(5)": 5.0, "RME(2)": 3.5}
    rows = [row(name, [930.0 + gain, 932.0 + gain]) for name, gain in names.items()]
    rows.append(row("RME(5)", [935.0, 938.0]))
    assert "Not run" in column_tables.same_rate([row("VAE+", [930.0, 932.0])])
    cells = {line[0]: line for line in lines_of(column_tables.same_rate(rows)) if line}
    heads = cells["gain over VAE+ at rate 1e-4"]
    iwae, elbo = cells["MNIST, dim 20: IWAE-100"], cells["MNIST, dim 20: ELBO"]
    assert iwae[heads.index("ME(5)")] == elbo[heads.index("ME(5)")] == "+2.0 ± 0.0"
    assert iwae[heads.index("RME(5)")] == "+2.5 ± 0.5"
    assert iwae[heads.index("RESIDUAL")] == "–"


def test_rows_of_one_method_have_its_rates_and_the_pilot_leaves_fixed_rows_alone(tmp_path):
    path = tmp_path / "rates.json"
    trial = {"options": {"method": "vlae", "steps": 2, "learning_rate": 7e-4}, "best_val_iwae": 1.0}
    plain = {"options": {"method": "vae", "learning_rate": 9e-4}, "best_val_iwae": 1.0}
    chosen = columns.choose([trial, plain])
    study.write(path, {"rates": chosen})
    found = columns.rows_with_rates(path)
    assert {found[f"VLAE({steps})"]["learning_rate"] for steps in (1, 2, 4, 8)} == {7e-4}
    assert found["VLAE(8)"]["steps"] == 8
    assert found["VAE+"]["learning_rate"] == 9e-4
    assert found["VAE+ at rate 1e-4"]["learning_rate"] == 1e-4


def test_the_fifth_batch_of_cifar10_is_the_test_set_and_training_does_not_see_it(tmp_path):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for batch in range(1, 6):
        records = np.full((10, 3073), 10 * batch, np.uint8)
        records[:, 0] = 1
        records.tofile(folder / f"data_batch_{batch}.bin")
    data = study.read("cifar10", 0, tmp_path, test=True)
    assert np.unique(np.round(np.asarray(data.x_test) * 255)).tolist() == [50]
    seen = np.concatenate([np.asarray(data.x_train), np.asarray(data.x_val)])
    assert np.unique(np.round(seen * 255)).tolist() == [10, 20, 30, 40]
    assert study.read("cifar10", 0, tmp_path, test=False).x_test is None


def test_the_clock_asks_once_to_stop(monkeypatch):
    signals = []
    monkeypatch.setattr(study.signal, "raise_signal", signals.append)
    clock = study.Clock(1e6)
    clock.begin()
    clock(1, {})
    assert not signals
    clock.deadline = time.time() + 1
    clock(2, {})
    clock(2, {})
    assert len(signals) == 1


@pytest.fixture
def given(tmp_path):
    words = ["digits", "2", "--splits", "1", "--epochs", "1", "--second", "1", "--images", "30"]
    words += ["--rows", "VAE+", "--samples", "2", "--many", "0", "--out", str(tmp_path / "out")]
    return columns.options().parse_args(words)


def test_a_column_is_trained_scored_and_packed_once(given, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "SCORED", {name: columns.SCORED[name] for name in ("VAE", "VAE+")})
    monkeypatch.setattr(study, "PART", 100_000)
    column = columns.Column(given)
    assert column.train()
    assert column.score()
    found = study.read_json(column.place / "rows.json")["rows"]
    assert [r["row"] for r in found] == ["VAE", "VAE+"]
    assert found[1]["command"] == "python docs/columns.py digits 2 --splits 1 --epochs 1 --second 1"
    assert len(found[1]["curve"]) == 1

    given.rows = None
    column.pack(tmp_path / "packed")
    parts = sorted((tmp_path / "packed").iterdir())
    assert len(parts) > 1
    assert all(part.stat().st_size <= 100_000 for part in parts)
    whole = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(fileobj=whole) as tar:
        tar.extractall(tmp_path / "again", filter="data")
    one = recmix.load(tmp_path / "again" / "vae-plus_0", device="cpu").method.state_dict()
    two = column.folder.load("VAE+", 0).method.state_dict()
    assert all(torch.equal(value, two[name].cpu()) for name, value in one.items())

    def never(*_args, **_more):
        raise AssertionError("it is done again")

    monkeypatch.setattr(recmix, "fit_many", never)
    monkeypatch.setattr(columns, "measured", never)
    given.rows = ["VAE+"]
    assert columns.Column(given).train()
    assert columns.Column(given).score()

    given.second = 2
    with pytest.raises(SystemExit, match="trained with epochs = 1, not 2"):
        columns.Column(given).train()


def test_the_trial_with_the_best_validation_bound_gives_the_rates():
    def trial(bound, **options):
        return {"options": options, "best_val_iwae": bound}

    trials = [
        trial(9.0, **columns.START),
        trial(3.0, method="vae", learning_rate=1e-4),
        trial(4.0, method="vae", learning_rate=3e-4),
        trial(8.0, method="vae", learning_rate=1e-3, refine=4),
        trial(5.0, method="rme", order=4, learning_rate=1e-4, fresh_rate=1),
        trial(float("nan"), method="rme", order=4, learning_rate=1e-2, fresh_rate=1),
        trial(7.0, method="bvi-er1", order=3, learning_rate=1e-4, fresh_rate=10),
    ]
    chosen = columns.choose(trials)
    assert chosen["VAE+"] == {"learning_rate": 3e-4}
    assert chosen["REFINED"] == {"learning_rate": 1e-3}
    assert chosen["RME(2)"] == chosen["RME(5)"] == {"learning_rate": 1e-4, "fresh_rate": 1}
    assert chosen["BVI-ER2(3)"]["fresh_rate"] == 10
    assert "RME RESIDUAL(4)" not in chosen
    assert "IAF(2)" not in chosen


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), recmix.errors.NonFiniteError("loss")])
def test_a_row_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, error):
    folder = study.Folder(tmp_path, study.Clock(1e6))
    trained = set()

    def fit_many(requests):
        if any(request["method"] == "bad" for request in requests):
            if isinstance(error, recmix.errors.NonFiniteError):
                folder.states["BAD", 0] = "failed"
            raise error
        trained.update(request["method"] for request in requests)
        folder.states |= {(r["method"].upper(), 0): "done" for r in requests}

    folder.states = {}
    monkeypatch.setattr(recmix, "fit_many", fit_many)
    monkeypatch.setattr(folder, "_state", lambda *key: folder.states.get(key, "new"))
    monkeypatch.setattr(folder, "_engine", lambda _key: "")
    monkeypatch.setattr(folder, "_check", lambda *_: None)
    monkeypatch.setattr(folder, "_best", lambda _key: 0.0)
    requests = {(name.upper(), 0): {"method": name} for name in ("one", "bad", "two")}
    assert folder.train(requests)
    assert trained == {"one", "two"}
    assert folder.train(requests)  # the row that failed is not tried a third time


def test_the_summary_of_columns_counts_what_was_not_run():
    rows = [row("RME(5)", [943.0, 945.0]), row("VAE+", [930.0, 932.0])]
    gains = {line[0]: line for line in lines_of(column_tables.column_gains(rows)) if line}
    assert gains["RME(5)"][1] == "+13.0 ± 0.0"
    assert gains["**VAE+**: IWAE-100"][1] == "931.0 ± 1.4"
    cells = {line[0]: line for line in lines_of(column_tables.not_run(rows)) if line}
    assert cells["**all**"][1:] == ["**601**", "**1**", "**600**", "**1**"]
    assert cells["OMNIGLOT (rebuilt)"][2] == "0"


def test_a_page_becomes_latex():
    page = "# A title\n\n## 1. One\n\n- a **50 %** part\n  of $x_1$\n- `b_c`\n\n"
    page += "| a | b |\n|---|---:|\n| 1 ± 2 | 3 |\n"
    made = latex(page)
    assert r"\title{A title}" in made
    assert r"\item a \textbf{50 \%} part of $x_1$" in made
    assert r"\texttt{b\_c}" in made
    assert r"1 $\pm$ 2 & 3 \\" in made
    assert r"\begin{tabular}{lr}" in made


def test_times_of_all_devices_stand_beside_those_of_the_paper(tmp_path):
    assert "has not been measured yet" in time_tables.times("inference_ms", tmp_path)
    cell = {"table": "inference_ms", "data": "mnist", "dim": 50, "row": "VAE", "network": "conv"}
    cell |= {"ms": 0.1512, "paper": 3.6}
    other = cell | {"table": "fc_inference_ms", "row": "VLAE(2)", "network": "dense", "paper": 13.4}
    more = cell | {"data": "celeba", "paper": 2.7}
    for file, device, cells in (
        ("nvidia-h200", "NVIDIA H200", [cell, other]),
        ("cpu-2-cores", "A CPU", [cell | {"ms": 5.25}, more]),
    ):
        content = {time_tables.NAME: {"device": device, "detail": {"cells": cells}}}
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    first = time_tables.times("inference_ms", tmp_path)
    assert "Ours on NVIDIA H200 / A CPU (the paper's)" in first
    assert "| row | MNIST | CelebA |" in first
    assert "| VAE | 0.151 / 5.25 (3.6) | – / 0.151 (2.7) |" in first
    second = time_tables.times("fc_inference_ms", tmp_path)
    assert "| VLAE(2), fully connected decoder | 0.151 / – (13.4) |" in second


def test_larger_rates_are_compared_with_the_rate_in_use():
    rows = [
        {"row": "VAE+", "rates": {"learning_rate": 3e-4}, "curve": [900.5, 902.0, 901.0]},
        {"row": "VAE+", "rates": {"learning_rate": 1e-3}, "curve": [899.0, 901.0, 903.5]},
    ]
    text = column_tables.larger_rates({"start": 900.0, "rows": rows})
    assert "| VAE+ | 3e-4 | +2.00 | +0.00 | 2 of 3 |" in text
    assert "| VAE+ | 1e-3 | +3.50 | +1.50 | 3 of 3 |" in text
