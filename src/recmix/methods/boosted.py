"""Boosted variational inference: a recursive mixture with an entropy reward for new components.

The recursive mixture of `recmix.methods.recursive` rewards a bounded KL divergence instead.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError, unknown
from recmix.methods.method import ELBO, Method, Objective, Optimizers, same_shapes
from recmix.methods.recursive import RecursiveMixture
from recmix.methods.registry import find_component, register
from recmix.model.latent import LatentModel
from recmix.posteriors import Posterior

__all__ = ["BoostedER1", "BoostedER2"]

Clock = Literal["iteration", "round"]


class _Boosted(RecursiveMixture):
    """Base class of the two boosting methods, which reward the entropy of a new component."""

    setting = "order"
    rate_factor = 0.1  # as in the paper, to avoid NaN: the KL has no bound here
    needs_entropy: ClassVar[bool] = False
    """Whether components must have a closed-form entropy."""

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
        if self.needs_entropy and not find_component(component).closed_form_entropy:
            raise ConfigError(
                f"{self.name} needs components with a closed-form entropy, and {component!r} has none: "
                "use bvi-er1, which estimates the entropy by samples"
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
        """The entropy H[q_m] of a new component: exact, (B,), or estimated, (1, B).

        The estimate uses `log_q`, log q_m(z) at one sample z of q_m, (1, B).
        """

    def nu(self, m: int) -> Tensor:
        """The factor ν = 1 / √(t + 1) of the entropy reward of component m, a scalar on the device.

        t is the number of training iterations so far, or m if the option `clock` is ``round``.
        """
        t = self.iteration
        if self.clock == "round":
            t = torch.full_like(t, m)
        return (t + 1).to(self.model.centre.dtype).rsqrt()

    def novelty(self, m: int, q: Posterior, log_q: Tensor, distance: Tensor) -> Tensor:
        """The reward of a new component q_m: KL(q_m || Q_{m-1}) + ν H[q_m], a scalar (batch mean).

        Q_{m-1} is the mixture of the components before m, H the entropy and ν the factor `nu`. The KL
        has no upper bound. With the option `literal` the reward is only ν H[q_m]. The arguments are
        those of `RecursiveMixture.novelty`.
        """
        reward = self.nu(m) * self.entropy(q, log_q).mean()
        return reward if self.literal else distance.mean() + reward

    def step(
        self,
        x: Tensor,
        optimizers: Optimizers,
        *,
        objective: Objective = ELBO,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Train on one batch as `RecursiveMixture.step` does, and count the training iteration."""
        metrics = super().step(x, optimizers, objective=objective, generator=generator)
        self.iteration += 1
        return metrics

    def start_from(self, other: Method) -> None:
        """Copy weights from the trained method `other`, as `RecursiveMixture.start_from` does.

        The number of training iterations is copied if `other` has the same class and shapes. Otherwise
        it is set to 0.
        """
        super().start_from(other)
        if isinstance(other, _Boosted) and type(other) is type(self) and same_shapes(self, other):
            self.iteration.copy_(other.iteration)
        else:
            self.iteration.zero_()


@register
class BoostedER1(_Boosted):
    """A recursive mixture with an entropy reward that is estimated from samples.

    Components are added one at a time. The new component q_m has the weight ε_m(x) and gives the mixture
    Q_m = (1 - ε_m) Q_{m-1} + ε_m q_m. It maximises ELBO(q_m) + KL(q_m || Q_{m-1}) + ν H[q_m], where H is
    the entropy. This sum equals E[log p(x, z) - log Q_{m-1}(z)] + ν H[q_m] for samples z of q_m. The KL
    has no bound and may diverge. Training then stops at the first loss that is not a finite number.
    The factor is ν = 1 / √(t + 1), see `clock`. H[q_m] is estimated by -log q_m(z) at one sample z of
    q_m.

    Args:
        model: p(x, z).
        encoder: the first component; the others start as copies of it.
        order: number of components, 1 to 16.
        eps_min: smallest weight ε of a new component.
        eps_max: largest weight ε of a new component.
        jitter: relative size of random noise on the network weights of a new component, so that equal
            components separate sooner.
        component: kind of the components, such as ``gaussian``, ``full`` or ``iaf``.
        component_setting: main option of this kind, such as its number of steps or flows; None for its
            default.
        literal: leave out the KL to the mixture, as the paper's text says: q_m maximises
            ELBO(q_m) + ν H[q_m].
        clock: the meaning of t in ν = 1 / √(t + 1). ``iteration``: t is the number of training
            iterations so far. ``round``: t is the number of components before the new one.

    Reference: Locatello et al., Boosting Black Box Variational Inference, NeurIPS 2018.
    """

    name = "bvi-er1"
    title = "boosted, sampled entropy"
    reference = "Locatello et al. 2018"

    def entropy(self, q: Posterior, log_q: Tensor) -> Tensor:
        """An estimate of the entropy of the component q: minus log q(z) at one sample z, (1, B)."""
        return -log_q


@register
class BoostedER2(_Boosted):
    """A recursive mixture with an entropy reward in closed form.

    Components are added one at a time. The new component q_m has the weight ε_m(x) and gives the mixture
    Q_m = (1 - ε_m) Q_{m-1} + ε_m q_m. It maximises ELBO(q_m) + KL(q_m || Q_{m-1}) + ν H[q_m], where H is
    the entropy. This sum equals E[log p(x, z) - log Q_{m-1}(z)] + ν H[q_m] for samples z of q_m. The KL
    has no bound and may diverge. Training then stops at the first loss that is not a finite number.
    The factor is ν = 1 / √(t + 1), see `clock`. For a Gaussian with covariance Σ in D dimensions,
    H = ½ (log det Σ + D log 2πe). The paper writes log det Σ, which is 2 H up to a constant. `bvi-er1`
    estimates the same H from samples.

    Args:
        model: p(x, z).
        encoder: the first component; the others start as copies of it.
        order: number of components, 1 to 16.
        eps_min: smallest weight ε of a new component.
        eps_max: largest weight ε of a new component.
        jitter: relative size of random noise on the network weights of a new component, so that equal
            components separate sooner.
        component: kind of the components; it must have a closed-form entropy.
        component_setting: main option of this kind, such as its number of steps or flows; None for its
            default.
        literal: leave out the KL to the mixture, as the paper's text says: q_m maximises
            ELBO(q_m) + ν H[q_m].
        clock: the meaning of t in ν = 1 / √(t + 1). ``iteration``: t is the number of training
            iterations so far. ``round``: t is the number of components before the new one.

    Reference: Guo et al., Boosting Variational Inference, 2016.
    """

    name = "bvi-er2"
    title = "boosted, closed-form entropy"
    reference = "Guo et al. 2016"
    needs_entropy = True

    def entropy(self, q: Posterior, log_q: Tensor) -> Tensor:
        """The exact entropy of the component q for each example, (B,); log_q is not used."""
        return q.entropy()
