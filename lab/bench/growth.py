"""Does a large record slow the proxy down? `python -m lab.bench.growth [--large 1000000]`.

Two proxies, each with its recorder, in front of the same scripted backend, one on a record of 1,000 turns, one on a large one (both filled
by bulk SQL), take turns. Measured: new conversations; conversations that are resumed after a restart, so that the record alone can say what they
continue; and one session of 200 turns: its first turns against its last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.bench.backend import MODEL, TEXT
from lab.bench.client import Client
from lab.bench.proxy import KEY, Server, backend, load, patina, recording, started, wait_for
from migrations import upgrade
from store.hashing import digest
from store.settings import read_settings

Message = dict[str, str]
#: Columns that it fills; the others have a default or may be NULL.
_COLUMNS = (
    "turn_id", "completion_id", "session_id", "parent_turn_id", "turn_index", "kind", "relation", "link_reason",
    "link_confidence", "policy", "key_name", "adapter_version", "client", "user", "created_at", "finished_at",
    "status_code", "streamed", "preamble_node", "history_node", "request", "completion", "reasoning", "tool_calls",
    "completion_token_ids", "sampling_logprobs", "finish_reason", "prompt_base_turn_id", "prompt_base_length",
    "prompt_token_ids", "temperature", "logprob_mode", "usage", "request_key", "reply_key", "completion_key", "drop_detail",
)  # fmt: skip


def fill(home: Path, count: int) -> None:
    """Put ``count`` turns into the record of ``home``, five a session, as the recorder would have written them."""
    url = read_settings({"home": home}).database_url
    upgrade(url)
    with closing(sqlite3.connect(home / "patina.db")) as database:
        database.execute("PRAGMA synchronous=OFF")
        indexes = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        ).fetchall()
        for name, _ in indexes:
            database.execute(f"DROP INDEX {name}")
        request = digest("{}")
        database.execute("INSERT INTO messages VALUES (?, '{}')", (request,))
        ids = json.dumps(list(range(30)))
        logprobs = json.dumps([-0.6931471805599453] * 30)
        messages: list[tuple[Any, ...]] = []
        nodes: list[tuple[Any, ...]] = []
        turns: list[tuple[Any, ...]] = []
        states: list[tuple[Any, ...]] = []

        def flush() -> None:
            database.executemany("INSERT INTO messages VALUES (?, ?)", messages)
            database.executemany("INSERT INTO nodes VALUES (?, ?, ?, ?)", nodes)
            places = ", ".join("?" * len(_COLUMNS))
            database.executemany(f"INSERT INTO turns ({', '.join(_COLUMNS)}) VALUES ({places})", turns)
            database.executemany(
                "INSERT INTO turn_states (turn_id, policy, stage, stage_since) VALUES (?, ?, ?, ?)", states
            )
            for rows in (messages, nodes, turns, states):
                rows.clear()

        parent, node = None, ""
        for i in range(count):
            index = i % 5
            if index == 0:
                parent, node = None, ""
            body = json.dumps({"role": "user", "content": f"question {i} " + TEXT[:200]})
            message = digest(body)
            new = digest(node, message)
            messages.append((message, body))
            nodes.append((new, node, message, index))
            node, turn_id, at = new, f"turn_{i:014x}{os.urandom(4).hex()}", 1.6e9 + i
            turns.append(
                (
                    turn_id, f"chatcmpl-{i}", f"session_{i // 5}", parent, index, "main", "next" if index else "first", "bulk", 1.0,
                    MODEL, "bulk", 0, "bench", None, at, at, 200, True, "", node, request, TEXT[:200], "", "[]", ids, logprobs, "stop",
                    None, 0, ids, 1.0, "raw_logprobs", None, _name(), _name(), _name(), "",
                )
            )  # fmt: skip
            states.append((turn_id, MODEL, "answered" if index < 4 else "recorded", at))
            parent = turn_id
            if len(turns) >= 20_000:
                flush()
        if turns:
            flush()
        for _, sql in indexes:
            database.execute(sql)
        database.commit()


def _name() -> str:
    return os.urandom(16).hex()


async def ask(client: Client, messages: list[Message]) -> float:
    """Return the seconds that a reply took."""
    began = time.perf_counter()
    reply = await client.post("/v1/chat/completions", {"model": MODEL, "messages": messages})
    took = time.perf_counter() - began
    assert reply.is_complete
    assert reply.is_ok
    return took


async def openings(server: Server, count: int) -> list[list[Message]]:
    """Start ``count`` conversations; returns the next request of each."""
    client = Client(server.port, KEY)
    found = []
    for i in range(count):
        messages: list[Message] = [{"role": "user", "content": f"an opening, {i}, {os.urandom(4).hex()}"}]
        await ask(client, messages)
        answer: Message = {"role": "assistant", "content": TEXT}
        found.append([*messages, answer, {"role": "user", "content": f"and then, {i}"}])
    await client.close()
    return found


async def alternate(
    servers: Sequence[Server], requests: Sequence[Sequence[list[Message]]]
) -> list[list[float]]:
    """Send each server its requests, one to each in turn; returns the seconds of each server's replies."""
    clients = [Client(server.port, KEY) for server in servers]
    times: list[list[float]] = [[] for _ in servers]
    for row in zip(*requests, strict=True):
        for client, messages, found in zip(clients, row, times, strict=True):
            found.append(await ask(client, messages))
    for client in clients:
        await client.close()
    return times


