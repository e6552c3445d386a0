"""The server's side of a connection, with limits that an application cannot set: how large a head may be, and how slowly one may speak.

uvicorn's protocol has no limit on either with httptools: a head could grow without end, and a client that never ends its request would
hold its connection for ever. What is refused here is refused in the shape that OpenAI clients understand, and the connection is closed.
There is no limit on how slowly a reply is read: a slow reader holds back the backend (uvicorn stops writing, the relay stops reading)
and costs a connection, not memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.wire import error_body

#: Most bytes and fields of a request's head. Nginx allows 32 KB, Node 16 KB; agents send long lists of betas and trace contexts.
MAX_HEAD = 64 << 10
MAX_FIELDS = 256
#: So long may a head take, from its first byte (or the connection's opening) to its end.
HEAD_TIMEOUT_S = 30.0
#: A body that is due has to bring at least so many bytes in each such time.
BODY_WINDOW_S = 60.0
BODY_LEAST = 1024

_REASONS = {
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


#: Name of the ASGI extension under which a request finds its connection (`Line`).
EXTENSION = "patina.line"


class Line:
    """What a request can do with its connection beyond ASGI: hear at once that it is lost, and write a head with its body in one go.

    It stands before the transport that uvicorn's protocol writes to, and passes everything else on.
    """

    __slots__ = ("_held", "_is_lost", "_transport", "on_lost")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] | None = None
        self._is_lost = False
        #: Called once the connection is lost.
        self.on_lost: Callable[[], None] | None = None

    def lose(self) -> None:
        """The connection is lost."""
        self._is_lost = True
        if self.on_lost is not None:
            self.on_lost()

    def hold(self) -> None:
        """Keep back what is written from now on."""
        self._held = []

    def let_go(self) -> None:
        """Write what was held, as one piece."""
        held, self._held = self._held, None
        if held:
            self.write(b"".join(held))

    def write(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
        elif not self._is_lost:  # uvicorn tells only the newest of several requests that were sent at once
            self._transport.write(data)

    def close(self) -> None:
        if self._held is not None:
            self.let_go()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on the request."""

    head_timeout_s = HEAD_TIMEOUT_S
    body_window_s = BODY_WINDOW_S

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._is_in_head = True
        self._is_in_body = False
        self._is_refused = False
        self._head_bytes = 0
        self._piece = 0  # bytes of the newest piece off the wire
        self._body_bytes = 0
        # Only runs where a request does not come in one piece: most do, and pay for no clock.
        self._timer: asyncio.TimerHandle | None = None

    # ---- the life of a request: its head, its body, then neither until the next one's first byte

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # narrowed by uvicorn
        super().connection_made(transport)
        self._line = Line(transport)
        self.transport = self._line  # type: ignore[assignment]  # all of a transport that is used there
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self._line.lose()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._piece = len(data)
        if not self._is_in_head and not self._is_in_body:
            self._is_in_head = True
            self._head_bytes = 0
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD:
            self._refuse_head()
        elif (self._is_in_head or self._is_in_body) and self._timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._is_in_head = False
        if self.parser.get_method() == b"CONNECT":
            # It asks for a tunnel: what would follow is no HTTP, and its body would never end.
            self._refuse(405, "This is no forward proxy: there is no CONNECT.", "method_not_allowed")
            return
        if len(self.headers) > MAX_FIELDS or (
            self._head_bytes + self._piece > MAX_HEAD and self._head_size() > MAX_HEAD
        ):
            self._refuse_head()
            return
        super().on_headers_complete()
        self.scope["extensions"] = {EXTENSION: self._line}  # type: ignore[dict-item]  # an object, not a dictionary: it never leaves this process
        self._is_in_body = True
        self._body_bytes = 0

    def _head_size(self) -> int:
        """Return the head's own size: what came with it in one piece may be a body."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            self._stop_timer()
            self._is_in_body = False
            super().on_message_complete()

    # ---- clocks

    def _start_timer(self) -> None:
        late = (
            (self.body_window_s, self._look_at_body)
            if self._is_in_body
            else (self.head_timeout_s, self._head_is_late)
        )
        self._timer = self.loop.call_later(*late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        if self._head_bytes:
            self._refuse(408, "The request's head took too long.", "request_timeout")
        else:
            self.transport.close()  # opened and never used

    def _look_at_body(self) -> None:
        if self.flow.read_paused or self._body_bytes >= BODY_LEAST:
            self._body_bytes = 0  # while reading is paused it is the backend that is slow, not the client
            self._start_timer()
        else:
            self._refuse(408, "The request's body took too long.", "request_timeout")

    # ---- no

    def _refuse_head(self) -> None:
        limit = f"{MAX_HEAD >> 10} KB or {MAX_FIELDS} fields"
        self._refuse(431, f"The request's head is larger than {limit}.", "headers_too_large")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer without asking the application, and close."""
        self._is_refused = True
        self._stop_timer()
        cycle = self.cycle
        is_free = cycle is None or cycle.response_complete  # no reply to an earlier request is on its way
        if is_free or (self._is_in_body and not cycle.response_started):
            body = error_body(message, kind="invalid_request_error", code=code)
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, _REASONS[status], len(body), body)
            )
        if not is_free:
            cycle.disconnected = True  # the application learns that nobody waits any more
            cycle.message_event.set()
        self.transport.close()
