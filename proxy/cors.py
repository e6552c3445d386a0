"""Which web pages may call, in a browser, whoever their visitor is. Off unless asked for. Sans-IO."""

from __future__ import annotations

from proxy.ours import Headers, header

_DAY_S = b"86400"
_EXPOSED = b"x-patina-turn, x-request-id, retry-after"


class Origins:
    """The origins that are let in.

    Args:
        said: separated by commas, e.g. ``https://chat.example, http://localhost:3000``; ``*``: every one; "": none.
    """

    def __init__(self, said: str = "") -> None:
        self._known = frozenset(part.strip().rstrip("/").lower() for part in said.split(",") if part.strip())

    def allows(self, origin: str) -> bool:
        return "*" in self._known or origin.lower() in self._known

    def fields(self, origin: str) -> list[tuple[bytes, bytes]]:
        """What is added to a reply to this origin."""
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]

    def preflight(self, origin: str, headers: Headers) -> list[tuple[bytes, bytes]]:
        """What a browser is told that asks before it sends the request."""
        wanted = header(headers, b"access-control-request-headers") or "authorization, content-type"
        return [
            *self.fields(origin),
            (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE, HEAD"),
            (b"access-control-allow-headers", wanted.encode("latin-1")),
            (b"access-control-max-age", _DAY_S),
        ]


def is_preflight(method: str, headers: Headers) -> bool:
    return method == "OPTIONS" and header(headers, b"access-control-request-method") is not None
