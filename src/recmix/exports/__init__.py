"""A trained posterior and decoder as files that other programs run without recmix."""

from recmix.exports.write import SUFFIX, export

__all__ = ["SUFFIX", "export"]
