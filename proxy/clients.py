"""Which program sent a request: its own name for itself, or what its requests look like. Sans-IO.

For people who read the record ("which of my tools does all this housekeeping?"): nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proxy.words import content_text

#: Header fields in which programs name themselves, most telling first.
_NAMING = (b"originator", b"x-client-name", b"x-title", b"x-openrouter-title")

#: Products whose name says only which library speaks HTTP.
_LIBRARIES = re.compile(
    r"\A(python|aiohttp|python-requests|python-httpx|httpx|node-fetch|node|undici|axios|okhttp|go-http-client|reqwest|curl|wget|"
    r"mozilla|asyncopenai|openai|ls|dart|java|deno|bun|got|libcurl|cpp-httplib|ai-sdk|langchain-\w+)\Z",
    re.IGNORECASE,
)
#: What a product's name is made of: "QwenCode/0.24.4 (linux; x64)" is QwenCode 0.24.4.
_PRODUCT = re.compile(r"\A([A-Za-z][\w.@-]*)(?:/(?:[A-Za-z]+ )?v?([\d][\w.+-]*))?")
#: How a system prompt says whose it is: "You are Codex, …", "… running inside OpenClaw", "an agent in the Continue CLI".
_SELF = re.compile(
    r"\b(?:running (?:inside|in|as)|agent in the|assistant (?:called|named|in)|[Yy]ou are) ([A-Z][A-Za-z0-9]*(?:[ -][A-Z][A-Za-z0-9]*){0,2})\b"
)
#: Tools that only one framework's own machinery offers.
_TOOLS = {"final_answer": "smolagents"}

_LONGEST = 100


def named(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return how a program calls itself in the headers, or "unknown"."""
    fields = {name.lower(): value.decode("latin-1").strip() for name, value in headers}
    agent = fields.get(b"user-agent", "")
    for name in _NAMING:
        if fields.get(name):
            product = _PRODUCT.match(agent)
            version = (
                f"/{product[2]}" if product is not None and product[1] == fields[name] and product[2] else ""
            )
            return f"{fields[name]}{version}"[:_LONGEST]
    return agent[:_LONGEST] or "unknown"


def with_shape(name: str, body: Mapping[str, Any]) -> str:
    """Return a client's name; one that says only which library speaks HTTP gets what the request shows of the program behind it."""
    product = _PRODUCT.match(name)
    if name != "unknown" and (product is None or not _LIBRARIES.match(product[1])):
        return name
    shape = _shape(body)
    return f"{shape} ({name})"[:_LONGEST] if shape else name


def recognise(headers: Iterable[tuple[bytes, bytes]], body: Mapping[str, Any]) -> str:
    """Return a client's name for the record, at most 100 characters: "codex_exec/0.50.0", "OpenClaw (OpenAI/JS 7.15.0)"."""
    return with_shape(named(headers), body)


def _shape(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    for message in messages[:3] if isinstance(messages, Sequence) else ():
        if isinstance(message, Mapping) and message.get("role") in ("system", "developer"):
            said = _SELF.search(content_text(message.get("content"))[:400])
            if said is not None:
                return said[1]
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if name in _TOOLS:
            return _TOOLS[name]
    return ""
