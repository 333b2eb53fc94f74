"""Warn about data, networks and learning rates that are probably wrong, though no error occurs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from recmix.data import Data, DataWarning
from recmix.methods.method import Method
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import Bernoulli, Gaussian, ProbabilityBernoulli
from recmix.model.network_checks import mistaken_output

__all__ = ["fell", "warn_if_misread", "warn_if_suspicious"]

FEWEST = 5
"""Fewer training examples than this are probably a mistake."""
LOOKED_AT = 1000
"""Number of training examples that are searched for two different values, and that the standard
deviations of columns are estimated from."""
SCALES = 100.0
"""Columns of a table have very different scales if the largest of their standard deviations is more than
this many times the smallest, and the same holds for their ranges, maximum - minimum. (Flags and pixels
that are seldom above 0 have small deviations, but no small range.)"""
EXAMPLES, SAMPLES = 16, 4
"""Number of examples, and of samples of z for each example, with which a VAE is tested."""
CLEAR_NATS, CLEAR_SHARE = 2.0, 0.05
"""Another interpretation of an encoder's outputs is clearly better if it raises the mean ELBO by more
than this many nats, and by more than this share of the ELBO's absolute value."""
MOST = 0.75
"""The ELBO of the other interpretation must be higher for more than this share of the examples."""
OTHER_WIDTHS = (2 * math.log(0.5), 2 * math.log(2))
"""Changes of the log-variance that make the standard deviations half and twice as large."""
OTHER_SCALE = 3.0
"""A decoder's outputs are on another scale than the examples x if the standard deviation of the outputs
is more than this many times that of x."""
FAR_SCALE = 20.0
"""The outputs are also on another scale if the standard deviation and the maximum of x are more than
this many times those of the outputs."""
WORSE, EXPLODED = 0.5, 10.0
"""Warn if training lowers the validation bound by more than this share of its absolute value before
training. `WORSE` is for the bound of the kept weights, `EXPLODED` for the lowest bound of all epochs."""


def warn_if_suspicious(data: Data, method: Method, *, own_decoder: bool) -> None:
    """Warn of data and networks that are probably a mistake.

    These are very few examples, values that are all equal, columns of very different scales, and
    probabilities used as logits.

    Args:
        own_decoder: whether the user wrote the decoder. Only then are its outputs tested.
    """
    count = len(data.x_train)
    if count < FEWEST:
        _warn(f"there are only {count} training example(s): is an axis missing or in another place?")
    if data.x_train.in_memory and not data.dynamic:  # dynamic data are binarised later
        few = data.x_train[:LOOKED_AT]
        if few.size > 1 and few.min() == few.max():
            _warn(f"all values of the training data are {few.min():g}: nothing can be learned from them")
        if text := _different_scales(few, method.model):
            _warn(text)
    model = method.model
    if own_decoder and (
        text := mistaken_output(model.decoder, model.likelihood, model.latent, model.centre)
    ):
        warnings.warn(text, stacklevel=2)


def _different_scales(x: np.ndarray, model: LatentModel) -> str:
    """Return a warning if one variance must fit columns of very different scales, else "".

    Constant columns are ignored.

    Args:
        x: a few training examples, (B, F) if they are vectors.
    """
    if x.ndim != 2 or type(model.likelihood) is not Gaussian or model.spread is not None:
        return ""
    changing = x[:, (x != x[:1]).any(0)]
    deviations = changing.std(0, dtype=np.float64)
    if not deviations.size:
        return ""
    if any(sizes.max() <= SCALES * sizes.min() for sizes in (deviations, np.ptp(changing, 0))):
        return ""
    return (
        "the standard deviations of the columns differ by a factor of "
        f"{deviations.max() / deviations.min():,.0f}, but the gaussian likelihood has one variance for "
        'all of them. Train with standardise = "features" (--standardise features), which divides each '
        "column by its standard deviation"
    )


@torch.no_grad()
def warn_if_misread(method: Method, x: Tensor) -> None:
    """Warn if the encoder or decoder of a VAE probably returns other quantities than recmix expects.

    Examples are an encoder that returns (mean, std) instead of (mean, log-variance), and a decoder that
    returns probabilities instead of logits.

    Args:
        method: a VAE whose networks were trained elsewhere.
        x: a few examples (B, ...). All values 0 means that no examples are known. Then the checks that
            need examples are left out.
    """
    x = x[:EXAMPLES]
    first, second = (method.posterior(x).mean for _ in range(2))
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-4, equal_nan=True):
        warnings.warn(
            "the encoder gives other means when it is called again with the same examples: is dropout "
            "on in evaluation mode, or does it return a sample instead of the mean?",
            stacklevel=6,
        )
    if text := _mistaken_decoder(method, x) or (_mistaken_encoder(method, x) if x.any() else ""):
        warnings.warn(text, stacklevel=6)  # the line that calls recmix.wrap


