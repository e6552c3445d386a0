"""What do metrics and traces cost? `python -m bench.telemetry [--rounds 12] [--seconds 8] [--rate 40]`.

Two Patinas (gateway, recorder, page process) in front of one scripted backend. One measures nothing: its recorder counts no exchange, nothing is
exported, nothing scrapes it. The other counts, exports spans and histograms by OTLP to a collector on the loopback that reads and drops them, and
is scraped every 5 s. One client sends turns of conversations at a steady rate, streamed and plain by turns; windows of the two alternate, so that a
busy machine is busy for both. Before a window ends the recorder records what is in the journal.

Printed: p50 and p95 of replies, CPU a request of each process, and the ratio on / off, window by window, with the range that holds 95 % of its bootstrap.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.backend import MODEL, TEXT
from bench.client import Client
from bench.polling import page_process, ratio_with_range
from bench.proxy import KEY, Server, backend, patina, recorder_command, started, wait_for
from serving.ports import free_port
from store.catch_up import wait_recorded
from store.record import Record
from store.settings import read_settings

_SCRAPE_S = 5.0
_TURNS = 4
#: A recorder that measures nothing.
_UNMEASURED = (
    "import recorder.__main__ as m; m.open_telemetry = lambda settings: None; raise SystemExit(m.main())"
)


class _Collector(BaseHTTPRequestHandler):
    """Reads and drops what is exported."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.received += 1  # type: ignore[attr-defined]  # set below
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def collecting() -> Iterator[ThreadingHTTPServer]:
    """Serve a collector; its attribute `received` counts exports."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as server:
        server.received = 0  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@dataclass
class PatinaUnderTest:
    """One Patina."""

    home: Path
    gateway: Server
    recorder: Server
    page: Server

    def cpu_ms(self) -> list[float]:
        return [1e3 * one.cpu_s() for one in (self.gateway, self.recorder, self.page)]

    async def settle(self) -> None:
        """Wait until the journal is recorded."""
        settings = read_settings({"home": self.home})
        record = await Record.open(settings.database_url)
        try:
            lag = await wait_recorded(record, settings.journal_folder, 600.0)
            while lag.entries:
                await asyncio.sleep(0.05)  # the recorder starts
                lag = await wait_recorded(record, settings.journal_folder, 600.0)
        finally:
            await record.close()


@dataclass
class MeasuredWindow:
    """One window: milliseconds of each reply, CPU milliseconds a request of gateway, recorder and page process."""

    times: list[float]
    cpu: list[float]


def start_arm(stack: ExitStack, folder: Path, name: str, upstream: str, collector: str) -> PatinaUnderTest:
    """Start one Patina; it measures where ``collector`` is not ""."""
    home, page_port = folder / name, free_port()
    make = patina(home, upstream, otlp_endpoint=collector)
    gateway = stack.enter_context(
        started(
            f"gateway-{name}",
            lambda port: [*make(port), "--dashboard-url", f"http://127.0.0.1:{page_port}"],
            folder,
            "/healthz",
        )
    )
    settings = ["--settings", str(home / "settings.json")]
    command = recorder_command(home) if collector else [sys.executable, "-c", _UNMEASURED, *settings]
    recorder = Server(f"recorder-{name}", command, 0, folder)
    stack.callback(recorder.stop)
    page = Server(f"page-{name}", page_process(home, gateway.port)(page_port), page_port, folder)
    stack.callback(page.stop)
    wait_for(page_port, page, "/dashboard/sign-in")
    return PatinaUnderTest(home, gateway, recorder, page)


async def converse(client: Client, until: float, rate: float) -> list[float]:
    """Send turns at a steady rate until a time; returns the milliseconds of each reply."""
    found: list[float] = []
    messages: list[dict[str, str]] = []
    due = time.monotonic()
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if len(messages) >= 2 * _TURNS:
            messages = []
        messages.append({"role": "user", "content": f"question {time.time_ns()}"})
        began = time.perf_counter()
        body = {"model": MODEL, "messages": messages, "stream": len(found) % 2 == 0}
        reply = await client.post("/v1/chat/completions", body)
        found.append((time.perf_counter() - began) * 1e3)
        if not reply.is_ok:
            raise SystemExit(f"a request failed: {reply.head}")
        messages.append({"role": "assistant", "content": TEXT})
        due = max(due + 1 / rate, time.monotonic())
    return found


async def scrape(port: int, until: float) -> None:
    """Read `/metrics` as Prometheus does, until a time."""
    url = f"http://127.0.0.1:{port}/metrics"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {KEY}"})
    while time.monotonic() < until:
        with await asyncio.to_thread(urllib.request.urlopen, request) as reply:
            if b"patina_requests_total" not in reply.read() and time.monotonic() > until - 1:
                raise SystemExit("/metrics lacks the recorder's counters")
        await asyncio.sleep(min(_SCRAPE_S, max(0.0, until - time.monotonic())))  # both windows last as long


async def window(arm: PatinaUnderTest, seconds: float, rate: float, *, scraped: bool) -> MeasuredWindow:
    """Measure one window."""
    client, before, until = Client(arm.gateway.port, KEY), arm.cpu_ms(), time.monotonic() + seconds
    scraper = asyncio.create_task(scrape(arm.gateway.port, until)) if scraped else None
    times = await converse(client, until, rate)
    await arm.settle()
    if scraper is not None:
        await scraper
    await client.close()
    used = [(after - at) / len(times) for after, at in zip(arm.cpu_ms(), before, strict=True)]
    return MeasuredWindow(times, used)


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[int(share * len(times))]


def show(found: dict[str, list[MeasuredWindow]]) -> Table:
    table = Table("", "p50 ms", "p95 ms", "gateway CPU ms", "recorder CPU ms", "page CPU ms", "all CPU ms")
    for name, windows in found.items():
        every = [value for one in windows for value in one.times]
        cpu = [statistics.mean(values) for values in zip(*(one.cpu for one in windows), strict=True)]
        row = (percentile(every, 0.5), percentile(every, 0.95), *cpu, sum(cpu))
        table.add_row(name, *(f"{value:.2f}" for value in row))
    cells = []
    of_window: list[Callable[[MeasuredWindow], float]] = [
        lambda one: percentile(one.times, 0.5),
        lambda one: percentile(one.times, 0.95),
        lambda one: one.cpu[0],
        lambda one: one.cpu[1],
        lambda one: sum(one.cpu),
    ]
    for measure in of_window:
        pairs = [(measure(off), measure(on)) for off, on in zip(found["off"], found["on"], strict=True)]
        cells.append("{:.3f} [{:.3f}, {:.3f}]".format(*ratio_with_range(pairs)))
    table.add_row("on / off", *cells[:4], "", cells[4])
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="Replies and CPU with metrics and traces, and without.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    arguments = parser.parse_args()
    found: dict[str, list[MeasuredWindow]] = {"off": [], "on": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        collector = stack.enter_context(collecting())
        upstream = stack.enter_context(started("backend", backend, folder))
        url = f"http://127.0.0.1:{upstream.port}"
        endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
        arms = {name: start_arm(stack, folder, name, url, to) for name, to in (("off", ""), ("on", endpoint))}
        for number in range(arguments.rounds + 1):  # the first one warms up
            for name in ("off", "on") if number % 2 else ("on", "off"):
                one = window(arms[name], arguments.seconds, arguments.rate, scraped=name == "on")
                measured = asyncio.run(one)
                if number:
                    found[name].append(measured)
    Console(width=160).print(show(found))
    print(f"{collector.received} exports were received")  # type: ignore[attr-defined]
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
