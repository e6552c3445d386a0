"""The first lines of a start: the snippet is a program, and the key is shown once."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from cli.start_text import start_text
from store.settings import read_settings


def lines_of(tmp_path: Path, key: str, *, is_new: bool, **given: Any) -> list[str]:
    settings = read_settings(
        {"home": tmp_path, "served_model_name": "some-model", "proxy_port": 30_123, **given}
    )
    return start_text(settings, key, is_new=is_new, backend="backend embedded (there is no GPU)").splitlines()


def snippet(lines: list[str]) -> str:
    return "\n".join(line.strip() for line in lines if line.startswith("    "))


@pytest.mark.parametrize("is_new", [True, False])
def test_the_snippet_is_three_lines_for_the_served_model_with_address_and_key(
    tmp_path: Path, is_new: bool
) -> None:
    code = snippet(lines_of(tmp_path, "patina-k", is_new=is_new))
    first, client, ask = ast.parse(code).body
    assert isinstance(first, ast.ImportFrom)
    assert "http://127.0.0.1:30123/v1" in ast.unparse(client)
    assert "'some-model'" in ast.unparse(ask)
    assert ("patina-k" in code) == is_new
    assert (f"open('{tmp_path / 'api_key'}')" in ast.unparse(client)) != is_new


def test_a_person_reads_what_starts_before_the_address_and_how_to_stop_after_what_to_ask(
    tmp_path: Path,
) -> None:
    text = "\n".join(lines_of(tmp_path, "k", is_new=True))
    marks = [
        text.index(mark)
        for mark in (
            "starts some-model",
            "address",
            "from openai",
            "Shorter, please.",
            "Web page",
            "stop with Ctrl-C",
        )
    ]
    assert marks == sorted(marks)
    assert len(text.splitlines()) <= 14


def test_an_endpoint_that_is_only_recorded_promises_no_learning(tmp_path: Path) -> None:
    text = "\n".join(lines_of(tmp_path, "", is_new=False, upstream="https://api.example/v1"))
    assert "learns" not in text
    assert "none is asked for" in text
    assert text.endswith("Waiting for https://api.example/v1 …")
