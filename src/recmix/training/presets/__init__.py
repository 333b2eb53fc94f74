"""Presets: sequences of trainings (stages), each preset in a TOML file. Read, list, train them."""

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
