"""The explorer's server under load, compared with direct calls of the model that it serves.

Two servers, each in its own process, serve the same RME. One of them combines waiting requests into one
batch; the other answers each request alone. The clients are coroutines of this process with open
connections. Each sends one image, waits for its posterior and sends the next. The servers take turns.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.blocks import make_method, make_spec
from benchmarks.clock import Block, interleave, medians, ratio
from benchmarks.registry import Context, Measurement, benchmark
from recmix.api import Model
from recmix.explore.serve import model_threads

CLIENTS = (1, 8, 32)
FORMATS = ("json", "npy")


@benchmark(
    "requests per second of the server under RME(5), 32 clients that each send one image and wait for "
    "its posterior: waiting requests in one batch / one request at a time",
    unit="x",
    target={"cpu": ">= 2"},
)
def serve(context: Context) -> Measurement:
    s = context.sizes
    rng = np.random.default_rng(0)
    images = rng.random((max(CLIENTS), *s.shape)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="recmix-serve-") as folder:
        model = _model(context)
        model.save(Path(folder) / "rme")
        with _server(folder, context) as batched, _server(folder, context, "--no-batching") as single:
            ports = {"together": batched, "alone": single}
            observed = _alternate(ports, images, repeats=s.repeats, seconds=s.seconds)
        with model_threads():
            direct = interleave(
                context,
                {n: _calls(model, images[:n]) for n in CLIENTS},
                repeats=s.repeats,
                seconds=s.seconds / 4,
            )
    ratios = {
        form: ratio(
            _rates(observed, max(CLIENTS), form, "together"),
            _rates(observed, max(CLIENTS), form, "alone"),
        )
        for form in FORMATS
    }
    detail = {
        "ms": medians({f"model, batch of {n}": times for n, times in direct.items()}),
        "order": s.order,
        "latent": s.latent,
        "shape": list(s.shape),
        "repeats": s.repeats,
        "clients": {
            str(n): {
                f"{server}, {form}": _summary(observed[n, form, server])
                for form in FORMATS
                for server in ports
            }
            for n in CLIENTS
        },
        "npy": dict(zip(("value", "spread"), ratios["npy"], strict=True)),
    }
    return Measurement(*ratios["json"], detail)


def _model(context: Context) -> Model:
    s = context.sizes
    options: dict[str, Any] = {"order": s.order}
    with torch.random.fork_rng():
        method = make_method(context.device, "rme", s.latent, s.shape, {}, **options)
    return Model(method, make_spec(context.device, "rme", s.latent, s.shape, options))


def _calls(model: Model, images: np.ndarray) -> Block:
    """Direct calls of the model."""

    def work(units: int) -> None:
        for _ in range(units):
            model.posterior(images)

    return Block(work)


@contextmanager
def _server(folder: str, context: Context, *words: str) -> Iterator[int]:
    """Run a server in its own process; yields its port."""
    command = [sys.executable, "-m", "recmix.cli", "explore", f"{folder}/rme", "--port", "0"]
    command += ["--no-browser", "--device", str(context.device), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                raise RuntimeError(f"the server did not start; its first line of output was {line!r}")
            yield int(line.split("http://")[1].split(":")[1].split("/")[0])
        finally:
            process.terminate()


Observed = dict[tuple[int, str, str], list[tuple[float, list[float]]]]
"""By number of clients, format and server: for each repetition, requests per second and the milliseconds
of each request."""


def _alternate(ports: dict[str, int], images: np.ndarray, *, repeats: int, seconds: float) -> Observed:
    """Send requests to the servers in turn."""
    from recmix.explore.wire import to_json, to_npy

    requests = {
        "json": [_request("application/json", to_json({"images": x[None]})) for x in images],
        "npy": [_request("application/x-npy", to_npy(x[None])) for x in images],
    }
    cases = [(n, form, server) for n in CLIENTS for form in FORMATS for server in ports]
    observed: Observed = {case: [] for case in cases}
    for repeat in range(-1, repeats):  # the first round warms up
        for n, form, server in cases if repeat % 2 else reversed(cases):
            duration = seconds if repeat >= 0 else min(seconds, 0.3)
            result = asyncio.run(_send(ports[server], requests[form][:n], duration))
            if repeat >= 0:
                observed[n, form, server].append(result)
    return observed


def _request(kind: str, body: bytes) -> bytes:
    head = f"POST /posterior HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _send(port: int, requests: list[bytes], seconds: float) -> tuple[float, list[float]]:
    """Send each request again and again, one client for each.

    Returns:
        Requests per second of all clients, and the milliseconds of each request.
    """
    times: list[float] = []
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in requests]
    start = time.perf_counter()

    async def client(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            sent = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the server answered {head[:200]!r}")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            now = time.perf_counter()
            times.append(1e3 * (now - sent))
            if now - start >= seconds:
                return

    await asyncio.gather(*(client(r, *ends) for r, ends in zip(requests, connections, strict=True)))
    duration = time.perf_counter() - start
    for _, writer in connections:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return len(times) / duration, times


def _rates(observed: Observed, clients: int, form: str, server: str) -> list[float]:
    return [rate for rate, _ in observed[clients, form, server]]


def _summary(repetitions: list[tuple[float, list[float]]]) -> dict[str, Any]:
    times = np.concatenate([times for _, times in repetitions])
    return {
        "requests_per_second": statistics.median(rate for rate, _ in repetitions),
        "p50_ms": float(np.quantile(times, 0.5)),
        "p99_ms": float(np.quantile(times, 0.99)),
    }
