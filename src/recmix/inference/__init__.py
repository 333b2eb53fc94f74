"""How a posterior is improved when it is used: refinement and calibration."""

from recmix.inference.inference import Inference

__all__ = ["Inference"]
