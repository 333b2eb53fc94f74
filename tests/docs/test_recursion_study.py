"""The study of the recursion: exact sums over grids, means over groups, tables, and a tiny run."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))  # scripts, not part of the package

import recursion_scores
import recursion_study
import recursion_tables
from grid_posterior import GridPosterior, basins
from recursion_figure import pick

import recmix


class Linear(nn.Module):
    """The mean of x is A z."""

    turn = torch.tensor([[1.0, 0.5], [0.0, 1.0], [2.0, -1.0]])

    def forward(self, z):
        return z @ self.turn.t()


def latent_model(decoder, shape, variance=0.25):
    likelihood = recmix.likelihoods.Gaussian(variance, learned=False)
    return recmix.LatentModel(decoder, likelihood, latent=2, shape=shape)


@pytest.fixture
def folded():
    model = latent_model(recursion_study.Fold(), (8,), 0.09)
    z = torch.tensor([[1.5, -1.2], [1.5, 0.0], [0.0, 0.0]])
    return model, recursion_study.Fold()(z)


def test_log_evidence_is_that_of_the_linear_gaussian_model():
    model, x = latent_model(Linear(), (3,)), torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, 1.0]])
    found = GridPosterior(model, reach=5.0, points=201).measure(x)
    covariance = Linear.turn @ Linear.turn.t() + 0.25 * torch.eye(3)
    exact = torch.distributions.MultivariateNormal(torch.zeros(3), covariance).log_prob(x)
    torch.testing.assert_close(found.log_evidence.float(), exact, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.log_evidence, found.check)
    assert found.modes.tolist() == [1, 1]
    assert found.outside.max() < 1e-6
    torch.testing.assert_close(found.probability.sum(0), torch.ones(2, dtype=torch.float64))


def test_the_grid_has_the_log_joint_of_the_model(folded):
    model, x = folded
    grid = GridPosterior(model, reach=3.0, points=11)
    direct = model.log_joint(x, grid.z[:, None].expand(-1, len(x), -1))
    torch.testing.assert_close(grid.log_joint(x).float(), direct, atol=1e-3, rtol=1e-5)


def test_squares_lose_signs_so_a_posterior_has_up_to_four_modes(folded):
    model, x = folded
    found = GridPosterior(model, reach=4.0, points=161).measure(x)
    assert found.modes.tolist() == [4, 2, 1]
    masses = found.mass[:, 0][found.mass[:, 0] > 0.05]
    torch.testing.assert_close(masses, torch.full_like(masses, 0.25), atol=1e-3, rtol=0)


def test_modes_found_are_those_that_the_samples_reach(folded):
    model, x = folded
    grid = GridPosterior(model, reach=4.0, points=161)
    truth = grid.measure(x)
    z = torch.tensor([[1.5, 1.2]] * 96 + [[-1.5, 1.2]] * 4)  # 4 % of the samples do not count
    assert truth.found(grid.index(z[:, None].expand(-1, 3, -1)))[0] == 1
    z[90:] = torch.tensor([-1.5, 1.2])
    assert truth.found(grid.index(z[:, None].expand(-1, 3, -1)))[0] == 2


def test_a_grid_needs_two_dimensions_and_an_odd_number_of_points():
    with pytest.raises(ValueError, match="odd points"):
        GridPosterior(latent_model(Linear(), (3,)), reach=1.0, points=10)


def test_steepest_ascent_ends_at_local_maxima():
    values = torch.tensor([[3.0, 2.0, 1.0], [2.0, 0.0, 4.0], [1.0, 5.0, 0.0]])[..., None]
    assert basins(values)[:, 0].tolist() == [0, 7, 7, 7, 7, 7, 7, 7, 7]


def arrays(rng, gain):
    n = 60
    modes = np.repeat([1.0, 2.0, 4.0], n // 3)
    evidence = rng.normal(size=n)
    found = {
        "log_evidence": evidence,
        "check": evidence,
        "modes": modes,
        "outside": np.zeros(n),
        "diagonal": evidence - np.log(modes),
        "full": evidence - np.log(modes),
    }
    losses = {
        "VAE": np.log(modes) + rng.random(n),
        "VAE+": np.log(modes) + 0.1,
        "ME(4)": np.log(modes) + 0.1,
        recursion_tables.BATCH: np.log(modes) + 0.1,
        recursion_tables.INSTANCE: np.log(modes) + 0.1 - gain * (modes > 1),
    }
    losses |= {f"{row}, longer": losses[row] - 0.01 for row in recursion_study.CHECKED}
    for row, loss in losses.items():
        several = 1 if row.startswith("VAE") else 2
        found[f"{row}|elbo"] = evidence - loss
        for k in recursion_scores.CURVE:
            found[f"{row}|iwae {k}"] = evidence - loss / k
        found[f"{row}|components"] = np.stack([evidence - loss - i for i in range(several)], 1)
        found[f"{row}|weights"] = np.full((n, several), 1 / several)
        found[f"{row}|found"] = np.ones(n)
    return found


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The tables of made-up results: one row gains 0.5 nats where there are several modes."""
    rng = np.random.default_rng(0)
    summary = recursion_scores.summarised([arrays(rng, 0.5 + 0.01 * s) for s in range(10)])
    for row in summary["rows"]:
        row |= {"last fifth": [0.01] * 10, "best epoch": [5] * 10}
    trials = [
        {"row": row, "options": {"bound": c, "per_instance": each}, "elbo": -c}
        for row, each in ((recursion_tables.BATCH, False), (recursion_tables.INSTANCE, True))
        for c in (1.0, 5.0)
    ]
    chosen = {"trials": trials, "batch": trials[0]["options"], "instance": trials[2]["options"]}
    longer = {row: f"{row}, longer" for row in recursion_study.CHECKED}
    more = {"splits": 10, "chosen": chosen, "longer": longer, "setting": {"times": 3}}
    (tmp_path / "recursion_folds.json").write_text(json.dumps(summary | more))
    monkeypatch.setattr(recursion_tables, "RESULTS", tmp_path)
    recursion_tables.study.cache_clear()
    yield recursion_tables.TABLES
    recursion_tables.study.cache_clear()


