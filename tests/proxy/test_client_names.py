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
