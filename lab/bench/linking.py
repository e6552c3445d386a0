"""What it costs to link a request when much is recorded: `python -m lab.bench.linking [--messages 0 10000 100000 1000000]`.

A record is filled with so many stored messages (conversations of 50 turns, two messages a turn, straight into the tables), and then
conversations are taken through the recorder's code: openings, turns that continue, turns that continue after a restart, and histories
whose beginning was dropped. It reports CPU time a request, linking and writing together, and how long reading back takes at the start: medians
over rounds of new conversations with the record as it is; the first of all is left out, in which the process warms up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cli.recorded_traffic import draft_of, parse_line
from migrations import upgrade
from recorder.turn_recorder import TurnRecorder
from store.hashing import digest
from store.record import Record
from store.values import Remembered

_TURNS = 50  # of one stored conversation


def fill(path: Path, messages: int) -> None:
    """Write conversations with ``messages`` messages in all straight into the tables of a migrated record."""
    connection = sqlite3.connect(path)
    # What has a default is left to it; of the other columns, those that may be NULL are NULL.
    columns = [row for row in connection.execute("PRAGMA table_info(turns)") if row[4] is None]
    names = [str(row[1]) for row in columns]
    zero = {"FLOAT": 0.0, "INTEGER": 0, "BOOLEAN": 0}
    empty = {row[1]: zero.get(str(row[2]), "") if row[3] else None for row in columns}

    def turn(candidates: dict[str, Any]) -> list[Any]:
        return [candidates.get(name, empty[name]) for name in names]

    with connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("INSERT OR IGNORE INTO messages VALUES ('request', '{}')")
        for start in range(0, messages // (2 * _TURNS), 500):
            bodies, nodes, turns, states = [], [], [], []
            for number in range(start, min(start + 500, messages // (2 * _TURNS))):
                parent = ""
                for depth in range(2 * _TURNS):
                    name = digest("message", str(number), str(depth))
                    node = digest(parent, name)
                    role = "assistant" if depth % 2 else "user"
                    bodies.append(
                        (
                            name,
                            json.dumps({"role": role, "content": f"{role} {number} {depth} " + "word " * 20}),
                        )
                    )
                    nodes.append((node, parent, name, depth))
                    if depth % 2 == 0:
                        turn_id = f"turn_{number:06d}_{depth:03d}"
                        candidates = {
                            "turn_id": turn_id, "session_id": f"session_{number}", "turn_index": depth // 2, "kind": "main",
                            "parent_turn_id": f"turn_{number:06d}_{depth - 2:03d}" if depth else None, "relation": "next",
                            "key_name": "anonymous", "created_at": float(number), "history_node": node, "request": "request",
                            "completion": f"assistant {number} {depth + 1} " + "word " * 20, "tool_calls": "[]",
                            "completion_token_ids": "[]", "sampling_logprobs": "[]", "prompt_token_ids": "[]",
                            "request_key": digest("q", turn_id), "reply_key": digest("r", turn_id),
                            "completion_key": digest("c", turn_id),
                        }  # fmt: skip
                        turns.append(turn(candidates))
                        states.append((turn_id, "bench", "answered", float(number)))
                    parent = node
            connection.executemany("INSERT INTO messages VALUES (?, ?)", bodies)
            connection.executemany("INSERT INTO nodes VALUES (?, ?, ?, ?)", nodes)
            runs = ", ".join("?" * len(names))
            connection.executemany(f"INSERT INTO turns ({', '.join(names)}) VALUES ({runs})", turns)
            connection.executemany(
                "INSERT INTO turn_states (turn_id, policy, stage, stage_since) VALUES (?, ?, ?, ?)", states
            )
    connection.execute("ANALYZE")
    connection.close()


@contextlib.contextmanager
def filled(messages: int) -> Iterator[str]:
    """Yield the URL of a record that holds so many messages."""
    with tempfile.TemporaryDirectory(prefix="patina-bench-") as folder:
        path = Path(folder) / "patina.db"
        url = f"sqlite+aiosqlite:///{path}"
        upgrade(url)
        fill(path, messages)
        yield url


class CaptureSource:
    """Requests of conversations that go on, as a client sends them."""

    def __init__(self) -> None:
        self.seq = 0

    def captured(self, history: list[dict[str, Any]], answer: str) -> Any:
        self.seq += 1
        line = {
            "seq": self.seq, "time": 2e9 + self.seq, "body": {"model": "m", "messages": history},
            "response": {"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}]},
        }  # fmt: skip
        return draft_of(parse_line(json.dumps(line).encode(), "bench", self.seq))


class _Forgetful(Record):
    """A record of which nothing is read back: these turns are from before what a proxy remembers."""

    async def recollect(self, limit: int) -> list[Remembered]:
        return []


async def measure(url: str, source: CaptureSource, conversations: int = 60) -> dict[str, float]:
    """Return milliseconds of CPU a request, by what the request is, and of reading back at the start."""
    found: dict[str, float] = {}
    towns = range(source.seq, source.seq + conversations)
    histories = [
        [{"role": "user", "content": f"Opening {i}: what is the weather in town number {i} today?"}]
        for i in towns
    ]
    async with _running(url) as recorder:
        found["start"] = await _timed([lambda: recorder.get_record()])
        for name in ("opening", "next"):
            found[name] = await _round(recorder, source, histories, name)
        for _ in range(8):
            await _round(recorder, source, histories, "next")
    async with _running(url, _Forgetful) as recorder:
        found["next, after a restart"] = await _round(recorder, source, histories, "next")
        for history in histories:
            del history[:-6]
        found["beginning dropped"] = await _round(recorder, source, histories, "next")
    return found


async def _round(
    recorder: TurnRecorder, source: CaptureSource, histories: list[list[dict[str, Any]]], name: str
) -> float:
    captures = []
    for i, history in enumerate(histories):
        if name != "opening":
            history.append(
                {
                    "role": "user",
                    "content": f"And what else should I know about it, question {len(history)} of {i}?",
                }
            )
        answer = f"Answer {len(history)} of conversation {i}: bring an umbrella, a map and some patience with the trams."
        captures.append(source.captured(list(history), answer))
        history.append({"role": "assistant", "content": answer})

    async def one(captured: Any) -> None:
        await recorder.write([captured])

    return await _timed([lambda captured=captured: one(captured) for captured in captures])


async def _timed(works: list[Any]) -> float:
    start = time.process_time()
    for work in works:
        await work()
    return 1000 * (time.process_time() - start) / len(works)


@contextlib.asynccontextmanager
async def _running(url: str, kind: type[Record] = Record) -> Any:
    record = await kind.open(url)

    async def open_record() -> Record:
        return record

    try:
        yield TurnRecorder(open_record)
    finally:
        await record.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, nargs="+", default=[0, 10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    source = CaptureSource()
    with filled(0) as url:
        asyncio.run(measure(url, source))
    with contextlib.ExitStack() as records:
        urls = {messages: records.enter_context(filled(messages)) for messages in arguments.messages}
        results: dict[int, list[dict[str, float]]] = {messages: [] for messages in urls}
        for _ in range(arguments.rounds):
            for messages, url in urls.items():
                results[messages].append(asyncio.run(measure(url, source)))
    rows = {
        messages: {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        for messages, rounds in results.items()
    }
    table = Table("messages stored", *next(iter(rows.values())), box=None)
    for messages, found in rows.items():
        table.add_row(f"{messages:,}", *(f"{value:.2f} ms" for value in found.values()))
    Console(soft_wrap=True, highlight=False).print(table)


if __name__ == "__main__":
    main()
