"""uvicorn's HTTP protocol with limits on request heads and slow clients.

With httptools, uvicorn limits neither: a head could grow without end, and a client that never finishes its request would keep its connection.
A refused request gets an error in the OpenAI format, and the connection is closed. There is no limit on a client that reads slowly: it holds
back the backend (uvicorn stops writing, the relay stops reading) and costs a connection, not memory.

A response may be complete before its request's body has arrived (401, 413, 503). Closing a connection with unread bytes resets it, and a
client that still sends would lose the response. So the rest of the body is read and discarded, within `DRAIN_S` and `DRAIN_BYTES`: then the next
request follows on the connection, or, where the connection is to be closed, only its sending side is closed until the client closes too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.api_error import build_error_body

#: Limits of a request head. Nginx allows 32 KB, Node 16 KB; agents send long lists of betas and trace contexts.
MAX_HEAD_BYTES = 64 << 10
MAX_FIELDS = 256
#: Longest time for a head, from its first byte (or from the connection's opening).
HEAD_TIMEOUT_S = 30.0
#: A body must bring at least `BODY_MIN_BYTES` in each such window.
BODY_WINDOW_S = 60.0
BODY_MIN_BYTES = 1024
#: Longest time and most bytes for which a client may go on sending after its response. nginx's `lingering_time` is 30 s, too.
DRAIN_S = 30.0
DRAIN_BYTES = 256 << 20

_REASONS = {
    400: b"Bad Request",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


#: Name of the ASGI extension that holds a request's connection (`ClientConnection`).
CONNECTION_EXTENSION = "patina.line"


class ClientConnection:
    """A request's connection beyond ASGI: reports its loss at once, and writes a head and a body as one piece.

    It wraps the transport that uvicorn's protocol writes to, and delegates everything else.

    Args:
        transport: the connection's.
        must_drain: whether bytes of the client may still be on their way. Called when the connection is to be closed.
    """

    __slots__ = ("_buffered", "_is_lost", "_must_drain", "_transport", "is_draining", "on_lost")

    def __init__(self, transport: asyncio.Transport, must_drain: Callable[[], bool]) -> None:
        self._transport = transport
        self._must_drain = must_drain
        self._buffered: list[bytes] | None = None
        self._is_lost = False
        #: The sending side is closed; what arrives is discarded.
        self.is_draining = False
        #: Called when the connection is lost.
        self.on_lost: Callable[[], None] | None = None

    def mark_lost(self) -> None:
        """Mark the connection as lost and notify the request."""
        self._is_lost = True
        if self.on_lost is not None:
            self.on_lost()

    def buffer_writes(self) -> None:
        """Buffer what is written from now on."""
        if self._buffered is None:
            self._buffered = []

    def flush_writes(self) -> None:
        """Write the buffered data as one piece."""
        buffered, self._buffered = self._buffered, None
        if buffered:
            self.write(b"".join(buffered))

    def write(self, data: bytes) -> None:
        if self._buffered is not None:
            self._buffered.append(data)
        elif not self._is_lost:  # uvicorn notifies only the newest of several pipelined requests
            self._transport.write(data)

    def abandon(self) -> None:
        """Close at once, also while the client sends."""
        self._transport.close()

    def close(self) -> None:
        if self._buffered is not None:
            self.flush_writes()
        if self.is_draining or self._is_lost or self._transport.is_closing() or not self._must_drain():
            self._transport.close()
        else:
            self.is_draining = True
            self._transport.write_eof()

    def is_closing(self) -> bool:
        return self.is_draining or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on the request."""

    head_timeout_s = HEAD_TIMEOUT_S
    body_window_s = BODY_WINDOW_S
    drain_s = DRAIN_S
    drain_bytes = DRAIN_BYTES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._is_in_body = False
        self._is_refused = False
        self._head_bytes = 0
        self._received_bytes = 0  # bytes of the newest piece from the network
        self._body_bytes = 0
        self._drained_bytes = 0
        self._waits_for_100 = False
        self._head_without_offer = b""  # of a request that offers another protocol
        # Runs only for requests that arrive in several pieces: most arrive in one and need no timer.
        self._timer: asyncio.TimerHandle | None = None

    # ---- a request's states: head, body, then neither until the next request's first byte

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # narrowed by uvicorn
        super().connection_made(transport)
        self._connection = ClientConnection(transport, self._must_drain)
        self.transport = self._connection  # type: ignore[assignment]  # all of a transport that is used there
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self._connection.mark_lost()

    def data_received(self, data: bytes) -> None:
        if self._connection.is_draining:
            self._drain(len(data))
            return
        if self._is_refused:
            return
        self._received_bytes = len(data)
        if not self._is_in_head and not self._is_in_body:
            self._is_in_head = True
            self._head_bytes = 0
        if self._is_in_head:
            self._head_bytes += len(data)
        self._parse(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        elif (self._is_in_head or self._is_in_body) and self._timer is None:
            self._start_timer()

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as exc:
                # Java's and curl's clients offer HTTP/2. An offer that is not taken must be ignored (RFC 9110, 7.8), but the parser ends such
                # a request at its head: a new one reads the same head without the offer, and the body.
                if not self._head_without_offer:
                    return  # CONNECT, which is refused
                data, self._head_without_offer = self._head_without_offer + data[exc.args[0] :], b""
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def _remove_offer(self) -> bytes:
        """Return the head of the request without `Upgrade`, also as an option of `Connection`."""
        lines = [
            b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        ]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(option for option in options if option.lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()  # set by an earlier request of the same piece
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._is_in_head = False
        if self.parser.get_method() == b"CONNECT":
            # CONNECT asks for a tunnel: what follows is not HTTP, and the body would never end.
            self._refuse(405, "This is not a forward proxy: CONNECT is not supported.", "method_not_allowed")
            return
        if len(self.headers) > MAX_FIELDS or (
            self._head_bytes + self._received_bytes > MAX_HEAD_BYTES and self._head_size() > MAX_HEAD_BYTES
        ):
            self._refuse_head()
            return
        if self.parser.should_upgrade():
            self._head_without_offer = self._remove_offer()
            return
        super().on_headers_complete()
        self.scope["extensions"] = {CONNECTION_EXTENSION: self._connection}  # type: ignore[dict-item]  # an object, not a dictionary: it never leaves this process
        self._is_in_body = True
        self._body_bytes = self._drained_bytes = 0
        # A client that got its response instead of a "100 Continue" may send the body or not: the connection ends with that response.
        self._waits_for_100 = self.expect_100_continue and self.cycle.keep_alive
        if self._waits_for_100:
            self.cycle.keep_alive = False

    def _head_size(self) -> int:
        """Return the size of the head alone: a body may have arrived in the same piece."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        if self._is_refused or self._connection.is_draining:
            return
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._drain(len(body))
            return
        if self._waits_for_100:
            self._waits_for_100 = False
            self.cycle.keep_alive = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_refused or self._connection.is_draining or self._head_without_offer:
            return
        self._stop_timer()
        self._is_in_body = False
        super().on_message_complete()
        if self.cycle.response_complete:  # uvicorn's timer ended when the body went on
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_in_body and self.cycle.response_complete and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._start_drain_timer()

    # ---- the rest of a body whose response is complete

    def _must_drain(self) -> bool:
        """Return whether the client may still send, and start the drain then."""
        if not (self._is_in_body or self._is_refused):
            return False
        self.flow.resume_reading()
        self._start_drain_timer()
        return True

    def _start_drain_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.drain_s, self._connection.abandon)

    def _drain(self, count: int) -> None:
        self._drained_bytes += count
        if self._drained_bytes > self.drain_bytes:
            self._connection.abandon()

    # ---- timers

    def _start_timer(self) -> None:
        late = (
            (self.body_window_s, self._check_body_progress)
            if self._is_in_body
            else (self.head_timeout_s, self._head_timed_out)
        )
        self._timer = self.loop.call_later(*late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_timed_out(self) -> None:
        if self._head_bytes:
            self._refuse(408, "The request's head took too long.", "request_timeout")
        else:
            self.transport.close()  # opened and never used

    def _check_body_progress(self) -> None:
        if self.flow.read_paused or self._body_bytes >= BODY_MIN_BYTES:
            self._body_bytes = 0  # while reading is paused, the backend is slow, not the client
            self._start_timer()
        else:
            self._refuse(408, "The request's body took too long.", "request_timeout")

    # ---- refusals

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser cannot read; uvicorn's own response is plain text."""
        self._refuse(400, f"{msg} This port speaks HTTP/1.1 without TLS.", "invalid_http")

    def _refuse_head(self) -> None:
        limit = f"{MAX_HEAD_BYTES >> 10} KB or {MAX_FIELDS} fields"
        self._refuse(431, f"The request's head is larger than {limit}.", "headers_too_large")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Respond without calling the application, and close the connection."""
        self._is_refused = True
        self._stop_timer()
        cycle = self.cycle
        is_free = cycle is None or cycle.response_complete  # no response to an earlier request is in flight
        if (is_free and not self._is_in_body) or (self._is_in_body and not cycle.response_started):
            body = build_error_body(message, kind="invalid_request_error", code=code)
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, _REASONS[status], len(body), body)
            )
        if not is_free:
            cycle.disconnected = True  # notifies the application
            cycle.message_event.set()
        self.transport.close()
