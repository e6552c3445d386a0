"""Who sent a request, for people who read the record."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.client_names import identify_client


def body(system: str = "", **more: Any) -> dict[str, Any]:
    return {
        "messages": [
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": "hi"},
        ],
        **more,
    }


@pytest.mark.parametrize(
    ("headers", "request_body", "name"),
    [
        ({b"user-agent": b"QwenCode/0.24.4 (linux; x64)"}, body("You are Somebody"), "QwenCode/0.24.4 (linux; x64)"),
        ({b"user-agent": b"codex_exec/0.50.0 (Debian)", b"originator": b"codex_exec"}, body(), "codex_exec/0.50.0"),
        ({b"User-Agent": b"OpenAI/JS 7.15.0"}, body("You are a helper running inside OpenClaw."), "OpenClaw (OpenAI/JS 7.15.0)"),
        ({b"user-agent": b"OpenAI/Python 3.52.0"}, body("You are a helpful assistant."), "OpenAI/Python 3.52.0"),
        ({b"user-agent": b"OpenAI/Python 3.52.0"}, body(tools=[{"function": {"name": "final_answer"}}]), "smolagents (OpenAI/Python 3.52.0)"),
        ({b"user-agent": b"node", b"x-title": b"Some Desk"}, body(), "Some Desk"),
        ({b"user-agent": b"Python/3.11 aiohttp/3.14.5"}, {"messages": [{"role": "user", "content": "### Task:\nSuggest 3-5 tags"}]}, "Open WebUI (Python/3.11 aiohttp/3.14.5)"),
        ({b"user-agent": b"Python/3.11 aiohttp/3.14.5"}, body(tools=[{"function": {"name": "ask_user"}}, {"function": {"name": "query_knowledge_bases"}}]), "Open WebUI (Python/3.11 aiohttp/3.14.5)"),
        ({b"user-agent": b"OpenAI/Python 3.52.0"}, {"messages": [{"role": "user", "content": "### Task:\nSuggest 3-5 tags"}]}, "OpenAI/Python 3.52.0"),
        ({b"user-agent": b"OpenAI/Python 2.54.0"}, body("You are Stock Clerk. You count.\nYour personal goal is: Know the stock"), "crewAI (OpenAI/Python 2.54.0)"),
        ({b"user-agent": b"OpenAI/Python 2.54.0"}, body("You are Albert Einstein, and you explain physics."), "OpenAI/Python 2.54.0"),
        ({b"user-agent": b"ls/JS 5.23.2"}, body("You are an agent in the Continue CLI. Given the prompt"), "Continue CLI (ls/JS 5.23.2)"),
        ({b"user-agent": b"OpenAI/JS 6.26.0"}, body("You are an expert coding assistant operating inside pi, a coding agent harness."), "pi (OpenAI/JS 6.26.0)"),
        ({b"user-agent": b"AsyncOpenAI/Python 3.54.0"}, body("## Workspace\n- Agent profile: SOUL.md and USER.md\n"), "nanobot (AsyncOpenAI/Python 3.54.0)"),
        ({b"user-agent": b"python-httpx/0.28.1"}, body(tools=[{"function": {"name": "unified_harness_scratchpad"}}]), "Mistral Vibe (python-httpx/0.28.1)"),
        ({b"user-agent": b"OpenAI/Python 2.20.0"}, body("Act as an expert software developer.\nTake requests"), "aider (OpenAI/Python 2.20.0)"),
        ({b"user-agent": b"lm15/stdlib"}, body("Your input fields are:\n1. `question` (str):"), "DSPy (lm15/stdlib)"),
        ({b"user-agent": b"opencode/1.18.33 ai-sdk/provider-utils/4.0.23"}, body("You are Somebody"), "opencode/1.18.33 ai-sdk/provider-utils/4.0.23"),
        ({b"user-agent": b"ai/6.0.326 runtime/node.js/v20"}, body(x=1), "ai/6.0.326 runtime/node.js/v20"),
        ({}, body("You are ShellGPT\nYou run in a terminal."), "ShellGPT (unknown)"),
        ({}, {"messages": None, "tools": 7}, "unknown"),
    ],
)  # fmt: skip
def test_a_client_is_called_as_it_calls_itself(
    headers: dict[bytes, bytes], request_body: dict[str, Any], name: str
) -> None:
    assert identify_client(headers.items(), request_body) == name


def test_a_name_is_never_longer_than_its_column_takes() -> None:
    assert len(identify_client([(b"user-agent", b"x" * 500)], {})) == 100
    assert len(identify_client([(b"user-agent", b"OpenAI/" + b"1" * 500)], body("You are Ann"))) == 100
