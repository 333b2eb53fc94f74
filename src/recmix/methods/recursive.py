"""The recursive mixture (RME): encoders are added to a mixture one at a time.

Each new component is trained by a step of functional gradient ascent on the mixture's ELBO.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.inference import Inference
from recmix.methods.component import MAX_ORDER
from recmix.methods.gates import Gate, token_classes
from recmix.methods.method import (
    ELBO,
    TEACHER_SAMPLES,
    Method,
    Objective,
    Optimizers,
    check_source,
    copy_weights,
    same_shapes,
    update,
)
from recmix.methods.optimizers import make_optimizer, model_groups
from recmix.methods.registry import find_component, register
from recmix.model.latent import LatentModel
from recmix.model.replaceable import replaceable
from recmix.posteriors import Mixture, Posterior, recursive_log_weights
from recmix.posteriors.recursion import extend_mixture, extended_elbo

__all__ = ["RecursiveMixture", "recursive_mixture"]


class _Mixed(NamedTuple):
    """The mixture of the first m components, after their updates on one batch."""

    components: list[Posterior]
    log_alpha: Tensor  # (m, B), log-weights of the components
    z: Tensor  # (m, B, D), one sample of each component
    log_joint: Tensor  # (m, B), log p(x, z) at these samples
    log_mixture: Tensor  # (m, B), log density of the mixture at these samples


@register
class RecursiveMixture(Method):
    """A mixture Q = Σ_m α_m(x) q_m(z | x) to which components are added one at a time.

    Q_m = (1 - ε_m(x)) Q_{m-1} + ε_m(x) q_m is the mixture after component q_m is added. A network, the
    gate, computes the weight ε_m(x) of q_m.

    A training step on one batch makes several updates, one after another. Each update uses the results
    of earlier updates. First q_0 increases its ELBO. For m = 1 … M, q_m increases ELBO(q_m) + min(C,
    KL(q_m || Q_{m-1})), then ε_m increases ELBO(Q_m). Finally the decoder increases ELBO(Q_M).

    The decoder's outputs are used again in later updates of the batch, because the decoder changes only
    at the end. So the number of network evaluations is linear in the number of components.

    Args:
        model: p(x, z).
        encoder: the first component; the others start as copies of it.
        order: number of components, 1 to 16.
        bound: C, the largest KL to the mixture that a component is rewarded for.
        per_instance: apply the bound C to the KL of each example, as in the paper's Algorithm 1, not to
            the mean over the batch, as in its pseudocode.
        eps_min: smallest weight ε of a new component.
        eps_max: largest weight ε of a new component.
        jitter: relative size of random noise on the network weights of a new component, so that equal
            components separate sooner.
        component: kind of the components, such as ``gaussian``, ``full`` or ``iaf``. With ``residual``
            the first is Gaussian, and each new one corrects the one before it, from the error of its
            reconstruction.
        component_setting: main option of this kind, such as its number of steps or flows; None for its
            default.

    Reference: Kim & Pavlovic, Recursive Inference for Variational Autoencoders, NeurIPS 2020.
    """

    name = "rme"
    title = "recursive mixture"
    reference = "Kim & Pavlovic 2020"
    setting = "order"
    tried = (2, 3, 4, 5)
    can_grow = True

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        *,
        order: int = 5,
        bound: float = 500.0,
        per_instance: bool = False,
        eps_min: float = 0.001,
        eps_max: float = 0.1,
        jitter: float = 0.0,
        component: str = "gaussian",
        component_setting: int | None = None,
    ) -> None:
        if not 1 <= order <= MAX_ORDER:
            raise ConfigError(f"order is the number of components, 1 to {MAX_ORDER}; got {order}")
        if not bound > 0:
            raise ConfigError(f"bound (C) must be positive, got {bound}; the paper's is 500")
        if jitter < 0:
            raise ConfigError(f"jitter must not be negative, got {jitter}")
        kind = find_component(component)
        super().__init__(model, kind.for_recursion(encoder, model, order, component_setting))
        self.order = order
        self.bound = bound
        self.per_instance = per_instance
        self.jitter = jitter
        self.gates = nn.ModuleList(
            Gate(model.shape, minimum=eps_min, maximum=eps_max, classes=token_classes(encoder))
            for _ in range(order - 1)
        )

    def component(self, m: int, x: Tensor, before: Posterior | None = None) -> Posterior:
        """The posterior q_m(z | x) of component m, for examples x (B, *shape).

        Args:
            m: index of the component, from 0.
            x: examples (B, *shape).
            before: q_{m-1}(z | x). Only a component that corrects q_{m-1} uses this argument. If it is
                None, q_{m-1} is computed.
        """
        part: Any = self.components[m]
        if not part.corrects:
            return super().component(m, x)
        before = self.component(m - 1, x) if before is None else before
        q: Posterior = part(x, self.model, before)
        return q

    def all_components(self, x: Tensor) -> list[Posterior]:
        """The posteriors q_0(z | x) … q_M(z | x) of all components for examples x (B, *shape)."""
        found: list[Posterior] = []
        for m in range(self.order):
            found.append(self.component(m, x, found[-1] if found else None))
        return found

    def log_weights(self, x: Tensor) -> Tensor:
        """The log mixing weights log α(x), (B, K), of the K components for examples x (B, *shape)."""
        if self.order == 1:
            return x.new_zeros(x.shape[0], 1)
        seen = self.model.standardised(x)
        gates = [gate(seen) for gate in self.gates]
        log_eps, log_rest = (torch.stack(part, -1) for part in zip(*gates, strict=True))
        return recursive_log_weights(log_eps, log_rest)

    def posterior(self, x: Tensor) -> Mixture:
        """The mixture Q(z | x) for examples x (B, *shape), in one feed-forward pass."""
        return recursive_mixture(self, x)

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Raise a ConfigError, because this method has no single loss.

        A training step is a sequence of updates with different losses; use `step`.
        """
        raise ConfigError(
            f"{self.name} has no single loss: each component, each gate and the decoder has its own. "
            "Call step(x, optimizers) with optimizers from optimizers(learning_rate)"
        )

    def networks(self) -> list[nn.Module]:
        """The networks of components, decoder and gates. They may be compiled by `torch.compile`.

        A gate is the network that computes the mixture weight of a component.
        """
        gates: Any = self.gates
        return super().networks() + [gate.layers for gate in gates]

    def start_from(self, other: Method) -> None:
        """Copy weights from the trained method `other`, and add noise if the option `jitter` is not 0.

        The model p(x, z) of `other` is copied. The first encoder of `other` is copied to every component
        with an encoder. (A component that corrects the component before it has no encoder.) If `other`
        is a recursive mixture with components of the same shapes, its components and gates (the networks
        of the mixture weights) are copied too. Noise is then added to the weights of all components,
        except the first one and those that were copied from a recursive mixture.
        """
        check_source(self, other)
        copy_weights(self.model, other.model)
        parts: Any = self.components
        for part in parts:
            if not part.corrects:
                part.encoder.load_state_dict(other.base_encoder.state_dict())
        grown = 1
        alike = isinstance(other, RecursiveMixture) and all(
            same_shapes(mine, theirs)
            for mine, theirs in zip(self.components, other.components, strict=False)
        )
        if alike and isinstance(other, RecursiveMixture):
            grown = min(other.order, self.order)
            for mine, theirs in zip(self.components, other.components, strict=False):
                mine.load_state_dict(theirs.state_dict())
            for mine, theirs in zip(self.gates, other.gates, strict=False):
                mine.load_state_dict(theirs.state_dict())
        if self.jitter:
            for part in self.components[grown:]:
                _jitter(part, self.jitter)

    def optimizers(
        self,
        learning_rate: float,
        *,
        variance_rate: float = 1.0,
        fresh_rate: float = 1.0,
        optimizer: str = "adam",
    ) -> Optimizers:
        """Make an optimiser for each component, for each gate, and for the decoder: {name: optimiser}.

        The names are ``component_0``, ``component_1`` …, ``gate_1`` … and ``decoder``. The arguments are
        those of `Method.optimizers`.
        """

        def own(module: nn.Module) -> torch.optim.Optimizer:
            groups = self.groups(module.parameters(), learning_rate, fresh_rate)
            return make_optimizer(optimizer, groups, learning_rate)

        found: Optimizers = {f"component_{m}": own(part) for m, part in enumerate(self.components)}
        found |= {f"gate_{m}": own(gate) for m, gate in enumerate(self.gates, start=1)}
        groups = model_groups(self.model, learning_rate, variance_rate)
        found["decoder"] = make_optimizer(optimizer, groups, learning_rate)
        return found

    def step(
        self,
        x: Tensor,
        optimizers: Optimizers,
        *,
        objective: Objective = ELBO,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Train on one batch by Algorithm 1 of the paper; the arguments are those of `Method.step`.

        The components are updated one after the other. After each component except the first, its gate
        (the network that computes its mixture weight) is updated. The decoder is updated last.

        Returns:
            {name: scalar tensor on the device}: ``loss`` and ``elbo`` of the whole mixture. With two or
            more components there are two more metrics. ``kl`` is the mean KL of a component to the
            mixture of the components before it. ``first_weight`` is the mean mixture weight of the first
            component.
        """
        old = self.all_components(x)
        drawn = [q.rsample_and_log_prob(1, generator=generator) for q in old]
        slope = self._likelihood_gradient(x, torch.cat([z for z, _ in drawn]))  # (order, B, D)
        taught = self._teacher_samples(x, old, objective.teacher, generator) if objective.distil else []
        mixed: _Mixed | None = None
        distances = []
        for m, (q, (z, log_q)) in enumerate(zip(old, drawn, strict=True)):
            # The first term is not log p(x | z), but has the same gradient in q_m's parameters.
            gain = (z[0] * slope[m]).sum() - q.kl(self.model.prior, z, log_q).mean()
            if mixed is not None:
                distance = log_q - _log_mixture(mixed.components, mixed.log_alpha, z)  # (1, B)
                gain = gain + self.novelty(m, q, log_q, distance)
                distances.append(distance.detach().mean())
            if taught:
                share = objective.distil
                gain = (1 - share) * gain + share * q.log_prob(taught[m]).mean()
            update(-gain, optimizers[f"component_{m}"])
            mixed = self._add_component(mixed, m, x, optimizers, generator)
        assert mixed is not None
        if objective.separate_decoder:
            mixture = Mixture(mixed.components, mixed.log_alpha.t())
            loss = self.decoder_loss(x, mixture, objective, generator)
            update(loss, optimizers["decoder"])
            loss = -(mixed.log_alpha.exp() * (mixed.log_joint - mixed.log_mixture)).sum(0).mean()
        else:
            log_joint = self.model.log_joint(x, mixed.z)  # (order, B)
            loss = -(mixed.log_alpha.exp() * (log_joint - mixed.log_mixture)).sum(0).mean()
            update(loss, optimizers["decoder"])
        metrics = {"loss": loss.detach(), "elbo": -loss.detach()}
        if distances:
            metrics["kl"] = torch.stack(distances).mean()
            metrics["first_weight"] = mixed.log_alpha[0].exp().mean()
        return metrics

    def _likelihood_gradient(self, x: Tensor, z: Tensor) -> Tensor:
        """The gradient of the batch mean of log p(x | z) with respect to z (S, B, D).

        This is computed once for the samples of all components, because the decoder changes only at the
        end of a training step.
        """
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            log_likelihood = self.model.log_conditional(x, z)
            (gradient,) = torch.autograd.grad(log_likelihood.sum(), z)
        return gradient / x.shape[0]

    @torch.no_grad()
    def _teacher_samples(
        self,
        x: Tensor,
        components: list[Posterior],
        teacher: Inference,
        generator: torch.Generator | None,
    ) -> list[Tensor]:
        """Samples of each refined component, (S, B, D) each, for distillation.

        `teacher` holds the settings of the refinement.
        """
        mixture = Mixture(components, x.new_zeros(len(x), self.order))
        refined = teacher.for_training(self.model, x, mixture)
        parts = refined.components
        return [q.rsample_and_log_prob(TEACHER_SAMPLES, generator=generator)[0] for q in parts]

    def novelty(self, m: int, q: Posterior, log_q: Tensor, distance: Tensor) -> Tensor:
        """The reward of a new component q_m for its distance to the mixture, averaged over the batch.

        It is min(C, KL(q_m || Q_{m-1})), where Q_{m-1} is the mixture of the components before m, and C
        is the option `bound`. The KL is bounded for each example if the option `per_instance` is on,
        otherwise the mean KL of the batch is bounded.

        Args:
            m: index of the component.
            q: the component q_m.
            log_q: log q_m(z) at one sample z of q_m, (1, B).
            distance: log q_m(z) - log Q_{m-1}(z) at this sample, (1, B).
        """
        if self.per_instance:
            return distance.clamp_max(self.bound).mean()
        return distance.mean().clamp_max(self.bound)

    def _add_component(
        self,
        mixed: _Mixed | None,
        m: int,
        x: Tensor,
        optimizers: Optimizers,
        generator: torch.Generator | None,
    ) -> _Mixed:
        """Add the component q_m, which was just updated, to the mixture, and update its gate ε_m.

        `mixed` is the mixture of the components before m. For m = 0, it is None and there is no gate.
        """
        with torch.no_grad():
            q = self.component(m, x, None if mixed is None else mixed.components[-1])
            z, own = q.rsample_and_log_prob(1, generator=generator)  # (1, B, D), (1, B)
            log_joint = self.model.log_joint(x, z)  # (1, B)
            if mixed is None:
                return _Mixed([q], torch.zeros_like(own), z, log_joint, own)
            before = torch.cat([mixed.log_mixture, _log_mixture(mixed.components, mixed.log_alpha, z)])
            new = torch.cat([q.log_prob(mixed.z), own])  # log q_m at every sample, (m + 1, B)
            z = torch.cat([mixed.z, z])
            log_joint = torch.cat([mixed.log_joint, log_joint])
        gate: Any = self.gates[m - 1]
        seen = self.model.standardised(x)

        score = gate.layers(seen).squeeze(-1)
        limits = (gate.minimum, gate.maximum)
        elbo = extended_elbo(score, *limits, mixed.log_alpha, before, new, log_joint)
        update(-elbo, optimizers[f"gate_{m}"])

        with torch.no_grad():
            score = gate.layers(seen).squeeze(-1)
            log_alpha, log_mixture = extend_mixture(score, *limits, mixed.log_alpha, before, new)
        return _Mixed([*mixed.components, q], log_alpha, z, log_joint, log_mixture)


@replaceable
def recursive_mixture(method: RecursiveMixture, x: Tensor) -> Mixture:
    """The mixture Q(z | x) of a `RecursiveMixture` for examples x (B, *shape).

    `recmix.accelerate` may replace this function by a faster one.
    """
    return Mixture(method.all_components(x), method.log_weights(x))


def _log_mixture(components: list[Posterior], log_alpha: Tensor, z: Tensor) -> Tensor:
    """The log density log Q(z), (S, B), of a mixture of m components at points z (S, B, D).

    `log_alpha` holds the log mixing weights, (m, B).
    """
    return Mixture(components, log_alpha.t()).log_prob(z)


def _jitter(module: nn.Module, scale: float) -> None:
    with torch.no_grad():
        for p in module.parameters():
            spread = p.std() if p.numel() > 1 else p.abs()
            p.add_(torch.randn_like(p) * spread * scale)
