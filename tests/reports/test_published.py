"""All numbers of the paper are there, and each is shown in the right cell."""

import json
from collections import Counter
from pathlib import Path

import pytest

import recmix.reports
from recmix.reports.published import best_printed, figures, likelihood_of, published, time_of
from recmix.reports.records import Row, TableColumn


def test_file_has_767_entries():
    path = Path(recmix.reports.__file__).with_name("published.json")
    tables = json.loads(path.read_text())["tables"]
    counts = {name: len(lines) for name, lines in tables.items()}
    assert counts == {
        "log_likelihood": 580,
        "binary_mnist": 38,
        "inference_ms": 65,
        "fc_vs_conv_decoder": 52,
        "fc_inference_ms": 32,
    }
    assert sum(counts.values()) == 767
    assert "Kim" in json.loads(path.read_text())["source"]


def test_no_number_is_lost_or_doubled():
    counts = Counter(figure.table for figure in figures())
    assert counts["log_likelihood"] == 580
    assert counts["fc_vs_conv_decoder"] == 52 + 36  # a line without VLAE has two numbers
    assert counts["fc_inference_ms"] == 32 + 16
    best = [figure for figure in figures() if figure.significance == "best"]
    assert len(best) == 20  # one for each data set and dimension


@pytest.mark.parametrize(
    ("place", "mean", "std"),
    [
        (("log_likelihood", "mnist", 20, "VAE", None), 930.7, 3.9),
        (("log_likelihood", "celeba", 100, "BVI-ER2", 5), 17077.1, 387.6),
        (("log_likelihood", "omniglot", 10, "SA", 2), 349.5, 1.4),
        (("binary_mnist", "binary-mnist", 50, "RME", 4), -83.09, None),
        (("binary_mnist", "binary-mnist", 50, "VLAE", 5, "dense"), -83.60, None),
        (("inference_ms", "svhn", 50, "SA", 8), 60.3, None),
        (("fc_vs_conv_decoder", "omniglot", 50, "VLAE", 1, "dense"), 644.0, None),
        (("fc_inference_ms", "mnist", 10, "RME", 2, "conv"), 5.0, None),
    ],
)
def test_numbers_are_as_printed(place, mean, std):
    found = published(*place)
    assert (found.mean, found.std) == (mean, std)


def test_rows_and_columns_that_the_paper_does_not_have():
    assert published("log_likelihood", "mnist", 20, "VAE+") is None
    assert published("log_likelihood", "digits", 20, "VAE") is None
    assert (
        likelihood_of(Row("VAE"), TableColumn(data="mnist", latent=20, likelihood="bernoulli")) is None
    )
    assert likelihood_of(Row("VAE"), TableColumn(data="mnist", latent=20, network="own")) is None
    assert best_printed(TableColumn(data="digits", latent=8)) is None
    mnist = TableColumn(data="mnist", latent=50)
    for row in (
        Row("VAE", calibrated=True),
        Row("VAE", inference="+2 steps"),
        Row("VAE", options="a=1"),
    ):
        assert likelihood_of(row, mnist) is None
        assert time_of(row, mnist) is None
    assert time_of(Row("VAE"), mnist) is not None


def test_number_is_shown_for_the_same_set_up_only():
    dense = TableColumn(data="mnist", latent=50, decoder_network="dense")
    assert likelihood_of(Row("VAE"), dense).mean == 872.6
    assert time_of(Row("VLAE", 8), dense).mean == 30.8
    assert time_of(Row("RME", 5), TableColumn(data="mnist", latent=50)).mean == 4.8
    assert time_of(Row("RME", 5), TableColumn(data="mnist", latent=10)).mean == 5.1
    binary = TableColumn(data="binary-mnist", latent=50, likelihood="bernoulli")
    assert likelihood_of(Row("VAE"), binary).mean == -84.49
    assert likelihood_of(Row("BVI-ER1", 2), TableColumn(data="mnist", latent=20)).mean == 939.7
    assert str(best_printed(TableColumn(data="mnist", latent=50)).row) == "ME(4)"
