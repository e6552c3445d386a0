"""A home with a record of made-up conversations."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

from cli.recorded_traffic import draft_of, parse_line
from migrations import upgrade
from recorder.turn_recorder import TurnRecorder
from store.record import Record
from store.settings import read_settings


def fill_home(home: Path, turns: int) -> None:
    """Record so many turns in conversations of two."""
    url = read_settings({"home": home}).database_url
    upgrade(url)

    async def fill() -> None:
        record = await Record.open(url)

        async def open_record() -> Record:
            return record

        recorder = TurnRecorder(open_record)
        captures = []
        for number in range(turns):
            question = {"role": "user", "content": f"question {number // 2}: " + f"word{number // 2} " * 40}
            answer = {"role": "assistant", "content": f"answer {number // 2}: " + "text " * 40}
            messages = (
                [question] if number % 2 == 0 else [question, answer, {"role": "user", "content": "thanks"}]
            )
            line = {
                "seq": number + 1, "time": 1e9 + number, "body": {"model": "m", "messages": messages},
                "response": {"choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]},
            }  # fmt: skip
            captured = draft_of(parse_line(json.dumps(line).encode(), "test", number + 1))
            assert captured is not None
            captures.append(captured)
        for start in range(0, turns, 100):
            await recorder.write(captures[start : start + 100])
        await record.close()

    asyncio.run(fill())


def dump_record(path: Path) -> dict[str, list[str]]:
    tables = ("messages", "nodes", "turns", "turn_states", "next_states")
    with closing(sqlite3.connect(path)) as database:
        return {name: sorted(map(str, database.execute(f"SELECT * FROM {name}"))) for name in tables}
