"""The folder of a run: what was asked, what happened, what was measured. Reading it needs no torch."""
