"""The figures of `recmix bench`, a function for each key; `recmix.bench` has the clock and the book."""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from recmix.accelerate.adam import adam
from recmix.accelerate.captured import Captured
from recmix.accelerate.transposed import OneChannel
from recmix.bench import Bench, Block, Measured, clock, interleave, key, medians, middle, part, ratio
from recmix.data import ImageData, from_arrays
from recmix.evaluation.bounds import MEMORY, bounds
from recmix.methods.method import Method
from recmix.runs.options import Training
from recmix.runs.spec import Spec
from recmix.training.build import build
from recmix.training.engines import Eager, pick_engine
from recmix.training.job import Job

MIB = 2**20
RATE = 1e-5
"""Of everything that is trained here: the second stage's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    Args:
        repeats: of every ratio.
        seconds: that one block of one side takes.
        steps: the most batches that a block of training can have.
        peer_steps: batches of an epoch, in the comparison with the peer.
        growth_repeats: of the times against order, latent and image.
        growth_seconds: that one block of these takes.
        iwae_images: of IWAE-5000.
        nll_images: of the comparison with the peer's IWAE.
        nll_parts: in so many turns.
    """

    repeats: int
    seconds: float
    steps: int
    peer_steps: int
    growth_repeats: int
    growth_seconds: float
    iwae_images: int
    nll_images: int = 1000
    nll_parts: int = 10
    # The sizes that the figures are defined by.
    batch: int = 128
    order: int = 5
    latent: int = 20
    wide: int = 50
    shape: tuple[int, int, int] = (1, 28, 28)
    colour: tuple[int, int, int] = (3, 64, 64)
    replicas: int = 16
    replica_counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    orders: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    latents: tuple[int, ...] = (10, 20, 50, 100)
    sides: tuple[int, ...] = (28, 32, 48, 64)
    nll_samples: int = 100
    iwae_samples: int = 5000


