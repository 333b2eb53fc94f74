"""The recursive mixture (RME): encoders added one at a time by functional gradient."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recmix.accelerate.fusion import beside, fusible
from recmix.accelerate.stacked import StackedEncoders, StackedGates
from recmix.errors import ConfigError
from recmix.methods.method import LESSONS, Method, Optimizers, same_shapes, update
from recmix.methods.registry import make_component, register
from recmix.methods.residual import CorrectionComponent
from recmix.model.latent import LatentModel
from recmix.model.networks import Gate, bounded
from recmix.posteriors import Mixture, recursive_log_weights
from recmix.posteriors.posterior import Posterior

__all__ = ["RecursiveMixture"]

MAX_ORDER = 16


class _Seen(NamedTuple):
    """What is known, after a component's update, of every component so far (m of them)."""

    components: list[Posterior]
    log_alpha: Tensor  # (m, B) log-weights of Q_{m-1}
    z: Tensor  # (m, B, D) a sample of each
    log_joint: Tensor  # (m, B) log p(x, z)
    log_mixture: Tensor  # (m, B) log Q_{m-1}(z)


@register
class RecursiveMixture(Method):
    """Q = Σ_m α_m(x) q_m(z | x), grown by Q_m = (1 - ε_m(x)) Q_{m-1} + ε_m(x) q_m.

    One batch moves, in this order and each seeing the ones before it: q_0 up its ELBO; for
    m = 1 … M, q_m up ELBO(q_m) + min(C, KL(q_m || Q_{m-1})) and ε_m up ELBO(Q_m); last the decoder up
    ELBO(Q_M). The decoder stands still until the end and every q_m moves once. So the samples of all
    components before their update pass through it together, one pass after q_m's update serves all
    later updates of the batch, and one more of them all together moves the decoder: the number of
    network evaluations is linear in the order, and most of them are large.

    Args:
        model: p(x, z).
        encoder: the first component; the others start as copies of it.
        order: number of components, 1 to 16.
        bound: C, above which more distance from the mixture earns nothing.
        per_instance: bound the KL of each example (Algorithm 1) instead of the batch mean
            (the pseudocode).
        eps_min: smallest ε.
        eps_max: largest ε.
        jitter: relative noise on the weights of a new component, to part identical ones sooner.
        component: what a component is: ``gaussian``, ``residual`` (each new one corrects the one before
            by looking at what that left unexplained; the first stays an encoder), or any other kind.
        component_setting: its number of steps or flows, if it has such a setting.

    Reference: Kim & Pavlovic, Recursive Inference for Variational Autoencoders, NeurIPS 2020.
    """

    name = "rme"
    title = "recursive mixture"
    reference = "Kim & Pavlovic 2020"
    setting = "order"
    tried = (2, 3, 4, 5)

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
        if component == "residual":
            later = [CorrectionComponent(model) for _ in range(order - 1)]
            super().__init__(model, [make_component("gaussian", copy.deepcopy(encoder), model), *later])
        else:
            copies = (copy.deepcopy(encoder) for _ in range(order))
            super().__init__(
                model, [make_component(component, e, model, component_setting) for e in copies]
            )
        self.order = order
        self.bound = bound
        self.per_instance = per_instance
        self.jitter = jitter
        self.gates = nn.ModuleList(
            Gate(model.shape, minimum=eps_min, maximum=eps_max) for _ in range(order - 1)
        )
        self.gaussian = component == "gaussian"
        parts_now: Any = self.components
        gates_now: Any = self.gates
        self._encoders = StackedEncoders([part.encoder for part in parts_now])
        self._gates = StackedGates(list(gates_now))

    def train(self, mode: bool = True) -> RecursiveMixture:
        """As ever; the stacked networks are built anew after a training."""
        if mode:
            self._encoders.drop()
            self._gates.drop()
        super().train(mode)
        return self

    def component(self, m: int, x: Tensor, before: Posterior | None = None) -> Posterior:
        """q_m(z | x); one that corrects q_{m-1} is given it, or finds it itself."""
        part: Any = self.components[m]
        if not part.sees_before:
            return super().component(m, x)
        before = self.component(m - 1, x) if before is None else before
        q: Posterior = part(x, self.model, before)
        return q

    def _all(self, x: Tensor) -> list[Posterior]:
        """q_0 … q_M, each one made once."""
        found: list[Posterior] = []
        for m in range(self.order):
            found.append(self.component(m, x, found[-1] if found else None))
        return found

    def log_weights(self, x: Tensor) -> Tensor:
        """log α(x), (B, order)."""
        if self.order == 1:
            return x.new_zeros(x.shape[0], 1)
        seen = self.model.centred(x)
        gates = [gate(seen) for gate in self.gates]
        log_eps, log_rest = (torch.stack(part, -1) for part in zip(*gates, strict=True))
        return recursive_log_weights(log_eps, log_rest)

    def posterior(self, x: Tensor) -> Mixture:
        """The whole mixture in one feed-forward pass: stacked, where no gradient is wanted."""
        if not torch.is_grad_enabled() and not self.training and self.order > 1 and self.gaussian:
            with beside(x) as joined:  # a branch that is captured first starts first: the longer one
                parts = self._encoders.gaussians(x, self.model.shift)
            log_weights = self._gates.log_weights(x, self.model.shift)
            joined()
            if parts is not None and log_weights is not None:
                return Mixture.of_gaussians(parts, log_weights)
        return Mixture(self._all(x), self.log_weights(x))

    def networks(self) -> list[nn.Module]:
        """The gates', too."""
        gates: Any = self.gates
        return super().networks() + [gate.layers for gate in gates]

    def start_from(self, other: Method) -> None:
        """All components from the other's encoder; components and gates it has already are kept."""
        self.model.load_state_dict(other.model.state_dict())
        parts: Any = self.components
        for part in parts:
            if not part.sees_before:
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
        self, learning_rate: float, *, variance_rate: float = 1.0, fresh_rate: float = 1.0
    ) -> Optimizers:
        """One optimiser for each component, each gate, and the decoder."""
        found: Optimizers = {}
        for m, part in enumerate(self.components):
            found[f"component_{m}"] = self.optimizer_of(
                self.groups(part.parameters(), learning_rate, fresh_rate), learning_rate
            )
        for m, gate in enumerate(self.gates, start=1):
            found[f"gate_{m}"] = self.optimizer_of(
                self.groups(gate.parameters(), learning_rate, fresh_rate), learning_rate
            )
        groups = self.model.parameter_groups(learning_rate, variance_rate)
        found["decoder"] = self.optimizer_of(groups, learning_rate)
        return found

    def step(
        self, x: Tensor, optimizers: Optimizers, *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Algorithm 1 on one batch."""
        fresh = self._all(x)
        drawn = [q.rsample_and_log_prob(1, generator=generator) for q in fresh]
        slope = self._slope(x, torch.cat([z for z, _ in drawn]))  # (order, B, D)
        lessons = self._lessons(x, fresh, generator) if self.distil else []
        seen: _Seen | None = None
        novelties = []
        for m, (q, (z, log_q)) in enumerate(zip(fresh, drawn, strict=True)):
            # The first term is not the likelihood, but moves q_m's parameters as the likelihood would.
            gain = (z[0] * slope[m]).sum() - q.kl_to_prior(z, log_q).mean()
            if seen is not None:
                distance = log_q - _log_mixture(seen.components, seen.log_alpha, z)  # (1, B)
                gain = gain + self.novelty(m, q, log_q, distance)
                novelties.append(distance.detach().mean())
            if lessons:
                gain = (1 - self.distil) * gain + self.distil * q.log_prob(lessons[m]).mean()
            update(-gain, optimizers[f"component_{m}"])
            seen = self._join(seen, m, x, optimizers, generator)
        assert seen is not None
        if self.decoder_apart:
            mixture = Mixture(seen.components, seen.log_alpha.t())
            update(self.decoder_loss(x, mixture, generator), optimizers["decoder"])
            loss = -(seen.log_alpha.exp() * (seen.log_joint - seen.log_mixture)).sum(0).mean()
        else:
            log_joint = self.model.log_joint(x, seen.z)  # (order, B)
            loss = -(seen.log_alpha.exp() * (log_joint - seen.log_mixture)).sum(0).mean()
            update(loss, optimizers["decoder"])
        metrics = {"loss": loss.detach(), "elbo": -loss.detach()}
        if novelties:
            metrics["kl"] = torch.stack(novelties).mean()
            metrics["first_weight"] = seen.log_alpha[0].exp().mean()
        return metrics

    def _slope(self, x: Tensor, z: Tensor) -> Tensor:
        """∂/∂z of the batch mean of log p(x | z), for the samples of all components at once: (S, B, D).

        The decoder does not move before the end of the batch, so this is what each component's own
        update would find.
        """
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            log_likelihood = self.model.log_conditional(x, z)
            (slope,) = torch.autograd.grad(log_likelihood.sum(), z)
        return slope / x.shape[0]

    @torch.no_grad()
    def _lessons(
        self, x: Tensor, fresh: list[Posterior], generator: torch.Generator | None
    ) -> list[Tensor]:
        """Samples (S, B, D) of each component's own refinement; all of them climb together."""
        refined: Any = self.teacher(x, Mixture(fresh, x.new_zeros(len(x), self.order)))
        return [q.rsample_and_log_prob(LESSONS, generator=generator)[0] for q in refined.components]

    def novelty(self, m: int, q: Posterior, log_q: Tensor, distance: Tensor) -> Tensor:
        """What a new component earns for differing from the mixture: min(C, KL(q_m || Q_{m-1})).

        Args:
            m: which component.
            q: q_m.
            log_q: log q_m(z) at its own sample, (1, B).
            distance: log q_m(z) - log Q_{m-1}(z), (1, B).
        """
        if self.per_instance:
            return distance.clamp_max(self.bound).mean()
        return distance.mean().clamp_max(self.bound)

    def _join(
        self,
        seen: _Seen | None,
        m: int,
        x: Tensor,
        optimizers: Optimizers,
        generator: torch.Generator | None,
    ) -> _Seen:
        """Move ε_m, then take the updated q_m into the mixture."""
        with torch.no_grad():
            q = self.component(m, x, None if seen is None else seen.components[-1])
            z, own = q.rsample_and_log_prob(1, generator=generator)  # (1, B, D), (1, B)
            log_joint = self.model.log_joint(x, z)  # (1, B)
            if seen is None:
                return _Seen([q], torch.zeros_like(own), z, log_joint, own)
            before = torch.cat([seen.log_mixture, _log_mixture(seen.components, seen.log_alpha, z)])
            new = torch.cat([q.log_prob(seen.z), own])  # log q_m at every sample, (m + 1, B)
            z = torch.cat([seen.z, z])
            log_joint = torch.cat([seen.log_joint, log_joint])
        gate: Any = self.gates[m - 1]
        shown = self.model.centred(x)

        score = gate.layers(shown).squeeze(-1)
        limits = (gate.minimum, gate.maximum)
        elbo = _mixture_elbo(score, *limits, seen.log_alpha, before, new, log_joint)
        update(-elbo, optimizers[f"gate_{m}"])

        with torch.no_grad():
            score = gate.layers(shown).squeeze(-1)
            log_alpha, log_mixture = _mix(score, *limits, seen.log_alpha, before, new)
        return _Seen([*seen.components, q], log_alpha, z, log_joint, log_mixture)


@fusible
def _mix(
    score: Tensor, minimum: float, maximum: float, log_alpha: Tensor, before: Tensor, new: Tensor
) -> tuple[Tensor, Tensor]:
    """log-weights (m + 1, B) and log Q_m (m + 1, B) of Q_m = (1 - ε) Q_{m-1} + ε q_m."""
    log_eps, log_rest = bounded(score, minimum, maximum)
    weights = torch.cat([log_alpha + log_rest, log_eps[None]])
    return weights, torch.logaddexp(before + log_rest, new + log_eps)


@fusible
def _mixture_elbo(
    score: Tensor,
    minimum: float,
    maximum: float,
    log_alpha: Tensor,
    before: Tensor,
    new: Tensor,
    log_joint: Tensor,
) -> Tensor:
    """ELBO(Q_m) from one sample of each component, averaged over the batch: what ε_m climbs."""
    weights, log_mixture = _mix(score, minimum, maximum, log_alpha, before, new)
    return (weights.exp() * (log_joint - log_mixture)).sum(0).mean()


def _log_mixture(components: list[Posterior], log_alpha: Tensor, z: Tensor) -> Tensor:
    """log Q(z): (S, B, D) -> (S, B), for log-weights (m, B)."""
    return Mixture(components, log_alpha.t()).log_prob(z)


def _jitter(module: nn.Module, scale: float) -> None:
    with torch.no_grad():
        for p in module.parameters():
            spread = p.std() if p.numel() > 1 else p.abs()
            p.add_(torch.randn_like(p) * spread * scale)
