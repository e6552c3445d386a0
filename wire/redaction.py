"""Removal of secrets from what is recorded. Sans-IO."""

from __future__ import annotations

import re
from typing import Any

from store.values import Json

_SECRET = re.compile(r"(?i)\bbearer\s+[^\s\"',]+|\b(?:sk|pk|rk|patina|tml|hf|gsk|xai|key|api)[-_][\w-]{8,}")


def redact_secrets(text: str) -> str:
    """Return a text without anything that looks like a key: backends quote the key that they refuse."""
    return _SECRET.sub("***", text)


#: Some clients put keys into the body, for a tool server or as a parameter of another gateway.
_SECRET_KEYS = frozenset(
    {"authorization", "proxy-authorization", "api_key", "apikey", "api-key", "x-api-key", "x-patina-key"}
    | {"access_token", "refresh_token", "client_secret", "password", "cookie", "secret"}
)


#: Not searched for secrets: user text, and schemas, in which a name is a parameter and not a value.
_NOT_LOOKED_INTO = frozenset({"messages", "functions", "function", "response_format", "parameters"})


def redact_body(body: Json) -> Json:
    """Return a body for the record, with the values of secret fields redacted."""
    return {name: _redact_value(name, value) for name, value in body.items()}


def _redact_value(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return "***" if name.lower() in _SECRET_KEYS else value
    if name in _NOT_LOOKED_INTO:
        return value
    if isinstance(value, dict):
        return {inner: _redact_value(inner, what) for inner, what in value.items()}
    if isinstance(value, list):
        return [_redact_value(name, what) for what in value]
    return value
