"""Evaluate trained methods: bounds and estimates of log p(x), gaps, calibration and timing.

The functions use only `posterior` of a method and `log_joint` of its model. So they work for any method.
"""

from recmix.evaluation.bounds import Bounds, bounds
from recmix.evaluation.latent_report import LatentReport, latent_report
from recmix.evaluation.molecules import MoleculeScores, molecule_scores
from recmix.evaluation.timing import posterior_milliseconds

__all__ = ["Bounds", "LatentReport", "MoleculeScores", "bounds", "latent_report", "molecule_scores"]
__all__ += ["posterior_milliseconds"]