def _mistaken_decoder(method: Method, x: Tensor) -> str:
    """Return a warning if a decoder gives probabilities instead of logits, or values on another scale.

    The decoder is tested at the means of q(z | x) and at samples z of N(0, I). The result is "" if its
    outputs look correct.

    Args:
        x: examples (B, ...). All values 0 means that no examples are known.
    """
    model, gaussian = method.model, isinstance(method.model.likelihood, Gaussian)
    if not (type(model.likelihood) is Bernoulli or (gaussian and x.any())):
        return ""
    mean = method.posterior(x).mean
    noise = torch.randn(EXAMPLES, model.latent, generator=torch.Generator().manual_seed(0)).to(mean)
    own, drawn = (model.decoder_output(z[None])[0] for z in (mean, noise))
    low, high = min(own.min(), drawn.min()), max(own.max(), drawn.max())
    if type(model.likelihood) is Bernoulli and 0 <= low < high <= 1:
        gain = ProbabilityBernoulli().log_prob(x, own[None]) - model.likelihood.log_prob(x, own[None])
        error = gain.std() / gain.numel() ** 0.5 if gain.numel() > 1 else 0.0
        if not x.any() or gain.mean() > 2 * error:
            return (
                "the bernoulli likelihood needs logits, but all outputs of the decoder lie between 0 "
                "and 1: if it ends in a sigmoid, use likelihood='bernoulli-probabilities', or remove "
                "the sigmoid"
            )
    if gaussian and x.numel() > 1:
        spread = min(own.std(), drawn.std())
        narrow = FAR_SCALE * drawn.std() < x.std() and FAR_SCALE * drawn.max() < x.max()
        if x.std() > 0 and (spread > OTHER_SCALE * x.std() or narrow):
            return (
                f"the decoder gives values from {low:.3g} to {high:.3g} for the examples and samples "
                f"of z. The values of the examples lie between {x.min():.3g} and {x.max():.3g}. The "
                "gaussian likelihood needs the mean of x: if these are logits, end the decoder with a "
                "sigmoid; if the VAE was trained on x of another scale, give x on that scale"
            )
    return ""


def _mistaken_encoder(method: Method, x: Tensor) -> str:
    """Return a warning if another interpretation of the encoder's two outputs clearly raises the ELBO.

    Such an interpretation is, for example, (mean, standard deviation). Two conditions must hold: the
    ELBO is higher for most examples, and neither half nor twice the standard deviations raise the ELBO
    further. An encoder that is only inaccurate does not meet the second condition. The result is "" if
    there is no reason for a warning.
    """
    model = method.model
    network = getattr(method.base_encoder, "network", method.base_encoder)
    if not isinstance(network(x), Tensor | tuple | list):
        return ""  # an output that names its parts
    first, second = method.base_encoder(x).chunk(2, 1)
    noise = torch.randn(SAMPLES, *first.shape, generator=torch.Generator().manual_seed(0)).to(first)

    def elbo(mean: Tensor, log_variance: Tensor) -> Tensor:  # (B,)
        log_q = -0.5 * (noise.square() + log_variance + math.log(2 * math.pi)).sum(-1)
        found = [model.log_joint(x, mean + (log_variance / 2).exp() * one[None]) for one in noise]
        return (torch.cat(found) - log_q).mean(0)

    given = elbo(first, second)
    clear = max(CLEAR_NATS, CLEAR_SHARE * abs(float(given.mean())))
    readings = {
        "log-variance and mean": ((second, first), "(mean, log_variance), in this order"),
        "mean and log-std": ((first, 2 * second), "(mean, 2 * log_std)"),
    }
    if bool((second > 0).all()):
        readings["mean and std"] = (first, 2 * second.log()), "(mean, 2 * std.log())"
        readings["mean and variance"] = (first, second.log()), "(mean, variance.log())"
    best, text = given.mean() + clear, ""
    for words, ((mean, log_variance), advice) in readings.items():
        found = elbo(mean, log_variance)
        if not ((found > given).double().mean() > MOST and found.mean() > best):
            continue
        if any(elbo(mean, log_variance + change).mean() > found.mean() for change in OTHER_WIDTHS):
            continue
        best = found.mean()
        text = (
            f"the ELBO on {len(x)} examples is {given.mean():.1f} nats with the encoder's outputs as "
            f"mean and log-variance, but {best:.1f} as {words}. If that is what it returns, put the "
            f"encoder into a module that returns {advice}. Otherwise check that the likelihood and its "
            "variance are those of the training"
        )
    return text


def fell(first: float, best: float, rows: Sequence[Mapping[str, float]], rate: float) -> str:
    """Return a warning text if training made the validation bound much lower, else "".

    The bound before training is compared with the final bound and with the lowest bound of all epochs.

    Args:
        first: the validation bound before training, in nats; NaN if it is not known.
        best: the validation bound of the weights that are kept.
        rows: the metrics of each epoch.
        rate: the learning rate, for the text.
    """
    if not math.isfinite(first) or not rows:
        return ""
    worst = min(rows, key=lambda row: row["val_iwae"])
    size = max(10.0, abs(first))
    if first - best > WORSE * size:
        what = f"is {best:.4g} nats after it"
    elif first - worst["val_iwae"] > EXPLODED * size:
        what = f"fell to {worst['val_iwae']:.4g} nats in epoch {worst['epoch']}"
    else:
        return ""
    return (
        f"the validation bound was {first:.4g} nats before training and {what}. The learning rate "
        f"{rate:g} is probably too high: train again with a lower learning_rate (--learning-rate)"
    )


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=3)
