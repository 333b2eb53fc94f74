"""Make a `LatentModel` and its encoder from options, a user's own objects and data statistics."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from recmix.errors import ConfigError, RunError, unknown
from recmix.model.curvature_network import CurvatureNetwork
from recmix.model.data_facts import Statistics
from recmix.model.encoder_decoder import Shape, evaluation_mode
from recmix.model.fields import Fields
from recmix.model.foreign import ForeignEncoder, as_decoder, as_encoder, latent_shape
from recmix.model.latent import LatentModel
from recmix.model.likelihoods import LIKELIHOODS, Gaussian, Likelihood, find_likelihood
from recmix.model.likelihoods.likelihood import constructor_options
from recmix.model.network_checks import check_output
from recmix.model.networks import (
    AUTO_NETWORK,
    NETWORKS,
    TOKEN_NETWORKS,
    check_network_name,
    check_network_options,
    default_network,
    keyword_options,
    make_decoder,
    make_encoder,
    network_options,
)
from recmix.model.options import ModelOptions
from recmix.model.priors import PRIORS, Prior, VampPrior, as_prior, make_prior
from recmix.model.vocabulary import Vocabulary

__all__ = ["OWN", "Own", "Statistics", "check_part_names", "complete_options", "make_model"]
__all__ += ["needs_classes"]

T = TypeVar("T")
OWN = "own"
"""The option value that stands for an encoder, decoder, likelihood or prior that the user wrote."""
USUAL_LIKELIHOOD = {
    "binary": "bernoulli",
    "counts": "poisson",
    "tokens": "autoregressive",
    "graph": "graph",
}
"""The default likelihood by kind of data. Kinds that are not listed here use ``gaussian``."""
TOKEN_OPTIONS = ("causal", "token_dropout")
"""Options that only the autoregressive likelihood has."""


@dataclass(frozen=True)
class Own:
    """The parts of a model that the user wrote.

    A part that is None is not the user's own. It is made from the model options.
    """

    encoder: nn.Module | None = None
    decoder: nn.Module | None = None
    likelihood: Likelihood | None = None
    prior: Any = None

    def copied(self) -> Own:
        """Make a copy that holds deep copies of all parts."""
        return _copied(self)

    def or_those_of(self, model: LatentModel, encoder: nn.Module, named: ModelOptions) -> Own:
        """Fill in the parts that are None from a trained model, and return the result.

        Only those parts of the trained model are copied that its user wrote.

        Args:
            model: the trained model.
            encoder: the encoder of the trained model.
            named: the options of the trained model. An option with the value "own", such as `network`,
                says that the user wrote this part.
        """
        theirs = {
            "encoder": (named.network, encoder),
            "decoder": (named.decoder_network, model.decoder),
            "likelihood": (named.likelihood, model.likelihood),
            "prior": (named.prior, model.prior),
        }
        found: dict[str, Any] = {
            name: copy.deepcopy(part)
            for name, (kind, part) in theirs.items()
            if kind == OWN and getattr(self, name) is None
        }
        return replace(self, **found)


def _copied(parts: T) -> T:
    """Return a deep copy of a user's modules; raise a `ConfigError` if they cannot be copied."""
    try:
        return copy.deepcopy(parts)
    except Exception as error:  # whatever a user's module raises
        raise ConfigError(
            "your networks must be copied, because two models, or encoder and decoder, would share "
            f"their weights, and they cannot be copied ({type(error).__name__}: {error}): remove what "
            "copy.deepcopy does not support from the modules, such as a lock or an open file"
        ) from error


NOTHING, NO_STATISTICS = Own(), Statistics()


