"""Several networks of one shape in one pass: grouped convolutions and batched matrix products.

A mixture's posterior asks K encoders about the same images. On a GPU they are bound by the number of
kernels, so one stacked network of the same depth costs little more than one of them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from recmix.networks import Encoder

__all__ = ["Stacked"]

Layer = Callable[[Tensor], Tensor]


class Stacked:
    """K networks of one shape as one function: x (B, ...) -> (K, B, F), without gradients.

    Built on first use and built anew when a parameter has changed. Networks of convolutions, linear
    layers and pointwise activations become grouped convolutions and batched products; others go
    through `torch.func.stack_module_state` where it can stack them. Where neither works the answer is
    None, and a warning says so once.

    On a CPU, which is bound by the arithmetic, grouped convolutions are slower than the networks one
    by one; so it answers only for the kinds of device it is told.

    Args:
        networks: of one architecture.
        devices: kinds of device on which to stack; on others the answer is None.

    >>> nets = [nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(2)]
    >>> Stacked(nets, devices=("cpu",))(torch.zeros(5, 1, 2, 2)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, networks: Sequence[nn.Module], devices: Sequence[str] = ("cuda",)) -> None:
        self.networks = list(networks)
        self.devices = devices
        self.how = ""
        self._fixed = False
        self._layers: Callable[[Tensor], Tensor] | None = None
        self._versions: list[Any] = []

    def drop(self) -> None:
        """Forget the stack: the next use builds it from the networks as they are then."""
        if not self._fixed:
            self._layers = None

    def fix(self, x: Tensor) -> None:
        """Build the stack for good from the networks as they are, for x's kind of device, to be traced."""
        self.devices = (x.device.type,)
        self(x)
        self._fixed = True

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor | None:
        """One pass: x (B, ...) -> (K, B, F), or None if these networks cannot be stacked."""
        if self.how == "apart" or x.device.type not in self.devices:
            return None
        if self._fixed:
            return None if self._layers is None else self._layers(x)
        versions = [(p.data_ptr(), p._version) for net in self.networks for p in net.parameters()]
        if self._layers is None or versions != self._versions:
            self._layers, self._versions = self._build(x), versions
        return None if self._layers is None else self._layers(x)

    def _build(self, x: Tensor) -> Callable[[Tensor], Tensor] | None:
        layers = [_sequence(network) for network in self.networks]
        if all(found is not None for found in layers):
            made = _stack_layers([found for found in layers if found is not None])
            if made is not None:
                self.how = "layers"
                return made
        try:
            made = _stack_state(self.networks)
            made(x[:1])
        except (RuntimeError, ValueError, TypeError) as error:
            self.how = "apart"
            name, why = type(self.networks[0]).__name__, str(error).splitlines()[0]
            warnings.warn(
                f"{name} cannot be stacked ({why}): components are evaluated one by one", stacklevel=2
            )
            return None
        self.how = "vmap"
        return made


def _sequence(network: nn.Module) -> list[nn.Module] | None:
    """A network's layers in order, if it is nothing but a sequence of them."""
    if isinstance(network, Encoder):
        features = _sequence(network.features)
        return None if features is None else [*features, network.head]
    if type(network) is nn.Sequential:
        parts = [_sequence(part) for part in network]
        if any(part is None for part in parts):
            return None
        return [layer for part in parts if part is not None for layer in part]
    return [network] if type(network) in (nn.Conv2d, nn.Linear, nn.Flatten, *POINTWISE) else None


POINTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.SiLU, nn.GELU, nn.ELU, nn.Sigmoid, nn.Identity)


def _stack_layers(networks: list[list[nn.Module]]) -> Callable[[Tensor], Tensor] | None:
    """Layer by layer: shared input, then K groups of channels, then K batches of rows."""
    count = len(networks)
    made: list[Layer] = []
    state = "shared"
    for layers in zip(*networks, strict=True):
        first: Any = layers[0]
        if isinstance(first, nn.Conv2d):
            if state == "rows" or first.groups != 1 or first.padding_mode != "zeros":
                return None
            made.append(_convolution(layers, 1 if state == "shared" else count))
            state = "channels"
        elif isinstance(first, nn.Linear):
            made.append(_linear(layers, state == "shared"))
            if state == "channels":
                return None
            state = "rows"
        elif isinstance(first, nn.Flatten):
            if (first.start_dim, first.end_dim) != (1, -1):
                return None
            if state == "channels":
                made.append(lambda h: h.reshape(h.shape[0], count, -1).transpose(0, 1))
                state = "rows"
            elif state == "shared":
                made.append(lambda h: h.flatten(1))
        else:
            made.append(first)
    if state != "rows":
        return None

    def run(x: Tensor) -> Tensor:
        for layer in made:
            x = layer(x)
        return x

    return run


def _convolution(layers: Sequence[Any], groups: int) -> Layer:
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    stride, padding, dilation = layers[0].stride, layers[0].padding, layers[0].dilation
    return lambda h: F.conv2d(h, weight, bias, stride, padding, dilation, groups)


def _linear(layers: Sequence[Any], shared: bool) -> Layer:
    weight = torch.stack([layer.weight.t() for layer in layers])  # (K, in, out)
    bias = weight.new_zeros(len(layers), 1, weight.shape[-1])
    if layers[0].bias is not None:
        bias = torch.stack([layer.bias for layer in layers]).unsqueeze(1)
    if shared:
        flat = weight.transpose(0, 1).flatten(1)  # (in, K out): one product for all
        wide, count = bias.flatten(), len(layers)
        return lambda h: torch.addmm(wide, h, flat).view(h.shape[0], count, -1).transpose(0, 1)
    return lambda h: torch.baddbmm(bias, h, weight)


def _stack_state(networks: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    parameters, buffers = stack_module_state(networks)  # type: ignore[arg-type]
    frame = copy.deepcopy(networks[0]).to("meta")

    def one(p: Any, b: Any, x: Tensor) -> Tensor:
        out: Tensor = functional_call(frame, (p, b), (x,))
        return out

    def run(x: Tensor) -> Tensor:
        out: Tensor = vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)
        return out

    return run