def scale(device: str, *, quick: bool) -> Scale:
    """The usual amounts on this kind of device."""
    usual = (
        Scale(
            repeats=15,
            seconds=0.25,
            steps=100,
            peer_steps=100,
            growth_repeats=7,
            growth_seconds=0.1,
            iwae_images=100,
        )
        if device == "cuda"
        else Scale(
            repeats=9,
            seconds=1.0,
            steps=8,
            peer_steps=20,
            growth_repeats=5,
            growth_seconds=0.5,
            iwae_images=8,
        )
    )
    if not quick:
        return usual
    return dataclasses.replace(
        usual,
        repeats=3,
        seconds=usual.seconds / 2,
        peer_steps=usual.peer_steps // 2,
        growth_repeats=2,
        growth_seconds=usual.growth_seconds / 2,
        iwae_images=max(4, usual.iwae_images // 4),
        nll_images=100,
        nll_parts=3,
    )


# --- training ---------------------------------------------------------------------------------------


def _train_literal(bench: Bench, engine: str, replicas: int = 1) -> Measured:
    """The pseudocode's step over the library's, per replica."""
    s = bench.scale
    ours = _training(bench, "rme", engine, replicas=replicas, order=s.order)
    times = interleave(
        bench,
        {"literal": _literal(bench, s.order), engine: ours},
        repeats=s.repeats,
        seconds=s.seconds,
    )
    times[engine] = [t / replicas for t in times[engine]]
    detail = {"ms": medians(times), "order": s.order, "batch": s.batch, "latent": s.latent}
    return Measured(
        *ratio(times["literal"], times[engine]),
        {**detail, "replicas": replicas, "repeats": s.repeats},
    )


@key(
    "training step of RME(5), batch 128: literal pseudocode / graph engine",
    unit="x",
    reach=">= 12",
    on="cuda",
)
def train_literal_over_graph(bench: Bench) -> Measured:
    return _train_literal(bench, "graph")


@key(
    "training step of RME(5), batch 128: literal pseudocode / graph engine per replica, 16 replicas",
    unit="x",
    reach=">= 40",
    on="cuda",
)
def train_literal_over_replica(bench: Bench) -> Measured:
    return _train_literal(bench, "graph", replicas=bench.scale.replicas)


@key("training step of RME(5), batch 128: literal pseudocode / compile engine", unit="x", on="cuda")
def train_literal_over_compile(bench: Bench) -> Measured:
    return _train_literal(bench, "compile")


@key(
    "training step of RME(5), batch 128: literal pseudocode / compile engine per replica, 16 replicas",
    unit="x",
    on="cuda",
)
def train_literal_over_compile_replica(bench: Bench) -> Measured:
    return _train_literal(bench, "compile", replicas=bench.scale.replicas)


@key("training step of RME(5), batch 128: literal pseudocode / eager engine", unit="x")
def train_literal_over_eager(bench: Bench) -> Measured:
    return _train_literal(bench, "eager")


# --- posteriors -------------------------------------------------------------------------------------


def _posteriors(
    bench: Bench, latent: int, top: tuple[str, dict[str, Any]], bottom: tuple[str, dict[str, Any]]
) -> Measured:
    """Time of q(z | x) of one method over that of another, formed as a trained model forms it.

    On a GPU that is a graph, its images copied in and its answer copied out, each call waited for; the
    detail has the same without graphs, waited for and not.
    """
    s = bench.scale
    batches = [torch.from_numpy(_pixels(s.batch, s.shape, seed)) for seed in range(8)]
    xs = [(x.to(bench.device).float() / 255) for x in batches]
    told = _statistics(_data(s.batch, s.shape))
    methods = {
        _title(name, options): _method(bench, name, latent, s.shape, told, **options).eval()
        for name, options in (top, bottom)
    }
    first, second = methods

    def compare(blocks: dict[str, Block]) -> tuple[tuple[float, float], dict[str, float]]:
        times = interleave(bench, blocks, repeats=s.repeats, seconds=s.seconds / 2)
        return ratio(times[first], times[second]), medians(times)

    forms = {n: Captured(m) for n, m in methods.items()}
    for form in forms.values():
        form(xs[0])
    found, ms = compare({n: Block(_calls(bench, f, xs, wait=True)) for n, f in forms.items()})
    detail: dict[str, Any] = {"ms": ms, "batch": s.batch, "latent": latent, "repeats": s.repeats}
    if bench.cuda:
        detail["not_captured"] = {n: f.failed for n, f in forms.items() if f.failed}
        for how, wait in (("eager", True), ("streamed", False)):
            plain = {n: _calls(bench, m.posterior, xs, wait=wait) for n, m in methods.items()}
            other, ms = compare({n: Block(call) for n, call in plain.items()})
            detail[how] = {"value": other[0], "spread": other[1], "ms": ms}
    return Measured(*found, detail)


def _calls(
    bench: Bench, form: Callable[[Tensor], Any], xs: Sequence[Tensor], *, wait: bool
) -> Callable[[int], None]:
    @torch.no_grad()
    def work(units: int) -> None:
        for i in range(units):
            form(xs[i % len(xs)])
            if wait:
                bench.wait()

    return work


@key(
    "posterior of RME(5) / posterior of the VAE, batch 128, dim 50",
    unit="ratio",
    reach="<= 1.5",
    reach_on="cuda",
)
def posterior_rme5_over_vae(bench: Bench) -> Measured:
    return _posteriors(bench, bench.scale.wide, ("rme", {"order": bench.scale.order}), ("vae", {}))


@key(
    "posterior of RME(5) / posterior of SA(1), batch 128, dim 50",
    unit="ratio",
    reach="<= 0.2",
    reach_on="cuda",
)
def posterior_rme5_over_sa1(bench: Bench) -> Measured:
    return _posteriors(
        bench, bench.scale.wide, ("rme", {"order": bench.scale.order}), ("sa", {"steps": 1})
    )


@key(
    "posterior of Laplace, 2 steps, convolutional decoder / SA(2), batch 128, dim 20",
    unit="ratio",
    reach="<= 1.0",
    reach_on="cuda",
)
def posterior_laplace2_over_sa2(bench: Bench) -> Measured:
    return _posteriors(bench, bench.scale.latent, ("vlae", {"steps": 2}), ("sa", {"steps": 2}))


# --- the peer ---------------------------------------------------------------------------------------


def _as_made(network: torch.nn.Module) -> torch.nn.Module:
    """A copy of torch's own layers in its usual memory layout, as pythae's users have them."""
    copied = copy.deepcopy(network)
    for layer in copied.modules():
        if type(layer) is OneChannel:
            layer.__class__ = torch.nn.ConvTranspose2d
    copied.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return copied


def _train_pythae(bench: Bench) -> Measured:
    """An epoch of pythae's trainer over an epoch of the library's engine, per step."""
    s = bench.scale
    engine = "compile" if bench.cuda else "eager"
    data = _data(s.batch * s.peer_steps, s.shape)
    jobs = _jobs(bench, "vae", data, latent=s.latent)
    method = jobs[0].method
    model = bench.peer.vae(
        _as_made(method.base_encoder),
        _as_made(method.model.decoder),
        latent=s.latent,
        shape=s.shape,
    )
    images = torch.from_numpy(np.array(data.x_train))
    ours = _epochs(bench, engine, jobs, fixed=s.peer_steps)
    with bench.peer.training(model, images, batch=s.batch, learning_rate=RATE, cuda=bench.cuda) as epoch:
        theirs = Block(lambda _units: epoch(), fixed=s.peer_steps)
        times = interleave(
            bench, {"pythae": theirs, "recmix": ours}, repeats=s.repeats, seconds=s.seconds
        )
    detail = {"ms": medians(times), "engine": engine, "batch": s.batch, "latent": s.latent}
    detail |= {"pythae": bench.peer.version, "images": len(images), "repeats": s.repeats}
    return Measured(*ratio(times["pythae"], times["recmix"]), detail)


@key(
    "training step of the VAE, batch 128, same networks: pythae / recmix (compile engine)",
    unit="x",
    reach=">= 8",
    on="cuda",
    peer=True,
)
def train_pythae_over_recmix_gpu(bench: Bench) -> Measured:
    return _train_pythae(bench)


@key(
    "training step of the VAE, batch 128, same networks: pythae / recmix (eager engine), CPU",
    unit="x",
    reach=">= 1.2",
    on="cpu",
    peer=True,
)
def train_pythae_over_recmix_cpu(bench: Bench) -> Measured:
    return _train_pythae(bench)


@key(
    "IWAE-100 of 1,000 images, same networks: pythae get_nll / recmix, CPU",
    unit="x",
    reach=">= 1.5",
    on="cpu",
    peer=True,
)
def iwae_pythae_over_recmix_cpu(bench: Bench) -> Measured:
    s = bench.scale
    # Without a centre and with unit variance it is pythae's model, and the two must agree.
    method = _method(bench, "vae", s.latent, s.shape, {}).eval()
    model = bench.peer.vae(
        _as_made(method.base_encoder),
        _as_made(method.model.decoder),
        latent=s.latent,
        shape=s.shape,
    ).eval()
    images = torch.from_numpy(_pixels(s.nll_images, s.shape, 1)).float() / 255
    parts = images.chunk(s.nll_parts)
    generator = torch.Generator().manual_seed(0)
    nats: dict[str, list[float]] = {"pythae": [], "recmix": []}
    times: dict[str, list[float]] = {"pythae": [], "recmix": []}

    @torch.no_grad()
    def theirs(x: Tensor) -> float:
        return float(model.get_nll(x, n_samples=s.nll_samples, batch_size=s.nll_samples))

    def ours(x: Tensor) -> float:
        return float(bounds(method, x, samples=s.nll_samples, generator=generator).iwae.mean())

    sides = {"pythae": theirs, "recmix": ours}
    for side in sides.values():
        side(parts[0][:2])
    for turn, x in enumerate(parts):
        for name in sides if turn % 2 == 0 else reversed(sides):

            def work(units: int, name: str = name, x: Tensor = x) -> None:
                nats[name].append(units * sides[name](x))

            times[name].append(1e3 * clock(bench, work, len(x)) / len(x))
    totals = {name: sum(values) / len(images) for name, values in nats.items()}
    if abs(totals["pythae"] - totals["recmix"]) > 1.0:
        raise RuntimeError(f"the two do not estimate the same thing: {totals} nats per image")
    detail = {"ms": medians(times), "nats": totals, "images": len(images), "samples": s.nll_samples}
    detail |= {"pythae": bench.peer.version, "latent": s.latent, "repeats": len(parts)}
    return Measured(*ratio(times["pythae"], times["recmix"]), detail)


# --- growth -----------------------------------------------------------------------------------------


@key(
    "training step of RME against its order: exponent p of time ~ order^p over the upper half of "
    "orders 1 to 8 (1 is linear)",
    unit="exponent",
    reach="<= 1.1",
)
def growth_in_order(bench: Bench) -> Measured:
    s = bench.scale
    engine = "graph" if bench.cuda else "eager"

    def ours(**given: Any) -> Block:
        return _training(bench, "rme", engine, **given)

    def timed(blocks: dict[Any, Block]) -> dict[Any, list[float]]:
        times = interleave(bench, blocks, repeats=s.growth_repeats, seconds=s.growth_seconds)
        return dict(times)

    both = timed(
        {("recmix", n): ours(order=n) for n in s.orders}
        | {("literal", n): _literal(bench, n) for n in s.orders}
    )
    orders, literal = ({n: both[side, n] for n in s.orders} for side in ("recmix", "literal"))
    latents = timed({n: ours(order=s.order, latent=n) for n in s.latents})
    sides = timed({n: ours(order=s.order, shape=(1, n, n)) for n in s.sides})
    upper = [n for n in s.orders if n >= max(s.orders) / 2]
    value, spread = middle(
        [_exponent(upper, [orders[n][r] for n in upper]) for r in range(s.growth_repeats)]
    )

    def typical(times: dict[int, list[float]]) -> list[float]:
        return [statistics.median(t) for t in times.values()]

    detail = {
        "engine": engine,
        "orders": medians(orders),
        "literal_orders": medians(literal),
        "latents": medians(latents),
        "sides": medians(sides),
        "linear_fit_r_squared": _r_squared(list(orders), typical(orders)),
        "literal_exponent": _exponent(upper, [statistics.median(literal[n]) for n in upper]),
        "latent_exponent": _exponent(list(latents), typical(latents)),
        "pixel_exponent": _exponent([n * n for n in sides], typical(sides)),
        "batch": s.batch,
        "order": s.order,
        "latent": s.latent,
        "repeats": s.growth_repeats,
    }
    return Measured(value, spread, detail)


@key("images per second of R trainings in one CUDA graph, the best over R", unit="images/s", on="cuda")
def replicas_throughput(bench: Bench) -> Measured:
    return _replicas(bench, "graph")


def _replicas(bench: Bench, engine: str) -> Measured:
    s = bench.scale
    detail: dict[str, Any] = {}
    best = (0.0, 0.0)
    for name, options in (("vae", {}), ("rme", {"order": s.order})):
        blocks = {
            str(n): _training(bench, name, engine, replicas=n, **options) for n in s.replica_counts
        }
        times = interleave(bench, blocks, repeats=s.growth_repeats, seconds=s.seconds)
        rates = {n: middle([1e3 * int(n) * s.batch / t for t in values]) for n, values in times.items()}
        detail[_title(name, options)] = {n: rate for n, (rate, _) in rates.items()}
        best = max(rates.values())  # of the recursion, which comes last
    detail |= {"batch": s.batch, "latent": s.latent, "repeats": s.growth_repeats}
    return Measured(*best, detail)


@key(
    "training step of the VAE, 16 replicas: stacked by vmap / branches of one graph",
    unit="x",
    on="cuda",
)
def replicas_stacked_over_branches(bench: Bench) -> Measured:
    """The other way to train replicas together: one stacked network, one stacked Adam."""
    s = bench.scale
    detail: dict[str, Any] = {"ms": {}}
    for n in sorted({4, s.replicas}):
        blocks = {
            "stacked": _stacked_vaes(bench, n),
            "branches": _training(bench, "vae", "graph", replicas=n),
        }
        times = interleave(bench, blocks, repeats=s.growth_repeats, seconds=s.seconds)
        found = ratio(times["stacked"], times["branches"])
        detail["ms"] |= {f"{n} {way}": time for way, time in medians(times).items()}
    return Measured(*found, detail | {"batch": s.batch, "latent": s.latent, "replicas": s.replicas})


class _Loss(torch.nn.Module):
    """Minus the ELBO of a VAE as a module, for `functional_call`."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        q: Any = self.method.component(0, x)
        z = q.mean + q.stddev * noise
        return -(self.method.model.log_conditional(x, z[None]) - q.kl_to_prior(z, z)).mean()


def _stacked_vaes(bench: Bench, replicas: int) -> Block:
    """Steps of many VAEs as one: parameters stacked, the loss mapped over them, captured as a graph."""
    s = bench.scale
    told = _statistics(_data(s.batch, s.shape))
    methods = [_method(bench, "vae", s.latent, s.shape, told) for _ in range(replicas)]
    stacked, buffers = stack_module_state(methods)  # type: ignore[arg-type]
    leaves = {k: p.detach().clone().requires_grad_() for k, p in stacked.items()}
    optimizer = adam([{"params": list(leaves.values())}], RATE)
    frame = _Loss(methods[0])

    def loss(parameters: Any, fixed: Any, x: Tensor, noise: Tensor) -> Tensor:
        state = {f"method.{k}": v for k, v in {**parameters, **fixed}.items()}
        found: Tensor = functional_call(frame, state, (x, noise))
        return found

    images = torch.from_numpy(_pixels(replicas * s.batch, s.shape)).to(bench.device).float() / 255
    images = images.view(replicas, s.batch, *s.shape)

    def step() -> None:
        noise = torch.randn(replicas, s.batch, s.latent, device=bench.device)
        total = vmap(loss)(leaves, buffers, images, noise).sum()
        for p, g in zip(leaves.values(), torch.autograd.grad(total, list(leaves.values())), strict=True):
            p.grad = g.contiguous()
        optimizer.step()

    aside = torch.cuda.Stream(bench.device)
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def work(units: int, _kept: Any = (leaves, optimizer, buffers, images)) -> None:
        for _ in range(units):
            graph.replay()

    return Block(work)


# --- memory -----------------------------------------------------------------------------------------


@key(
    "peak memory of IWAE-5000 under RME(5), dim 50, with 256 MiB set for the decoder",
    unit="MiB",
    reach=f"<= {MEMORY // MIB}",
)
def iwae5000_peak_memory(bench: Bench) -> Measured:
    s = bench.scale
    memory = part("memory")
    fixed = {"order": s.order, "latent": s.wide, "shape": s.shape, "images": s.iwae_images}

    def peak(samples: int, allowed: int) -> float:
        found: int = memory.peak_bytes(bench.device, "iwae", samples=samples, memory=allowed, **fixed)
        return found / MIB

    counts = [max(1, s.iwae_samples // 10), s.iwae_samples]
    peaks = {n: peak(n, MEMORY) for n in counts}
    detail = {
        "samples": peaks,
        "set_mib": MEMORY / MIB,
        "with_a_quarter_set": peak(s.iwae_samples, MEMORY // 4),
        **fixed,
    }
    return Measured(peaks[s.iwae_samples], 0.0, detail)


@key(
    "peak memory of the Laplace posterior, 2 steps, batch 128, dim 50, 64x64x3",
    unit="MiB",
    reach="<= 4096",
)
def laplace_peak_memory(bench: Bench) -> Measured:
    s = bench.scale
    sizes = {"steps": 2, "latent": s.wide, "shape": s.colour, "batch": s.batch}
    peak = part("memory").peak_bytes(bench.device, "laplace", **sizes)
    return Measured(peak / MIB, 0.0, sizes)


# --- what is timed ----------------------------------------------------------------------------------


def _pixels(count: int, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Images with structure, uint8: timing on zeros or on noise alone may flatter."""
    channels, height, width = shape
    rng = np.random.default_rng(seed)
    coarse = rng.random((count, channels, -(-height // 4), -(-width // 4)), dtype=np.float32) ** 2
    smooth = coarse.repeat(4, 2).repeat(4, 3)[:, :, :height, :width]
    fine = 0.1 * rng.random((count, *shape), dtype=np.float32)
    return (255 * (0.9 * smooth + fine)).astype(np.uint8)


def _data(count: int, shape: Sequence[int]) -> ImageData:
    return from_arrays(_pixels(count, shape), _pixels(8, shape, 1))


def _statistics(data: ImageData) -> dict[str, Any]:
    """What a method is told of its data: the mean image and the variance around it."""
    centre = data.x_train.mean()
    return {"centre": centre, "variance": data.x_train.variance(centre)}


def _method(
    bench: Bench,
    name: str,
    latent: int,
    shape: tuple[int, int, int],
    told: dict[str, Any],
    **options: Any,
) -> Method:
    """A method with fresh weights."""
    torch.manual_seed(0)
    spec = Spec(
        method=name,
        latent=latent,
        likelihood="gaussian",
        shape=shape,
        options=options,
        training=Training(device=str(bench.device)),
    )
    return build(spec, **told)


def _jobs(
    bench: Bench, name: str, data: ImageData, *, latent: int, replicas: int = 1, **options: Any
) -> list[Job]:
    """Trainings that differ in the order of their data and in their noise."""
    told = _statistics(data)
    usual = Training(epochs=10**6, learning_rate=RATE, batch_size=bench.scale.batch)
    return [
        Job(
            _method(bench, name, latent, data.shape, told, **options),
            data,
            dataclasses.replace(usual, seed=seed),
        )
        for seed in range(replicas)
    ]


def _training(
    bench: Bench,
    name: str,
    engine: str,
    *,
    replicas: int = 1,
    latent: int | None = None,
    shape: tuple[int, int, int] | None = None,
    **options: Any,
) -> Block:
    """Training by an engine, its images gathered on the device; a unit is one step of all replicas."""
    s = bench.scale
    data = _data(s.batch * s.steps, shape or s.shape)
    jobs = _jobs(bench, name, data, latent=latent or s.latent, replicas=replicas, **options)
    return _epochs(bench, engine, jobs)


def _epochs(bench: Bench, engine: str, jobs: list[Job], *, fixed: int = 0) -> Block:
    """Blocks of training as the loop does it: a block begins an epoch, and looks at its losses."""
    for job in jobs:
        job.begin_epoch()
    running, why = pick_engine(engine, jobs)
    if running.name != engine:
        raise RuntimeError(f"the {engine} engine was to be measured, got the {why}")

    def work(units: int) -> None:
        for job in jobs:
            job.state.epoch += 1
            job.begin_epoch()
        for _ in range(units):
            running.step()
            if isinstance(running, Eager) and not bench.cuda:
                jobs[0].check()  # on a CPU the loop looks after every batch
        for job in jobs:
            job.check()

    return Block(work, most=jobs[0].steps, fixed=fixed)


def _literal(bench: Bench, order: int) -> Block:
    """The pseudocode's training; its images too are gathered on the device."""
    s = bench.scale
    literal = part("literal")
    data = _data(s.batch * s.steps, s.shape)
    told = _statistics(data)
    torch.manual_seed(0)
    model = literal.RecMixVAE(order, s.latent, s.shape, variance=told["variance"])
    trained = literal.Literal(model.to(bench.device), learning_rate=RATE)
    images = torch.from_numpy(np.array(data.x_train) - told["centre"]).to(bench.device)
    rows = torch.randperm(len(images)).view(s.steps, s.batch).to(bench.device)

    def work(units: int) -> None:
        for i in range(units):
            elbo = trained.step(images[rows[i % s.steps]])
        if not math.isfinite(float(elbo)):
            raise RuntimeError("the literal training met a loss that is not finite")

    return Block(work)


def _title(name: str, options: dict[str, Any]) -> str:
    return f"{name}{'' if not options else next(iter(options.values()))}"


def _exponent(at: Sequence[float], times: Sequence[float]) -> float:
    """p of times ~ at^p, by least squares of the logarithms."""
    return float(np.polyfit(np.log(at), np.log(times), 1)[0])


def _r_squared(at: Sequence[float], times: Sequence[float]) -> float:
    """Share of the variance that a straight line explains."""
    residual = np.asarray(times) - np.polyval(np.polyfit(at, times, 1), at)
    return float(1 - residual.var() / np.var(times))
