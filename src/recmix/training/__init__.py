"""Train models: options, batches, learning rates, training loop and checkpoints."""
