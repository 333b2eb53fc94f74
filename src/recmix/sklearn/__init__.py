"""`LatentEncoder`: a scikit-learn transformer that trains a model and returns posterior means."""

from recmix.sklearn.latent_encoder import LatentEncoder

__all__ = ["LatentEncoder"]
