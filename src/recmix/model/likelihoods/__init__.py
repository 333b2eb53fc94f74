"""Likelihoods p(x | z): densities of an example x whose parameters are the decoder's output."""

from recmix.model.likelihoods.autoregressive import Autoregressive
from recmix.model.likelihoods.binary import Bernoulli, ProbabilityBernoulli
from recmix.model.likelihoods.classes import Categorical
from recmix.model.likelihoods.counts import (
    Multinomial,
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
)
from recmix.model.likelihoods.eight_bit import LogisticMixture
from recmix.model.likelihoods.graph import CategoricalGraph
from recmix.model.likelihoods.likelihood import (
    LIKELIHOODS,
    Likelihood,
    bits_per_dimension,
    find_likelihood,
    register_likelihood,
    sum_event,
)
from recmix.model.likelihoods.real_valued import DecodedGaussian, FeatureGaussian, Gaussian

__all__ = [
    "LIKELIHOODS",
    "Autoregressive",
    "Bernoulli",
    "Categorical",
    "CategoricalGraph",
    "DecodedGaussian",
    "FeatureGaussian",
    "Gaussian",
    "Likelihood",
    "LogisticMixture",
    "Multinomial",
    "NegativeBinomial",
    "Poisson",
    "ProbabilityBernoulli",
    "ZeroInflatedNegativeBinomial",
    "bits_per_dimension",
    "find_likelihood",
    "register_likelihood",
    "sum_event",
]
