"""The training loop, and its batches, schedule and checkpoints."""
