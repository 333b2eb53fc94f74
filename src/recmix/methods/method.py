"""`Method`: how a posterior is formed and how the parameters are trained on one batch."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.inference.refinement import check_decoder_has_jacobian
from recmix.methods.component import Component, CountsTraining
from recmix.methods.optimizers import make_optimizer, model_groups
from recmix.model.latent import LatentModel
from recmix.model.replaceable import replaceable
from recmix.objectives import elbo, log_mean_exp
from recmix.posteriors import Posterior

__all__ = [
    "Method",
    "Objective",
    "Optimizers",
    "check_can_be_distilled",
    "fuse_networks",
    "infer",
    "infer_no_grad",
    "same_shapes",
    "update",
]

Optimizers = dict[str, torch.optim.Optimizer]

NO_REFINEMENT, TWO_STEPS = Inference(), Inference(refine=2)
TEACHER_SAMPLES = 8
"""Samples of the refined posterior that an encoder is fitted to in one step; they need no decoder."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What one training step maximises, besides the method's own objective.

    Attributes:
        iwae_samples: if not 0, the decoder maximises the IWAE bound of this many samples.
        inference: the decoder is trained on the posterior that this inference gives.
        distil: share of distillation in the encoders' loss, 0 to 1.
        teacher: the refinement whose samples the encoders are fitted to.
    """

    iwae_samples: int = 0
    inference: Inference = NO_REFINEMENT
    distil: float = 0.0
    teacher: Inference = TWO_STEPS

    @property
    def separate_decoder(self) -> bool:
        """Whether the decoder has an objective of its own."""
        return bool(self.iwae_samples or self.inference.refine)


ELBO = Objective()
"""The method's own objective, with nothing added."""


