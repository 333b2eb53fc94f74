"""Write the posterior and the decoder of a trained run as files that need no recmix to run."""

from recmix.exports.serialise import SUFFIX, export

__all__ = ["SUFFIX", "export"]
