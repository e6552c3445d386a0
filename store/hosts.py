"""Names and addresses of this machine. Sans-IO."""

from __future__ import annotations

import ipaddress

#: What containers call the machine that they run on.
_CONTAINER_NAMES = frozenset({"host.docker.internal", "host.containers.internal"})


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine and reaches nothing else."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        name = host.rstrip(".").lower()
        return name == "localhost" or name.endswith(".localhost")


def is_local_host(header: str | None) -> bool:
    """Whether a request's Host names this machine. A web page that rebinds its own name to 127.0.0.1 sends its own name."""
    if not header:
        return True  # HTTP/1.0, never a browser
    name = header.strip()
    if name.startswith("["):
        name = name.partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    return is_loopback(name) or name.lower() in _CONTAINER_NAMES
