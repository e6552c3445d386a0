"""Ports and sockets to listen on: one place for every process that serves."""

from __future__ import annotations

import socket

from store.errors import ConfigError


def free_port() -> int:
    """Return a port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bind(host: str, port: int, *, option: str) -> socket.socket:
    """Take a port, without listening yet: until then clients are refused, not kept waiting.

    Args:
        option: the flag by which a person gives another port.

    Raises:
        ConfigError: somebody has it, or it is not ours to take.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise ConfigError(_taken(host, port, exc, option)) from exc
    return listener


def listen(listener: socket.socket, *, backlog: int, option: str) -> tuple[str, int]:
    """Let clients in; returns the address. Raises: ConfigError when another process listens there already."""
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(backlog)
    except OSError as exc:
        listener.close()
        raise ConfigError(_taken(host, port, exc, option)) from exc
    return str(host), int(port)


def _taken(host: str, port: int, exc: OSError, option: str) -> str:
    return f"cannot listen on {host}:{port} ({exc.strerror or exc}): stop what runs there, or give another {option}"
