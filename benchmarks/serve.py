"""The explorer's server under load, beside the model it serves: the figure `serve` of `recmix bench`.

Two servers, in processes of their own, serve one RME; one of them answers every request by itself. The
clients, coroutines of this process on connections that they keep, each send one image, wait for its
posterior, and send the next. The two servers take turns.
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

from recmix.api import Fitted
from recmix.bench import Bench, Block, Measured, interleave, key, medians, ratio
from recmix.explore.serve import model_threads
from recmix.runs.options import Training
from recmix.runs.spec import Spec
from recmix.training.build import build

CLIENTS = (1, 8, 32)
BODIES = ("json", "npy")


@key(
    "throughput of the server with 32 clients, each sending one image and waiting for its posterior "
    "under RME(5): requests that wait together as one pass, over one at a time",
    unit="x",
    reach=">= 2",
    reach_on="cpu",
)
def serve(bench: Bench) -> Measured:
    s = bench.scale
    rng = np.random.default_rng(0)
    images = rng.random((max(CLIENTS), *s.shape)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="recmix-serve-") as folder:
        fitted = _model(bench)
        fitted.save(Path(folder) / "rme")
        with _server(folder, bench) as together, _server(folder, bench, "--no-batching") as alone:
            ports = {"together": together, "alone": alone}
            seen = _turns(ports, images, repeats=s.repeats, seconds=s.seconds)
        with model_threads():
            raw = interleave(
                bench,
                {n: Block(lambda units, n=n: _call(fitted, images[:n], units)) for n in CLIENTS},
                repeats=s.repeats,
                seconds=s.seconds / 4,
            )
    most = max(CLIENTS)
    value, spread = ratio(_rates(seen, most, "json", "together"), _rates(seen, most, "json", "alone"))
    detail = {
        "ms": medians({f"model, batch of {n}": times for n, times in raw.items()}),
        "order": s.order,
        "latent": s.latent,
        "shape": list(s.shape),
        "repeats": s.repeats,
        "clients": {
            str(n): {f"{way}, {body}": _summary(seen[n, body, way]) for body in BODIES for way in ports}
            for n in CLIENTS
        },
        "npy": dict(
            zip(
                ("value", "spread"),
                ratio(_rates(seen, most, "npy", "together"), _rates(seen, most, "npy", "alone")),
                strict=True,
            )
        ),
    }
    return Measured(value, spread, detail)


def _model(bench: Bench) -> Fitted:
    s = bench.scale
    spec = Spec(
        method="rme",
        latent=s.latent,
        likelihood="gaussian",
        shape=s.shape,
        options={"order": s.order},
        training=Training(device=str(bench.device)),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Fitted(build(spec), spec)


def _call(fitted: Fitted, images: np.ndarray, units: int) -> None:
    for _ in range(units):
        fitted.posterior(images)


@contextmanager
def _server(folder: str, bench: Bench, *words: str) -> Iterator[int]:
    """A server in a process of its own; gives its port."""
    command = [sys.executable, "-m", "recmix.cli", "explore", f"{folder}/rme", "--port", "0"]
    command += ["--no-browser", "--device", str(bench.device), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                raise RuntimeError(f"the server did not start: {line!r}")
            yield int(line.split("http://")[1].split(":")[1].split("/")[0])
        finally:
            process.terminate()


Seen = dict[tuple[int, str, str], list[tuple[float, list[float]]]]
"""By clients, body and way: for each turn, requests per second and milliseconds of each request."""


def _turns(ports: dict[str, int], images: np.ndarray, *, repeats: int, seconds: float) -> Seen:
    from recmix.explore.wire import to_json, to_npy

    coded = {
        "json": [_request("application/json", to_json({"images": x[None]})) for x in images],
        "npy": [_request("application/x-npy", to_npy(x[None])) for x in images],
    }
    cases = [(n, body, way) for n in CLIENTS for body in BODIES for way in ports]
    seen: Seen = {case: [] for case in cases}
    for repeat in range(-1, repeats):  # the first round warms up
        for n, body, way in cases if repeat % 2 else reversed(cases):
            length = seconds if repeat >= 0 else min(seconds, 0.3)
            found = asyncio.run(_load(ports[way], coded[body][:n], length))
            if repeat >= 0:
                seen[n, body, way].append(found)
    return seen


def _request(kind: str, body: bytes) -> bytes:
    head = f"POST /posterior HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _load(port: int, requests: list[bytes], seconds: float) -> tuple[float, list[float]]:
    """A client for each request, which it repeats; gives requests per second and the time of each."""
    times: list[float] = []
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in requests]
    start = time.perf_counter()

    async def client(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the server answered {head[:200]!r}")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            now = time.perf_counter()
            times.append(1e3 * (now - began))
            if now - start >= seconds:
                return

    await asyncio.gather(*(client(r, *line) for r, line in zip(requests, lines, strict=True)))
    took = time.perf_counter() - start
    for _, writer in lines:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return len(times) / took, times


def _rates(seen: Seen, clients: int, body: str, way: str) -> list[float]:
    return [rate for rate, _ in seen[clients, body, way]]


def _summary(turns: list[tuple[float, list[float]]]) -> dict[str, Any]:
    every = np.concatenate([times for _, times in turns])
    return {
        "requests_per_second": statistics.median(rate for rate, _ in turns),
        "p50_ms": float(np.quantile(every, 0.5)),
        "p99_ms": float(np.quantile(every, 0.99)),
    }
