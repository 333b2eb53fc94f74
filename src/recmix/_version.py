"""The version of recmix."""

__version__ = "0.1.0"
