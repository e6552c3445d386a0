"""Preference data: what was chosen over what, and what the person wrote."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli.preferences import preferences
from store.record import Record
from tests.cli.test_forget import in_record, run
from tests.making import make_answer, make_turn, make_verdict


def row(turn_id: str, verdict: int | None, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "turn_id": turn_id, "parent_turn_id": parent, "kind": "main", "drop_reason": "no_tokens", "policy": "gpt-x",
        "adapter_version": 0, "messages": [{"role": "user", "content": f"ask {turn_id}"}], "completion": f"say {turn_id}",
        "tool_calls": [], "verdict": verdict, "hint": "shorter" if verdict == -1 else None, "next_text": "Shorter!",
        "verdict_source": "rule", **more,
    }  # fmt: skip


async def lines(*rows: dict[str, Any]) -> list[tuple[str, str | None, str | None]]:
    async def each() -> AsyncIterator[dict[str, Any]]:
        for one in rows:
            yield one

    def text(reply: list[dict[str, Any]] | None) -> str | None:
        return None if reply is None else str(reply[0]["content"])

    return [(one["turn_id"], text(one["chosen"]), text(one["rejected"])) async for one in preferences(each())]


async def test_the_reply_after_a_complaint_is_chosen_over_the_one_complained_about() -> None:
    assert await lines(row("a", -1), row("b", None, "a")) == [("a", "say b", "say a")]
    assert await lines(row("a", -1), row("b", 1, "a")) == [("a", "say b", "say a"), ("b", "say b", None)]


async def test_a_reply_that_was_complained_about_is_chosen_over_nothing() -> None:
    assert await lines(row("a", -1), row("b", -1, "a"), row("c", 0, "b")) == [
        ("b", "say c", "say b"),
        ("a", None, "say a"),
    ]


async def test_turns_without_an_opinion_side_turns_and_those_opted_out_are_left_out() -> None:
    assert await lines(row("a", 0), row("b", None)) == []
    assert await lines(row("a", 1, kind="side"), row("b", -1, drop_reason="opted_out")) == []
    assert await lines(row("a", -1), row("t", None, "a", kind="side")) == [("a", None, "say a")]
    assert await lines(row("a", -1, completion="")) == []


def test_the_command_writes_one_line_for_each_judged_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from migrations import upgrade
    from store.settings import read_settings

    home = tmp_path / "home"
    home.mkdir()
    upgrade(read_settings({"home": home}).database_url)

    async def fill(record: Record) -> None:
        state = make_answer("a", "b", "Shorter, please!")
        await record.write_turns(
            [
                make_turn("a", text="long"),
                make_turn(
                    "b", text="ok", parent_turn_id="a", turn_index=1, created_at=1_010.0, next_state=state
                ),
            ]
        )
        await record.add_verdict(make_verdict("a"))

    in_record(home, fill)
    output = tmp_path / "preferences.jsonl"
    assert run(home, "trajectories", "--format", "preferences", "--output", str(output)) == 0
    assert "1 line written" in capsys.readouterr().err
    (line,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert line == {
        "turn_id": "a", "policy": "patina-tiny", "adapter_version": 0, "prompt": [{"role": "user", "content": "hi"}],
        "chosen": [{"role": "assistant", "content": "ok"}], "chosen_turn_id": "b",
        "rejected": [{"role": "assistant", "content": "long"}], "verdict": -1, "hint": "shorter please",
        "reaction": "Shorter, please!", "source": "rule:complaint",
    }  # fmt: skip
