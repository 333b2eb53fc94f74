"""Use the methods `encode` and `decode` of one module as the two networks of a VAE."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from recmix.errors import ConfigError, shown
from recmix.model.assembly import Own
from recmix.model.encoder_decoder import evaluation_mode
from recmix.model.foreign import check_module, latent_shape

__all__ = ["MethodModule", "as_networks", "keep_used_parts"]

STORES = ("_modules", "_parameters", "_buffers")
"""Attributes in which a torch module stores its submodules, parameters and buffers."""


class MethodModule(nn.Module):
    """A module that calls a method of a user's module, such as ``vae.encode``.

    It shares the weights of the user's module. After `keep_used` it contains only the submodules and
    parameters that the method uses. So the encoder's weights are not also weights of the decoder.

    >>> class VAE(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.first, self.second = nn.Linear(3, 2), nn.Linear(2, 3)
    ...     def encode(self, x):
    ...         return self.first(x)
    >>> half = MethodModule(VAE().encode)
    >>> half.keep_used(torch.zeros(1, 3))
    >>> list(half.state_dict())
    ['whole.first.weight', 'whole.first.bias']
    """

    def __init__(self, method: Any) -> None:
        super().__init__()
        self.whole = copy.copy(method.__self__)
        self.name: str = method.__name__
        for store in STORES:
            self.whole.__dict__[store] = dict(getattr(self.whole, store))

    def forward(self, x: Any) -> Any:
        """Return the result of the user's method for x."""
        return getattr(self.whole, self.name)(x)

    def keep_used(self, x: Any) -> None:
        """Call the user's method, and remove the submodules and parameters that it does not use.

        The method is called with `x`, once in evaluation mode and once in training mode. Nothing is
        removed if a call fails.
        """
        try:
            with evaluation_mode(self):
                used = self._used(x) | self._used_in_training(x)
        except Exception:  # whatever a user's code raises; the checks that follow report it
            return
        parts = self.whole.__dict__
        for store in STORES:
            parts[store] = {name: part for name, part in parts[store].items() if name in used}

    def _used_in_training(self, x: Any) -> set[str]:
        """Return the names of the parts that the user's method reads in training mode, see `_used`.

        The call is made on a copy of the module. If the module cannot be copied, its buffers are
        restored after the call.
        """
        try:
            other = copy.deepcopy(self)
        except Exception:  # for example a module with a lock; its buffers are restored instead
            other = self
        kept = [(buffer, buffer.clone()) for buffer in other.buffers()]
        try:
            return other.train()._used(x)
        finally:
            for buffer, value in kept:
                buffer.data.copy_(value)

    def _used(self, x: Any) -> set[str]:
        """Return the names of the submodules, parameters and buffers that the user's method reads.

        The method is called once with `x`. The states of random generators do not change.
        """
        parts = self.whole.__dict__
        before = {store: parts[store] for store in STORES}
        recorded = {store: _Recorded(before[store]) for store in STORES}
        devices = {p.device for p in self.parameters() if p.device.type == "cuda"}
        parts.update(recorded)
        try:
            with torch.random.fork_rng(devices), torch.no_grad():
                self(x)
        finally:
            parts.update(before)
        return set().union(*(found.used for found in recorded.values()))


class _Recorded(dict[str, Any]):
    """A dict that records which of its entries are read."""

    def __init__(self, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self.used.update(self.keys())
        return super().__iter__()

    def items(self) -> Any:
        self.used.update(self.keys())
        return super().items()

    def values(self) -> Any:
        self.used.update(self.keys())
        return super().values()


def as_networks(encoder: Any, decoder: Any) -> tuple[Any, Any]:
    """Return an encoder and a decoder as two modules, also if a whole VAE or its methods are given.

    Args:
        encoder: a module; a method of a module, such as ``vae.encode``; or a whole VAE with the methods
            `encode` and `decode`, if the decoder is None or the same object.
        decoder: a module, a method of a module, or None.
    """
    for part, what in ((encoder, "encoder"), (decoder, "decoder")):
        if isinstance(part, type):
            check_module(part, what)  # raises the error: a class, not an object
    if encoder is not None and (decoder is None or decoder is encoder):
        if not (hasattr(encoder, "encode") and hasattr(encoder, "decode")):
            raise ConfigError(
                "the decoder is missing: give the encoder and the decoder, or one module with the "
                f"methods encode and decode; got {shown(encoder)}"
            )
        encoder, decoder = encoder.encode, encoder.decode
    made = [
        MethodModule(part) if isinstance(getattr(part, "__self__", None), nn.Module) else part
        for part in (encoder, decoder)
    ]
    return made[0], made[1]


def keep_used_parts(own: Own, shape: tuple[int, ...], latent: int) -> None:
    """Remove the parts of a whole VAE that the encoder, or the decoder, does not use.

    If encoder and decoder are methods of one module, both contain this whole module at first. After this
    call, each of them contains only the submodules and parameters that its own method uses.

    Args:
        own: the user's encoder and decoder. Each is changed in place if it is a `MethodModule`.
        shape: the shape of one example.
        latent: the latent dimension.
    """
    encoder, decoder = own.encoder, own.decoder
    like = torch.zeros(())
    for part in (encoder, decoder):
        like = next((p for p in part.parameters() if p.is_floating_point()), like) if part else like
    x = torch.zeros(2, *shape).to(like)
    if isinstance(encoder, MethodModule):
        encoder.keep_used(x)
    if isinstance(decoder, MethodModule):
        dims: tuple[int, ...] = (latent,)
        if encoder is not None:
            try:
                with evaluation_mode(encoder):
                    dims = latent_shape(encoder, x)
            except ConfigError:
                pass  # the encoder is checked later
        decoder.keep_used(torch.zeros(2, *dims).to(like))