async def session(server: Server, length: int) -> list[float]:
    """Return the seconds of each turn of one session."""
    client = Client(server.port, KEY)
    messages: list[Message] = []
    times = []
    for i in range(length):
        messages.append(
            {"role": "user", "content": f"question {i} of a long conversation, {os.urandom(4).hex()}"}
        )
        times.append(await ask(client, messages))
        messages.append({"role": "assistant", "content": TEXT})
    await client.close()
    return times


def ms(times: list[float]) -> float:
    return round(1e3 * statistics.median(times), 3)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.growth")
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--small", type=int, default=1_000)
    parser.add_argument("--asks", type=int, default=400)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct = stack.enter_context(started("direct", backend, folder))
        url = f"http://127.0.0.1:{direct.port}"
        servers: list[Server] = []
        recorders: list[Server] = []
        for name, count in (("small", arguments.small), ("large", arguments.large)):
            home = folder / name
            home.mkdir()
            began = time.perf_counter()
            fill(home, count)
            found[f"{name}_turns"] = count
            found[f"{name}_mb"] = round((home / "patina.db").stat().st_size / 1e6, 1)
            found[f"{name}_filled_s"] = round(time.perf_counter() - began, 1)
            servers.append(stack.enter_context(started(name, patina(home, url), folder, "/healthz")))
            recorders.append(stack.enter_context(recording(home, folder)))
        for server in servers:
            load(server, "plain", 1, 1.0)
        fresh = [
            [
                [{"role": "user", "content": f"fresh, {i}, {os.urandom(4).hex()}"}]
                for i in range(arguments.asks)
            ]
            for _ in servers
        ]
        small, large = asyncio.run(alternate(servers, fresh))
        found["new_p50_ms"] = {
            "small": ms(small),
            "large": ms(large),
            "ratio": round(ms(large) / ms(small), 2),
        }
        resumed = [asyncio.run(openings(server, arguments.asks)) for server in servers]
        for recorder in recorders:  # only the record has the conversations after that
            recorder.restart()
        for server in servers:
            server.restart()
            wait_for(server.port, server, "/healthz")
            load(server, "plain", 1, 0.3)
        small, large = asyncio.run(alternate(servers, resumed))
        found["resumed_p50_ms"] = {
            "small": ms(small),
            "large": ms(large),
            "ratio": round(ms(large) / ms(small), 2),
        }
        times = asyncio.run(session(servers[1], 200))
        found["session_p50_ms"] = {"turns 5-25": ms(times[5:25]), "turns 180-200": ms(times[180:])}
        found["rss_mb"] = {server.name: round(server.rss_mb()) for server in servers}
    Console().print_json(json.dumps(found))


if __name__ == "__main__":
    main()
