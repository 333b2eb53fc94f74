"""Names of scores: which data, how many samples, and the whole inference."""

from __future__ import annotations

import re
from typing import NamedTuple

from recmix.errors import ConfigError
from recmix.inference import Inference

__all__ = ["ScoreKey"]


class ScoreKey(NamedTuple):
    """The name under which a score is kept. Two different inferences never share one.

    A calibration is named by how it is found, not by the numbers found: ``calibrated`` means that scale,
    slope and reference were chosen on validation data for IWAE-`samples`; ``calibrated+noise`` means
    that the likelihood's noise was chosen there too. The score holds the numbers.

    >>> str(ScoreKey("test", 100, Inference(refine=2), calibrated=True))
    'test/100/gauss-newton,refine=2,reuse=2,restarts=1/calibrated'
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
        """The inverse of `str`; None if the text is not a score's name."""
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
