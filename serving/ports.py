"""Listening sockets of every server process."""

from __future__ import annotations

import errno
import socket

from store.errors import ConfigError


def free_port() -> int:
    """Return a port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bind(host: str, port: int, *, option: str, is_shared: bool = False) -> socket.socket:
    """Bind a port without listening: until then clients are refused instead of waiting.

    Args:
        option: flag with which a user chooses another port.
        is_shared: other processes of this user listen on the port as well (SO_REUSEPORT).

    Raises:
        ConfigError: the port is in use, or may not be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise ConfigError(_taken(host, port, exc, option)) from exc
    return listener


def listen(listener: socket.socket, *, backlog: int, option: str) -> tuple[str, int]:
    """Start listening and return the address. Raises: ConfigError when another process listens there."""
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(backlog)
    except OSError as exc:
        listener.close()
        raise ConfigError(_taken(host, port, exc, option)) from exc
    return str(host), int(port)


def _taken(host: str, port: int, exc: OSError, option: str) -> str:
    if isinstance(exc, socket.gaierror) or exc.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: give another {option.replace('-port', '-host')}"
    return f"cannot listen on {host}:{port} ({exc.strerror or exc}): stop what runs there, or give another {option}"
