"""Compare the shapes of two modules, and copy weights from one to the other."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

__all__ = ["copy_weights", "same_shapes"]


def same_shapes(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules have state dictionaries with the same names and shapes.

    The curvature network, which predicts the posterior covariance near z, is not compared. It can be
    added to a trained model or removed from it.
    """
    one, two = (_without_curvature(module.state_dict()) for module in (a, b))
    return one.keys() == two.keys() and all(one[k].shape == two[k].shape for k in one)


def copy_weights(to: nn.Module, source: nn.Module) -> None:
    """Copy all weights of the module `source` to the module `to`.

    A curvature network, which predicts the posterior covariance near z, is copied only if both modules
    have a curvature network of the same shape. Otherwise `to` keeps its own, if it has one.
    """
    mine, theirs = to.state_dict(), source.state_dict()
    if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in theirs.items()}:
        own = {k: v for k, v in mine.items() if k not in _without_curvature(mine)}
        theirs = _without_curvature(theirs) | own
    to.load_state_dict(theirs)


def _without_curvature(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dictionary `state` without the entries of the model's curvature network."""
    return {k: v for k, v in state.items() if not k.startswith(("curvature.", "model.curvature."))}
