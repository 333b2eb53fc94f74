"""The folder of a run: its options, its progress and its scores. Reading it needs no torch."""