def cells(text, *begin):
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    return next(line for line in lines if line[: len(begin)] == list(begin))


def test_the_main_table_has_gains_with_exact_p_values(tables):
    text = tables["recursion-folds"]()
    line = cells(text, recursion_tables.INSTANCE)
    assert len({row.count("|") for row in text.splitlines() if row.startswith("|")}) == 1
    assert line[2].startswith("+0.36 ± ")  # (0.545 on average) in two thirds of the examples
    assert line[3] == "0.002"  # 2 / 2**10
    assert line[7] == "58 %"  # one of 1, 2 and 4 modes


def test_gains_are_split_by_the_number_of_modes(tables):
    one = cells(tables["recursion-modes"](), "folds", "1")
    two = cells(tables["recursion-modes"](), "folds", "2")
    assert one[2] == two[2] == "200"
    assert one[7].startswith("+0.00")
    assert two[7] == "+0.55 ± 0.01"
    assert two[3].startswith("0.79")  # log 2 + 0.1


def test_other_tables_of_the_study(tables):
    assert cells(tables["recursion-converged"](), "folds", "VAE+")[2:] == ["0.010", "5 " * 9 + "5"]
    more = cells(tables["recursion-longer"](), "folds", "3 times", "10", recursion_tables.INSTANCE)
    assert more[4] == "+0.01 ± 0.00"
    assert more[5].startswith("+0.3")
    assert cells(tables["recursion-modes"](), "folds, 3 times", "2")[2] == "200"
    assert cells(tables["recursion-choices"](), "folds", recursion_tables.BATCH)[2:] == [
        "**-1.00**",
        "-5.00",
    ]
    shares = cells(tables["recursion-components"](), "folds", "ME(4)")
    assert shares[2:4] == ["50 50", "100 0"]
    assert cells(tables["recursion-curve"](), "folds", "VAE+")[2].startswith("0.79")
    assert "+0.3" in cells(tables["recursion-short"](), "free gates, C per example")[1]
    for kind in ("approximation", "amortisation"):
        assert len(cells(tables[f"recursion-{kind}"](), "folds", "highest third")) == 9


