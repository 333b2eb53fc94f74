"""Make and parse the names of scores (evaluation results), such as ``test/100``."""

from __future__ import annotations

import re
from typing import NamedTuple

from recmix.errors import ConfigError
from recmix.inference import Inference

__all__ = ["ScoreKey"]


class ScoreKey(NamedTuple):
    """The name of a score (an evaluation result) of a run, such as ``test/100/calibrated``.

    Two scores with different refinements of the posterior have different names. If the posterior was
    calibrated, the name says only this. The numbers that the calibration found are in the score itself.

    >>> str(ScoreKey("test", 100, Inference(refine=2), calibrated=True))
    'test/100/gauss-newton,refine=2,reuse=2,restarts=1,checks=1/calibrated'
    >>> ScoreKey.parse("val/5").samples
    5
    """

    part: str  # the part of the data that was scored, "val" or "test"
    samples: int  # K of the bound IWAE-K
    inference: Inference = Inference()  # how the posterior was refined
    calibrated: bool = False  # whether scale, slope and reference were chosen on validation data
    noise: bool = False  # whether the noise of the likelihood was also chosen on validation data

    def __str__(self) -> str:
        how = ("calibrated" + "+noise" * self.noise) * self.calibrated
        parts = [self.part, str(self.samples), self.inference.key, how]
        return "/".join(filter(None, parts))

    @classmethod
    def parse(cls, text: str) -> ScoreKey | None:
        """Make a `ScoreKey` from its text, such as ``val/5``; None if the text is not valid."""
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
