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
    r"mozilla|asyncopenai|openai|ls|dart|java|deno|bun|got|libcurl|cpp-httplib|ai-sdk|ai|langchain-\w+|lm15|litellm)\Z",
    re.IGNORECASE,
)
#: Parts of a product: "QwenCode/0.24.4 (linux; x64)" is QwenCode 0.24.4.
_PRODUCT = re.compile(r"\A([A-Za-z][\w.@-]*)(?:/(?:[A-Za-z]+ )?v?([\d][\w.+-]*))?")
#: How a system prompt names its program: "… running inside OpenClaw", "an agent in the Continue CLI". "You are …" is no such
#: place: it names a role as often as a program.
_SELF = ("running inside ", "operating inside ", "agent in the ")
_NAME = re.compile(r"[A-Z][A-Za-z0-9]*(?:[ -][A-Z][A-Za-z0-9]*){0,2}\b")
#: What only one program writes into the head of a system prompt or of a prompt template.
_PHRASES: tuple[tuple[str, str], ...] = (
    ("\nYour personal goal is: ", "crewAI"),
    ("You are ShellGPT\n", "ShellGPT"),
    ("You are Shell Command Generator\n", "ShellGPT"),
    ("Codex CLI", "Codex"),
    ("You are Qwen Code", "Qwen Code"),
    ("You are gptme", "gptme"),
    ("You are opencode", "opencode"),
    ("You are Cline", "Cline"),
    ("You are Roo,", "Roo Code"),
    ("You are Crush", "Crush"),
    ("AI agent called goose", "goose"),
    ("You are Letta", "Letta"),
    ("You are Open Interpreter", "Open Interpreter"),
    ("voice assistant for Home Assistant", "Home Assistant"),
    ("operating inside pi, a coding agent", "pi"),
    ("- Agent profile: SOUL.md and USER.md", "nanobot"),
    ("Act as an expert software developer.", "aider"),
    ("*SEARCH/REPLACE block*", "aider"),
    ("You are an expert software engineer that generates concise, one-line Git commit messages", "aider"),
    ("who can solve any task using tool calls", "smolagents"),
    ("who can solve any task using code blobs", "smolagents"),
    ("You are a world expert at analyzing a situation, and plan accordingly", "smolagents"),
    ("Reply with TERMINATE when the task has been completed", "AutoGen"),
    ("Your input fields are:\n1. `", "DSPy"),
    ("As a genius expert, your task is to understand the content and provide", "instructor"),
    ("You are designed to help with a variety of tasks, from answering questions", "LlamaIndex"),
    ("Given a conversation (between Human and Assistant) and a follow up message from Human", "LlamaIndex"),
    ("You are a Memory Extractor", "Mem0"),
    ("You are a Personal Information Organizer", "Mem0"),
    ("You are a Memory Manager that is responsible for managing information", "Agno"),
)
#: Tools that only one program offers.
_TOOLS = {
    "final_answer": "smolagents",
    "query_knowledge_bases": "Open WebUI",
    "unified_harness_scratchpad": "Mistral Vibe",
}
#: What the templates of Open WebUI begin with. Its own name is in none of its requests, but it is the program that sends these
#: with aiohttp.
_OPEN_WEBUI = (
    "### Task:",
    "[CONVERSATION SUMMARY]",
    "You have been provided with a set of responses from various models",
    "Your task is to reflect the speaker's likely facial expression",
)

#: Characters of a prompt that are searched, and of a name.
_HEAD, _MAX_LENGTH = 2_000, 100


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
    shape = _client_from_body(body, is_aiohttp="aiohttp" in name)
    return f"{shape} ({name})"[:_MAX_LENGTH] if shape else name


def identify_client(headers: Iterable[tuple[bytes, bytes]], body: Mapping[str, Any]) -> str:
    """Return a client's name for the record, at most 100 characters: "codex_exec/0.50.0", "OpenClaw (OpenAI/JS 7.15.0)"."""
    return add_client_hint(client_from_headers(headers), body)


def _own_name(prompt: str) -> str:
    for introduction in _SELF:
        match = _NAME.match(prompt.partition(introduction)[2])
        if match is not None:
            return match[0]
    return next((name for phrase, name in _PHRASES if phrase in prompt), "")


def _client_from_body(body: Mapping[str, Any], *, is_aiohttp: bool) -> str:
    messages = body.get("messages")
    for message in messages[:3] if isinstance(messages, Sequence) else ():
        if not isinstance(message, Mapping):
            continue
        head = content_text(message.get("content"))[:_HEAD]
        if message.get("role") in ("system", "developer") and (own := _own_name(head)):
            return own
        if is_aiohttp and head.lstrip().startswith(_OPEN_WEBUI):
            return "Open WebUI"
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        found = function.get("name") if isinstance(function, Mapping) else None
        if found in _TOOLS:
            return _TOOLS[found]
    return ""
