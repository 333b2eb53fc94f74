"""The central objects: a latent model p(x, z), a posterior q(z | x), a method that learns both."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recmix.accelerate.muon import OPTIMIZERS
from recmix.methods.component import Component
from recmix.model.latent import LatentModel
from recmix.posteriors.posterior import Posterior, tilted
from recmix.runs.options import REUSE

__all__ = ["LESSONS", "Method", "Optimizers", "same_shapes", "update"]


Optimizers = dict[str, torch.optim.Optimizer]

LESSONS = 8
"""Samples of the refined posterior that teach an encoder in one step; they need no decoder."""


def update(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of `optimizer` down `loss`; no other parameter receives a gradient."""
    optimizer.zero_grad(set_to_none=True)
    moving = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if moving:  # otherwise all of it stands still, and there is nothing to do
        loss.backward(inputs=moving)
        optimizer.step()


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
        from recmix.inference.refinement import refined

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
        from recmix.inference.refinement import refined

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
