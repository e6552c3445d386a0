"""Does anything get lost? `python -m bench.kill [--kills 200] [--disconnects 1000]`.

Kills: the proxy is killed with -9 at a random moment while 16 streams run, and started again; in the end every turn whose end a client saw
(its ``data: [DONE]``, or the last byte of a reply that is not streamed) must be in the record, and `verify` must find nothing wrong.

Disconnects: clients leave in the middle of their streams; each turn must be recorded as unfinished, and the backend must be left
without a connection that nobody reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from rich.console import Console

from bench.backend import MODEL
from bench.proxy import KEY, Server, backend, patina, started, wait_for
from store.record import Record

STREAMS = 16
#: The proxy keeps an idle connection to its backend so long; one that is left after that carries what nobody reads.
POOL_S = 5.0


@dataclass
class Seen:
    """What the clients saw."""

    ended: list[str] = field(default_factory=list)  #: turns whose end arrived
    left: list[str] = field(default_factory=list)  #: turns that their client walked away from
    cut: int = 0  #: replies that the proxy's death cut short


def request(number: int, *, stream: bool = True, paced: bool = False) -> bytes:
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"question {number} of {random.random()}"}],
    }
    if stream:
        body["stream"] = True
    if paced:
        body["paced"] = True
    data = orjson.dumps(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data


async def ask(port: int, number: int, seen: Seen, *, leave_after_s: float | None = None) -> None:
    """Send one request and note what became of it."""
    stream = number % 4 != 0 or leave_after_s is not None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        await asyncio.sleep(0.02)  # it is being started again
        return
    got = b""
    turn = ""
    try:
        writer.write(request(number, stream=stream, paced=number % 3 == 0 or leave_after_s is not None))
        leaving = None if leave_after_s is None else time.monotonic() + leave_after_s
        while True:
            timeout = None if leaving is None else max(0.0, leaving - time.monotonic())
            try:
                data = await asyncio.wait_for(reader.read(65536), timeout)
            except TimeoutError:
                if turn:
                    seen.left.append(turn)
                return
            got += data
            if not turn and (at := got.lower().find(b"x-patina-turn:")) >= 0 and b"\r\n\r\n" in got:
                turn = got[at + 14 :].split(b"\r\n", 1)[0].strip().decode()
            if got.endswith(b"0\r\n\r\n") or (not stream and _is_whole(got)):
                seen.ended.append(turn)
                return
            if not data:
                seen.cut += 1
                return
    except OSError:
        seen.cut += 1
    finally:
        writer.close()


def _is_whole(got: bytes) -> bool:
    head, _, body = got.partition(b"\r\n\r\n")
    at = head.lower().find(b"content-length:")
    return at >= 0 and len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])


async def kills(server: Server, command: list[str], count: int, folder: Path) -> tuple[Server, Seen]:
    """Kill the server ``count`` times under load; returns the one that runs now and what the clients saw."""
    seen = Seen()
    running = True
    numbers = iter(range(10**9))

    async def client() -> None:
        while running:
            await ask(server.port, next(numbers), seen)

    clients = [asyncio.create_task(client()) for _ in range(STREAMS)]
    try:
        for _ in range(count):
            await asyncio.sleep(random.uniform(0.05, 0.8))
            server.process.kill()
            server.process.wait()
            server = Server(server.name, command, server.port, folder)
            await asyncio.to_thread(wait_for, server.port, server, "/healthz")
        await asyncio.sleep(0.3)
    finally:
        running = False
        await asyncio.wait(clients, timeout=30)
    return server, seen


async def disconnects(server: Server, count: int) -> Seen:
    """Let ``count`` clients leave in the middle of their streams, 16 at a time."""
    seen = Seen()
    numbers = iter(range(10**9))

    async def client() -> None:
        while len(seen.left) < count:
            await ask(server.port, next(numbers), seen, leave_after_s=random.uniform(0.02, 0.25))

    await asyncio.gather(*(client() for _ in range(STREAMS)))
    return seen


def recorded(home: Path) -> dict[str, str | None]:
    """Return the drop reason of every recorded turn."""
    with closing(sqlite3.connect(home / "patina.db")) as database:
        return dict(database.execute("SELECT turn_id, drop_reason FROM lives"))


def connections(server: Server) -> int:
    """Return how many clients a server is connected to."""
    port = f":{server.port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(port) and line.split()[3] == "01" for line in lines)


async def verified(home: Path) -> list[str]:
    record = await Record.open(f"sqlite+aiosqlite:///{home / 'patina.db'}")
    try:
        return await record.verify()
    finally:
        await record.close()


def until_settled(home: Path, wanted: set[str], timeout_s: float = 30.0) -> set[str]:
    """Return which of the wanted turns are not in the record, in the end."""
    deadline = time.monotonic() + timeout_s
    while (missing := wanted - recorded(home).keys()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return missing


def run(kill_count: int, disconnect_count: int) -> dict[str, object]:
    """Return what was seen and what is missing."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct = stack.enter_context(started("direct", backend, folder))
        home = folder / "home"
        make = patina(home, f"http://127.0.0.1:{direct.port}")
        made: list[list[str]] = []

        def remembered(port: int) -> list[str]:
            made.append(make(port))
            return made[-1]

        first = stack.enter_context(started("patina", remembered, folder, "/healthz"))
        server, seen = asyncio.run(kills(first, made[0], kill_count, folder))
        stack.callback(server.stop)
        missing = until_settled(home, set(seen.ended))
        gone = asyncio.run(disconnects(server, disconnect_count)) if disconnect_count else Seen()
        unrecorded = until_settled(home, set(gone.left))
        lives = recorded(home)
        time.sleep(POOL_S + 1.0)
        leaked = max(0, connections(direct) - 2)  # the alias and the heartbeat keep one each
        return {
            "kills": kill_count,
            "ended": len(seen.ended),
            "cut": seen.cut,
            "missing": len(missing),
            "disconnects": len(gone.left),
            "disconnects_unrecorded": len(unrecorded),
            "disconnects_not_unfinished": sum(lives.get(turn) != "unfinished" for turn in gone.left),
            "upstream_connections_leaked": leaked,
            "turns": len(lives),
            "verify": asyncio.run(verified(home)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kill")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--disconnects", type=int, default=1000)
    arguments = parser.parse_args()
    Console().print_json(json.dumps(run(arguments.kills, arguments.disconnects)))


if __name__ == "__main__":
    main()
