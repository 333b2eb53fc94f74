"""The mixture of encoders (ME): all components and weights are trained together, end to end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError
from recmix.methods.component import MAX_ORDER
from recmix.methods.gates import WeightNet, token_classes
from recmix.methods.method import ELBO, Method, Objective, Optimizers, same_shapes
from recmix.methods.registry import find_component, register
from recmix.model.encoder_decoder import reset
from recmix.model.latent import LatentModel
from recmix.model.replaceable import replaceable
from recmix.posteriors import Gaussian, Mixture

__all__ = ["BlindMixture", "blind_mixture", "collapse_report"]


@register
class BlindMixture(Method):
    """A mixture of encoders, Q(z | x) = Σ_m α_m(x) q_m(z | x), with all parameters trained together.

    The weights α(x) are the softmax of a network's output. All parameters, including the decoder's,
    maximise the ELBO of the mixture, Σ_m α_m E_{q_m}[log p(x, z) - log Q(z)]. It is estimated with one
    sample of each component. The first component starts from the encoder of a VAE. The other components
    start from random weights, because identical components would get identical gradients and stay equal.

    This method is the baseline for the recursive mixture. Components may become equal, or one component
    may get nearly all of the weight. `collapse_report` measures both.

    Args:
        model: p(x, z).
        encoder: the first component; the others are copies of it with new random weights.
        order: number of components, 2 to 16.
        component: kind of the components, such as ``gaussian``, ``full`` or ``iaf``.
        component_setting: main option of this kind, such as its number of steps or flows; None for its
            default.

    Reference: the baseline ME of Kim & Pavlovic, Recursive Inference for Variational Autoencoders,
    NeurIPS 2020.
    """

    name = "me"
    title = "blind mixture"
    reference = "Kim & Pavlovic 2020 (baseline)"
    setting = "order"
    tried = (2, 3, 4, 5)
    fresh_factor = 500.0  # rate of a first stage: at 1e-6 random components do not converge

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        *,
        order: int = 3,
        component: str = "gaussian",
        component_setting: int | None = None,
    ) -> None:
        if not 2 <= order <= MAX_ORDER:
            raise ConfigError(
                f"order is the number of components, 2 to {MAX_ORDER}; got {order} (with one, use vae)"
            )
        kind = find_component(component)
        super().__init__(model, kind.for_mixture(encoder, model, order, component_setting))
        self.order = order
        self.weight_net = WeightNet(model.shape, order, classes=token_classes(encoder))
        self._draw_others()

    def posterior(self, x: Tensor) -> Mixture:
        """The mixture q(z | x) for examples x (B, *shape), in one feed-forward pass."""
        return blind_mixture(self, x)

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Minus the ELBO of the mixture, averaged over the batch, a scalar."""
        return -self._bound(x, generator)[0].mean()

    def step(
        self,
        x: Tensor,
        optimizers: Optimizers,
        *,
        objective: Objective = ELBO,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Train all parameters on one batch x (B, *shape); the arguments are those of `Method.step`.

        Returns:
            {name: scalar tensor on the device}: ``loss``, ``elbo``, and two metrics that show whether
            the mixture has collapsed. ``weight_entropy`` is near 0 if one component has nearly all of
            the weight. ``min_pairwise_kl`` is near 0 if two components are nearly equal.
        """
        elbo, q, scores = self._bound(x, generator)
        loss = -elbo.mean()
        self.descend(loss, x, optimizers["all"], objective, generator)
        with torch.no_grad():
            own = scores.diagonal().t()  # log q_i(z_i), (K, B)
            pairwise = (own - scores).mean(-1).t()  # KL(q_i || q_j) from one sample of each q_i
            return {
                "loss": loss.detach(),
                "elbo": -loss.detach(),
                "weight_entropy": _entropy(q.weights).mean(),
                "min_pairwise_kl": _smallest(pairwise),
            }

    def inherited(self) -> list[nn.Parameter]:
        """The parameters of the first component's encoder, which start from a trained model.

        The encoders of the other components start from random weights.
        """
        return list(self.base_encoder.parameters())

    def start_from(self, other: Method) -> None:
        """Copy the model p(x, z) and the first encoder of `other`; draw random weights for the rest.

        If `other` is a mixture of the same class and shapes, all its weights are copied instead.
        """
        super().start_from(other)
        if not (type(other) is type(self) and same_shapes(self, other)):
            self._draw_others()

    def _bound(self, x: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Mixture, Tensor]:
        """Estimate the ELBO of the mixture for examples x, with one sample z_i of each component i.

        Returns:
            Three values: the ELBO of each example (B,), the mixture, and a tensor (K, K, B) with
            log q_j(z_i | x) at [j, i].
        """
        q = self.posterior(x)
        z = q.component_samples(generator=generator)  # (K, B, D)
        scores = torch.stack([part.log_prob(z) for part in q.components])
        log_alpha = q.log_weights.t()  # (K, B)
        log_mixture = (scores + log_alpha[:, None]).logsumexp(0)  # log Q(z_i), (K, B)
        log_weight = self.model.log_joint(x, z) - log_mixture
        return (log_alpha.exp() * log_weight).sum(0), q, scores

    def _draw_others(self) -> None:
        """Draw new random weights for all encoders but the first, and for the network of α(x)."""
        for part in self.components[1:]:
            reset(part.encoder)  # type: ignore[arg-type]
        reset(self.weight_net)


@replaceable
def blind_mixture(method: BlindMixture, x: Tensor) -> Mixture:
    """The mixture q(z | x) of a `BlindMixture` for examples x (B, *shape).

    `recmix.accelerate` may replace this function by a faster one.
    """
    log_weights = method.weight_net(method.model.standardised(x))
    return Mixture([method.component(m, x) for m in range(method.order)], log_weights)


@torch.no_grad()
def collapse_report(
    q: Mixture, *, samples: int = 64, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Measure KL divergences between the components of a mixture, and the spread of its weights α(x).

    If components have become equal, `min_pairwise_kl` is near 0. If one component takes all weight,
    `max_weight` is near 1 and `weight_entropy` is near 0. The entropy is log K if all K components
    have the same weight.

    Args:
        q: the mixture, for a batch of B examples.
        samples: number of samples of each component for estimating the KL divergences. If all components
            are diagonal Gaussians, the KL divergences are exact and this number is not used.
        generator: source of the random noise.

    Returns:
        A dictionary. ``pairwise_kl`` (K, K) holds KL(q_i || q_j) at [i, j], averaged over the
        batch. ``min_pairwise_kl`` is its smallest value for two different components (infinite if K
        = 1). ``weight_entropy`` is the entropy of α(x), averaged over the batch. ``max_weight`` is
        the largest of the K weights after averaging over the batch.

    >>> parts = [Gaussian(torch.full((4, 2), float(m)), torch.zeros(4, 2)) for m in range(3)]
    >>> report = collapse_report(Mixture(parts, torch.zeros(4, 3).log_softmax(-1)))
    >>> report["pairwise_kl"]
    tensor([[0., 1., 4.],
            [1., 0., 1.],
            [4., 1., 0.]])
    >>> round(report["weight_entropy"].exp().item(), 4), round(report["max_weight"].item(), 4)
    (3.0, 0.3333)
    """
    gaussians = [part for part in q.components if isinstance(part, Gaussian)]
    if len(gaussians) == len(q.components):
        pairwise = _gaussian_kl(gaussians)
    else:
        rows = []
        for i, part in enumerate(q.components):
            z, _ = part.rsample_and_log_prob(samples, generator=generator)
            scores = torch.stack([other.log_prob(z) for other in q.components])  # (K, S, B)
            rows.append((scores[i] - scores).mean((1, 2)))
        pairwise = torch.stack(rows)
    return {
        "pairwise_kl": pairwise,
        "min_pairwise_kl": _smallest(pairwise),
        "weight_entropy": _entropy(q.weights).mean(),
        "max_weight": q.weights.mean(0).amax(),
    }


def _gaussian_kl(parts: list[Gaussian]) -> Tensor:
    """KL(q_i || q_j) at [i, j] for K diagonal Gaussians, averaged over the batch, (K, K)."""
    means = torch.stack([part.mean for part in parts])  # (K, B, D)
    log_variances = torch.stack([part.log_variance for part in parts])
    shift = (means[:, None] - means).square() * (-log_variances).exp()  # (K, K, B, D)
    ratio = log_variances[:, None] - log_variances
    return 0.5 * (shift + ratio.expm1() - ratio).sum(-1).mean(-1)


def _smallest(pairwise: Tensor) -> Tensor:
    """The smallest entry off the diagonal of a (K, K) tensor; infinite if K = 1."""
    same = torch.eye(len(pairwise), dtype=torch.bool, device=pairwise.device)
    return pairwise.masked_fill(same, torch.inf).amin()


def _entropy(weights: Tensor) -> Tensor:
    """The entropy of mixing weights α in nats: (B, K) -> (B,)."""
    entropy: Tensor = torch.special.entr(weights).sum(-1)
    return entropy
