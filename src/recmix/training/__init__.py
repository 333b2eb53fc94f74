"""The loop and what it needs: batches, schedule, checkpoints."""
