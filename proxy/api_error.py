"""Error bodies in the OpenAI format."""

from __future__ import annotations

import orjson


def build_error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """Return an error body in the OpenAI format."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
