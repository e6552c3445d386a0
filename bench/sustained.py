"""Does the recorder keep up? `python -m bench.sustained [--rate 300] [--minutes 10]`.

Conversations of five turns come at a fixed rate, paced by the clock and not by the replies. Shown every ten seconds: requests, how far the
recorder is behind, bytes of the journal, memory of gateway and recorder. At the end: how long the recorder needs to finish, and whether each
turn is in the record once.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import uvloop

from bench.backend import MODEL
from bench.client import Client
from bench.kill import until
from bench.proxy import KEY, Server, backend, patina, started
from bench.shapes import SHAPES
from proxy.__main__ import allow_connections
from store.catch_up import read_recorder_state
from store.journal import journal_bytes
from store.settings import read_settings

_REPORT_S = 10.0
#: A segment is closed two seconds after its last entry, and then removed.
_EMPTY_WITHIN_S = 30.0


async def drive(server: Server, home: Path, rate: float, seconds: float) -> tuple[int, float, list[float]]:
    """Send requests at a rate; returns (requests, seconds the recorder needed at the end, its lag in seconds every second)."""
    client = Client(server.port, KEY)
    journal = read_settings({"home": home}).journal_folder
    lags: list[float] = []
    running: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        reply = await client.post("/v1/chat/completions", {**SHAPES["varied"](number), "model": MODEL})
        if not reply.is_ok:
            raise RuntimeError(f"request {number}: {bytes(reply.received[:200])!r}")

    async def watch() -> None:
        while True:
            await asyncio.sleep(1.0)
            state = read_recorder_state(journal) or {}
            lags.append(float(state.get("lag_s", 0.0)))
            if len(lags) % round(_REPORT_S) == 0:
                memory = f"{server.rss_mb():.0f} + {server.recorder_rss_mb():.0f} MB"
                lag = f"{state.get('lag_turns')} turns, {lags[-1]:.2f} s behind"
                print(
                    f"{len(lags)} s: {sent} requests, {lag}, {journal_bytes(journal)} bytes, {memory}",
                    flush=True,
                )

    sent, began = 0, time.monotonic()
    watcher = asyncio.create_task(watch())
    while (elapsed := time.monotonic() - began) < seconds:
        while sent < elapsed * rate:
            task = asyncio.create_task(one(sent))
            running.add(task)
            task.add_done_callback(running.discard)
            sent += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*running)
    watcher.cancel()
    await client.close()
    ended = time.monotonic()
    await asyncio.to_thread(server.settle)
    return sent, time.monotonic() - ended, lags


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sustained", description=__doc__)
    parser.add_argument("--rate", type=float, default=300.0, help="turns a second (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    allow_connections()  # also of the servers, which inherit it: where they fall behind, each waiting request holds a file
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        direct = stack.enter_context(started("direct", backend, folder))
        make = patina(folder / "home", f"http://127.0.0.1:{direct.port}")
        server = stack.enter_context(started("patina", make, folder, "/healthz", folder / "home"))
        sent, rest_s, lags = uvloop.run(
            drive(server, folder / "home", arguments.rate, 60 * arguments.minutes)
        )
        with closing(sqlite3.connect(folder / "home" / "patina.db")) as database:
            recorded = database.execute("SELECT count(*) FROM turns").fetchone()[0]
        journal = read_settings({"home": folder / "home"}).journal_folder
        until(lambda: journal_bytes(journal) == 0, _EMPTY_WITHIN_S)
        left = journal_bytes(journal)
    lags.sort()
    print(
        f"{sent} requests, {recorded} recorded; lag median {lags[len(lags) // 2]:.3f} s, most {lags[-1]:.3f} s; "
        f"all recorded {rest_s:.2f} s after the last reply; {left} bytes left in the journal"
    )
    return 0 if sent == recorded and not left else 1


if __name__ == "__main__":
    raise SystemExit(main())