class Method(CountsTraining, ABC):
    """How a posterior is formed and how the parameters are trained on one batch.

    A new method is one file in `methods/` with a subclass under `@register`. Its keyword-only
    constructor arguments are its options: the command line, TOML files and tables read them.

    `step` never waits for the device (no ``.item()``, no branch on a tensor's value). So an engine can
    capture any method as a CUDA graph.

    A constructor takes (model, encoder, *, options). The encoder is a new network
    (B, C, H, W) -> (B, 2 D); copy it where more than one is needed.

    Args:
        model: p(x, z).
        components: the parts of the posterior.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    reference: ClassVar[str]
    setting: ClassVar[str | None] = None
    """The option that the paper's tables vary, if any."""
    tried: ClassVar[tuple[int, ...]] = ()
    """The values of this option in those tables."""
    starts_from: ClassVar[str | None] = "vae"
    """The method that is trained first, or None for a method that is trained from random weights."""
    can_grow: ClassVar[bool] = False
    """Whether ``order = "auto"`` is possible: components can be added one at a time."""
    can_restart: ClassVar[bool] = False
    """Whether `restarted` does more than `posterior`."""
    feed_forward: ClassVar[bool] = False
    """Whether the posterior takes several passes through encoder and decoder, without derivatives."""
    rate_factor: ClassVar[float] = 1.0
    """Factor of the default learning rate."""
    fresh_factor: ClassVar[float] = 1.0
    """Default of the training option `fresh_rate`."""

    options: dict[str, Any]
    """The keyword arguments that the method was made with."""

    def __new__(cls, *args: Any, **options: Any) -> Method:
        """Keep the options, so that a run can store them."""
        made = super().__new__(cls)
        object.__setattr__(made, "options", options)
        return made

    def __init__(self, model: LatentModel, components: Iterable[Component]) -> None:
        super().__init__()
        self.model = model
        self.components = nn.ModuleList(components)

    @classmethod
    def label(cls) -> str:
        """The name of its row in tables."""
        return cls.name.upper()

    def component(self, m: int, x: Tensor) -> Posterior:
        """q_m(z | x)."""
        q: Posterior = self.components[m](x, self.model)
        return q

    @property
    def base_encoder(self) -> nn.Module:
        """The encoder that another method starts from: that of the first component."""
        first: Component = self.components[0]  # type: ignore[assignment]
        return first.encoder

    @property
    def steps_per_example(self) -> int:
        """Optimisation steps that forming the posterior takes for each example."""
        parts: Any = self.components
        return max(part.steps_per_example for part in parts)

    @property
    def differentiates(self) -> bool:
        """Whether forming the posterior uses derivatives of the decoder."""
        return any(part.differentiates for part in self.components)

    def posterior(self, x: Tensor) -> Posterior:
        """q(z | x) for examples x (B, C, H, W): here that of the only component."""
        return self.component(0, x)

    def restarted(self, x: Tensor, restarts: int) -> Posterior:
        """q(z | x), the best of several starting points where the method `can_restart`."""
        return self.posterior(x)

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """What one step minimises: by default minus the one-sample ELBO, averaged over the batch."""
        return -elbo(self.model, x, self.posterior(x), generator=generator).mean()

    def networks(self) -> list[nn.Module]:
        """The networks that a training step evaluates as a whole, which an engine may compile."""
        parts: Any = self.components
        own = [network for part in parts for network in (part.encoder, *part.extra_networks())]
        return [self.model.decoder, *own]

    def inherited(self) -> list[nn.Parameter]:
        """Parameters outside the model that `start_from` fills with trained values: the encoders."""
        parts: Any = self.components
        return [p for part in parts if not part.corrects for p in part.encoder.parameters()]

    def groups(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, fresh_rate: float
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser, with a separate learning rate for new parameters.

        New parameters are those that are not in `inherited`. Their rate is learning_rate · fresh_rate.
        """
        old = {id(p) for p in self.inherited()}
        halves: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for p in parameters:
            halves[id(p) not in old].append(p)
        rates = (learning_rate, learning_rate * fresh_rate)
        return [{"params": ps, "lr": rate} for ps, rate in zip(halves, rates, strict=True) if ps]

    def optimizers(
        self,
        learning_rate: float,
        *,
        variance_rate: float = 1.0,
        fresh_rate: float = 1.0,
        optimizer: str = "adam",
    ) -> Optimizers:
        """One optimiser per update of `step`; by default a single one for everything.

        Args:
            learning_rate: of the networks.
            variance_rate: learning rate of the likelihood's variance, relative to the networks'.
            fresh_rate: learning rate of parameters that do not come from a trained model, relative to
                the others'.
            optimizer: ``adam`` or ``muon``.
        """
        shared = {id(p) for p in self.model.parameters()}
        own = [p for p in self.parameters() if id(p) not in shared]
        groups = self.groups(own, learning_rate, fresh_rate)
        groups += model_groups(self.model, learning_rate, variance_rate)
        return {"all": make_optimizer(optimizer, groups, learning_rate)}

    def step(
        self,
        x: Tensor,
        optimizers: Optimizers,
        *,
        objective: Objective = ELBO,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Train on one batch; returns scalars that are still on the device."""
        loss = self.loss(x, generator=generator)
        self.descend(loss, x, optimizers["all"], objective, generator)
        return {"loss": loss.detach(), "elbo": -loss.detach()}

    def descend(
        self,
        loss: Tensor,
        x: Tensor,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        generator: torch.Generator | None,
    ) -> None:
        """One optimiser step on `loss`, with the parts that the objective adds.

        If the decoder has an objective of its own, `loss` trains everything else. With distillation the
        encoders minimise (1 - distil) · loss + distil · `distillation`.
        """
        if not objective.separate_decoder and not objective.distil:
            update(loss, optimizer)
            return
        shared = {id(p) for p in self.model.parameters()}
        trained = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
        decoder = [p for p in trained if id(p) in shared]
        rest = [p for p in trained if id(p) not in shared]
        optimizer.zero_grad(set_to_none=True)
        if own := rest if objective.separate_decoder else trained:
            loss.backward(inputs=own)
        if objective.distil and rest:
            torch._foreach_mul_([p.grad for p in rest if p.grad is not None], 1 - objective.distil)
            teaching = self.distillation(x, objective.teacher, generator)
            (objective.distil * teaching).backward(inputs=rest)
        if decoder and objective.separate_decoder:
            with torch.no_grad():
                q = self.posterior(x)
            self.decoder_loss(x, q, objective, generator).backward(inputs=decoder)
        optimizer.step()

    def distillation(self, x: Tensor, teacher: Inference, generator: torch.Generator | None) -> Tensor:
        """KL(q* || q) up to a constant, averaged over the batch, where q* is q refined by `teacher`.

        That is -E log q(z | x) over samples z of q*. The samples carry no gradient.
        """
        q = self.posterior(x)
        with torch.no_grad():
            z, _ = teacher(self.model, x, q).rsample_and_log_prob(TEACHER_SAMPLES, generator=generator)
        return -q.log_prob(z).mean()

    def decoder_loss(
        self, x: Tensor, q: Posterior, objective: Objective, generator: torch.Generator | None
    ) -> Tensor:
        """The decoder's loss where it has an objective of its own.

        Minus the ELBO of the refined posterior, or minus the IWAE bound of `iwae_samples` samples.

        Args:
            x: examples (B, C, H, W).
            q: the posterior without gradients; refined, it carries gradients to the decoder.
            objective: what the decoder maximises.
            generator: the random stream.
        """
        q = objective.inference.uncalibrated(self.model, x, q)
        if not objective.iwae_samples:
            # log p(x, z) - log q(z) varies little if q is close to the posterior, so its gradient has
            # less noise than with the closed-form KL.
            z = torch.cat([c.rsample_and_log_prob(1, generator=generator)[0] for c in q.components])
            return -(q.weights.t() * (self.model.log_joint(x, z) - q.log_prob(z))).sum(0).mean()
        with torch.no_grad():
            z, log_q = q.rsample_and_log_prob(objective.iwae_samples, generator=generator)
        return -log_mean_exp(self.model.log_joint(x, z) - log_q).mean()

    def prepare(self, x: Tensor) -> None:
        """Set options that depend on validation examples x; called once before a second stage."""

    def start_from(self, other: Method) -> None:
        """Copy trained weights: everything from a method of the same kind, else encoder and decoder."""
        if type(other) is type(self) and same_shapes(self, other):
            self.load_state_dict(other.state_dict())
            return
        self.model.load_state_dict(other.model.state_dict())
        self.base_encoder.load_state_dict(other.base_encoder.state_dict())


def infer(method: Method, x: Tensor, inference: Inference) -> Posterior:
    """q(z | x) as it is used: encode, refine, calibrate.

    Args:
        method: gives the posterior.
        x: examples (B, C, H, W) on the method's device.
        inference: how the posterior is improved.
    """
    restarts = inference.restarts
    q = method.posterior(x) if restarts == 1 else method.restarted(x, restarts)
    return inference(method.model, x, q)


@replaceable
def infer_no_grad(method: Method, x: Tensor, inference: Inference) -> Posterior:
    """`infer` without gradients; faster for repeated batches of the same shape."""
    with torch.no_grad():
        return infer(method, x, inference)


@replaceable
def fuse_networks(method: Method) -> None:
    """Prepare a frozen method for tracing: evaluate the networks of a mixture as one, if possible."""


def update(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One optimiser step on `loss`; no other parameter receives a gradient."""
    optimizer.zero_grad(set_to_none=True)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if trained:
        loss.backward(inputs=trained)
        optimizer.step()


def same_shapes(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules have weights of the same names and shapes."""
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(one[k].shape == two[k].shape for k in one)


def check_can_be_distilled(method: Method) -> None:
    """Refuse distillation if samples of the refined posterior give no gradient to an encoder."""
    check_decoder_has_jacobian(method.model)
    parts: Any = method.components
    for part in parts:
        if not part.can_be_distilled:
            raise ConfigError(
                "distil fits encoders to samples of the refined posterior, but the density of a "
                f"{part.kind} component gives its encoder no gradient: use vae, or another component"
            )
