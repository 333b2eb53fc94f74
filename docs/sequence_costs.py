"""Cost of the derivatives of the autoregressive likelihood: ``python docs/sequence_costs.py``.

All times are multiples of the time of log p(x | z) without gradients, on one core of a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from recmix.model.likelihoods import Autoregressive

EXAMPLES, LENGTH, CLASSES, UNITS, COLUMNS = 32, 50, 40, 128, 16


def seconds(work: Callable[[], Tensor]) -> float:
    """The processor time of the shortest of several runs; other programs change it little."""
    found = []
    for _ in range(5):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def costs(causal: str) -> str:
    """The costs of one causal network, as a line of text."""
    torch.manual_seed(0)
    x = torch.randint(CLASSES, (EXAMPLES, LENGTH)).float()
    context = torch.randn(EXAMPLES, UNITS)
    vectors = torch.randn(EXAMPLES, UNITS, COLUMNS)
    likelihood = Autoregressive((LENGTH,), CLASSES, causal=causal, units=UNITS)
    with torch.no_grad():
        plain = seconds(lambda: likelihood.log_prob(x, context))
        sample = seconds(lambda: likelihood.sample(context))
        one = seconds(lambda: likelihood.fisher(x, context, vectors[..., :1]))
        several = seconds(lambda: likelihood.fisher(x, context, vectors))
    gradient = seconds(lambda: likelihood.residual(x, context))
    row = {"gradient": gradient, "H v": one, f"{COLUMNS} H v": several, "sample": sample}
    shown = ", ".join(f"{name} {value / plain:.1f}" for name, value in row.items())
    return f"{causal}: log p {1000 * plain:.0f} ms; {shown}"


def main() -> None:
    """Measure both causal networks."""
    torch.set_num_threads(1)
    for causal in ("transformer", "gru"):
        print(costs(causal))


if __name__ == "__main__":
    main()
