"""`recmix explore`: load runs, listen, and stop cleanly."""

from __future__ import annotations

import ipaddress
import os
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from recmix.errors import ConfigError

__all__ = ["explore", "explore_command", "model_threads"]

PORT = 8765
CLOSING = 30
"""Seconds that requests in flight have to finish when the server is told to stop."""
CONNECTIONS = 512


def explore_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; the first is the default.")],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="RECMIX_TOKEN",
            help="Secret that requests must show; made and printed where it is needed and not given.",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    batching: Annotated[bool, typer.Option(help="Answer requests that wait together at once.")] = True,
    data_root: Annotated[
        Path | None,
        typer.Option(help="Folder of the data sets (default: RECMIX_DATA, then a cache)."),
    ] = None,
) -> None:
    """Look at trained models in a browser, and give them to programs over HTTP."""
    explore(
        runs,
        port=port,
        host=host,
        token=token,
        browser=browser,
        device=device,
        batching=batching,
        data_root=data_root,
    )


def explore(
    runs: Sequence[Path],
    *,
    port: int = PORT,
    host: str = "127.0.0.1",
    token: str | None = None,
    browser: bool = False,
    device: str = "auto",
    batching: bool = True,
    data_root: Path | None = None,
) -> None:
    """Serve runs until the process is told to stop (Ctrl-C or SIGTERM); what is in flight is finished.

    Args:
        runs: their folders.
        port: to listen on; 0 takes a free one.
        host: the address to listen on. Elsewhere than on the loopback a token is always required.
        token: a secret that requests must show.
        browser: open the page.
        device: where to put the models.
        batching: answer requests that wait together at once.
        data_root: folder of the data sets.
    """
    try:
        import uvicorn

        from recmix.explore.app import make_app
    except ImportError as error:
        raise ConfigError(
            f"recmix explore needs the package {error.name}: pip install 'recmix[explore]'"
        ) from error
    from recmix.explore.guard import Keys
    from recmix.explore.shelf import Shelf

    local = is_loopback(host)
    if token is not None and (len(token) < 8 or not token.isascii() or not token.isalnum()):
        raise ConfigError("a token has at least 8 letters and digits and nothing else")
    made = token or (None if local else secrets.token_hex(16))
    listening = listen(host, port)
    with listening, model_threads():
        shelf = Shelf.load(runs, device=device, data_root=data_root)
        keys = Keys(token=made) if local else Keys(token=made, hosts=None)
        app = make_app(shelf, keys=keys, batching=batching)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}/"
        entry = address if made is None else f"{address}?token={made}"
        typer.echo(f"{', '.join(shelf.runs)}: {address if token else entry} (Ctrl-C stops)")
        if browser:  # the socket listens already: a browser that is early waits
            threading.Thread(target=webbrowser.open, args=(entry,), daemon=True).start()
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=CLOSING,
            )
        )
        # uvicorn raises the signal that stopped it once more when it is done; then we are done too.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        server.run(sockets=[listening])


@contextmanager
def model_threads() -> Iterator[None]:
    """In here torch computes with half the cores, unless OMP_NUM_THREADS says how many.

    The other half is for HTTP and for who else is there. Small networks are no slower for it, while
    threads that wait for one another make them many times slower where others use the machine.
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
    """Whether only this machine can reach this address.

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
    """A listening socket; says what is wrong with an address that cannot be had."""
    if not 0 <= port < 2**16:
        raise ConfigError(f"port is a number from 0 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}. Is another server "
            "there? --port 0 takes a free port"
        ) from error
    # An answer goes out in two pieces; without this the second waits 40 ms for the first's receipt.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
