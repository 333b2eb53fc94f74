"""A trained posterior and decoder as files that other programs run without recmix."""

from recmix.exports.serialise import SUFFIX, export

__all__ = ["SUFFIX", "export"]
