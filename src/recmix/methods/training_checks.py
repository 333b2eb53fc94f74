"""Check whether training options can be used for a method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recmix.errors import ConfigError
from recmix.inference.gauss_newton import check_decoder_has_jacobian
from recmix.methods.method import Method
from recmix.objectives import kl_by_dimension

__all__ = ["check_can_be_distilled", "check_kl_can_change"]


def check_kl_can_change(method: Method | type[Method], name: str, x: Tensor | None = None) -> None:
    """Raise a `ConfigError` if a training option that changes the KL cannot be used for this method.

    Args:
        method: the method to train, or its class.
        name: name of the option, ``kl_warmup`` or ``free_bits``.
        x: examples (B, *shape). If x is not None and `method` is an instance, the function also checks
            that the KL is a sum over latent dimensions, as ``free_bits`` needs.
    """
    if not method.maximises_elbo_only():
        raise ConfigError(
            f"{name} changes the KL in the loss of a method that maximises one ELBO, and {method.name} "
            f"does not: use {name} for the first stage, recmix.fit('vae', data, {name}=...), and start "
            "from this model (init)"
        )
    if x is not None and isinstance(method, Method):
        trained = method.training
        with torch.no_grad():
            kl_by_dimension(method.model, method.eval().posterior(x))
        method.train(trained)


def check_can_be_distilled(method: Method) -> None:
    """Raise a `ConfigError` if distillation cannot train the encoders of this method.

    Distillation maximises log q(z | x) at samples z of the refined posterior. So log q of each component
    must carry gradients to its encoder. The decoder's output for one example must not depend on the rest
    of its batch.
    """
    check_decoder_has_jacobian(method.model)
    parts: Any = method.components
    for part in parts:
        if not part.can_be_distilled:
            raise ConfigError(
                "distil fits encoders to samples of the refined posterior, but the density of a "
                f"{part.kind} component gives its encoder no gradient: use vae, or another component"
            )
