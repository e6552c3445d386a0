"""Does anything get lost? `python -m bench.kill [--kills 200] [--disconnects 1000]`.

Kills: the proxy, the recorder or both are killed with -9 at a random moment while 16 streams run, and started again; in the end every turn
whose end a client saw (its ``data: [DONE]``, or the last byte of a reply that is not streamed) must be in the record, once, no entry of the
journal may have been rejected (a turn that is recorded twice would be), and `verify` must find nothing wrong.

Disconnects: clients leave in the middle of their streams; each turn must be recorded as unfinished, and the backend must be left
without a connection that is not read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from bench.backend import MODEL
from bench.client import Client, MeasuredReply
from bench.proxy import KEY, Server, backend, patina, recording, started, wait_for
from recorder.worker import REJECTED
from store.journal import segments
from store.record import Record

STREAMS = 16
#: The proxy keeps an idle connection to its backend so long; one that is open after that is leaked.
POOL_S = 5.0


@dataclass
class KillObservations:
    """What the clients saw."""

    ended: list[str] = field(default_factory=list)  #: turns whose end arrived
    left: list[str] = field(default_factory=list)  #: turns whose client left
    cut: int = 0  #: replies that the proxy's death cut short


def request(number: int, *, stream: bool = True, paced: bool = False) -> dict[str, object]:
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"question {number} of {random.random()}"}],
    }
    if stream:
        body["stream"] = True
    if paced:
        body["paced"] = True
    return body


async def ask(port: int, number: int, seen: KillObservations, *, leave_after_s: float | None = None) -> None:
    """Send one request on a connection of its own, and count how its reply ended."""
    leaves = leave_after_s is not None
    body = request(number, stream=number % 4 != 0 or leaves, paced=number % 3 == 0 or leaves)
    reply = MeasuredReply()
    try:
        async with asyncio.timeout(leave_after_s):
            await Client(port, KEY, keeps=False).post("/v1/chat/completions", body, reply)
    except TimeoutError:
        if reply.turn_id:
            seen.left.append(reply.turn_id)
    except ConnectionRefusedError:
        await asyncio.sleep(0.02)  # the proxy is restarting
    except OSError:
        seen.cut += 1
    else:
        if reply.is_complete:
            seen.ended.append(reply.turn_id)
        else:
            seen.cut += 1


async def kills(server: Server, recorder: Server, count: int) -> KillObservations:
    """Kill proxy, recorder or both ``count`` times under load, and start them again; returns what the clients saw."""
    seen = KillObservations()
    running = True
    numbers = iter(range(10**9))

    async def client() -> None:
        while running:
            await ask(server.port, next(numbers), seen)

    clients = [asyncio.create_task(client()) for _ in range(STREAMS)]
    try:
        for _ in range(count):
            await asyncio.sleep(random.uniform(0.05, 0.8))
            victims = random.choice(((server,), (recorder,), (server, recorder)))
            for victim in victims:
                victim.process.kill()
                victim.process.wait()
                victim.start()
            await asyncio.to_thread(wait_for, server.port, server, "/healthz")
        await asyncio.sleep(0.3)
    finally:
        running = False
        await asyncio.wait(clients, timeout=30)
    return seen


async def disconnects(server: Server, count: int) -> KillObservations:
    """Let ``count`` clients leave in the middle of their streams, 16 at a time."""
    seen = KillObservations()
    numbers = iter(range(10**9))

    async def client() -> None:
        while len(seen.left) < count:
            await ask(server.port, next(numbers), seen, leave_after_s=random.uniform(0.02, 0.25))

    await asyncio.gather(*(client() for _ in range(STREAMS)))
    return seen


def recorded(home: Path) -> dict[str, str | None]:
    """Return the drop reason of every recorded turn."""
    with closing(sqlite3.connect(home / "patina.db")) as database:
        return dict(database.execute("SELECT turn_id, drop_reason FROM turn_states"))


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


def until(holds: Callable[[], bool], timeout_s: float) -> None:
    """Wait for something to come true, for a bounded time."""
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)


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
        server = stack.enter_context(started("patina", make, folder, "/healthz"))
        recorder = stack.enter_context(recording(home, folder))
        seen = asyncio.run(kills(server, recorder, kill_count))
        missing = until_settled(home, set(seen.ended))
        gone = asyncio.run(disconnects(server, disconnect_count)) if disconnect_count else KillObservations()
        unrecorded = until_settled(home, set(gone.left))
        journal = home / "journal"
        until(lambda: not segments(journal), 30.0)
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
            "segments_left": len(segments(journal)),
            "rejected": len(list((journal / REJECTED).glob("*"))),
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
