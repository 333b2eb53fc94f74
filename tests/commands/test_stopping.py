"""Ctrl-C ends commands and loops over trainings, with a message."""

import os
import signal

import numpy as np
import pytest

import recmix
from recmix.cli import main
from recmix.errors import Interrupted, RecmixError


def interrupt(_epoch, _metrics):
    os.kill(os.getpid(), signal.SIGINT)


def test_a_loop_over_trainings_is_not_continued_after_ctrl_c(tmp_path):
    x = np.random.default_rng(0).random((40, 1, 8, 8), np.float32)
    started = []
    with pytest.raises(KeyboardInterrupt, match="saved"):
        for seed in range(3):
            started.append(seed)
            try:
                recmix.fit("vae", x, epochs=2, out=tmp_path / f"{seed}", callbacks=[interrupt])
            except Exception as error:
                print(error)
    assert started == [0]
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert not issubclass(Interrupted, RecmixError)


def test_a_command_that_is_stopped_says_so(monkeypatch, capsys):
    def stop(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr("recmix.training.fit.train_models", stop)
    with pytest.raises(SystemExit) as end:
        main(["train", "--data", "digits", "--method", "vae", "--out", "nowhere"])
    assert end.value.code == 130
    assert "stopped; what was saved before is kept" in capsys.readouterr().err
