"""Check who sends a request and how large it is, before the explorer looks up its route."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from recmix.explore.memory import ACCOUNT, Account, Memory
from recmix.explore.wire import JSON, Limits, Refused, to_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Access", "Guard"]

log = logging.getLogger("recmix.explore")

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
ERROR_HEADERS = {
    401: (b"www-authenticate", b"Bearer"),
    408: (b"connection", b"close"),  # do not wait for the rest of the body
    413: (b"connection", b"close"),
    429: (b"retry-after", b"1"),
}
PIECE = 2**16
"""Bytes of an answer that are given to the connection at a time."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Access:
    """What the server requires of a request: a secret token, and a host name that is allowed."""

    # the secret, sent in ``Authorization: Bearer`` or in the page's cookie; None if no token is needed
    token: str | None = None
    # host names that requests may use for the server; None allows all. A list of hosts stops web sites
    # whose own host name points to this machine (DNS rebinding).
    hosts: tuple[str, ...] | None = LOOPBACK


class Guard:
    """ASGI middleware that checks each request before the application `app` gets it.

    It checks the host, the origin, the token and the size of the request. It adds security headers
    to each response.
    """

    def __init__(self, app: ASGIApp, *, access: Access, limits: Limits) -> None:
        self.app = app
        self.access = access
        self.limits = limits
        self.memory = Memory(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request to the application, or answer it with an error response."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
            # Each piece waits until the client has read the pieces before it. So the bytes of an
            # answer are counted in `account` until the client has read nearly all of them.
            while len(body := message.get("body", b"")) > PIECE:
                await send({**message, "body": body[:PIECE], "more_body": True})
                message = {**message, "body": memoryview(body)[PIECE:]}
            await send(message)

        account = scope[ACCOUNT] = Account(self.memory, (scope.get("client") or ("", 0))[0])
        parts: list[bytes] = []  # of the body
        try:
            headers = _unique_headers(scope["headers"])
            self._check_host(headers)
            if not scope["query_string"].isascii():
                raise Refused(400, "the URL has bytes that are not ASCII: percent-encode them")
            _check_origin(scope["method"], headers)
            if self._has_token(scope, headers):
                await self._read_body(headers, receive, parts, account)
                parts[:] = [b"".join(parts)]
                replay = _replay(parts[0], receive)
                await _until_disconnect(self.app(scope, replay, send_safely), receive)
            else:
                await self._set_cookie(scope, send_safely)
        except Refused as refused:
            await _send_error(send_safely, refused.status, str(refused))
        except Exception:
            log.exception("a request failed: %s %s", scope["method"], scope["path"])
            if not started:
                message = "the server failed on this request; its log has the reason"
                await _send_error(send_safely, 500, message)
        finally:
            account.close()

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        allowed = self.access.hosts
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host[: host.find("]") + 1] if host.startswith("[") else host.split(":")[0]
        if allowed is not None and name not in allowed:
            raise Refused(403, f"this server answers to {', '.join(allowed)} only, not to {name[:80]!r}")

    def _has_token(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Check the secret token of a request.

        Returns:
            True if the request has the token in a header or a cookie, or if the server requires no
            token. False if a browser opens the page with the token in the URL. The caller then moves
            the token into a cookie with `_set_cookie`.

        Raises:
            Refused: in all other cases.
        """
        if self.access.token is None:
            return True
        kind, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and self._is_token(bearer.strip()):
            return True
        cookies = (part.strip().partition(b"=") for part in headers.get(b"cookie", b"").split(b";"))
        if any(name == _cookie_name(scope) and self._is_token(value) for name, _, value in cookies):
            return True
        in_url = parse_qs(scope["query_string"]).get(b"token", [b""])[0]
        if scope["method"] == "GET" and scope["path"] == "/" and self._is_token(in_url):
            return False
        raise Refused(401, "a token is needed: send 'Authorization: Bearer TOKEN' or open /?token=TOKEN")

    def _is_token(self, given: bytes) -> bool:
        return hmac.compare_digest(given, (self.access.token or "").encode())

    async def _set_cookie(self, scope: Scope, send: Send) -> None:
        """Store the token in a cookie, and redirect the browser to the URL without the token."""
        cookie = f"={self.access.token}; HttpOnly; SameSite=Strict; Path=/".encode()
        headers = [(b"location", b"/"), (b"set-cookie", _cookie_name(scope) + cookie)]
        await _send(send, 303, headers, b"")

    async def _read_body(
        self, headers: dict[bytes, bytes], receive: Receive, parts: list[bytes], account: Account
    ) -> None:
        """Read the body of a request, append its pieces to `parts`, and count its bytes in `account`.

        Raise `Refused` if the body is too large or arrives too slowly.
        """
        most = self.limits.body
        too_large = Refused(413, f"a request has at most {most} bytes; send fewer images at a time")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > most:
            raise too_large
        more, size = True, 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client disconnected")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    account.add(len(parts[-1]))
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.seconds:g} s") from None


async def _until_disconnect(work: Awaitable[None], receive: Receive) -> None:
    """Wait for `work`, and cancel it if the client disconnects first."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done() or leaving.result()["type"] != "http.disconnect":
            await working
    finally:
        working.cancel()
        leaving.cancel()


def _check_origin(method: str, headers: dict[bytes, bytes]) -> None:
    """Raise `Refused` if a page of another web site sent the request through the user's browser."""
    if method in ("GET", "HEAD"):
        return
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower():
        raise Refused(403, "requests from pages of other origins are refused")
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise Refused(403, "requests from pages of other sites are refused")


def _unique_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers of a request, {name: value}.

    Raise `Refused` if a header that the security checks use is given twice.
    """
    found: dict[bytes, bytes] = {}
    for name, value in raw:
        if name in found and name in (b"host", b"origin", b"content-length", b"authorization"):
            raise Refused(400, f"the header {name.decode('latin-1')} was given twice")
        found[name] = value
    return found


def _cookie_name(scope: Scope) -> bytes:
    """Return the name of the cookie that stores the token.

    The name contains the port, because a browser sends the same cookies to all servers on one host.
    """
    _, port = scope.get("server") or ("", 0)
    return f"recmix_{port}".encode()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Make an ASGI function `receive` that returns first the body, which was already read.

    Later calls return the messages of the original function.
    """
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def _send_error(send: Send, status: int, message: str) -> None:
    headers = [(b"content-type", JSON.encode())]
    headers += [ERROR_HEADERS[status]] if status in ERROR_HEADERS else []
    await _send(send, status, headers, to_json({"error": message}))


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
