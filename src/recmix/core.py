"""The central objects: a latent model p(x, z), a posterior q(z | x), a method that learns both.

Shapes: the sample axis comes first. ``z`` is (S, B, D), ``log_q`` is (S, B), images ``x`` are
(B, C, H, W) with values in [0, 1]. ``elbo`` and ``log_*`` are higher-is-better, in nats per example;
``loss`` is what is minimised.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError, unknown
from recmix.fusion import fusible
from recmix.muon import OPTIMIZERS
from recmix.run import REUSE

if TYPE_CHECKING:
    from recmix.likelihoods import Likelihood

__all__ = [
    "COMPONENTS",
    "METHODS",
    "Component",
    "LatentModel",
    "Method",
    "Optimizers",
    "Posterior",
    "find_method",
    "make_component",
    "register",
    "register_component",
    "same_shapes",
    "standard_normal",
    "tilted",
    "update",
]

WIDEST = 8.0
"""What `tilted` gives is not above this, nor below its inverse."""

Optimizers = dict[str, torch.optim.Optimizer]

LESSONS = 8
"""Samples of the refined posterior that teach an encoder in one step; they need no decoder."""


@fusible
def standard_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I) summed over the last axis: (..., D) -> (...)."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class Posterior(ABC):
    """q(z | x) for one batch of B examples: it can sample and score.

    A subclass is a plain object around tensors that carry gradients to the networks that made them.
    """

    @abstractmethod
    def rsample_and_log_prob(
        self, samples: int = 1, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Reparameterised samples z (S, B, D) and their log-densities log_q (S, B)."""

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """log q(z | x): (S, B, D) -> (S, B)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The posterior mean, (B, D)."""

    @property
    def weights(self) -> Tensor:
        """Mixing weights (B, K), rows sum to 1; a posterior that is no mixture has K = 1."""
        return torch.ones_like(self.mean[:, :1])

    def kl_to_prior(self, z: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || N(0, I)), (S, B): here the estimate from samples; exact where a closed form exists."""
        return log_q - standard_normal(z)

    def widened(self, factor: float | Tensor) -> Posterior:
        """The same about the same mean, wider by a factor, or by one for each example (B,).

        Wider means: what the precision has beyond the prior's is divided by factor². So where the image
        says much the standard deviations are `factor` times as large, and where it says nothing the
        prior's width stays; nothing gets wider than the prior by it, and what is wider than the prior
        comes nearer to it. Below 1, all standard deviations are multiplied by the factor.
        """
        raise ConfigError(
            f"{type(self).__name__} has no standard deviations to widen: only Gaussians and mixtures "
            "of them can be calibrated"
        )

    def copy(self) -> Posterior:
        """The same density in tensors of its own."""
        copied: Posterior = _copied(self)
        return copied

    def as_distribution(self) -> torch.distributions.Distribution:
        """The same density as a `torch.distributions` object: batch_shape (B,), event_shape (D,)."""
        raise ConfigError(
            f"{type(self).__name__} is not a plain torch distribution: "
            "use rsample_and_log_prob and log_prob instead"
        )


def _copied(value: Any) -> Any:
    """A posterior, or a part of one, with its tensors copied; networks are shared."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or callable(value):
        return value
    made = copy.copy(value)
    vars(made).update({name: _copied(part) for name, part in vars(value).items()})
    return made


def tilted(factor: float, tilt: float, worse: Tensor) -> Tensor:
    """Factors of widths (B,) for images whose log p(x, mean) is so many nats worse than usual.

    >>> tilted(2.0, 0.1, torch.tensor([0.0, 1.0, -1.0, 1e9]))
    tensor([2.0000, 2.2103, 1.8097, 8.0000])
    """
    return (math.log(factor) + tilt * worse).clamp(-math.log(WIDEST), math.log(WIDEST)).exp()


