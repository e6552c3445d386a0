"""Do chat replies take longer while pages poll? `python -m bench.polling [--pages 10] [--rounds 12] [--seconds 6] [--turns 20000]`.

A gateway, a recorder and a page process run as `run.py` starts them, in front of a scripted backend, over a filled record. One client sends requests at
a steady rate, every second one for a stream. Windows without and with open pages alternate, so that a busy machine is busy for both: pages are the first page (every 5 s) and
the live page (every 3 s), as their fragments are asked for by htmx.

The result is the ratio of the medians, window by window, with the range that holds 95 % of its bootstrap; and CPU a request, which a busy machine does
not change.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from bench.backend import MODEL
from bench.client import Client, MeasuredReply
from bench.dashboard import add_learning
from bench.growth import fill
from bench.proxy import KEY, Server, backend, patina, started, wait_for
from serving.ports import free_port

#: Requests a second: a tenth of what the gateway takes on a slow machine.
_RATE = 20.0
_PAGES = (("/dashboard", 5.0), ("/dashboard/live", 3.0))
_PHASES = ("calm", "polling")
_WHOLE, _FIRST, _STREAM = "reply", "stream, first chunk", "stream, all"
#: Milliseconds by what was measured.
Times = Mapping[str, Sequence[float]]
_DRAWS = 2_000


def page_process(home: Path, gateway_port: int) -> Callable[[int], list[str]]:
    """Return how to start the page's process for a gateway's home."""

    def command(port: int) -> list[str]:
        url = f"http://127.0.0.1:{gateway_port}"
        settings = str(home / "settings.json")
        return [
            sys.executable,
            "-m",
            "dashboard",
            "--settings",
            settings,
            "--port",
            str(port),
            "--gateway-url",
            url,
        ]

    return command


async def poll(port: int, number: int, until: float) -> int:
    """Ask for a page's changing part, as htmx does, until a time; returns how often."""
    path, every = _PAGES[number % len(_PAGES)]
    headers = {"authorization": f"Bearer {KEY}", "hx-request": "true"}
    asked = 0
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
        await asyncio.sleep(every * random.Random(number).random())
        while time.monotonic() < until:
            reply = await client.get(path)
            if reply.status_code != 200:
                raise SystemExit(f"{path} answered {reply.status_code}")
            asked += 1
            await asyncio.sleep(every)
    return asked


class TimedReply(MeasuredReply):
    """Knows when the first byte of the body came.

    Attributes:
        first_at: by `time.perf_counter`, in seconds; 0.0: none came.
    """

    first_at = 0.0

    def feed(self, data: bytes) -> None:
        super().feed(data)
        if not self.first_at and self.body:
            self.first_at = time.perf_counter()


async def chat(client: Client, until: float) -> Times:
    """Send requests at a steady rate until a time."""
    found: dict[str, list[float]] = {_WHOLE: [], _FIRST: [], _STREAM: []}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    due, streams = time.monotonic(), False
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        began = time.perf_counter()
        reply = TimedReply()
        await client.post("/v1/chat/completions", body | {"stream": streams}, reply)
        found[_STREAM if streams else _WHOLE].append((time.perf_counter() - began) * 1e3)
        if streams:
            found[_FIRST].append((reply.first_at - began) * 1e3)
        if not reply.is_ok:
            raise SystemExit(f"a chat request failed: {reply.head}")
        due, streams = max(due + 1 / _RATE, time.monotonic()), not streams
    return found


async def window(gateway: Server, pages: int, seconds: float) -> tuple[Times, int, float]:
    """Return the replies' milliseconds, how often pages polled, and the gateway's CPU ms a chat request."""
    client = Client(gateway.port, KEY)
    until, cpu = time.monotonic() + seconds, gateway.cpu_s()
    pollers = [asyncio.create_task(poll(gateway.port, number, until)) for number in range(pages)]
    times = await chat(client, until)
    used = (gateway.cpu_s() - cpu) * 1e3 / (len(times[_WHOLE]) + len(times[_STREAM]))
    polls = sum(await asyncio.gather(*pollers))
    return times, polls, used


def ratio_with_range(rounds: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median of (polling / calm) over rounds, and the bounds of 95 % of its bootstrap."""
    ratios = [with_pages / without for without, with_pages in rounds]
    draw = random.Random(0)
    drawn = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_DRAWS))
    return statistics.median(ratios), drawn[int(0.025 * _DRAWS)], drawn[int(0.975 * _DRAWS)]


def measure(gateway: Server, pages: int, rounds: int, seconds: float) -> Table:
    times: dict[str, list[Times]] = {phase: [] for phase in _PHASES}
    cpu: dict[str, list[float]] = {phase: [] for phase in _PHASES}
    polls = 0
    asyncio.run(window(gateway, pages, seconds))  # opens connections, reads the record once
    for number in range(rounds):
        for phase in _PHASES if number % 2 else reversed(_PHASES):
            found, asked, used = asyncio.run(window(gateway, pages if phase == "polling" else 0, seconds))
            times[phase].append(found)
            cpu[phase].append(used)
            polls += asked
    calm, polling = (statistics.median(cpu[phase]) for phase in _PHASES)
    title = (
        f"{pages} pages, {polls / (rounds * seconds):.1f} polls a second; "
        f"gateway CPU ms a request {calm:.2f} without pages, {polling:.2f} with"
    )
    table = Table(
        "ms", "p50 without", "p50 with", "ratio of p50", "95 %", "p95 without", "p95 with", title=title
    )
    for kind in (_WHOLE, _FIRST, _STREAM):
        every = [sorted(value for some in times[phase] for value in some[kind]) for phase in _PHASES]
        medians = [
            (statistics.median(a[kind]), statistics.median(b[kind]))
            for a, b in zip(times["calm"], times["polling"], strict=True)
        ]
        ratio, low, high = ratio_with_range(medians)
        p50, p95 = (
            [f"{statistics.median(some):.2f}" for some in every],
            [f"{some[int(0.95 * len(some))]:.2f}" for some in every],
        )
        table.add_row(kind, *p50, f"{ratio:.3f}", f"[{low:.3f}, {high:.3f}]", *p95)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="Chat replies while pages poll.")
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--turns", type=int, default=20_000, help="turns in the record")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary), Path(temporary) / "home"
        home.mkdir(mode=0o700)
        fill(home, arguments.turns)
        add_learning(home)
        with closing(
            sqlite3.connect(home / "patina.db")
        ) as database:  # the versions have no weights: the base model serves
            move = (MODEL, 0, time.time(), "bench")
            database.execute(
                "INSERT INTO alias_moves (policy, version, moved_at, actor) VALUES (?, ?, ?, ?)", move
            )
            database.commit()
        page_port = free_port()
        with started("backend", backend, folder) as upstream:
            command = patina(home, f"http://127.0.0.1:{upstream.port}")

            def gateway_command(port: int) -> list[str]:
                return [*command(port), "--dashboard-url", f"http://127.0.0.1:{page_port}"]

            with started("gateway", gateway_command, folder, "/healthz", recorder=home) as gateway:
                page = Server("page", page_process(home, gateway.port)(page_port), page_port, folder)
                try:
                    wait_for(page_port, page, "/dashboard/sign-in")
                    Console().print(measure(gateway, arguments.pages, arguments.rounds, arguments.seconds))
                finally:
                    page.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
