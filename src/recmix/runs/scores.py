"""Names of scores (evaluation results): on which data, with how many samples, with which inference."""

from __future__ import annotations

import re
from typing import NamedTuple

from recmix.errors import ConfigError
from recmix.inference import Inference

__all__ = ["ScoreKey"]


class ScoreKey(NamedTuple):
    """The name of a score (an evaluation result) of a run. Different inferences have different names.

    The name of a calibrated inference does not contain the numbers that the calibration found; the
    score holds them. ``calibrated`` means that scale, slope and reference were chosen on validation
    data for the bound IWAE-`samples`. ``calibrated+noise`` means that the likelihood's noise was
    chosen there, too.

    Attributes:
        part: "val" or "test", the examples of the evaluation.
        samples: K of the bound IWAE-K.
        inference: refinement of the posterior.
        calibrated: whether the posterior was calibrated.
        noise: whether the likelihood's noise was calibrated, too.

    >>> str(ScoreKey("test", 100, Inference(refine=2), calibrated=True))
    'test/100/gauss-newton,refine=2,reuse=2,restarts=1,checks=1/calibrated'
    >>> ScoreKey.parse("val/5").samples
    5
    """

    part: str
    samples: int
    inference: Inference = Inference()
    calibrated: bool = False
    noise: bool = False

    def __str__(self) -> str:
        how = ("calibrated" + "+noise" * self.noise) * self.calibrated
        parts = [self.part, str(self.samples), self.inference.key, how]
        return "/".join(filter(None, parts))

    @classmethod
    def parse(cls, text: str) -> ScoreKey | None:
        """Make a `ScoreKey` from the text that `str` gives; None if it is not such a text."""
        found = re.fullmatch(
            r"(\w+)/(\d{1,9})(?:/([\w.,=+-]*=[\w.,=+-]*))?(/calibrated(?:\+noise)?)?", text, re.ASCII
        )
        if not found:
            return None
        part, samples, inference, calibrated = found.groups()
        try:
            used = Inference.from_key(inference or "")
        except ConfigError:
            return None
        return cls(part, int(samples), used, calibrated is not None, "noise" in (calibrated or ""))
