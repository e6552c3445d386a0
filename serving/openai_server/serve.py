"""Runs the OpenAI server as a process: it drains at SIGTERM and exits with code 0."""

from __future__ import annotations

import signal
import socket
from types import FrameType

import uvicorn

from serving.openai_server.app import OpenAIServer
from serving.openai_server.quiet_server import QuietServer

GRACE_S = 3  # time that running streams have after SIGTERM before the engine stops


def serve(server: OpenAIServer, listener: socket.socket) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT."""
    # uvicorn re-raises the signal after shutdown for the previous handler. This handler makes a clean end exit code 0 instead of death by
    # signal.
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

    class DrainingServer(QuietServer):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            server.drain(GRACE_S)

    DrainingServer(config).run(sockets=[listener])
