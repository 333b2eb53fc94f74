"""`log_to`: send the metrics of each epoch to a logger such as Weights & Biases or MLflow."""

from __future__ import annotations

from typing import Any

from recmix.errors import ConfigError
from recmix.training.request import Callback

__all__ = ["log_to"]


def log_to(logger: Any, *, prefix: str = "") -> Callback:
    """Make a callback for `recmix.fit` that sends the metrics of each epoch to a logger.

    Args:
        logger: an object with a method ``log(metrics, step=epoch)``, such as a run of Weights &
            Biases; or with ``log_metrics(metrics, step=epoch)``, such as the module mlflow or a
            logger of Lightning.
        prefix: text before the name of each metric, such as ``"vae/"``.

    >>> class Printer:
    ...     def log(self, metrics, step):
    ...         print(step, metrics)
    >>> log_to(Printer(), prefix="vae/")(1, {"val_iwae": -90.5})
    1 {'vae/val_iwae': -90.5}
    """
    for name in ("log", "log_metrics"):
        send = getattr(logger, name, None)
        if callable(send):
            break
    else:
        raise ConfigError(
            f"the logger is a {type(logger).__name__}; expected an object with a method "
            "log(metrics, step=...) or log_metrics(metrics, step=...)"
        )

    def callback(epoch: int, metrics: dict[str, float]) -> None:
        send({prefix + key: value for key, value in metrics.items()}, step=epoch)

    return callback
