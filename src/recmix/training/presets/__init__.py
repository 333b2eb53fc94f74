"""Read, list and train presets. A preset is a sequence of trainings (stages) in a TOML file."""

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
