"""Boosted variational inference: the recursive mixture with entropy in place of the bounded KL."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError, unknown
from recmix.methods.method import Method, Optimizers, same_shapes
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import register
from recmix.model.latent import LatentModel
from recmix.posteriors import Gaussian
from recmix.posteriors.posterior import Posterior

__all__ = ["BoostedER1", "BoostedER2"]

Clock = Literal["iteration", "round"]


class _Boosted(RecursiveMixture):
    """What the two entropy regularisers share."""

    setting = "order"
    rate_factor = 0.1  # the paper's, against NaNs: nothing bounds the KL here
    known: ClassVar[tuple[str, ...]] = ()
    """Kinds of component whose entropy it can tell; empty for any."""

    iteration: Tensor

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        *,
        order: int = 5,
        eps_min: float = 0.001,
        eps_max: float = 0.1,
        jitter: float = 0.0,
        component: str = "gaussian",
        component_setting: int | None = None,
        literal: bool = False,
        clock: Clock = "iteration",
    ) -> None:
        if self.known and component not in self.known:
            raise ConfigError(
                f"{self.name} needs components with a closed-form entropy ({', '.join(self.known)}), "
                f"got {component!r}: use bvi-er1, which samples it"
            )
        if clock not in get_args(Clock):
            raise ConfigError(unknown("clock", clock, get_args(Clock)))
        super().__init__(
            model,
            encoder,
            order=order,
            bound=math.inf,
            eps_min=eps_min,
            eps_max=eps_max,
            jitter=jitter,
            component=component,
            component_setting=component_setting,
        )
        self.literal = literal
        self.clock = clock
        self.register_buffer("iteration", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def entropy(self, q: Posterior, log_q: Tensor) -> Tensor:
        """H[q_m]: (B,), or (1, B) from log q_m at its own sample, (1, B)."""

    def nu(self, m: int) -> Tensor:
        """ν = 1 / √(t + 1) for component m, a scalar on the device."""
        t = self.iteration
        if self.clock == "round":
            t = torch.full_like(t, m)
        return (t + 1).to(self.model.centre.dtype).rsqrt()

    def novelty(self, m: int, q: Posterior, log_q: Tensor, distance: Tensor) -> Tensor:
        """What a new component earns: KL(q_m || Q_{m-1}), without a bound, + ν H[q_m]."""
        reward = self.nu(m) * self.entropy(q, log_q).mean()
        return reward if self.literal else distance.mean() + reward

    def step(
        self, x: Tensor, optimizers: Optimizers, *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """The recursive mixture's updates, then one tick of the clock."""
        metrics = super().step(x, optimizers, generator=generator)
        self.iteration += 1
        return metrics

    def start_from(self, other: Method) -> None:
        """As the recursive mixture; the clock goes on only if the other is the same in everything."""
        super().start_from(other)
        if isinstance(other, _Boosted) and type(other) is type(self) and same_shapes(self, other):
            self.iteration.copy_(other.iteration)
        else:
            self.iteration.zero_()


@register
class BoostedER1(_Boosted):
    """The recursive mixture whose components are kept from shrinking by their entropy, sampled.

    For m = 1 … M, q_m goes up E[log p(x, z) - log Q_{m-1}(z)] + ν H[q_m], which is
    ELBO(q_m) + KL(q_m || Q_{m-1}) + ν H[q_m]. The KL has no bound: it may run away, and training then
    stops at the first loss that is not a finite number. ν = 1 / √(t + 1), and H is estimated by
    -log q_m at the component's own sample.

    Args:
        model: p(x, z).
        encoder: the first component; the others start as copies of it.
        order: number of components, 1 to 16.
        eps_min: smallest ε.
        eps_max: largest ε.
        jitter: relative noise on the weights of a new component, to part identical ones sooner.
        component: what a component is: ``gaussian``, or any other kind there is.
        component_setting: its number of steps or flows, if it has such a setting.
        literal: the paper's words instead: ν H in place of the KL, so ELBO(q_m) + ν H[q_m].
        clock: what t counts: each training ``iteration``, or the ``round`` m in which a component joins.

    Reference: Locatello et al., Boosting Black Box Variational Inference, NeurIPS 2018.
    """

    name = "bvi-er1"
    title = "boosted, sampled entropy"
    reference = "Locatello et al. 2018"

    def entropy(self, q: Posterior, log_q: Tensor) -> Tensor:
        """-log q_m at its own sample, (1, B)."""
        return -log_q


@register
class BoostedER2(_Boosted):
    """The recursive mixture whose components are kept from shrinking by their entropy, in closed form.

    For m = 1 … M, q_m goes up E[log p(x, z) - log Q_{m-1}(z)] + ν H[q_m], which is
    ELBO(q_m) + KL(q_m || Q_{m-1}) + ν H[q_m]. The KL has no bound: it may run away, and training then
    stops at the first loss that is not a finite number. ν = 1 / √(t + 1), and
    H = ½ (log det Σ + D log 2πe) exactly, what `bvi-er1` estimates. The paper writes log det Σ: twice
    that, but for the constant.

    Args:
        model: p(x, z).
        encoder: the first component; the others start as copies of it.
        order: number of components, 1 to 16.
        eps_min: smallest ε.
        eps_max: largest ε.
        jitter: relative noise on the weights of a new component, to part identical ones sooner.
        component: what a component is: only ``gaussian`` has this entropy.
        component_setting: none for Gaussian components.
        literal: the paper's words instead: ν H in place of the KL, so ELBO(q_m) + ν H[q_m].
        clock: what t counts: each training ``iteration``, or the ``round`` m in which a component joins.

    Reference: Guo et al., Boosting Variational Inference, 2016.
    """

    name = "bvi-er2"
    title = "boosted, closed-form entropy"
    reference = "Guo et al. 2016"
    known = ("gaussian",)

    def entropy(self, q: Posterior, log_q: Tensor) -> Tensor:
        """½ (log det Σ + D log 2πe), (B,)."""
        assert isinstance(q, Gaussian)
        return 0.5 * (q.log_variance + math.log(2 * math.pi * math.e)).sum(-1)
