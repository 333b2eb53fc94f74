"""Metrics of each epoch for loggers such as Weights & Biases."""

import pytest
from cases.training import SMALL, images

import recmix
from recmix.errors import ConfigError
from recmix.training.loggers import log_to


class Recorder:
    """Has the interface of a run of Weights & Biases."""

    def __init__(self):
        self.rows = []

    def log(self, metrics, step):
        self.rows.append((step, metrics))


class MetricsRecorder:
    """Has the interface of MLflow and of Lightning's loggers."""

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step):
        self.rows.append((step, metrics))


@pytest.mark.parametrize("kind", [Recorder, MetricsRecorder])
def test_each_row_of_the_history_is_logged(kind):
    logger = kind()
    model = recmix.fit("vae", images(40), callbacks=[log_to(logger)], **SMALL)
    assert logger.rows == [(1, model.history[0]), (2, model.history[1])]


def test_prefix():
    logger = Recorder()
    log_to(logger, prefix="vae/")(3, {"loss": 1.5})
    assert logger.rows == [(3, {"vae/loss": 1.5})]


def test_other_objects_are_refused():
    with pytest.raises(ConfigError, match="the logger is a list; expected an object with a method log"):
        log_to([])
