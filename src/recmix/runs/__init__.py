"""The folder of a run, which holds its options, progress and scores. Reading needs no torch."""
