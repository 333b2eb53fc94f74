"""Evaluate several networks of the same shape together: one kernel computes a layer of all networks.

The posterior of a mixture evaluates K encoders for the same images. On a GPU the time of small
networks depends mainly on the number of kernels. So a stacked network, which computes each layer
for all K networks at once, takes little longer than one network alone.
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

from recmix.methods.gates import Gate
from recmix.model.networks import Encoder
from recmix.posteriors import Gaussian, recursive_log_weights
from recmix.posteriors.gaussian import LOG_VARIANCE_RANGE
from recmix.posteriors.recursion import bounded

__all__ = ["Stacked", "StackedEncoders", "StackedGates", "places", "state"]

Layer = Callable[[Tensor], Tensor]
Run = Callable[[Tensor, Tensor | None], Tensor]


class Stacked:
    """K networks of the same shape as one function: x (B, ...) -> (K, B, F), without gradients.

    F is the number of outputs of each network. The first call builds the function. A later call builds
    it again if a parameter has changed. There are three ways to build it; the first possible way is
    used:

    - Triton kernels (`recmix.accelerate.kernels`), for convolutions, linear layers and simple
      activations.
    - Grouped convolutions and batched products, for plain sequences of such layers.
    - `torch.func.stack_module_state`, for other networks.

    If no way is possible, the call warns once and returns None. The caller must then evaluate the
    networks one by one.

    On a CPU grouped convolutions are slower than the separate networks. So the networks are stacked only
    on the kinds of device in `devices`.

    Args:
        networks: networks with the same layers and shapes.
        devices: kinds of device on which the networks are stacked. On other devices a call returns None.
        only_kernels: use only Triton kernels. If they do not support the layers, a call returns None
            without a warning. Use this for a single network: the other two ways are not faster than the
            network itself.

    Attributes:
        how: how the networks are stacked: ``triton``, ``layers`` or ``vmap``; ``separate`` if they
            cannot be stacked; "" before the first call.

    >>> nets = [nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(2)]
    >>> Stacked(nets, devices=("cpu",))(torch.zeros(5, 1, 2, 2)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        devices: Sequence[str] = ("cuda",),
        *,
        only_kernels: bool = False,
    ) -> None:
        self.networks = list(networks)
        self.devices = devices
        self.only_kernels = only_kernels
        self.how = ""
        self._fixed = False
        self._run: Run | None = None
        self._built: list[Any] = []
        self._places: list[tuple[dict[str, Any], str]] = []
        self._held: list[Tensor] = []

    def drop(self) -> None:
        """Discard the function that evaluates all networks together; the next call builds it again.

        Call this after changes of the parameters that cannot be detected: after replays of a CUDA graph,
        or when modules were replaced.
        """
        if not self._fixed:
            self._run, self._built = None, []
            if self.only_kernels:  # the networks may have another dtype then
                self.how = ""

    def held(self) -> Any:
        """The combined weights. A CUDA graph reads them: keep them as long as the graph is used."""
        return self._run

    def fix(self, x: Tensor) -> None:
        """Build the function that evaluates all networks together, and never build it again.

        Later changes of the weights then have no effect. A fixed function can be traced for export.

        Args:
            x: examples (B, ...); the function is built for their device.
        """
        self.devices = (x.device.type,)
        self(x)
        self._fixed = True

    @torch.no_grad()
    def __call__(self, x: Tensor, shift: Tensor | None = None) -> Tensor | None:
        """Evaluate all K networks together: x (B, ...) -> (K, B, F), with F outputs of each network.

        The result is None if the networks cannot be combined. If `shift` is given, it is subtracted from
        x first.
        """
        if self.how == "separate" or x.device.type not in self.devices:
            return None
        if not self._fixed and self._state(x) != self._built:
            if x.is_cuda and torch.cuda.is_current_stream_capturing():
                warnings.warn(
                    f"a CUDA graph is captured before {type(self.networks[0]).__name__} was used: the "
                    "graph evaluates the networks one by one; compute a posterior before the capture",
                    stacklevel=2,
                )
                return None
            self._places = places(self.networks)
            # While these are kept, no other tensor can have their addresses, which identify them.
            self._held = [place[name].detach() for place, name in self._places]
            self._run, self._built = self._build(x, shift), self._state(x)
        return None if self._run is None else self._run(x, shift)

    def _state(self, x: Tensor) -> list[Any]:
        """A key that changes when the stacked function must be built again."""
        return [x.shape[1:], x.dtype, x.device, *state(self._places)]

    def _build(self, x: Tensor, shift: Tensor | None) -> Run | None:
        found = [_sequence(network) for network in self.networks]
        layers = [one for one in found if one is not None]
        if len(layers) == len(found):
            run = self._try_kernels(layers, x, shift)
            if run is not None:
                self.how = "triton"
                return run
            stacked = None if self.only_kernels else _stack_layers(layers)
            if stacked is not None:
                self.how = "layers"
                return _shifted(stacked)
        if self.only_kernels:
            self.how = "separate"
            return None
        try:
            made = _stack_state(self.networks)
            made(x[:1])
        except (RuntimeError, ValueError, TypeError) as error:
            self.how = "separate"
            name, why = type(self.networks[0]).__name__, str(error).splitlines()[0]
            warnings.warn(
                f"{name} cannot be stacked ({why}): components are evaluated one by one", stacklevel=3
            )
            return None
        self.how = "vmap"
        return _shifted(made)

    def _try_kernels(self, layers: list[list[nn.Module]], x: Tensor, shift: Tensor | None) -> Run | None:
        """Return a function that evaluates these layers by Triton kernels; None if this is not possible.

        Args:
            layers: the layers of each network.
            x: examples (B, ...) on which the function is tested.
            shift: a tensor that the function subtracts from x first, or None.
        """
        given = self._held if shift is None else [*self._held, shift]
        if any(one.dtype != x.dtype or one.device != x.device for one in given):
            return None
        if shift is not None and shift.shape != x.shape[1:]:
            return None
        from recmix.accelerate import kernels

        if not kernels.usable(x):
            return None
        try:
            run = self._kernels(layers, x.shape[1:])
            if run is not None:
                run(x, shift)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise errors of any kind
            why = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"the Triton kernels for {type(self.networks[0]).__name__} cannot be used ({why}): "
                "slower operations of torch are used instead",
                stacklevel=4,
            )
            return None
        return run

    def _kernels(self, layers: list[list[nn.Module]], shape: Sequence[int]) -> Run | None:
        from recmix.accelerate import layers as kernel_layers

        return kernel_layers.sequence(layers, shape)


