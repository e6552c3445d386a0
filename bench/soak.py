"""Is it the same after half an hour? `python -m bench.soak [--minutes 30] [--rate 50]`.

The real proxy, scorers and trainer (built-in model) behind the scripted backend (`bench.backend`), so that the machine has room for the
rate: conversations of three turns whose second and third messages are complaints or thanks, streamed and not, open loop. Every ten
seconds the memory of each process is noted. Printed: errors, latencies, memory in the first and the last third, the counts of
`status`. The scripted backend's log-probabilities are nobody's, so most turns are found stale by the trainer, which claims,
measures and drops them all the while.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop
from rich.console import Console

from bench.backend import MODEL, TEXT
from bench.proxy import KEY, Server, backend, patina, started

FOLLOW_UPS = (
    "Shorter, please.",
    "That is far too long.",
    "Thanks, that helps!",
    "And in Norwegian?",
    "No emoji.",
)


@dataclass
class Seen:
    """What the clients saw."""

    replies: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)


class Pool:
    """Connections that are kept and used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, messages: list[dict[str, str]], *, stream: bool) -> None:
        """Send a request and read its reply to the end. Raises: OSError, ValueError."""
        data = orjson.dumps({"model": MODEL, "messages": messages, "stream": stream})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(data)}\r\n\r\n"
        reader, writer = (
            self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        )
        try:
            writer.write(head.encode() + data)
            answered = await reader.readuntil(b"\r\n\r\n")
            if not answered.startswith(b"HTTP/1.1 200"):
                raise ValueError(answered.split(b"\r\n", 1)[0].decode())
            fields = answered.lower()
            if b"content-length:" in fields:
                await reader.readexactly(int(fields.split(b"content-length:")[1].split(b"\r\n")[0]))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))


async def conversation(pool: Pool, seen: Seen) -> None:
    messages = [{"role": "user", "content": f"Tell me about number {random.random()}."}]
    for turn in range(3):
        began = time.perf_counter()
        try:
            await pool.ask(messages, stream=random.random() < 0.7)
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as exc:
            seen.errors[f"{type(exc).__name__}: {exc}"[:100]] += 1
            return
        seen.replies += 1
        seen.latencies.append(time.perf_counter() - began)
        messages = [
            *messages,
            {"role": "assistant", "content": TEXT},
            {"role": "user", "content": f"{random.choice(FOLLOW_UPS)} ({turn})"},
        ]


async def drive(
    servers: list[Server], port: int, rate: float, seconds: float
) -> tuple[Seen, dict[str, list[float]]]:
    """Send ``rate`` requests a second; returns what was seen and each process's memory, MB, every ten seconds."""
    seen, pool = Seen(), Pool(port)
    memory: dict[str, list[float]] = {server.name: [] for server in servers}
    began = time.monotonic()
    talks: set[asyncio.Task[None]] = set()
    begun, noted = 0, 0
    while (now := time.monotonic() - began) < seconds:
        while begun < now * rate / 3:
            task = asyncio.create_task(conversation(pool, seen))
            talks.add(task)
            task.add_done_callback(talks.discard)
            begun += 1
        if now >= 10 * noted:
            noted += 1
            for server in servers:
                memory[server.name].append(server.rss_mb())
        await asyncio.sleep(0.01)
    if talks:
        await asyncio.wait(talks, timeout=30)
    return seen, memory


def status(port: int) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/patina/status", headers={"Authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct = stack.enter_context(started("backend", backend, folder))
        home = folder / "home"
        make = patina(home, f"http://127.0.0.1:{direct.port}")
        proxy = stack.enter_context(started("proxy", make, folder, "/healthz"))
        servers = [direct, proxy]
        for name in ("scorers", "trainer"):
            command = [sys.executable, "-m", name, "--settings", str(home / "settings.json")]
            server = Server(name, command, 0, folder)
            stack.callback(server.stop)
            servers.append(server)
        seen, memory = uvloop.run(drive(servers, proxy.port, arguments.rate, 60 * arguments.minutes))
        told = status(proxy.port)
        alive = {server.name: server.process.poll() is None for server in servers}
        third = max(1, len(memory["proxy"]) // 3)
        latencies = sorted(seen.latencies)
        found = {
            "replies": seen.replies,
            "errors": dict(seen.errors),
            "p50_ms": round(1e3 * statistics.median(latencies), 2),
            "p99_ms": round(1e3 * latencies[int(0.99 * len(latencies)) - 1], 2),
            "memory_mb": {
                name: {
                    "first third": round(statistics.median(values[:third])),
                    "second": round(statistics.median(values[third : 2 * third] or values)),
                    "last": round(statistics.median(values[-third:])),
                }
                for name, values in memory.items()
            },
            "alive": alive,
            "store": {
                k: told["store"][k] for k in ("state", "written", "late", "exposed", "lost", "waiting")
            },
            "stages": told.get("stages"),
            "drop_reasons": told.get("drop_reasons"),
        }
    Console().print_json(json.dumps(found))


if __name__ == "__main__":
    main()
