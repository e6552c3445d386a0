"""The name of the program that sent a request, from its headers or from its request. Sans-IO.

For people who read the record. No decision depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from store.texts import content_text

#: Header fields in which programs name themselves, most specific first.
_NAMING = (b"originator", b"x-client-name", b"x-title", b"x-openrouter-title")

#: Products that name only the HTTP library.
_LIBRARIES = re.compile(
    r"\A(python|aiohttp|python-requests|python-httpx|httpx|node-fetch|node|undici|axios|okhttp|go-http-client|reqwest|curl|wget|"
    r"mozilla|asyncopenai|openai|ls|dart|java|deno|bun|got|libcurl|cpp-httplib|ai-sdk|langchain-\w+)\Z",
    re.IGNORECASE,
)
#: Parts of a product: "QwenCode/0.24.4 (linux; x64)" is QwenCode 0.24.4.
_PRODUCT = re.compile(r"\A([A-Za-z][\w.@-]*)(?:/(?:[A-Za-z]+ )?v?([\d][\w.+-]*))?")
#: How a system prompt names its program: "You are Codex, …", "… running inside OpenClaw", "an agent in the Continue CLI".
_SELF = re.compile(
    r"\b(?:running (?:inside|in|as)|agent in the|assistant (?:called|named|in)|[Yy]ou are) ([A-Z][A-Za-z0-9]*(?:[ -][A-Z][A-Za-z0-9]*){0,2})\b"
)
#: Tools that only one framework offers.
_TOOLS = {"final_answer": "smolagents"}

_MAX_LENGTH = 100


def client_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the program's name from the headers, or "unknown"."""
    fields = {name.lower(): value.decode("latin-1").strip() for name, value in headers}
    agent = fields.get(b"user-agent", "")
    for name in _NAMING:
        if fields.get(name):
            product = _PRODUCT.match(agent)
            version = (
                f"/{product[2]}" if product is not None and product[1] == fields[name] and product[2] else ""
            )
            return f"{fields[name]}{version}"[:_MAX_LENGTH]
    return agent[:_MAX_LENGTH] or "unknown"


def add_client_hint(name: str, body: Mapping[str, Any]) -> str:
    """Return a client's name; to the name of an HTTP library, add what the request shows of the program."""
    product = _PRODUCT.match(name)
    if name != "unknown" and (product is None or not _LIBRARIES.match(product[1])):
        return name
    shape = _client_from_body(body)
    return f"{shape} ({name})"[:_MAX_LENGTH] if shape else name


def identify_client(headers: Iterable[tuple[bytes, bytes]], body: Mapping[str, Any]) -> str:
    """Return a client's name for the record, at most 100 characters: "codex_exec/0.50.0", "OpenClaw (OpenAI/JS 7.15.0)"."""
    return add_client_hint(client_from_headers(headers), body)


def _client_from_body(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    for message in messages[:3] if isinstance(messages, Sequence) else ():
        if isinstance(message, Mapping) and message.get("role") in ("system", "developer"):
            match = _SELF.search(content_text(message.get("content"))[:400])
            if match is not None:
                return match[1]
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if name in _TOOLS:
            return _TOOLS[name]
    return ""
