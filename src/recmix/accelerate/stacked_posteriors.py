"""Compute the posteriors of several encoders of the same shape together, as one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from recmix.model.foreign import ForeignEncoder
from recmix.model.latent import LatentModel
from recmix.model.replaceable import Replaceable
from recmix.posteriors import Gaussian, Mixture

__all__ = ["stacks_of"]

S = TypeVar("S", bound=Stacked)
_stacks: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()


def stacks_of(owner: nn.Module) -> list[Stacked]:
    """All `Stacked` objects that `_stack` has made for `owner`, which is a method or a component."""
    return [stack for stack, _ in _stacks.get(owner, [])]


def _stack(owner: Any, kind: type[S], networks: list[nn.Module], **how: Any) -> S:
    """Return the object that evaluates several networks of a method or component together.

    The first call makes the object, later calls return the same object. If `owner` was trained since the
    last call, the object combines the networks again when it is next used.

    Args:
        owner: the method or component to which the networks belong.
        kind: class of the object, such as `StackedEncoders`. Each owner has one object of each class.
        networks: the networks. They are only used by the first call.
        how: further arguments of `kind`, such as `only_kernels`.
    """
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
    parts: Any = method.components
    return method.model.fields is None and all(
        type(part) is GaussianComponent and type(part.encoder) is not ForeignEncoder for part in parts
    )


def _seen(model: LatentModel, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The input of the networks as a pair: a tensor made from x, and a shift to subtract from it.

    The shift is None if nothing is to be subtracted.
    """
    return (x, model.shift) if model.spread is None else (model.standardised(x), None)


def _encoders(method: Method) -> StackedEncoders:
    parts: Any = method.components
    return _stack(method, StackedEncoders, [part.encoder for part in parts])


def _gates(method: RecursiveMixture) -> StackedGates:
    return _stack(method, StackedGates, list(method.gates))


@encode.register_for_gpu
def encode_by_kernels(component: Component, x: Tensor, model: LatentModel) -> Gaussian:
    """GPU version of `encode`: the Gaussian that a component's encoder gives for x, by Triton kernels.

    The function returns NotImplemented if the kernels do not apply.
    """
    if not x.is_cuda or not _applies(component) or model.fields is not None:
        return NotImplemented
    stack = _stack(component, StackedEncoders, [component.encoder], only_kernels=True)
    found = stack.gaussians(*_seen(model, x))
    if found is None:
        return NotImplemented
    return Gaussian.from_clamped(found.mean[0], found.log_variance[0])


@recursive_mixture.register_for_gpu
def stacked_recursive_mixture(method: RecursiveMixture, x: Tensor) -> Mixture:
    """GPU version of `recursive_mixture`: one pass for all encoders, and one for all gates.

    The gates are the networks of the mixture weights. Both passes run at the same time on the GPU. If
    the encoders, or the gates, cannot be evaluated in one pass, the special value NotImplemented is
    returned; the caller then uses the plain function.
    """
    if method.order < 2 or not _applies(method) or not _all_gaussian(method):
        return NotImplemented
    encoders, gates = _encoders(method), _gates(method)
    with branch(x) as join:  # captured first, so that it starts first: it takes longer
        parts = encoders.gaussians(*_seen(method.model, x))
    log_weights = gates.log_weights(*_seen(method.model, x))
    join()
    if parts is None or log_weights is None:
        return NotImplemented
    return Mixture.from_stack(parts, log_weights)


@blind_mixture.register_for_gpu
def stacked_blind_mixture(method: BlindMixture, x: Tensor) -> Mixture:
    """GPU version of `blind_mixture`, with one pass for all encoders.

    The function returns NotImplemented if the encoders cannot be evaluated together.
    """
    if not _applies(method) or not _all_gaussian(method):
        return NotImplemented
    parts = _encoders(method).gaussians(*_seen(method.model, x))
    if parts is None:
        return NotImplemented
    return Mixture.from_stack(parts, method.weight_net(method.model.standardised(x)))


STACKED: list[tuple[Replaceable[..., Any], Callable[..., Any]]] = [
    (recursive_mixture, stacked_recursive_mixture),
    (blind_mixture, stacked_blind_mixture),
]
"""Plain functions and their stacked versions. On a CPU only `fuse_stacked_networks` needs these."""


@fuse_networks.register
def fuse_stacked_networks(method: Method) -> None:
    """Prepare a trained mixture for export: combine its encoders, and its gates, into one network each.

    The gates compute the mixture weights. The method must be on the CPU and must not be trained
    afterwards. A method with one component, or with components that are not Gaussian, is not changed.
    """
    for function, stacked in STACKED:
        if stacked not in function.alternatives:
            function.register(stacked)
    x = torch.zeros(2, *method.model.shape, dtype=method.model.centre.dtype)
    stacks: list[Stacked] = []
    if _all_gaussian(method) and len(method.components) > 1:
        stacks.append(_encoders(method))
        if isinstance(method, RecursiveMixture):
            stacks.append(_gates(method))
    for stack in stacks:
        if not _has_embedding(stack.networks):
            stack.fix(x)


def _has_embedding(networks: Sequence[nn.Module]) -> bool:
    """Whether a network has an `nn.Embedding`.

    If such networks are combined and traced for export, the traced network has a fixed batch size.
    """
    return any(isinstance(part, nn.Embedding) for network in networks for part in network.modules())
