"""Describe in words how a posterior was refined and calibrated, and how much the bounds gained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recmix.inference import Inference

__all__ = ["calibration", "changes", "gain", "words"]


def words(inference: Inference) -> str:
    """Describe the refinement of a posterior in words: its kind and its number of steps.

    >>> from recmix import Inference
    >>> words(Inference()), words(Inference(refine=4)), words(Inference(how="learned", refine=1))
    ('none', 'gauss-newton, 4 steps', 'learned, 1 step')
    """
    if not inference.refine:
        return "none"
    return f"{inference.how}, {inference.refine} step{'s' * (inference.refine > 1)}"


def changes(inference: Inference) -> list[str]:
    """Describe in brackets how the encoder's posterior is refined and calibrated.

    The result is a list with one text. It is empty if the encoder's posterior is used unchanged.

    >>> from recmix import Inference
    >>> changes(Inference()), changes(Inference(refine=2, restarts=3, scale=1.5))
    ([], ['(gauss-newton, 2 steps, 3 restarts, calibrated)'])
    """
    found = [words(inference)] if inference.refine else []
    if inference.restarts > 1:
        found.append(f"{inference.restarts} restarts")
    if inference.calibrated or inference.noise != 1:
        found.append("calibrated")
    return [f"({', '.join(found)})"] if found else []


def gain(found: Mapping[str, Any]) -> str:
    """Describe in words how much refinement and calibration raise the ELBO and the IWAE bound.

    `found` has the gains over the encoder's posterior and their standard errors (``_se``), in nats.

    >>> found = {"samples": 5, "elbo_gain": 1.0, "elbo_gain_se": 0.1}
    >>> gain({**found, "iwae_gain": -0.2, "iwae_gain_se": 0.3})
    "gain over the encoder's own posterior, paired: ELBO +1.00 ± 0.10, IWAE-5 -0.20 ± 0.30 nats"
    """
    elbo, iwae = (f"{found[n]:+.2f} ± {found[n + '_se']:.2f}" for n in ("elbo_gain", "iwae_gain"))
    start = "gain over the encoder's own posterior, paired"
    return f"{start}: ELBO {elbo}, IWAE-{found['samples']} {iwae} nats"


def calibration(inference: dict[str, Any], *, noise: bool) -> str:
    """Describe in words the numbers that a calibration of the posterior found.

    Args:
        inference: the settings of the posterior after calibration, with scale, slope and noise.
        noise: whether the noise of the likelihood was calibrated, too.

    >>> calibration({"scale": 1.5, "slope": 0.007}, noise=False)
    'calibrated on validation data: scale 1.50, doubled for every 99 nats that an example fits worse'
    >>> calibration({"scale": 1.5, "slope": 0.0, "noise": 0.8}, noise=True)
    "calibrated on validation data: scale 1.50; the likelihood's noise times 0.80, which changes p(x)"
    """
    text = f"calibrated on validation data: scale {inference['scale']:.2f}"
    if slope := inference["slope"]:
        how = "doubled" if slope > 0 else "halved"
        nats = math.log(2) / abs(slope)
        text += f", {how} for every {nats:,.0f} nats that an example fits worse"
    if not noise:
        return text
    return f"{text}; the likelihood's noise times {inference['noise']:.2f}, which changes p(x)"
