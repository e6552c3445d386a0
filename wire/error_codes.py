"""Errors of a backend that Patina starts, as clients of OpenAI read them: codes as strings, and what to do. Sans-IO.

Engines write the HTTP status as the code. Clients look for OpenAI's codes: agents shorten a conversation at `context_length_exceeded`.
"""

from __future__ import annotations

import re

import orjson

_OVERFLOW = re.compile(
    r"maximum context length|context (?:length|window|size)|maximum model length|max_model_len|too many tokens",
    re.IGNORECASE,
)
_UNKNOWN_MODEL = re.compile(r"model .*(?:does not exist|not found)", re.IGNORECASE)
#: What servers answer for a path that they do not have.
_NO_ROUTE = re.compile(r"(?:.*: )?Not Found\Z")


def openai_code(status: int, message: str) -> str | None:
    """Return OpenAI's code for an error; None where it has none."""
    if status in (400, 413, 422) and _OVERFLOW.search(message):
        return "context_length_exceeded"
    if status == 404 and _UNKNOWN_MODEL.search(message):
        return "model_not_found"
    return None


def rewrite_error(status: int, body: bytes, path: str) -> bytes:
    """Return the error with OpenAI's code; the same bytes where nothing is known of it."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    error = found.get("error", found) if isinstance(found, dict) else None
    if not isinstance(error, dict):
        return body
    message = error.get("message", error.get("detail"))
    if not isinstance(message, str):
        return body
    if status == 404 and _NO_ROUTE.match(message):
        return orjson.dumps({"error": _missing_route(path)})
    code = openai_code(status, message)
    if code is None or isinstance(error.get("code"), str):
        return body
    param = {"context_length_exceeded": "messages", "model_not_found": "model"}[code]
    shape = {"type": "invalid_request_error", "param": error.get("param") or param, "code": code}
    return orjson.dumps({"error": {**error, "message": message, **shape}})


def _missing_route(path: str) -> dict[str, str | None]:
    kind = "embeddings" if path.startswith("/v1/embeddings") else f"{path} requests"
    message = (
        f"This backend has no {path}. Patina records chat, Responses, Messages and completions, and forwards the rest to a backend that "
        f"has it: set another base URL for the client's {kind}."
    )
    return {"message": message, "type": "invalid_request_error", "param": None, "code": "not_found"}
