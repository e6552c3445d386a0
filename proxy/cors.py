"""The CORS policy: which web pages may call the proxy from a browser. Off by default. Sans-IO."""

from __future__ import annotations

from wire.headers import Headers, get_header

_DAY_S = b"86400"
_EXPOSED = b"x-patina-turn, x-patina-journal, x-patina-version, x-patina-wishes, x-request-id, retry-after"


class CorsPolicy:
    """The allowed origins.

    Args:
        origins: comma-separated, e.g. ``https://chat.example, http://localhost:3000``; ``*``: every origin; "": none.
    """

    def __init__(self, origins: str = "") -> None:
        self._origins = frozenset(
            part.strip().rstrip("/").lower() for part in origins.split(",") if part.strip()
        )

    def allows(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower() in self._origins

    def response_fields(self, origin: str) -> list[tuple[bytes, bytes]]:
        """Return the header fields that are added to a response to this origin."""
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]

    def preflight_headers(self, origin: str, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the header fields of the response to a preflight request."""
        wanted = get_header(headers, b"access-control-request-headers") or "authorization, content-type"
        return [
            *self.response_fields(origin),
            (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE, HEAD"),
            (b"access-control-allow-headers", wanted.encode("latin-1")),
            (b"access-control-max-age", _DAY_S),
        ]


def is_preflight(method: str, headers: Headers) -> bool:
    return method == "OPTIONS" and get_header(headers, b"access-control-request-method") is not None
