"""Errors as clients of OpenAI read them: codes as strings, and what to do. Sans-IO.

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

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_PARAMS = {"context_length_exceeded": "messages", "model_not_found": "model"}
_NOT_FOUND = {"type": "invalid_request_error", "param": None, "code": "not_found"}
_PATHS = ("/chat/completions", "/responses", "/messages", "/completions", "/models", "/embeddings")


def error_type(status: int) -> str:
    """Return the type that the Responses API and SDKs expect with a status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def openai_code(status: int, message: str) -> str | None:
    """Return OpenAI's code for an error; None where it has none."""
    if status in (400, 413, 422) and _OVERFLOW.search(message):
        return "context_length_exceeded"
    if status == 404 and _UNKNOWN_MODEL.search(message):
        return "model_not_found"
    return None


def rewrite_error(status: int, body: bytes, path: str) -> bytes:
    """Return the error with OpenAI's type and code (null where it has none); the same bytes where it has them or is no error object."""
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
    given = error.get("code")
    if isinstance(given, str) or (code is None and given is None):
        return body
    shape = {
        "type": error_type(status),
        "param": error.get("param") or _PARAMS.get(code or ""),
        "code": code,
    }
    return orjson.dumps({"error": {**error, "message": message, **shape}})


def describe_missing_path(path: str) -> str:
    """Return the sentence about a path that is not served."""
    if "/deployments/" in path or path.startswith(("/openai/", "/v1/openai/")):
        return (
            f"There is no {path} here: Azure's paths are not served. Use the client for OpenAI, with the base URL ending in /v1 "
            "and the policy's name as the model."
        )
    meant = next((one for one in _PATHS if path.removesuffix("/").endswith(one)), None)
    if meant is not None and path != f"/v1{meant}":
        cause = (
            "This client adds /v1 to its base URL."
            if path.startswith("/v1/v1/")
            else "The base URL of this client ends in /v1."
        )
        return f"There is no {path} here: did you mean /v1{meant}? {cause}"
    return f"There is no {path} here."


def _missing_route(path: str) -> dict[str, str | None]:
    if path.startswith(("/v1/openai/", "/v1/v1/")):
        return {**_NOT_FOUND, "message": describe_missing_path(path)}
    kind = "embeddings" if path.startswith("/v1/embeddings") else f"{path} requests"
    message = (
        f"This backend has no {path}. Patina records chat, Responses, Messages and completions, and forwards the rest to a backend that "
        f"has it: set another base URL for the client's {kind}."
    )
    return {**_NOT_FOUND, "message": message}
