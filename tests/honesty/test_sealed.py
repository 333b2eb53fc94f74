"""Nothing but the final score reads test examples: before it, reading them raises an error."""

import json

import pytest
from cases.commands import call
from cases.honesty import data_of, easy, hard, one_sided_model, seal, seal_until_scored
from cases.training import images

import recmix
from recmix.commands.compare import compare
from recmix.data import check_values

QUICK = {"latent": 2, "network": "dense", "epochs": 2, "batch_size": 20, "device": "cpu"}
RUN = "cases.honesty:one_sided_model"


@pytest.fixture
def data(monkeypatch):
    """Images whose test part cannot be read."""
    seal(monkeypatch)
    return data_of(images(60), images(30, seed=1), 1 - images(30, seed=2), sealed=True)


@pytest.fixture
def scores(monkeypatch):
    """Numbers for `one_sided_model`, with sealed test examples; the final scores are recorded."""
    data = data_of(easy(seed=1), hard(seed=2), easy(seed=3), sealed=True)
    monkeypatch.setattr("recmix.data.load_again", lambda *place, **how: data)
    return seal_until_scored(monkeypatch)


def test_sealed_examples_raise_an_error_when_read(data):
    with pytest.raises(AssertionError, match="before the final score"):
        data.x_test[:3]
    with pytest.raises(AssertionError, match="before the final score"):
        check_values(data, "real", "gaussian")
    data.x_test.is_open = True
    assert len(data.x_test[:3]) == 3


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("vae", {}),
        ("vae", {"patience": 1, "weight_average": 0.5, "refine": 1}),
        ("vae", {"prior": "vamp", "standardise": "features"}),
        ("sa", {"steps": 1, "vae_epochs": 1}),
        ("rme", {"order": "auto", "max_order": 2, "vae_epochs": 1}),
        ("residual", {"train": "encoder", "decoder_samples": 0.3, "vae_epochs": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
def test_fit_reads_no_test_examples(data, method, options):
    found = recmix.fit(method, data, progress=False, **QUICK | options)
    data.x_test.is_open = True
    assert found.log_likelihood(data.x_test[:], samples=2).isfinite().all()


def test_training_of_a_curvature_network_reads_no_test_examples(data):
    options = QUICK | {"epochs": 1, "progress": False}
    vae = recmix.fit("vae", data, **options)
    del options["latent"], options["network"]
    recmix.fit("curvature", data, init=vae, **options)


def test_fit_many_reads_no_test_examples(data, tmp_path):
    requests = [
        QUICK | {"method": "vae", "data": data, "seed": seed, "out": tmp_path / f"{seed}"}
        for seed in range(2)
    ]
    assert len(recmix.fit_many(requests, progress=False)) == 2


@pytest.mark.parametrize("preset", ["best", "paper", "recursive"])
def test_presets_read_no_test_examples(data, preset, tmp_path):
    options = QUICK | {"vae_epochs": 1, "epochs": 1, "out": tmp_path, "progress": False}
    found = recmix.fit_preset(preset, data, **options)
    data.x_test.is_open = True
    assert found.log_likelihood(data.x_test[:], samples=2).isfinite().all()


@pytest.mark.parametrize("options", [["--calibrate"], ["--calibrate-noise"], ["--how", "auto"]])
def test_test_examples_are_read_after_the_choice(scores, capsys, options):
    words = ["--data", "parts.npz", "--samples", 10, "--refine", 1, "--json"]
    assert call("evaluate", RUN, *words, *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert [inference.to_json() for inference in scores] == [found["inference"]]
    assert found["inference"] != one_sided_model().inference.to_json()


def test_tuning_reads_no_test_examples(scores, capsys, monkeypatch):
    for name in ("REPEATS", "MOST_REPEATS"):
        monkeypatch.setattr(f"recmix.evaluation.tune.{name}", 1)
    words = ["--data", "parts.npz", "--milliseconds", 1e6, "--samples", 5, "--examples", 20, "--json"]
    assert call("tune", RUN, *words) == 0
    assert not scores


def test_comparison_scores_each_model_once(monkeypatch, tmp_path):
    data = data_of(images(60), images(30, seed=1), 1 - images(30, seed=2), sealed=True)
    scores = seal_until_scored(monkeypatch)
    model = {"latent": 2, "network": "dense"}
    second = {"epochs": 1, "batch_size": 20, "device": "cpu"}
    how = {"vae": second | model, "second": second, "samples": 2, "progress": False}
    rows = compare(data, tmp_path, entries=["sa:steps=1", "rme:order=2"], **how)
    assert len(rows) == len(scores) == 4
    assert all("iwae" in row for row in rows)
