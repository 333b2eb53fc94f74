"""Measure the memory that a decoder needs for one latent vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recmix.model.encoder_decoder import evaluation_mode
from recmix.model.latent import LatentModel

__all__ = ["decode_bytes"]


def decode_bytes(model: LatentModel) -> int:
    """Estimate the memory, in bytes, for computing log p(x | z) for one latent vector z.

    The layers of the decoder and of the likelihood are run once, and the sizes of their outputs are
    added. For the formula of the likelihood, four times the size of the decoder's output is added. If
    the likelihood has a network, it is four times the size of the largest of all layer outputs.
    """
    total = largest = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total, largest
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, Tensor):
                size = tensor.numel() * tensor.element_size()
                total, largest = total + size, max(largest, size)

    networks = [model.decoder, *model.likelihood.children()]
    leaves = [m for network in networks for m in network.modules() if not list(m.children())]
    hooks = [m.register_forward_hook(count) for m in leaves]
    try:
        with evaluation_mode(model), torch.no_grad():
            z = torch.zeros(1, 1, model.latent, device=model.centre.device, dtype=model.centre.dtype)
            decoded = model.decoder_output(z)
            if len(networks) > 1:
                x = torch.zeros(1, *model.shape, device=z.device, dtype=z.dtype)
                model.log_density(model.observed(x), decoded)
    finally:
        for hook in hooks:
            hook.remove()
    own = largest if len(networks) > 1 else decoded.numel() * decoded.element_size()
    return total + 4 * own  # for the likelihood
