"""Bounds of log p(x), scores and timing of trained methods.

They use only a method's `posterior` and its model's `log_joint`, so any method can be scored.
"""

from recmix.evaluation.bounds import Bounds, bounds
from recmix.evaluation.latent_report import LatentReport, latent_report
from recmix.evaluation.molecules import MoleculeScores, molecule_scores
from recmix.evaluation.timing import posterior_milliseconds

__all__ = ["Bounds", "LatentReport", "MoleculeScores", "bounds", "latent_report", "molecule_scores"]
__all__ += ["posterior_milliseconds"]