def complete_options(
    given: Mapping[str, Any],
    *,
    shape: Shape,
    kind: str = "unit",
    classes: int = 0,
    fields: Fields | None = None,
    vocabulary: Vocabulary | None = None,
    own: Own = NOTHING,
    before: ModelOptions | None = None,
) -> ModelOptions:
    """Make complete model options from the user's values, a trained model's options and the defaults.

    A value in `given` has priority. If there is none, the value of the trained model is used, and
    otherwise the default.

    Args:
        given: the user's option values by name; None means that the user gave no value.
        shape: shape of an example.
        kind: kind of the data, such as "binary", "counts", "tokens" or "real". It decides the default
            likelihood and the default networks.
        classes: one more than the largest value in the data, or 0 if this number is not needed; see
            `needs_classes`.
        fields: names and shapes of the fields of an example, if it has several.
        vocabulary: the vocabulary of texts or molecules. It gives the numbers of classes.
        own: parts of the model that the user gave as objects. The option of such a part, for example
            `network`, becomes "own". A built-in likelihood given as an object sets its own options.
        before: the options of the trained model, if training starts from one.
    """
    found = {k: v for k, v in given.items() if v is not None}
    if before:
        found = vars(before) | found
    network = OWN if own.encoder is not None else found.get("network", AUTO_NETWORK)
    likelihood_name = own.likelihood.name if own.likelihood else found.get("likelihood")
    _check_kind(kind, network, found.get("decoder_network"), likelihood_name)
    if network in TOKEN_NETWORKS or found.get("likelihood") == "autoregressive":
        kind = "tokens"
    decoder_network = found.get("decoder_network") or network
    if own.decoder is not None:
        decoder_network = OWN
    elif decoder_network == OWN:
        decoder_network = AUTO_NETWORK
    usual = None if fields is not None and kind != "graph" else default_network(shape, kind)
    network, decoder_network = (
        usual if name == AUTO_NETWORK else name for name in (network, decoder_network)
    )
    if network is None or decoder_network is None:
        names = list(fields.shapes) if fields else [""]
        raise ConfigError(
            f"the examples have the fields {', '.join(names)}, for which there is no built-in network. "
            "Give your own networks, which take a dict of tensors: encoder= and decoder= "
            "(--networks module:function). Or save one field alone as the data: "
            f"numpy.savez(path, x_train={names[0]}). Graphs, with the fields nodes and edges, need "
            "network='graph' (--network graph)"
        )
    found |= {"network": network, "decoder_network": decoder_network}
    if (likelihood := own.likelihood) is not None:
        found["likelihood"] = likelihood.name if likelihood.named else OWN
        found |= likelihood.model_options()
        if isinstance(likelihood, Gaussian) and not likelihood.learned:
            found["variance"] = float(likelihood.variance.mean())
    found.setdefault("likelihood", USUAL_LIKELIHOOD.get(kind, "gaussian"))
    if own.prior is not None:
        given_prior = as_prior(own.prior, int(found.get("latent", 1)))
        found["prior"] = "standard" if given_prior.standard else OWN
    for name, value in vocabulary.model_options().items() if vocabulary else ():
        found.setdefault(name, value)
    if classes:
        found.setdefault("classes", classes)
    options = ModelOptions(**found)
    kinds = [name for name in (network, decoder_network) if name != OWN]
    used = [] if found["likelihood"] == OWN else _options_of(find_likelihood(found["likelihood"]))
    check_network_options(options, kinds, used)
    for name, value in options.changed().items():  # a resumed run gives all options, with their defaults
        if given.get(name) is not None and name in TOKEN_OPTIONS and name not in used:
            raise ConfigError(
                f"{name}={value!r} is an option of the likelihood autoregressive, got "
                f"{found['likelihood']}: leave {name} out, or choose another likelihood"
            )
    return options


def _check_kind(kind: str, network: str, decoder_network: str | None, likelihood: str | None) -> None:
    """Raise a `ConfigError` if a network or the likelihood cannot be used for texts or graphs.

    `kind` is the kind of the data: "tokens" for texts, "graph" for graphs. Other kinds are not checked.
    """
    reads = {"tokens": "texts", "graph": "graphs"}
    others = ["gaussian", "gaussian-features", "gaussian-decoded"]  # class numbers are no measurements
    others += [n for n, one in LIKELIHOODS.items() if one.values in ("unit", "counts", "eight_bit")]
    wrong = {
        "tokens": ("graph", *others),
        "graph": (*TOKEN_NETWORKS, "autoregressive", "categorical", *others),
    }
    named = {"network": network, "decoder_network": decoder_network, "likelihood": likelihood}
    for option, value in named.items():
        if value in wrong.get(kind, ()):
            raise ConfigError(
                f"{option}={value!r} is not for {reads[kind]}: leave it out, or read the data in "
                "another form (molecules can be read as strings or, with graphs=True, as graphs)"
            )