def test_the_bound_of_a_mixture_is_that_of_its_components_and_weights():
    summary = recursion_scores.summarised([arrays(np.random.default_rng(0), 0.0)])
    row = next(row for row in summary["rows"] if row["row"] == "ME(4)")
    assert row["best"][0] - row["elbo"][0] == pytest.approx(0)
    assert row["bound"][0] - row["elbo"][0] == pytest.approx(-0.5 + math.log(2))
    assert row["wins"] == [1.0, 0.0]
    assert row["entropy"][0] == pytest.approx(math.log(2))


def test_a_row_may_lack_the_last_splits():
    rng = np.random.default_rng(0)
    splits = [arrays(rng, 0.0) for _ in range(3)]
    for name in [name for name in splits[2] if name.startswith("ME(4)|")]:
        del splits[2][name]
    rows = {row["row"]: row for row in recursion_scores.summarised(splits)["rows"]}
    assert len(rows["ME(4)"]["elbo"]) == len(rows["ME(4)"]["groups"]["modes"]["2"]) == 2
    gains = recursion_tables.minus(rows["ME(4)"]["elbo"], rows["VAE+"]["elbo"])
    assert gains == pytest.approx([0.0, 0.0])
    rows = {"RME(8)": {}, "VAE+": {}}
    study = SimpleNamespace(setting=SimpleNamespace(few=2))
    assert recursion_study.Study._of(study, 0, rows) == ["RME(8)", "VAE+"]
    assert recursion_study.Study._of(study, 2, rows) == ["VAE+"]


