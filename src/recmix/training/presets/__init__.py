"""Presets, which are sequences of trainings (stages) in TOML files: read, list and train them."""

from recmix.training.presets.read import Preset, Stage, preset_file, presets, read_preset
from recmix.training.presets.stages import stored_arguments, train_preset

__all__ = [
    "Preset",
    "Stage",
    "preset_file",
    "presets",
    "read_preset",
    "stored_arguments",
    "train_preset",
]