def check_part_names(given: Mapping[str, Any]) -> None:
    """Raise a `ConfigError` if there is no likelihood, network or prior of the name that is given.

    Args:
        given: the user's option values by name; None means that the user gave no value.
    """
    named = {name: given[name] for name in given if given[name] not in (None, OWN)}
    if "likelihood" in named:
        find_likelihood(named["likelihood"])
    for option, role in (("network", "encoder"), ("decoder_network", "decoder")):
        if option in named:
            check_network_name(named[option], role)
    if named.get("prior", PRIORS[0]) not in PRIORS:
        raise ConfigError(unknown("prior", named["prior"], PRIORS))


def needs_classes(given: Mapping[str, Any]) -> bool:
    """Whether a model with these options needs the number of classes, which the options do not hold.

    `given` holds option values by name.

    >>> needs_classes({"likelihood": "categorical"}), needs_classes({"network": "gru", "classes": 5})
    (True, False)
    """
    tokens = given.get("likelihood") in ("categorical", "autoregressive")
    return not given.get("classes") and (tokens or given.get("network") in TOKEN_NETWORKS)


def make_model(
    model: ModelOptions,
    shape: Shape,
    *,
    fields: Fields | None = None,
    own: Own = NOTHING,
    statistics: Statistics = NO_STATISTICS,
) -> tuple[LatentModel, nn.Module]:
    """Make the model p(x, z) and the encoder of q(z | x), from options and the user's own parts.

    If the user's encoder and decoder share parameters, the decoder is copied. Without the copy, loading
    the stored weights of the decoder would overwrite the weights of the encoder.

    Args:
        model: the complete model options, see `complete_options`.
        shape: shape of an example.
        fields: names and shapes of the fields of an example, if it has several.
        own: parts of the model that the user wrote.
        statistics: statistics of the training data, from which the model is initialised.
    """
    _check_own_parts(model, own)
    likelihood = own.likelihood or _likelihood(model, shape, statistics)
    output = likelihood.output_shape(shape)
    weights: list[nn.Parameter] = []
    for part in (own.encoder, own.decoder):
        weights += [] if part is None else [p for p in part.parameters() if p.is_floating_point()]
    if len({id(p) for p in weights}) < len(weights):
        own = replace(own, decoder=_copied(own.decoder))
    like = weights[0] if weights else torch.zeros(())
    example = torch.zeros(2, *shape).to(like)
    seen = example if fields is None else fields.unpack(example)
    if own.encoder is None:
        kind = model.network
        options = network_options(kind, model, "encoder")
        encoder: nn.Module = make_encoder(kind, shape, model.latent, **options)
    else:
        encoder = _own_encoder(own, seen)
        if fields is None and not isinstance(encoder, ForeignEncoder):
            advice = f"mean and log-variance of {model.latent} latent dimensions side by side"
            check_output("encoder", encoder, example, (2, 2 * model.latent), advice)
    if own.decoder is None:
        kind = model.decoder_network or model.network
        options = network_options(kind, model, "decoder")
        decoder: nn.Module = make_decoder(kind, shape, model.latent, output, **options)
    else:
        dims: tuple[int, ...] = (model.latent,)
        if isinstance(encoder, ForeignEncoder):
            with evaluation_mode(encoder):
                dims = latent_shape(encoder, seen)
            if math.prod(dims) != model.latent:
                raise ConfigError(
                    f"the encoder gives {math.prod(dims)} latent dimensions, but the model has "
                    f"{model.latent} (latent = {model.latent}): give networks with as many"
                )
        try:
            with evaluation_mode(own.decoder):
                decoder = as_decoder(own.decoder, dims, example)
        except ConfigError as error:
            raise ConfigError(f"{error}. In this model z has {model.latent} dimensions") from error
        z = torch.zeros(2, model.latent).to(like)
        check_output(
            "decoder", decoder, z, (2, *output), "what the likelihood reads for each latent point"
        )
    centre = None if model.standardise == "none" else statistics.centre
    latent_model = LatentModel(
        decoder,
        likelihood,
        latent=model.latent,
        shape=shape,
        centre=None if centre is None else torch.from_numpy(centre),
        spread=_spread(model, shape, likelihood, statistics),
        prior=_prior(model, shape, own, encoder),
        fields=fields,
        curvature=_curvature(model),
    )
    if isinstance(latent_model.prior, VampPrior) and statistics.examples is not None:
        chosen = torch.from_numpy(statistics.examples)[: model.prior_components]
        latent_model.prior.start_at(latent_model.standardised(chosen))
    return latent_model, encoder