class LatentModel(nn.Module):
    """p(x, z) = p(z) p(x | z) with p(z) = N(0, I).

    Images come and go in [0, 1]. For a centred likelihood the training mean is subtracted before an
    encoder sees an image and added back to what the decoder makes; nobody outside has to know.

    Args:
        decoder: (N, D) -> (N, C, H, W).
        likelihood: p(x | decoder's output).
        latent: D, the dimension of z.
        shape: (C, H, W).
        centre: the training mean (C, H, W); ignored unless the likelihood is centred.
    """

    centre: Tensor

    def __init__(
        self,
        decoder: nn.Module,
        likelihood: Likelihood,
        *,
        latent: int,
        shape: tuple[int, int, int],
        centre: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.likelihood = likelihood
        self.latent = latent
        self.shape = shape
        if not self.likelihood.centred or centre is None:
            centre = torch.zeros(shape)
        self.register_buffer("centre", centre.detach().clone())

    @property
    def shift(self) -> Tensor | None:
        """What is taken off images before an encoder sees them, (C, H, W), if anything is."""
        return self.centre if self.likelihood.centred else None

    def centred(self, x: Tensor) -> Tensor:
        """What an encoder sees of x (B, C, H, W)."""
        return x - self.centre if self.likelihood.centred else x

    def decoded(self, z: Tensor) -> Tensor:
        """The decoder's raw output for z (S, B, D): (S, B, C, H, W)."""
        out: Tensor = self.decoder(z.flatten(0, -2))
        return out.view(*z.shape[:-1], *out.shape[1:])

    def decode(self, z: Tensor) -> Tensor:
        """Mean images of z: (..., D) -> (..., C, H, W), in the data's own range."""
        mean = self.likelihood.mean(self.decoded(z))
        return mean + self.centre if self.likelihood.centred else mean

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z): x (B, C, H, W), z (S, B, D) -> (S, B)."""
        return self.likelihood.log_prob(self.centred(x), self.decoded(z))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z): x (B, C, H, W), z (S, B, D) -> (S, B)."""
        return self.log_conditional(x, z) + standard_normal(z)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Mean images of n draws from the prior, (n, C, H, W)."""
        z = torch.randn(
            n, self.latent, generator=generator, device=self.centre.device, dtype=self.centre.dtype
        )
        return self.decode(z)

    def parameter_groups(self, learning_rate: float, variance_rate: float) -> list[dict[str, Any]]:
        """Groups for the decoder's optimiser: the likelihood's own parameters move faster.

        Adam moves a scalar by at most the learning rate per step, and the noise variance has far to go.
        """
        groups: list[dict[str, Any]] = [{"params": list(self.decoder.parameters()), "lr": learning_rate}]
        if own := list(self.likelihood.parameters()):
            groups.append({"params": own, "lr": learning_rate * variance_rate})
        return groups


def update(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of `optimizer` down `loss`; no other parameter receives a gradient."""
    optimizer.zero_grad(set_to_none=True)
    moving = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if moving:  # otherwise all of it stands still, and there is nothing to do
        loss.backward(inputs=moving)
        optimizer.step()


class Component(nn.Module, ABC):
    """One amortised posterior: an encoder, and what turns its output into a density.

    Methods are made of components: the VAE of one Gaussian, a flow of one with its flow, a mixture of
    several of any kind. Keyword-only constructor arguments are its options.

    Args:
        encoder: (B, C, H, W) -> (B, 2 D).
        model: for the shapes of what is built on top; not kept.
    """

    kind: ClassVar[str]
    setting: ClassVar[str | None] = None
    """The option that the paper's tables vary, if any."""
    sees_before: ClassVar[bool] = False
    """Whether `forward` also takes the posterior of the component before, which it corrects."""
    several: ClassVar[bool] = False
    """Whether it can begin from several points, of which the best counts: then it has `best`."""
    teachable: ClassVar[bool] = True
    """Whether its density carries gradients to its encoder, so that samples can teach it."""

    def __init__(self, encoder: nn.Module, model: LatentModel) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, x: Tensor, model: LatentModel) -> Posterior:
        """q(z | x) for images x (B, C, H, W) in [0, 1]."""


