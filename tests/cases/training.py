"""Small data and options for tests that train."""

import numpy as np

SMALL = {"latent": 2, "epochs": 2, "batch_size": 20, "progress": False, "device": "cpu"}


def images(n=60, seed=0, size=8):
    """Squares of random brightness at random places (n, 1, size, size): a VAE can learn them."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, 1, size, size), np.float32)
    for i, (r, c) in enumerate(rng.integers(0, size - 3, (n, 2))):
        x[i, 0, r : r + 3, c : c + 3] = 0.5 + 0.5 * rng.random()
    return x
