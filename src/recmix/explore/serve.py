"""Run the explorer's server, which offers trained models over HTTP."""

from __future__ import annotations

import ipaddress
import os
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from recmix.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

    from recmix.data import Examples
    from recmix.explore.catalogue import ExplorableModel

__all__ = ["PORT", "model_threads", "serve"]

PORT = 8765
CLOSING = 30
"""Seconds that the server waits for running requests when it stops."""
CONNECTIONS = 512
PLAIN = (
    "{host} is not a loopback address, and the connection is plain HTTP: others on the network can read "
    "the token, the requests and the answers. Put a proxy with TLS in front of the server"
)


def serve(
    models: ExplorableModel | Mapping[str, ExplorableModel],
    *,
    port: int = PORT,
    host: str = "127.0.0.1",
    token: str | None = None,
    browser: bool = False,
    batching: bool = True,
    data_root: Path | None = None,
    examples: Mapping[str, Examples] | None = None,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Serve models over HTTP until Ctrl-C or SIGTERM.

    When the server stops, it still answers the requests that it has begun, for at most 30 seconds.

    Args:
        models: one model, or {name: model}. The first answers requests that name no model.
        port: the port to listen on; 0 takes a free one.
        host: the address to listen on. If other machines can reach it, a token is always needed.
        token: a secret that requests must contain. If a token is needed and None is given, a new one
            is made and printed.
        browser: whether to open the explorer's page in a browser.
        batching: whether requests that wait at the same time go through the model as one batch.
        data_root: folder of the data sets, from which test examples are read; by default the folder
            that was used in training.
        examples: {name of the model: test examples to show}; by default from the model's own data.
        shape: shape of the images on the page, (H, W) or (C, H, W), for models whose examples are images
            in another shape, such as flat vectors.
    """
    try:
        import uvicorn

        from recmix.explore.app import make_app
        from recmix.explore.connection import Connection
    except ImportError as error:
        raise ConfigError(
            f"the explorer needs the package {error.name}: pip install 'recmix[explore]'"
        ) from error
    from recmix.explore.catalogue import Catalogue
    from recmix.explore.guard import Access

    if not isinstance(models, Mapping):
        models = {models.spec.label or models.spec.method: models}
    local = is_loopback(host)
    if token is not None and (len(token) < 8 or not token.isascii() or not token.isalnum()):
        raise ConfigError("a token has at least 8 letters and digits and nothing else")
    secret = token or (None if local else secrets.token_hex(16))
    with listen(host, port) as listening, model_threads():
        catalogue = Catalogue(models, data_root=data_root, examples=examples, shape=shape)
        access = Access(token=secret) if local else Access(token=secret, hosts=None)
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(catalogue, access=access, batching=batching),
                http=Connection,
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=CLOSING,
            )
        )
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}/"
        entry = address if secret is None else f"{address}?token={secret}"
        shown = address if token else entry
        print(f"{', '.join(catalogue.runs)}: {shown} (Ctrl-C stops)", flush=True)
        if not local:
            print(f"note: {PLAIN.format(host=host)}", flush=True)
        left_out = [run.not_shown for run in catalogue.runs.values() if run.not_shown]
        for why in left_out:
            print(f"note: {why}", flush=True)
        if browser and len(left_out) < len(catalogue.runs):
            # The socket is listening already, so the browser can connect before the server runs.
            threading.Thread(target=webbrowser.open, args=(entry,), daemon=True).start()
        _run(server, listening)


def _run(server: uvicorn.Server, listening: socket.socket) -> None:
    """Run a server on the socket `listening` until Ctrl-C or SIGTERM.

    The server runs in its own thread with its own event loop, because a notebook already runs a loop in
    the main thread.
    """
    in_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    before = {number: signal.signal(number, server.handle_exit) for number in numbers}
    try:
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(server.run, [listening])
            while not running.done():
                wait([running], timeout=0.5)  # signals are handled between two waits
            running.result()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def model_threads() -> Iterator[None]:
    """Let torch use half of the cores in this context, unless OMP_NUM_THREADS is set.

    The other half is for HTTP and other programs. If torch had to share its cores with them, small
    networks would be many times slower.
    """
    import torch

    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, before // 2))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can connect to the address `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Open a TCP socket that listens on the address `host` and this port; port 0 takes a free port.

    Raise ConfigError if this is not possible.
    """
    if not 0 <= port < 2**16:
        raise ConfigError(f"port is a number from 0 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}. Is another server "
            "using the port? --port 0 takes a free port"
        ) from error
    # A response is sent in two parts. Without this option the second part may wait 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
