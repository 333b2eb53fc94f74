"""Several columns at once, with a small program in place of docs/columns.py."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))  # scripts, not part of the package

import columns
import many_columns


@pytest.fixture
def program(tmp_path):
    """A program that prints its options and ends with the status that the data set is named after."""

    def write(when_scored=0):
        path = tmp_path / "program.py"
        path.write_text(
            "import sys\n"
            "print(*sys.argv[1:])\n"
            f"sys.exit({when_scored} if '--score' in sys.argv else int(sys.argv[1]))\n"
        )
        return path

    return write


def test_a_trained_column_is_scored_with_the_same_options(tmp_path, program):
    end = many_columns.run("0:10", tmp_path, time.time() + 100, ["--engine", "graph"], program())
    assert end == "scored"
    first, second = (tmp_path / "0_10.log").read_text().splitlines()
    assert first.startswith(f"0 10 --out {tmp_path} --seconds 9")
    assert first.endswith("--engine graph")
    assert "--score --engine graph" in second


@pytest.mark.parametrize(
    ("column", "when_scored", "end"),
    [
        (f"{columns.UNFINISHED}:10", 0, "nothing: not everything is trained yet"),
        ("0:10", columns.UNFINISHED, "trained: not everything is scored yet"),
        ("3:10", 0, "nothing: the process ended with status 3, see 3_10.log"),
    ],
)
def test_the_end_of_a_column_says_how_far_it_came(tmp_path, program, column, when_scored, end):
    assert many_columns.run(column, tmp_path, time.time() + 100, [], program(when_scored)) == end


def test_no_process_starts_shortly_before_the_time_limit(tmp_path, program):
    assert (
        many_columns.run("0:10", tmp_path, time.time() + 5, [], program()) == "nothing: no time is left"
    )
    assert not (tmp_path / "0_10.log").exists()


def test_a_column_without_a_dimension_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        many_columns.main(["mnist", "--out", str(tmp_path)])
    assert "expected SET:DIM, such as mnist:10, not 'mnist'" in capsys.readouterr().err


def test_merging_at_once_and_misspelt_options_are_refused(tmp_path, capsys):
    for more, message in (
        (["--", "--merge", "rows.json"], "several processes would write the file of --merge at once"),
        (["--second", "4"], "unrecognized arguments: --second 4"),
    ):
        with pytest.raises(SystemExit):
            many_columns.main(["mnist:10", "--out", str(tmp_path), *more])
        assert message in capsys.readouterr().err


def test_a_real_column_without_time_is_unfinished(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(many_columns, "SHORTEST", 0.0)
    monkeypatch.setattr(many_columns, "END", 0.0)
    data = tmp_path / "data" / "celeba"
    data.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    np.savez(data / "celeba_64x64.npz", images=images)
    many_columns.main(
        ["celeba:2", "--out", str(tmp_path), "--seconds", "15", "--", "--data-root", str(data.parent)]
    )
    assert "celeba:2: nothing: not everything is trained yet" in capsys.readouterr().out
