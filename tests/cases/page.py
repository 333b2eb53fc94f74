"""The explorer's application on a port of this machine, and its page in a browser."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import uvicorn


@contextmanager
def served(app):
    """Serve the application on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
        thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listening]),))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


def ready(page):
    """Wait until every run that is switched on shows its explanation of the image."""
    page.locator("#cards .plane .path").last.wait_for(state="attached")
    page.locator("#cards [aria-busy]").first.wait_for(state="detached")


@contextmanager
def opened(browser, address, *, ready=ready, allowed=(), **options):
    """Open the page and wait until it is ready.

    The test fails on a warning in the console and on a request to another host.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(15_000)
    page = context.new_page()
    messages, requests = [], []
    page.on("console", lambda m: messages.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    ready(page)
    yield page
    allowed = (*allowed, "willReadFrequently")  # only these tests read canvases often
    assert [text for text in messages if not any(part in text for part in allowed)] == []
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
    context.close()