def test_more_than_two_dimensions_have_no_modes(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    splits = [arrays(rng, 0.0) for _ in range(2)]
    kept = [
        {name: v for name, v in split.items() if name not in ("check", "modes", "outside")}
        for split in splits
    ]
    for split in kept:
        for name in [name for name in split if name.endswith("|found")]:
            del split[name]
    summary = recursion_scores.summarised(kept)
    full = recursion_scores.summarised(splits)
    assert "modes" not in summary
    assert set(summary["groups"]) == {"approximation", "amortisation"}
    for row, same in zip(summary["rows"], full["rows"], strict=True):
        assert row["elbo"] == same["elbo"]
        assert row["found"] == []
    more = {"splits": 2, "longer": {}, "setting": {"times": 2}}
    (tmp_path / "recursion_mnist20.json").write_text(json.dumps(summary | more))
    monkeypatch.setattr(recursion_tables, "RESULTS", tmp_path)
    recursion_tables.study.cache_clear()
    text = recursion_tables.TABLES["recursion-mnist20"]()
    recursion_tables.study.cache_clear()
    assert "modes" not in text
    assert "grid" not in text
    assert len({row.count("|") for row in text.splitlines() if row.startswith("|")}) == 1


def test_the_figure_shows_the_example_with_the_median_gain():
    values = {
        "modes": np.array([1, 2, 2, 2, 5]),
        "RME|elbo": np.array([9.0, 1.0, 3.0, 2.0, 9.0]),
        "VAE+|elbo": np.zeros(5),
    }
    assert pick(values, "RME", 2, 4) == 3


def test_splits_are_new_divisions_or_new_draws():
    sizes = (20, 5, 6)
    for name in ("digits", "folds"):
        one, again, other = (recursion_study.examples(name, s, None, sizes) for s in (0, 0, 1))
        assert [len(part) for part in (one.x_train, one.x_val, one.x_test)] == list(sizes)
        assert np.array_equal(one.x_train[:], again.x_train[:])
        assert not np.array_equal(one.x_train[:], other.x_train[:])


def test_results_have_six_digits():
    assert recursion_study.rounded({"a": [1 / 3, 2], "b": None}) == {"a": [0.333333, 2], "b": None}


def test_what_the_last_fifth_of_the_epochs_adds():
    assert recursion_study.last_fifth([0.0, 1.0, 5.0, 4.0, 7.0]) == 2.0
    assert recursion_study.last_fifth([9.0, 1.0, 5.0, 4.0, 7.0]) == 0.0


def test_a_tiny_study_with_three_dimensions_has_no_grid(tmp_path, monkeypatch):
    sizes = (40, 30, 6)
    tiny = recursion_study.Setting(sizes, (4,), 1, 1, 1e-3, 0.0, 0, few=0, checked=0, latent=3)
    monkeypatch.setitem(recursion_study.SETTINGS, "digits", tiny)
    monkeypatch.setattr(recursion_study, "BOUNDS", (1.0,))
    rates = {row: (options, (1.0,)) for row, (options, _) in recursion_study.TUNED.items()}
    monkeypatch.setattr(recursion_study, "TUNED", rates)
    words = [
        "digits",
        "--out",
        str(tmp_path),
        "--splits",
        "1",
        "--rows",
        recursion_study.BATCH,
        "RME(2)",
    ]
    given = recursion_study.options().parse_args(words)
    given.setting = tiny
    assert recursion_study.Study(given).run()
    found = json.loads((tmp_path / "recursion_digits" / "recursion_digits.json").read_text())
    rows = {row["row"]: row for row in found["rows"]}
    kept = ["VAE", "VAE+", recursion_study.BATCH, "VAE+ calibrated width", "VAE+ refined, 4 steps"]
    assert list(rows) == kept  # no row of fewer splits, and none is trained longer
    assert found["longer"] == {}
    assert "modes" not in found
    refined = rows["VAE+ refined, 4 steps"]["elbo"][0]
    assert rows["VAE+"]["elbo"][0] < refined < found["log_evidence"][0]
    assert rows["VAE+"]["elbo"][0] < found["diagonal"][0] < found["log_evidence"][0]


def test_a_tiny_study_is_trained_chosen_and_scored_and_goes_on(tmp_path, monkeypatch):
    tiny = recursion_study.Setting((40, 30, 6), (4,), 1, 1, 1e-3, 4.0, 41, near=0.0, own=True)
    monkeypatch.setitem(recursion_study.SETTINGS, "folds", tiny)
    monkeypatch.setattr(recursion_study, "BOUNDS", (1.0,))
    rates = {row: (options, (1.0,)) for row, (options, _) in recursion_study.TUNED.items()}
    monkeypatch.setattr(recursion_study, "TUNED", rates)
    kept = ["VAE+", recursion_study.BATCH]
    words = [
        "folds",
        "--out",
        str(tmp_path),
        "--results",
        str(tmp_path),
        "--splits",
        "1",
        "--rows",
        *kept,
    ]
    given = recursion_study.options().parse_args(words)
    given.setting = tiny
    given.seconds = 5.0
    assert not recursion_study.Study(given).run()  # there is no time to train anything
    given.seconds = 1e9
    assert recursion_study.Study(given).run()
    found = json.loads((tmp_path / "recursion_folds" / "recursion_folds.json").read_text())
    assert not (tmp_path / "recursion_folds.json").exists()  # this file always has all rows
    rows = {row["row"]: row for row in found["rows"]}
    more = [f"{row}, 2 times the updates" for row in kept]
    assert list(rows) == ["VAE", *kept, *more, "VAE+ calibrated width", "VAE+ refined, 4 steps"]
    assert np.isfinite([row["elbo"] for row in rows.values()]).all()
    assert all(row["elbo"][0] < found["log_evidence"][0] for row in rows.values())
    assert len(rows[recursion_study.BATCH]["weights"]) == 4

    given.rows = ["RME(2)"]  # a row that is added is scored, beside the control
    assert recursion_study.Study(given).run()
    found = json.loads((tmp_path / "recursion_folds" / "recursion_folds.json").read_text())
    assert {"VAE+", "RME(2)"} <= {row["row"] for row in found["rows"]}

    def never(*_args, **_more):
        raise AssertionError("it is done again")

    monkeypatch.setattr(recmix, "fit_many", never)
    monkeypatch.setattr(recursion_study, "measured", never)
    assert recursion_study.Study(given).run()