def _curvature(model: ModelOptions) -> CurvatureNetwork | None:
    if model.curvature == "none":
        return None
    with torch.random.fork_rng():  # the other networks get the same first weights with and without it
        rank = min(model.curvature_rank, model.latent) if model.curvature == "low-rank" else 0
        return CurvatureNetwork(model.latent, rank)


def _own_encoder(own: Own, seen: Any) -> Any:
    """Convert the user's encoder with `as_encoder`.

    Raise a `ConfigError` if the encoder does not accept the examples `seen`. The message says so if the
    decoder accepts them, because then the two are probably swapped.
    """
    assert own.encoder is not None
    try:
        with evaluation_mode(own.encoder):
            return as_encoder(own.encoder, seen)
    except ConfigError as error:
        if own.decoder is not None and _is_encoder(own.decoder, seen):
            raise ConfigError(
                "the encoder does not accept the examples, but the decoder does: are they swapped?"
            ) from error
        raise


def _is_encoder(network: nn.Module, seen: Any) -> bool:
    try:
        with evaluation_mode(network):
            latent_shape(network, seen)
    except ConfigError:
        return False
    return True


def _likelihood(options: ModelOptions, shape: Shape, statistics: Statistics) -> Likelihood:
    name = options.likelihood or "gaussian"
    kind = find_likelihood(name)
    variance = statistics.variance if options.standardise != "features" else 1.0
    chosen = {k: v for k, v in options.changed().items() if k in _options_of(kind)}
    # A run that is loaded does not know the variance of its data; Gaussians have theirs in the weights.
    if issubclass(kind, Gaussian) or "variance" in keyword_options(kind.for_data):
        chosen["variance"] = max(variance, 1e-6)
    made = kind.for_data(shape, **chosen)
    if options.variance is not None:
        if not isinstance(made, Gaussian):
            raise ConfigError(f"variance is an option of gaussian likelihoods; this one is {name}")
        made.fix(options.variance)
    return made


def _options_of(kind: type[Likelihood]) -> list[str]:
    """The names of the model options that a likelihood takes.

    These are the keyword-only arguments of its method `for_data`. If there are none, these are the
    arguments of its constructor.
    """
    return keyword_options(kind.for_data) or constructor_options(kind)


def _spread(
    options: ModelOptions, shape: Shape, likelihood: Likelihood, statistics: Statistics
) -> torch.Tensor | None:
    """The standard deviations that x is divided by, or None if x is not divided."""
    if options.standardise != "features":
        return None
    if not likelihood.centred:
        raise ConfigError(
            f"standardise='features' is for gaussian likelihoods; the {likelihood.name} likelihood "
            "needs x as it is"
        )
    if statistics.spread is None:
        return torch.ones(shape)
    return torch.from_numpy(statistics.spread)


def _prior(options: ModelOptions, shape: Shape, own: Own, encoder: nn.Module) -> Prior:
    """The user's own prior, or else the prior that the options name."""
    if own.prior is not None:
        return as_prior(own.prior, options.latent)
    network = NETWORKS.get(options.network)
    if options.prior == "vamp" and network is not None and network.reads_classes:
        raise ConfigError(
            "prior='vamp' learns pseudo-examples by their gradient, but class numbers, which network="
            f"{options.network!r} reads, have none: use prior='mixture' or prior='flow'"
        )
    return make_prior(options.prior, options.latent, options.prior_components, encoder, shape)


def _check_own_parts(model: ModelOptions, own: Own) -> None:
    """Raise a `RunError` that names all parts of the model that the user wrote, but did not give."""
    kinds = {
        "encoder": model.network,
        "decoder": model.decoder_network or model.network,
        "likelihood": model.likelihood,
        "prior": model.prior,
    }
    missing = [name for name, kind in kinds.items() if kind == OWN and getattr(own, name) is None]
    if not missing:
        return
    arguments = ", ".join(f"{name}=…" for name in missing)
    names = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    advice = ""
    if missing[:2] == ["encoder", "decoder"]:
        advice = ". If one module has the methods encode and decode, pass it: recmix.load(run, VAE())"
    raise RunError(
        f"this run has its user's own {names}. Modules are code and are not stored: pass "
        f"{arguments}{advice}"
    )
