"""Trainings of several stages in one TOML file: read them, list them, train them."""

from recmix.training.presets.read import Preset, Stage, preset_file, presets, read_preset
from recmix.training.presets.train import fit_preset, stored

__all__ = ["Preset", "Stage", "fit_preset", "preset_file", "presets", "read_preset", "stored"]
