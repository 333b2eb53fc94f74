"""What the tests of networks share."""

from recmix.model.encoder_decoder import parameter_count

__all__ = ["trace"]


def trace(module, x):
    """(output shape of one example, parameter count) of every layer that has parameters."""
    rows = []

    def record(layer, _, output):
        rows.append((tuple(output.shape[1:]), parameter_count(layer)))

    hooks = [
        layer.register_forward_hook(record)
        for layer in module.modules()
        if list(layer.parameters(recurse=False))
    ]
    module(x)
    for hook in hooks:
        hook.remove()
    return rows
