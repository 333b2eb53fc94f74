"""The class `LatentEncoder`: a scikit-learn transformer that maps examples to posterior means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from recmix.api import fit
from recmix.data import as_examples, from_arrays
from recmix.errors import ConfigError
from recmix.methods.registry import find_method

__all__ = ["LatentEncoder"]

CHUNK = 512  # examples that pass through a network at a time
BOUNDS = ("iwae", "elbo")


class LatentEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn transformer: trains a model p(x, z), and maps x to the mean of q(z | x).

    It works in a `Pipeline`, under `GridSearchCV`, and with `set_output`. X is an array (N, F), a
    sparse matrix (N, F), a DataFrame of numbers, or images (N, H, W) or (N, C, H, W). uint8 images
    are divided by 255. A tenth of X is held out to choose the best epoch.

    Args:
        latent: dimension of z.
        method: name of the method, see ``recmix methods``.
        epochs: passes over the training data; None for the default of `recmix.fit`.
        vae_epochs: epochs of the VAE that is trained first if the method starts from a trained VAE;
            None for the same number as `epochs`.
        likelihood: p(x | z), a name or an object; None for a likelihood that suits the values of X.
        network: the kind of networks; ``auto`` for a kind that suits the shape of an example.
        widths: sizes of the hidden layers; None for the default of the kind of networks.
        batch_size: examples per update.
        learning_rate: learning rate; None for the default of the method.
        refine: refinement steps each time the posterior is used after training; 0 for none.
        bound: the score of an example: ``iwae`` or ``elbo``.
        samples: number of samples of q(z | x) for the score.
        options: further options of `recmix.fit`, by name, such as ``{"patience": 10}``.
        device: where to train: ``auto``, ``cpu``, ``cuda`` or ``cuda:0``.
        random_state: seed of the weights, the noise and the held-out examples: a whole number, a
            `numpy.random.RandomState`, or None for a new seed each time.
        verbose: whether to show the progress of training.

    Attributes:
        model_: the trained `recmix.Model`.
        seed_: the seed that was used; `score` uses it, too.
        shape_: shape of one example.
        n_features_in_: size of the second axis of X.
        feature_names_in_: names of the columns, if X was a DataFrame.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> encoder = LatentEncoder(latent=2, epochs=2, widths=(16,), random_state=0)
    >>> make_pipeline(StandardScaler(), encoder).fit_transform(load_iris().data).shape
    (150, 2)
    """

    def __init__(
        self,
        latent: int = 20,
        method: str = "vae",
        *,
        epochs: int | None = 100,
        vae_epochs: int | None = None,
        likelihood: Any = None,
        network: str = "auto",
        widths: tuple[int, ...] | None = None,
        batch_size: int = 128,
        learning_rate: float | None = None,
        refine: int = 0,
        bound: str = "iwae",
        samples: int = 20,
        options: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.latent = latent
        self.method = method
        self.epochs = epochs
        self.vae_epochs = vae_epochs
        self.likelihood = likelihood
        self.network = network
        self.widths = widths
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.refine = refine
        self.bound = bound
        self.samples = samples
        self.options = options
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the model p(x, z) and its encoder; return this object.

        Args:
            X: training examples (N, ...).
            y: not used; scikit-learn expects this argument.
        """
        if self.bound not in BOUNDS:
            raise ConfigError(f"bound must be one of {', '.join(BOUNDS)}, got {self.bound!r}")
        X = self._check(X, reset=True)
        if isinstance(self.random_state, Integral):
            seed = int(self.random_state)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        given: dict[str, Any] = {
            "latent": self.latent,
            "epochs": self.epochs,
            "likelihood": self.likelihood,
            "network": self.network,
            "widths": self.widths,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "device": self.device,
            "seed": seed,
        }
        if find_method(self.method).starts_from:
            given["vae_epochs"] = self.epochs if self.vae_epochs is None else self.vae_epochs
        more = dict(self.options or {})
        if twice := sorted(more.keys() & self.get_params(deep=False).keys()):
            raise ConfigError(f"options has {', '.join(twice)}: give it as an argument of LatentEncoder")
        data = from_arrays(X, seed=seed, hold_out_test=False)  # X is the training part
        model = fit(self.method, data, progress=bool(self.verbose), **given, **more)
        self.model_ = model.refined(self.refine) if self.refine else model
        self.seed_ = seed
        self.shape_ = tuple(X.shape[1:])
        return self

    def transform(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the mean of q(z | x) of each example: X (N, ...) to (N, latent)."""
        check_is_fitted(self)
        X = self._check(X)
        return self._by_chunks(X, lambda part: self.model_.posterior(part).mean)

    def inverse_transform(self, X: Any) -> np.ndarray[Any, Any]:
        """Compute E[x | z] of latent points: X (N, latent) to (N, ...), the shape of examples."""
        check_is_fitted(self)
        X = check_array(X, dtype=(np.float64, np.float32))
        return self._by_chunks(X, self.model_.decode).reshape(-1, *self.shape_)

    def score_samples(self, X: Any) -> np.ndarray[Any, Any]:
        """Return a lower bound of log p(x) of each example in nats: X (N, ...) to (N,).

        The bound is an estimate with random noise. The noise depends on the position of an example in X.
        """
        check_is_fitted(self)
        X = self._check(X)
        examples = as_examples(X) if sparse.issparse(X) else X
        elbo, iwae = self.model_.bounds(examples, self.samples, seed=self.seed_)
        found = elbo if self.bound == "elbo" else iwae
        return np.asarray(found.cpu().double().numpy())

    def score(self, X: Any, y: Any = None) -> float:
        """Return the lower bound of log p(x) in nats, averaged over the examples: higher is better.

        Args:
            X: examples (N, ...).
            y: not used; scikit-learn expects this argument.
        """
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray[Any, Any]:
        """Sample points z from the prior p(z), and return the mean examples E[x | z], (n_samples, ...).

        Args:
            n_samples: number of points.
            random_state: a whole number, a `numpy.random.RandomState`, or None for new points each time.
        """
        check_is_fitted(self)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        found = self.model_.sample(n_samples, seed=seed).cpu().numpy()
        return np.asarray(found.reshape(-1, *self.shape_))

    @property
    def _n_features_out(self) -> int:
        """The number of columns that `transform` returns; scikit-learn reads it."""
        return int(self.model_.latent_model.latent)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _check(self, X: Any, *, reset: bool = False) -> Any:
        """Check X with the rules of scikit-learn, and return it as an array or a sparse csr matrix.

        `reset` is true for training: then the number and the names of columns are stored, and X needs
        two examples, because one is held out.
        """
        return validate_data(
            self,
            X,
            reset=reset,
            dtype="numeric",
            accept_sparse="csr",
            allow_nd=True,
            ensure_min_samples=2 if reset else 1,
        )

    def _by_chunks(
        self, X: Any, function: Callable[[np.ndarray[Any, Any]], torch.Tensor]
    ) -> np.ndarray[Any, Any]:
        found = []
        for start in range(0, X.shape[0], CHUNK):
            part = X[start : start + CHUNK]
            dense = part.toarray() if sparse.issparse(X) else part
            found.append(function(dense).cpu().numpy())
        kind = np.float32 if X.dtype == np.float32 else np.float64
        return np.concatenate(found).astype(kind, copy=False)