class StackedEncoders(Stacked):
    """K encoders of the same shape as one function that gives the K Gaussians q_k(z | x).

    >>> nets = [nn.Sequential(nn.Flatten(), nn.Linear(4, 6)) for _ in range(2)]
    >>> StackedEncoders(nets, devices=("cpu",)).gaussians(torch.zeros(5, 1, 2, 2)).mean.shape
    torch.Size([2, 5, 3])
    """

    def gaussians(self, x: Tensor, shift: Tensor | None = None) -> Gaussian | None:
        """One object for the Gaussians of all K encoders, with means and log-variances (K, B, D).

        The result is None if the encoders cannot be evaluated together. If `shift` is given, it is
        subtracted from x (B, ...) first.
        """
        parameters = self(x, shift)
        if parameters is None:
            return None
        if self.how == "triton":  # the last kernel clamps
            return Gaussian.from_clamped(*parameters.chunk(2, dim=-1))
        return Gaussian.from_parameters(parameters)

    def _kernels(self, layers: list[list[nn.Module]], shape: Sequence[int]) -> Run | None:
        from recmix.accelerate import layers as kernel_layers

        return kernel_layers.sequence(layers, shape, LOG_VARIANCE_RANGE)


class StackedGates(Stacked):
    """The gates of a recursive mixture as one function that gives the mixture's log-weights.

    Gate m is a network that gives ε_m(x), the share of component m in the mixture of the components
    0 … m.

    Args:
        gates: the M gates ε_1 … ε_M, all with the same smallest and largest value.
        devices: kinds of device on which the gates are evaluated together. On other devices
            `log_weights` returns None.

    >>> gates = StackedGates([Gate((1, 2, 2)) for _ in range(2)], devices=("cpu",))
    >>> gates.log_weights(torch.zeros(5, 1, 2, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, gates: Sequence[Gate], devices: Sequence[str] = ("cuda",)) -> None:
        super().__init__([gate.layers for gate in gates], devices)
        self.bounds = (gates[0].minimum, gates[0].maximum) if gates else (0.0, 1.0)

    def log_weights(self, x: Tensor, shift: Tensor | None = None) -> Tensor | None:
        """The mixing weights log α of the M + 1 components for examples x (B, ...): (B, M + 1).

        The result is None if the M gates cannot be evaluated together. If `shift` is given, it is
        subtracted from x first.
        """
        out = self(x, shift)
        if out is None or self.how == "triton":
            return out
        return recursive_log_weights(*bounded(out.squeeze(-1).t(), *self.bounds))

    def _kernels(self, layers: list[list[nn.Module]], shape: Sequence[int]) -> Run | None:
        from recmix.accelerate import layers as kernel_layers

        return kernel_layers.recursion(layers, shape, *self.bounds)


def places(networks: Sequence[nn.Module]) -> list[tuple[dict[str, Any], str]]:
    """Where each parameter and buffer of the networks is stored, as pairs (dictionary, key).

    ``dictionary[key]`` gives the present tensor, also after the module's tensor was replaced.
    """
    return [
        (kept, name)
        for network in networks
        for module in network.modules()
        for kept in (module._parameters, module._buffers)
        for name in kept
        if kept[name] is not None
    ]


def state(kept: Sequence[tuple[dict[str, Any], str]]) -> list[list[int]]:
    """The version counters and the addresses of tensors: they change if a tensor is changed or replaced.

    Args:
        kept: where the tensors are stored, from `places`.
    """
    now = [place[name] for place, name in kept]
    return [[t._version for t in now], list(map(Tensor.data_ptr, now))]


def _shifted(function: Callable[[Tensor], Tensor]) -> Run:
    return lambda x, shift: function(x if shift is None else x - shift)


def _sequence(network: nn.Module) -> list[nn.Module] | None:
    """The layers of a network in order; None if the network is not a plain sequence of simple layers."""
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
    """Stack K networks layer by layer with torch operations; None if a layer does not allow it.

    The first layer reads one input that all networks share. Then convolutions keep the networks as K
    groups of channels, and linear layers keep them as a batch of K matrices.
    """
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
    template = copy.deepcopy(networks[0]).to("meta")

    def one(p: Any, b: Any, x: Tensor) -> Tensor:
        out: Tensor = functional_call(template, (p, b), (x,))
        return out

    def run(x: Tensor) -> Tensor:
        out: Tensor = vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)
        return out

    return run
