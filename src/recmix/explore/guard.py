"""Who may ask, and how much: the outermost layer of the server, before any route is looked at."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from recmix.explore.wire import JSON, Limits, Refused, to_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "Keys"]

log = logging.getLogger("recmix.explore")

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
ALWAYS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Keys:
    """What a request must show.

    Args:
        token: a secret, in ``Authorization: Bearer`` or in the page's cookie; nothing if none is needed.
        hosts: names under which the server may be addressed; nothing if under any. On a loopback address
            this keeps a web site from reaching the server under a name of its own (DNS rebinding).
    """

    token: str | None = None
    hosts: tuple[str, ...] | None = LOOPBACK


class Guard:
    """Checks the host, the origin, the token and the size of a request; adds the security headers.

    Args:
        app: what is guarded.
        keys: what a request must show.
        limits: how large it may be.
    """

    def __init__(self, app: ASGIApp, *, keys: Keys, limits: Limits) -> None:
        self.app = app
        self.keys = keys
        self.limits = limits
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or a refusal in its place."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = False

        async def forward(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *ALWAYS]
            await send(message)

        taken = 0
        try:
            headers = _headers(scope["headers"])
            self._check_host(headers)
            if not scope["query_string"].isascii():
                raise Refused(400, "the address has bytes that are not ASCII: percent-encode them")
            _check_origin(scope["method"], headers)
            if self._enters_page(scope, headers):
                await self._welcome(scope, forward)
                return
            body = await self._body(headers, receive)
            taken = len(body)
            await _while_wanted(self.app(scope, _replay(body, receive), forward), receive)
        except Refused as refused:
            await _answer(forward, refused.status, str(refused))
        except Exception:
            log.exception("a request failed: %s %s", scope["method"], scope["path"])
            if not started:
                await _answer(forward, 500, "the server failed on this request; its log has the reason")
        finally:
            self._held -= taken

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        if self.keys.hosts is None:
            return
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host[: host.find("]") + 1] if host.startswith("[") else host.split(":")[0]
        if name not in self.keys.hosts:
            raise Refused(
                403, f"this server answers to {', '.join(self.keys.hosts)} only, not to {name[:80]!r}"
            )

    def _enters_page(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Check the token; true if it came in the address of the page, to be exchanged for a cookie."""
        if self.keys.token is None:
            return False
        kind, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and self._is_token(bearer.strip()):
            return False
        if self._is_token(_cookie(headers.get(b"cookie", b""), _cookie_name(scope))):
            return False
        if scope["method"] == "GET" and scope["path"] == "/":
            given = parse_qs(scope["query_string"]).get(b"token", [b""])[0]
            if self._is_token(given):
                return True
        raise Refused(
            401, "a token is needed: send 'Authorization: Bearer TOKEN', or open /?token=TOKEN"
        )

    def _is_token(self, given: bytes) -> bool:
        assert self.keys.token is not None
        return hmac.compare_digest(given, self.keys.token.encode())

    async def _welcome(self, scope: Scope, send: Send) -> None:
        cookie = f"{_cookie_name(scope)}={self.keys.token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, refused as soon as it is known to be too large or too slow."""
        most = self.limits.body
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > most:
            raise Refused(413, f"a request has at most {most} bytes; send fewer images at a time")
        parts: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client went away")
                    part = message.get("body", b"")
                    held += len(part)
                    self._held += len(part)
                    if held > most:
                        raise Refused(
                            413, f"a request has at most {most} bytes; send fewer images at a time"
                        )
                    if self._held > self.limits.held:
                        raise Refused(429, "too much is waiting already: try again in a moment")
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            self._held -= held
            raise Refused(408, f"the body did not arrive within {self.limits.seconds:g} s") from None
        except BaseException:
            self._held -= held
            raise


async def _while_wanted(work: Awaitable[None], receive: Receive) -> None:
    """Do this, unless the client goes away first: what it no longer wants gives way to what waits."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done() or leaving.result()["type"] != "http.disconnect":
            await working
    finally:
        working.cancel()
        leaving.cancel()


def _check_origin(method: str, headers: dict[bytes, bytes]) -> None:
    """Refuse what another site makes a browser send; programs send no Origin."""
    if method in ("GET", "HEAD"):
        return
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower():
        raise Refused(403, "requests from pages of other origins are refused")
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise Refused(403, "requests from pages of other sites are refused")


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """By lower-case name; a name that must be given once is refused twice."""
    found: dict[bytes, bytes] = {}
    for name, value in raw:
        if name in found and name in (b"host", b"origin", b"content-length", b"authorization"):
            raise Refused(400, f"the header {name.decode('latin-1')} was given twice")
        found[name] = value
    return found


def _cookie_name(scope: Scope) -> str:
    """Cookies are shared between the ports of a host: the name tells servers apart."""
    server = scope.get("server") or ("", 0)
    return f"recmix_{server[1]}"


def _cookie(header: bytes, name: str) -> bytes:
    try:
        found = SimpleCookie(header.decode("latin-1")).get(name)
    except CookieError:
        return b""
    return b"" if found is None else found.value.encode("latin-1", "replace")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, then what comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _answer(send: Send, status: int, message: str) -> None:
    body = to_json({"error": message})
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):  # what is still being sent is not waited for
        headers.append((b"connection", b"close"))
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
