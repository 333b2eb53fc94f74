"""Several trainings at once: their throughput, and two ways to combine them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from benchmarks.blocks import RATE, make_data, make_method, pixels, statistics_of, title, training_block
from benchmarks.clock import Block, interleave, median_and_spread, medians, ratio
from benchmarks.registry import Context, Measurement, benchmark
from recmix.methods.method import Method
from recmix.methods.optimizers import make_optimizer


@benchmark(
    "images per second of R trainings in one CUDA graph, the best over R",
    unit="images/s",
    device="cuda",
)
def replicas_throughput(context: Context) -> Measurement:
    return measure_throughput(context, "graph")


def measure_throughput(context: Context, engine: str) -> Measurement:
    """Training images per second of the VAE and of RME. The value is the best of RME."""
    s = context.sizes
    detail: dict[str, Any] = {}
    best = (0.0, 0.0)
    methods: dict[str, dict[str, Any]] = {"vae": {}, "rme": {"order": s.order}}
    for name, options in methods.items():
        blocks = {
            str(n): training_block(context, name, engine, replicas=n, **options)
            for n in s.replica_counts
        }
        times = interleave(context, blocks, repeats=s.growth_repeats, seconds=s.seconds)
        rates = {
            n: median_and_spread([1e3 * int(n) * s.batch / t for t in values])
            for n, values in times.items()
        }
        detail[title(name, options)] = {n: rate for n, (rate, _) in rates.items()}
        best = max(rates.values())  # the last method is RME
    detail |= {"batch": s.batch, "latent": s.latent, "repeats": s.growth_repeats}
    return Measurement(*best, detail)


@benchmark(
    "training step of the VAE, 16 replicas: stacked by vmap / branches of one graph",
    unit="x",
    device="cuda",
)
def replicas_stacked_over_branches(context: Context) -> Measurement:
    s = context.sizes
    detail: dict[str, Any] = {"ms": {}}
    for n in sorted({4, s.replicas}):
        blocks = {
            "stacked": _stacked_vaes(context, n),
            "branches": training_block(context, "vae", "graph", replicas=n),
        }
        times = interleave(context, blocks, repeats=s.growth_repeats, seconds=s.seconds)
        result = ratio(times["stacked"], times["branches"])
        detail["ms"] |= {f"{n} {how}": ms for how, ms in medians(times).items()}
    detail |= {"batch": s.batch, "latent": s.latent, "replicas": s.replicas}
    return Measurement(*result, detail)


class _Loss(nn.Module):
    """The negative ELBO of a VAE as a module, for `functional_call`."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        q: Any = self.method.component(0, x)
        z = q.mean + q.stddev * noise
        elbo: Tensor = self.method.model.log_conditional(x, z[None]) - q.kl_to_prior(z, z)
        return -elbo.mean()


def _stacked_vaes(context: Context, replicas: int) -> Block:
    """Training steps of many VAEs as one network, captured as a CUDA graph.

    The parameters are stacked, the loss is mapped over them by `vmap`, and one Adam updates them.
    """
    s = context.sizes
    statistics = statistics_of(make_data(s.batch, s.shape))
    methods = [
        make_method(context.device, "vae", s.latent, s.shape, statistics) for _ in range(replicas)
    ]
    stacked, buffers = stack_module_state(methods)  # type: ignore[arg-type]
    parameters = {k: p.detach().clone().requires_grad_() for k, p in stacked.items()}
    optimizer = make_optimizer("adam", [{"params": list(parameters.values())}], RATE)
    module = _Loss(methods[0])

    def loss(own_parameters: Any, own_buffers: Any, x: Tensor, noise: Tensor) -> Tensor:
        state = {f"method.{k}": v for k, v in {**own_parameters, **own_buffers}.items()}
        value: Tensor = functional_call(module, state, (x, noise))
        return value

    images = torch.from_numpy(pixels(replicas * s.batch, s.shape)).to(context.device).float() / 255
    images = images.view(replicas, s.batch, *s.shape)

    def step() -> None:
        noise = torch.randn(replicas, s.batch, s.latent, device=context.device)
        total = vmap(loss)(parameters, buffers, images, noise).sum()
        gradients = torch.autograd.grad(total, list(parameters.values()))
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient.contiguous()
        optimizer.step()

    stream = torch.cuda.Stream(context.device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    # The graph reads these tensors, so they must stay alive.
    def work(units: int, _alive: Any = (parameters, optimizer, buffers, images)) -> None:
        for _ in range(units):
            graph.replay()

    return Block(work)
