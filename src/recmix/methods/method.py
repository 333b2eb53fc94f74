"""The base class `Method`: how a posterior is computed and how the parameters are trained."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recmix.errors import ConfigError, shown
from recmix.inference import Inference
from recmix.methods.component import Component, CountsTraining
from recmix.methods.copy_weights import copy_weights, same_shapes
from recmix.methods.objective import ELBO, Objective
from recmix.methods.optimizers import make_optimizer, model_groups
from recmix.model.latent import LatentModel
from recmix.model.replaceable import replaceable
from recmix.objectives import elbo, log_mean_exp, weighted_elbo
from recmix.posteriors import Posterior

__all__ = [
    "ELBO",
    "Method",
    "Objective",
    "Optimizers",
    "check_source",
    "copy_weights",
    "fuse_networks",
    "infer",
    "infer_no_grad",
    "same_shapes",
    "update",
]

Optimizers = dict[str, torch.optim.Optimizer]

TEACHER_SAMPLES = 8
"""Number of samples of the refined posterior to which a distillation step fits the encoders."""


class Method(CountsTraining, ABC):
    """Base class of methods: how a posterior is computed and how parameters are trained on a batch.

    A new method is one file in `methods/` with a subclass that is decorated with `@register`. The
    keyword-only arguments of its constructor are the options of the method, also on the command line.

    `step` never makes the CPU wait for the GPU (no ``.item()``, no branch on a tensor's value). So the
    training step of any method can be captured as a CUDA graph.

    The constructor of a subclass takes (model, encoder, *, options). The encoder is a new network
    (B, *shape) -> (B, 2 D), for the latent dimension D. A method with several encoders copies it.

    Args:
        model: p(x, z).
        components: the amortised posteriors of which the method's posterior consists.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    reference: ClassVar[str]
    setting: ClassVar[str | None] = None
    """Name of the method's main option, which tables of results vary; None if there is none."""
    tried: ClassVar[tuple[int, ...]] = ()
    """The values of the main option in the tables of the paper."""
    starts_from: ClassVar[str | None] = "vae"
    """The method that is trained first, or None for a method that is trained from random weights."""
    can_grow: ClassVar[bool] = False
    """Whether ``order = "auto"`` is possible: components can be added one at a time."""
    can_restart: ClassVar[bool] = False
    """Whether `restarted` does more than `posterior`."""
    rate_factor: ClassVar[float] = 1.0
    """The default learning rate is multiplied by this factor for this method."""
    fresh_factor: ClassVar[float] = 1.0
    """Default of the training option `fresh_rate`. A smaller value is used if this factor would give new
    parameters a higher learning rate than in a training from random weights."""

    options: dict[str, Any]
    """The keyword arguments that the method was made with."""

    def __new__(cls, *args: Any, **options: Any) -> Method:
        """Store the constructor's keyword arguments as `options`, so that a run can save them."""
        made = super().__new__(cls)
        object.__setattr__(made, "options", options)
        return made

    def __init__(self, model: LatentModel, components: Iterable[Component]) -> None:
        super().__init__()
        self.model = model
        self.components = nn.ModuleList(components)

    @classmethod
    def maximises_elbo_only(cls) -> bool:
        """Whether a training step is one update whose loss is minus the ELBO, with no other term.

        The options `kl_warmup` and `free_bits` change the KL in this loss. They work only for methods
        for which this is true.
        """
        return cls.step is Method.step and cls.loss is Method.loss

    def component(self, m: int, x: Tensor) -> Posterior:
        """The posterior q_m(z | x) of component m, for examples x (B, *shape)."""
        q: Posterior = self.components[m](x, self.model)
        return q

    @property
    def base_encoder(self) -> nn.Module:
        """The encoder of the first component. Methods that start from this method copy it."""
        first: Component = self.components[0]  # type: ignore[assignment]
        return first.encoder

    @property
    def steps_per_example(self) -> int:
        """Number of optimisation steps per example to compute q(z | x); 0 if there are none."""
        parts: Any = self.components
        return max(part.steps_per_example for part in parts)

    @property
    def feed_forward(self) -> bool:
        """Whether a component decodes and corrects its result, without steps for each example."""
        parts: Any = self.components
        return any(part.feed_forward for part in parts)

    def posterior(self, x: Tensor) -> Posterior:
        """The posterior q(z | x) for examples x (B, *shape). By default, it is the first component's."""
        return self.component(0, x)

    def restarted(self, x: Tensor, restarts: int) -> Posterior:
        """The posterior q(z | x) for examples x (B, *shape), from several starting points per example.

        The best result for each example is kept. This is done only if `can_restart` is True. All other
        methods return the result of `posterior`.

        Args:
            x: examples (B, *shape).
            restarts: number of starting points for each example.
        """
        return self.posterior(x)

    def loss(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The training loss, a scalar: by default minus the ELBO, averaged over the batch.

        Args:
            x: examples (B, *shape). One sample of z is drawn for each.
            generator: source of the random noise.
        """
        return -elbo(self.model, x, self.posterior(x), generator=generator).mean()

    def networks(self) -> list[nn.Module]:
        """The networks that a training step calls. They may be compiled by `torch.compile`."""
        parts: Any = self.components
        own = [network for part in parts for network in (part.encoder, *part.extra_networks())]
        return [self.model.decoder, *own]

    def inherited(self) -> list[nn.Parameter]:
        """The encoders' parameters, which `start_from` fills with trained values.

        Parameters of the model p(x, z) are not included.
        """
        parts: Any = self.components
        return [p for part in parts if not part.corrects for p in part.encoder.parameters()]

    def groups(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, fresh_rate: float
    ) -> list[dict[str, Any]]:
        """Divide parameters into up to two groups for an optimiser, {"params": [...], "lr": ...} each.

        The parameters in `inherited` start from trained values and get the rate learning_rate. All other
        parameters get the rate learning_rate · fresh_rate.
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
        """Make the optimisers that `step` uses, {name: optimiser}. The default is {"all": optimiser}.

        Args:
            learning_rate: learning rate of the networks.
            variance_rate: learning rate of the likelihood's variance, relative to `learning_rate`.
            fresh_rate: learning rate of parameters that do not start from a trained model, relative to
                `learning_rate`.
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
        """Train on one batch: compute the loss and make the optimiser steps.

        Args:
            x: examples (B, *shape).
            optimizers: {name: optimiser}, made by the method `optimizers`.
            objective: options that change the method's own objective. The default changes nothing.
            generator: source of the random noise.

        Returns:
            Metrics, {name: scalar tensor on the device}. They always include ``loss`` and ``elbo``.
        """
        if objective.kl_weight is None:
            loss = self.loss(x, generator=generator)
            bound = -loss.detach()
        else:
            gain, bound = weighted_elbo(
                self.model,
                x,
                self.posterior(x),
                kl_weight=objective.kl_weight,
                free_bits=objective.free_bits,
                generator=generator,
            )
            loss = -gain
        self.descend(loss, x, optimizers["all"], objective, generator)
        return {"loss": loss.detach(), "elbo": bound}

    def descend(
        self,
        loss: Tensor,
        x: Tensor,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        generator: torch.Generator | None,
    ) -> None:
        """Make one optimiser step on `loss`, with the changes that `objective` asks for.

        If `objective.separate_decoder` is True, `decoder_loss` trains the decoder, and `loss` trains all
        other parameters. If `objective.distil` is above 0, the encoders minimise a weighted mean of
        `loss` and `distillation`. The weight of `distillation` is `objective.distil`.

        Args:
            loss: the method's own loss on this batch.
            x: examples (B, *shape).
            optimizer: optimiser of all parameters to train.
            objective: changes of the method's own objective.
            generator: source of the random noise.
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
        """The distillation loss, a scalar: KL(q* || q) up to a constant, averaged over the batch.

        q is the method's posterior, and q* is q refined by `teacher`. The loss is the mean of
        -log q(z | x) over samples z of q*. The samples carry no gradient.

        Args:
            x: examples (B, *shape).
            teacher: settings of the refinement that turns q into q*.
            generator: source of the random noise.
        """
        q = self.posterior(x)
        with torch.no_grad():
            best = teacher.for_training(self.model, x, q)
            z, _ = best.rsample_and_log_prob(TEACHER_SAMPLES, generator=generator)
        return -q.log_prob(z).mean()

    def decoder_loss(
        self, x: Tensor, q: Posterior, objective: Objective, generator: torch.Generator | None
    ) -> Tensor:
        """The decoder's loss, a scalar, for examples x; used if `objective.separate_decoder` is True.

        First q is refined. The loss is minus the IWAE bound of the refined posterior if
        `objective.iwae_samples` is not 0, else minus its ELBO. The steps of the refinement use the
        decoder. In the ELBO, gradients flow to the decoder through these steps, too; in the IWAE bound
        they do not. The encoder gets no gradient.
        """
        q = objective.inference.for_training(self.model, x, q)
        if not objective.iwae_samples:
            # log p(x, z) - log q(z) varies little if q is close to the posterior, so its gradient has
            # less noise than with the closed-form KL.
            z = torch.cat([c.rsample_and_log_prob(1, generator=generator)[0] for c in q.components])
            return -(q.weights.t() * (self.model.log_joint(x, z) - q.log_prob(z))).sum(0).mean()
        with torch.no_grad():
            z, log_q = q.rsample_and_log_prob(objective.iwae_samples, generator=generator)
        return -log_mean_exp(self.model.log_joint(x, z) - log_q).mean()

    def prepare(self, x: Tensor) -> None:
        """Choose options that depend on validation examples x (B, *shape). By default this does nothing.

        Training calls this once, before it continues from a trained model.
        """

    def start_from(self, other: Method) -> None:
        """Copy the weights of the trained method `other` to this method.

        If `other` has the same class and shapes, all its weights are copied. Otherwise only its model
        p(x, z) and its first encoder are copied.
        """
        check_source(self, other)
        if type(other) is type(self) and same_shapes(self, other):
            copy_weights(self, other)
            return
        copy_weights(self.model, other.model)
        self.base_encoder.load_state_dict(other.base_encoder.state_dict())


def check_source(method: Method, other: object) -> None:
    """Raise a ConfigError unless the training of `method` can start with the parameters of `other`.

    `other` must be a `Method` whose model, encoder and decoder have the shapes of those of `method`.
    """
    if not isinstance(other, Method):
        raise ConfigError(f"start_from takes a Method, got {shown(other)}: give model.method")
    mine, theirs = method.model, other.model
    for name in ("latent", "shape"):
        given, expected = getattr(theirs, name), getattr(mine, name)
        if given != expected:
            raise ConfigError(
                f"start_from: the given {other.name} has {name} {given}, expected {expected}: make both "
                f"methods with one {name}"
            )
    networks = {
        "encoder": (method.base_encoder, other.base_encoder),
        "decoder": (mine.decoder, theirs.decoder),
    }
    for name, (one, two) in networks.items():
        if not same_shapes(one, two):
            raise ConfigError(
                f"start_from: the {name} of the given {other.name} has another architecture than "
                f"that of this {method.name}: make both with the same network"
            )


def infer(method: Method, x: Tensor, inference: Inference) -> Posterior:
    """Compute the posterior q(z | x) for examples x (B, *shape), then refine and calibrate it.

    The settings `inference` say how the posterior is refined and calibrated.
    """
    restarts = inference.restarts
    q = method.posterior(x) if restarts == 1 else method.restarted(x, restarts)
    return inference(method.model, x, q)


@replaceable
def infer_no_grad(method: Method, x: Tensor, inference: Inference) -> Posterior:
    """Compute the refined and calibrated posterior as `infer` does, but without gradients.

    The version for GPUs in `recmix.accelerate` is faster for later batches of the same shape.
    """
    with torch.no_grad():
        return infer(method, x, inference)


@replaceable
def fuse_networks(method: Method) -> None:
    """Prepare a trained method for tracing, such as by `torch.export`.

    This plain function does nothing. If `recmix.accelerate` is installed, its version is called instead.
    That version combines the encoders of a mixture of Gaussians into one network. The method must not be
    trained afterwards.
    """


def update(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Make one step of `optimizer` on a scalar `loss`.

    Gradients are computed only for the parameters of `optimizer`.
    """
    optimizer.zero_grad(set_to_none=True)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if trained:
        loss.backward(inputs=trained)
        optimizer.step()
