"""Posteriors of several encoders in one pass, by stacked networks."""

from __future__ import annotations

from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from recmix.accelerate.fusion import branch
from recmix.accelerate.stacked import Stacked, StackedEncoders, StackedGates
from recmix.methods.blind_mixture import BlindMixture, blind_mixture
from recmix.methods.component import Component
from recmix.methods.method import Method, fuse_networks
from recmix.methods.recursive import RecursiveMixture, recursive_mixture
from recmix.methods.vae import GaussianComponent, encode
from recmix.model.latent import LatentModel
from recmix.posteriors import Gaussian, Mixture

__all__ = ["stacks_of"]

S = TypeVar("S", bound=Stacked)
_stacks: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()


def stacks_of(owner: nn.Module) -> list[Stacked]:
    """The stacked networks of a method or component, which exist after its first use."""
    return [stack for stack, _ in _stacks.get(owner, [])]


def _stack(owner: Any, kind: type[S], networks: list[nn.Module], **how: Any) -> S:
    """The owner's stack of this kind; rebuilt after the owner was trained."""
    kept = _stacks.setdefault(owner, [])
    for entry in kept:
        if type(entry[0]) is kind:
            if entry[1] != owner.trainings:
                entry[0].drop()
                entry[1] = owner.trainings
            found: S = entry[0]
            return found
    made = kind(networks, **how)
    kept.append([made, owner.trainings])
    return made


def _applies(owner: nn.Module) -> bool:
    return not torch.is_grad_enabled() and not owner.training


def _all_gaussian(method: Method) -> bool:
    return all(type(part) is GaussianComponent for part in method.components)


def _encoders(method: Method) -> StackedEncoders:
    parts: Any = method.components
    return _stack(method, StackedEncoders, [part.encoder for part in parts])


def _gates(method: RecursiveMixture) -> StackedGates:
    return _stack(method, StackedGates, list(method.gates))


@encode.register
def encode_by_kernels(component: Component, x: Tensor, model: LatentModel) -> Gaussian:
    """One encoder by Triton kernels."""
    if not x.is_cuda or not _applies(component):
        return NotImplemented
    stack = _stack(component, StackedEncoders, [component.encoder], only_kernels=True)
    found = stack.gaussians(x, model.shift)
    if found is None:
        return NotImplemented
    return Gaussian.from_clamped(found.mean[0], found.log_variance[0])


@recursive_mixture.register
def stacked_recursive_mixture(method: RecursiveMixture, x: Tensor) -> Mixture:
    """The posterior of a recursive mixture: one pass for all encoders, the gates in parallel."""
    if method.order < 2 or not _applies(method) or not _all_gaussian(method):
        return NotImplemented
    encoders, gates = _encoders(method), _gates(method)
    with branch(x) as join:  # captured first, so that it starts first: it takes longer
        parts = encoders.gaussians(x, method.model.shift)
    log_weights = gates.log_weights(x, method.model.shift)
    join()
    if parts is None or log_weights is None:
        return NotImplemented
    return Mixture.from_stack(parts, log_weights)


@blind_mixture.register
def stacked_blind_mixture(method: BlindMixture, x: Tensor) -> Mixture:
    """The posterior of a blind mixture, with one pass for all encoders."""
    if not _applies(method) or not _all_gaussian(method):
        return NotImplemented
    parts = _encoders(method).gaussians(x, method.model.shift)
    if parts is None:
        return NotImplemented
    return Mixture.from_stack(parts, method.weight_net(method.model.centred(x)))


@fuse_networks.register
def fuse_stacked_networks(method: Method) -> None:
    """Stack a frozen method's networks permanently, on the CPU, so that they can be traced."""
    x = torch.zeros(2, *method.model.shape, dtype=method.model.centre.dtype)
    stacks: list[Stacked] = []
    if _all_gaussian(method) and len(method.components) > 1:
        stacks.append(_encoders(method))
        if isinstance(method, RecursiveMixture):
            stacks.append(_gates(method))
    for stack in stacks:
        stack.fix(x)
