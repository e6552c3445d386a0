"""The paths of the web page, which a process of its own serves. Sans-IO."""

from __future__ import annotations

DASHBOARD = "/dashboard"
METRICS = "/metrics"
#: Base URLs of clients, which people open in a browser.
BASE_PATHS = ("/v1", "/v1/")
#: Prometheus' path, and paths that users of CLaaS know.
_OTHERS = (METRICS, "/v1/dashboard")


def is_page_path(path: str) -> bool:
    """Return whether the process of the web page serves a path."""
    return path == DASHBOARD or path.startswith(DASHBOARD + "/") or path in _OTHERS


def wants_page(accept: str | None) -> bool:
    """Return whether a browser asks: it accepts HTML, which programs do not ask for."""
    return accept is not None and "text/html" in accept
