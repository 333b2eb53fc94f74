"""`recmix train --resume` of a finished run whose status was damaged."""

import json

import pytest
from cases.commands import call

TRAIN = "train --data digits --method vae --latent 2 --network mlp --widths 4 --epochs 1 --device cpu"


@pytest.mark.parametrize("name", ["best_validation", "best_epoch"])
def test_status_without_the_best_epoch_is_one_error(tmp_path, capsys, name):
    assert call(*TRAIN.split(), "--out", tmp_path / "run") == 0
    path = tmp_path / "run" / "status.json"
    status = json.loads(path.read_text())
    del status[name]
    path.write_text(json.dumps(status))
    capsys.readouterr()
    assert call("train", "--resume", "--out", tmp_path / "run") == 2
    assert "status.json is damaged" in " ".join(capsys.readouterr().err.split())
    path.unlink()
    assert call("train", "--resume", "--out", tmp_path / "run") == 0
