"""Listening sockets of every server process."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque

from store.errors import ConfigError

_MOST_RESERVED = 64
_reserved: deque[int] = deque()  # file descriptors


def free_port() -> int:
    """Return a port that is free, and reserve it for a server that binds it with SO_REUSEADDR.

    The port stays bound, without listening, while this process lives (the newest 64 are kept). A server may need many
    seconds before it binds; until then the system would give the port to any other program that asks for a free one.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        port = int(reservation.getsockname()[1])
        _reserved.append(reservation.detach())
    if len(_reserved) > _MOST_RESERVED:
        os.close(_reserved.popleft())
    return port


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
