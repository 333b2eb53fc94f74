"""Refinement and calibration of posteriors q(z | x), which are applied after the encoder."""

from recmix.inference.inference import Inference

__all__ = ["Inference"]
