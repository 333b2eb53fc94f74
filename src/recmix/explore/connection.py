"""Limit the TCP connections of the explorer's server: close slow and silent ones, and the excess."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["Connection"]


class Connection(HttpToolsProtocol):
    """One connection, as uvicorn serves it, with limits that uvicorn does not have.

    A connection is closed if the header of its next request is too slow or too large, or if its
    client does not read the answer. If there are too many connections, the oldest idle connection is
    closed: one on which no request is being answered. If no connection is idle, the new connection
    gets the HTTP status 503.
    """

    HEADER_SECONDS = 10.0  # time in which the header of a request must arrive
    HEADER_BYTES = 2**17
    UNREAD_SECONDS = 30.0  # time in which a client must read a part of its answer
    PER_ADDRESS = 256  # connections from one client address

    _header_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _began = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, and close an idle connection if there are too many."""
        super().connection_made(transport)
        self._began = self.loop.time()
        self._header_timer = self.loop.call_later(self.HEADER_SECONDS, transport.abort)
        everyone = cast("set[Connection]", self.connections)
        others = [one for one in everyone if one is not self and not one.transport.is_closing()]
        same = [one for one in others if one._address == self._address]
        if len(same) >= self.PER_ADDRESS:
            self._make_room(same)
        elif self.limit_concurrency is not None and len(others) + 1 >= self.limit_concurrency:
            self._make_room(others)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers when the connection is closed."""
        super().connection_lost(exc)
        self._stop_header_timer()
        self._stop_unread_timer()

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client; close the connection if a header is too slow or too large."""
        super().data_received(data)
        if self._idle and not self.transport.is_closing():
            self._header_bytes += len(data)
            if self._header_bytes > self.HEADER_BYTES:
                self.transport.abort()
            elif self._header_timer is None:
                self._header_timer = self.loop.call_later(self.HEADER_SECONDS, self.transport.abort)

    def on_headers_complete(self) -> None:
        """Stop the time limit of the header and start to handle the request."""
        self._header_bytes = 0
        self._stop_header_timer()
        if not self.transport.get_write_buffer_size():
            self._stop_unread_timer()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request, and limit the time in which the client reads the answer."""
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._start_unread_timer()

    def pause_writing(self) -> None:
        """Stop sending until the client reads; close the connection if this takes too long."""
        super().pause_writing()
        self._start_unread_timer()

    def resume_writing(self) -> None:
        """Continue sending, because the client has read a part of the answer."""
        super().resume_writing()
        self._stop_unread_timer()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _make_room(self, others: list[Connection]) -> None:
        """Close the oldest idle connection of `others`.

        If none of them is idle, requests on this connection get the HTTP status 503.
        """
        idle = [one for one in others if one._idle]
        if idle:
            min(idle, key=lambda one: one._began).transport.abort()
        else:
            self.limit_concurrency = 0  # uvicorn then answers 503

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _start_unread_timer(self) -> None:
        self._stop_unread_timer()
        self._unread_timer = self.loop.call_later(self.UNREAD_SECONDS, self._close_unread)

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _close_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
