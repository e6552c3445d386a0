"""A dialect server as a process: it drains at SIGTERM and ends with exit code 0."""

from __future__ import annotations

import signal
import socket
from types import FrameType

import uvicorn

from serving.dialect.app import Server

GRACE_S = 3  # how long running streams may go on after SIGTERM before they are told that the engine stops


def serve(server: Server, listener: socket.socket) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT."""
    # uvicorn raises the signal again once it has shut down, for the handler that was there before: this one, so that a clean end
    # is exit code 0 and not death by signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        server.app,
        loop="uvloop",
        http="httptools",
        ws="none",
        log_level="warning",
        timeout_graceful_shutdown=4 * GRACE_S,
    )

    class DrainingServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            server.drain(GRACE_S)

    DrainingServer(config).run(sockets=[listener])