class Method(nn.Module, ABC):
    """How a posterior is formed and how the parameters move on one batch.

    A new method is one file in `methods/` with a subclass under `@register`. Its keyword-only
    constructor arguments are its options: the command line, the TOML schema and the tables read them.

    `step` never waits for the device (no ``.item()``, no branch on a tensor's value): that is what lets
    an engine capture any method as a graph.

    A method's constructor takes (model, encoder, *, options): the encoder is a new network
    (B, C, H, W) -> (B, 2 D), to be copied where more than one is needed.

    Args:
        model: p(x, z).
        components: what the posterior is made of.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    reference: ClassVar[str]
    setting: ClassVar[str | None] = None
    """The option that the paper's tables vary, if any."""
    tried: ClassVar[tuple[int, ...]] = ()
    """The values it has in those tables."""
    second_stage: ClassVar[bool] = True
    """Whether it starts from a trained VAE, under the second-stage schedule."""
    rate_factor: ClassVar[float] = 1.0
    """Multiplies the default learning rate."""
    fresh_factor: ClassVar[float] = 1.0
    """How much faster, by default, parameters move that a second stage starts at random."""
    optimizer: str = "adam"
    """What moves the parameters: ``adam`` or ``muon``."""
    decoder_samples: int = 0
    """If not 0, the decoder is moved up the IWAE bound of so many samples instead of the ELBO."""
    refine: int = 0
    """If not 0, the posterior that is scored, and that the decoder learns from, is `posterior` refined
    by so many Gauss-Newton steps."""
    reuse: int = REUSE
    """How often the curvature of a Gauss-Newton step serves again."""
    starts: int = 1
    """Climbs of each component, or chains of corrections, of which the best counts."""
    widen: float = 1.0
    """How much wider the posterior is used than it is, see `Posterior.widened`."""
    widen_tilt: float = 0.0
    """And by how much more where an image fits worse: e to this for each nat, see `tilted`."""
    widen_at: float = 0.0
    """log p(x, mean) of an image for which `widen` is meant, in nats."""
    distil: float = 0.0
    """Share of `distillation` in what the encoders move down."""
    distil_steps: int = 2
    """Gauss-Newton steps of the refinement that teaches them."""

    def __init__(self, model: LatentModel, components: Iterable[Component]) -> None:
        super().__init__()
        self.model = model
        self.components = nn.ModuleList(components)
        self._trainings = [0]  # shared with copies that share the weights

    @property
    def trainings(self) -> int:
        """How often training has begun: what was made from the weights before is of no more use."""
        return self._trainings[0]

    def train(self, mode: bool = True) -> Method:
        """As ever; a change of weights that no version tells, by a CUDA graph, begins with it."""
        self._trainings[0] += mode
        super().train(mode)
        return self

    def component(self, m: int, x: Tensor) -> Posterior:
        """q_m(z | x)."""
        q: Posterior = self.components[m](x, self.model)
        return q

    @property
    def base_encoder(self) -> nn.Module:
        """The encoder that another method would start from: that of the first component."""
        first: Component = self.components[0]  # type: ignore[assignment]
        return first.encoder

    def posterior(self, x: Tensor) -> Posterior:
        """q(z | x) for images x (B, C, H, W): here the only component's."""
        return self.component(0, x)

    def infer(self, x: Tensor) -> Posterior:
        """q(z | x) as it is used: `formed`, and widened."""
        q = self.formed(x)
        if self.widen_tilt:
            fit = self.model.log_joint(x, q.mean[None])[0]
            return q.widened(tilted(self.widen, self.widen_tilt, self.widen_at - fit))
        return q if self.widen == 1 else q.widened(self.widen)

    def formed(self, x: Tensor) -> Posterior:
        """q(z | x), with the best of several `starts` where it has corrections, refined by `refine`."""
        part: Any = self.components[0] if self.several else None
        q = part.best(x, self.model, self.starts) if part and self.starts > 1 else self.posterior(x)
        return self.refined(x, q)

    @property
    def several(self) -> bool:
        """Whether the posterior can begin from several points even where no step refines it."""
        return len(self.components) == 1 and bool(self.components[0].several)

    def climbs(self) -> dict[str, int]:
        """How what is used is arrived at: Gauss-Newton steps, how, and from how many starts."""
        return {
            "refine": self.refine,
            "reuse": self.reuse if self.refine else 0,
            "starts": self.starts if self.refine or self.several else 1,
        }

    def refined(self, x: Tensor, q: Posterior) -> Posterior:
        """q after `refine` Gauss-Newton steps of each of its components; q itself if that is 0."""
        if not self.refine:
            return q
        from recmix.refinement import refined

        return refined(self.model, x, q, steps=self.refine, reuse=self.reuse, starts=self.starts)

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """What one step minimises: by default minus the one-sample ELBO, averaged over the batch."""
        q = self.posterior(x)
        z, log_q = q.rsample_and_log_prob(1, generator=generator)
        elbo = self.model.log_conditional(x, z) - q.kl_to_prior(z, log_q)
        return -elbo.mean()

    def networks(self) -> list[nn.Module]:
        """The networks that a step evaluates as a whole, which an engine may compile."""
        parts: Any = self.components
        return [self.model.decoder, *(part.encoder for part in parts)]

    def inherited(self) -> list[nn.Parameter]:
        """Parameters, outside the model, that `start_from` fills with trained ones: the encoders."""
        parts: Any = self.components
        return [p for part in parts if not part.sees_before for p in part.encoder.parameters()]

    def groups(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, fresh_rate: float
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser: those that start anew may move faster."""
        old = {id(p) for p in self.inherited()}
        halves: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for p in parameters:
            halves[id(p) not in old].append(p)
        rates = (learning_rate, learning_rate * fresh_rate)
        return [{"params": ps, "lr": rate} for ps, rate in zip(halves, rates, strict=True) if ps]

    def optimizers(
        self, learning_rate: float, *, variance_rate: float = 1.0, fresh_rate: float = 1.0
    ) -> Optimizers:
        """One optimiser per update of `step`; by default a single one for everything.

        Args:
            learning_rate: of the networks.
            variance_rate: how much faster the likelihood's variance moves.
            fresh_rate: how much faster parameters move that do not come from a trained model.
        """
        shared = {id(p) for p in self.model.parameters()}
        own = [p for p in self.parameters() if id(p) not in shared]
        groups = self.groups(own, learning_rate, fresh_rate)
        groups += self.model.parameter_groups(learning_rate, variance_rate)
        return {"all": self.optimizer_of(groups, learning_rate)}

    def optimizer_of(
        self, groups: Iterable[dict[str, Any]], learning_rate: float
    ) -> torch.optim.Optimizer:
        """The optimiser of these parameters, of the kind that `optimizer` names."""
        return OPTIMIZERS[self.optimizer](groups, learning_rate)

    def step(
        self, x: Tensor, optimizers: Optimizers, *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Move the parameters on one batch; returns scalars still on the device."""
        loss = self.loss(x, generator=generator)
        self.move(loss, x, optimizers["all"], generator)
        return {"loss": loss.detach(), "elbo": -loss.detach()}

    def move(
        self,
        loss: Tensor,
        x: Tensor,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator | None,
    ) -> None:
        """Move everything down `loss`; where the decoder has an objective of its own, only the rest.

        With distillation the rest moves down (1 - `distil`) times it and `distil` times `distillation`.
        """
        if not self.decoder_apart and not self.distil:
            update(loss, optimizer)
            return
        shared = {id(p) for p in self.model.parameters()}
        moving = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
        theirs = [p for p in moving if id(p) in shared]
        rest = [p for p in moving if id(p) not in shared]
        optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=rest if self.decoder_apart else moving)
        if self.distil:
            torch._foreach_mul_([p.grad for p in rest if p.grad is not None], 1 - self.distil)
            (self.distil * self.distillation(x, generator)).backward(inputs=rest)
        if theirs and self.decoder_apart:
            with torch.no_grad():
                q = self.posterior(x)
            self.decoder_loss(x, q, generator).backward(inputs=theirs)
        optimizer.step()

    @property
    def decoder_apart(self) -> bool:
        """Whether the decoder has an objective of its own: an IWAE bound, or a refined posterior's."""
        return bool(self.decoder_samples or self.refine)

    def distillation(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """KL(q* || q) but for a constant, averaged over the batch, with q* the `teacher` of q.

        That is -E log q(z | x) over samples z of q*, which carry no gradient: only q moves.
        """
        q = self.posterior(x)
        with torch.no_grad():
            z, _ = self.teacher(x, q).rsample_and_log_prob(LESSONS, generator=generator)
        return -q.log_prob(z).mean()

    @torch.no_grad()
    def teacher(self, x: Tensor, q: Posterior) -> Posterior:
        """q after `distil_steps` Gauss-Newton steps of each of its components, without gradients."""
        from recmix.refinement import refined

        how = {"reuse": self.reuse, "starts": self.starts}
        return refined(self.model, x, q, steps=self.distil_steps, **how)

    def decoder_loss(self, x: Tensor, q: Posterior, generator: torch.Generator | None) -> Tensor:
        """What the decoder is moved down where it has an objective of its own.

        Minus the ELBO of q refined, or minus the IWAE bound of `decoder_samples` of its samples. q is
        the posterior as it is, without gradients; the refined one carries gradients to the decoder.
        """
        q = self.refined(x, q)
        if self.decoder_samples:
            with torch.no_grad():
                z, log_q = q.rsample_and_log_prob(self.decoder_samples, generator=generator)
            log_w = self.model.log_joint(x, z) - log_q
            return math.log(self.decoder_samples) - log_w.logsumexp(0).mean()
        parts = q.components if hasattr(q, "components") else [q]
        z = torch.cat([part.rsample_and_log_prob(1, generator=generator)[0] for part in parts])
        weights = q.weights.t()  # (K, B); with one component, ones
        return -(weights * (self.model.log_joint(x, z) - q.log_prob(z))).sum(0).mean()

    def prepare(self, x: Tensor) -> None:
        """Called once before a second stage with validation images x: settle what depends on them."""

    def start_from(self, other: Method) -> None:
        """Take over what `other` has learned: everything if it is the same, else encoder and decoder."""
        if type(other) is type(self) and same_shapes(self, other):
            self.load_state_dict(other.state_dict())
            return
        self.model.load_state_dict(other.model.state_dict())
        self.base_encoder.load_state_dict(other.base_encoder.state_dict())


def same_shapes(a: nn.Module, b: nn.Module) -> bool:
    """Whether the weights of one fit the other."""
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(one[k].shape == two[k].shape for k in one)


METHODS: dict[str, Any] = {}
"""Method classes by name; each is called as (model, encoder, *, options)."""
COMPONENTS: dict[str, Any] = {}
"""Component classes by kind; each is called as (encoder, model, *, options)."""
_M = TypeVar("_M", bound=type[Method])
_C = TypeVar("_C", bound=type[Component])


def register(cls: _M) -> _M:
    """Make a method known under its name."""
    if cls.name in METHODS:
        raise ConfigError(f"two methods are called {cls.name!r}: {METHODS[cls.name]} and {cls}")
    METHODS[cls.name] = cls
    return cls


def register_component(cls: _C) -> _C:
    """Make a component known under its kind, for mixtures to be made of."""
    if cls.kind in COMPONENTS:
        raise ConfigError(f"two components are called {cls.kind!r}: {COMPONENTS[cls.kind]} and {cls}")
    COMPONENTS[cls.kind] = cls
    return cls


def make_component(
    kind: str, encoder: nn.Module, model: LatentModel, setting: int | None = None
) -> Component:
    """A component of this kind; `setting` is the option that its tables vary (steps, flows)."""
    import recmix.methods  # noqa: F401  (fills the registry)

    if kind not in COMPONENTS:
        raise ConfigError(unknown("component", kind, COMPONENTS))
    cls = COMPONENTS[kind]
    if setting is None:
        made: Component = cls(encoder, model)
        return made
    if cls.setting is None:
        raise ConfigError(f"component {kind!r} has no setting, got component_setting={setting}")
    made = cls(encoder, model, **{cls.setting: setting})
    return made


def find_method(name: str) -> type[Method]:
    """The method class of this name."""
    import recmix.methods  # noqa: F401  (fills the registry)

    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    found: type[Method] = METHODS[name]
    return found
