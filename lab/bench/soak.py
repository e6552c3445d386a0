"""Is it the same after half an hour? ``python -m lab.bench.soak [--minutes 30] [--rate 50] [--learning .02] [--fill 90000]``.

Patina as its users run it: `run.py` with its proxy, scorer and trainer, on the test model, while it learns. Two cores cannot
sample 50 replies a second, so the engine has a scripted backend in front (`lab.bench.hybrid_backend`): the share ``--learning`` of the conversations is
answered by the built-in engine and complained about (in words and by ``/v1/feedback``), so that versions are trained, published and
swapped in; the others get scripted replies, which are recorded but not trained on. Open loop, conversations of three turns: streamed (at once, or with 5 ms between the chunks)
and plain, with and without a tool call, every conversation a session of its own. Traces go to a local collector; metrics, health and the list of
steps are read every 15 s. Caches keep the newest turns: ``--fill`` sends that many before the measured minutes, so that growth is not theirs.

Printed: what clients saw, memory and open files of every process in each tenth, versions, the state of journal and recorder, and what of the turns
whose end a client saw is not in the record (`lost`). Exit code 1 when there was an error, something was lost, `verify` finds something wrong, a process died, or
memory in the last third is more than a tenth above that of the second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvloop
from rich.console import Console

from lab.bench.backend import TEXT
from lab.bench.client import Client, MeasuredReply
from lab.bench.hybrid_backend import CALL
from lab.bench.proxy import Server, started
from lab.evals.question_splits import USER_QUESTIONS
from lab.evals.stack import Stack
from lab.models import toy_settings
from store.record import Record
from store.settings import Settings, read_settings

#: Each conversation that teaches wants one of these: the same wish again and again would run into the gate.
WISHES = ("Shorter, please.", "No emoji please.", "Please be more formal.", "No bold type please.")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_NOTED_S = 10.0
_FILL_RATE = 200.0
_WATCHED_S = 15.0
_WATCHED = ("/metrics", "/healthz", "/dashboard/steps")
_PATIENCE_S = 60.0
_POLL_S = 0.1

Message = dict[str, Any]


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
class SoakObservations:
    """What the clients saw."""

    ended: list[str] = field(default_factory=list)  #: turns whose end arrived
    kinds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)  #: of scripted replies without pauses, seconds
    feedback: int = 0
    feedback_retries: int = 0
    watched: int = 0  #: rounds of reading metrics, health and steps


class Wrong(Exception):
    """A reply that must not be."""


class Clients:
    """All simulated clients, on kept connections."""

    def __init__(self, port: int, key: str, model: str) -> None:
        self._client = Client(port, key)
        self._model = model
        self.seen = SoakObservations()

    async def post(self, path: str, body: Mapping[str, Any]) -> MeasuredReply:
        """Return a reply with status 200.

        Raises:
            Wrong: another status, or an incomplete reply.
            OSError: the connection failed.
        """
        reply = await self._client.post(path, body)
        if not reply.is_complete:
            raise Wrong("the connection ended within the reply")
        if not reply.is_ok:
            status = reply.head.partition("\r\n")[0]
            raise Wrong(f"{status} {reply.body[:200].decode(errors='replace')}")
        return reply

    async def give(self, feedback: Mapping[str, Any]) -> None:
        """Give feedback; as the SDKs do, ask again (twice) where the answer is that the record is busy."""
        for left in (2, 1, 0):
            try:
                await self.post("/v1/feedback", feedback)
            except Wrong as exc:
                if not left or " 503 " not in str(exc):
                    raise
                self.seen.feedback_retries += 1
                await asyncio.sleep(1.0)
            else:
                self.seen.feedback += 1
                return

    async def close(self) -> None:
        await self._client.close()

    async def ask(
        self, kind: str, messages: list[Message], *, stream: bool, **more: Any
    ) -> tuple[str, Message]:
        """Ask for one reply; returns (turn id, the reply as a message)."""
        began = time.perf_counter()
        reply = await self.post(
            "/v1/chat/completions", {"model": self._model, "messages": messages, "stream": stream, **more}
        )
        took = time.perf_counter() - began
        if not reply.turn_id:
            raise Wrong("no turn id")
        if stream and b"data: [DONE]" not in reply.body:
            raise Wrong("a stream without its end")
        message = _streamed(reply.body) if stream else orjson.loads(reply.body)["choices"][0]["message"]
        self.seen.ended.append(reply.turn_id)
        self.seen.kinds[f"{kind}, {'streamed' if stream else 'plain'}"] += 1
        if "scripted" in more and not more.get("paced"):
            self.seen.latencies.append(took)
        return self.seen.ended[-1], {"role": "assistant", **message}


def _streamed(body: bytes) -> Message:
    """Return the message that a stream's chunks make; arguments of tool calls come in one piece here."""
    text: list[str] = []
    calls: list[Any] = []
    for line in body.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        for choice in orjson.loads(line[6:])["choices"]:
            text.append(choice["delta"].get("content") or "")
            calls += choice["delta"].get("tool_calls") or ()
    message: Message = {"content": "".join(text)}
    if calls:
        arguments = "".join(call["function"].get("arguments") or "" for call in calls)
        message |= {
            "content": None,
            "tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": arguments}}],
        }
    return message


async def scripted(clients: Clients, rng: random.Random) -> None:
    """Three scripted turns: the reply must be the backend's text."""
    messages: list[Message] = [{"role": "user", "content": f"Tell me about number {rng.random()}."}]
    paced = {"paced": True} if rng.random() < 0.2 else {}
    for _ in range(3):
        _, message = await clients.ask(
            "text", messages, stream=bool(paced) or rng.random() < 0.6, scripted="text", **paced
        )
        if message["content"] != TEXT:
            raise Wrong(f"another text: {str(message)[:60]}")
        messages = [*messages, message, {"role": "user", "content": f"And what of number {rng.random()}?"}]


async def with_tools(clients: Clients, rng: random.Random) -> None:
    """A call, its result, an answer and a question more."""
    tools = {"tools": [TOOL]}
    messages: list[Message] = [{"role": "user", "content": f"What is the weather at hour {rng.random()}?"}]
    stream = rng.random() < 0.6
    _, message = await clients.ask("tool call", messages, stream=stream, scripted="call", **tools)
    if message.get("tool_calls") != [CALL]:
        raise Wrong(f"another call: {str(message)[:60]}")
    result = {"role": "tool", "tool_call_id": CALL["id"], "content": f"{rng.random()} degrees"}
    messages = [*messages, message, result]
    for _ in range(2):
        _, message = await clients.ask("after a tool", messages, stream=stream, scripted="text", **tools)
        messages = [*messages, message, {"role": "user", "content": f"And at hour {rng.random()}?"}]


async def teaching(clients: Clients, rng: random.Random) -> None:
    """Three turns of the built-in engine: a question, a complaint, thanks; and now and then a thumb."""
    wish = rng.choice(WISHES)
    messages: list[Message] = [{"role": "user", "content": rng.choice(USER_QUESTIONS).text}]
    for reaction in (wish, "Thanks, much better!", ""):
        turn, message = await clients.ask(
            "sampled", messages, stream=rng.random() < 0.5, max_tokens=64, temperature=1.0
        )
        if reaction == wish and rng.random() < 0.3:
            await clients.give({"turn_id": turn, "thumbs": "down", "text": wish})
        messages = [*messages, message, {"role": "user", "content": reaction}]


async def drive(
    clients: Clients, rate: float, learning: float, seconds: float, pids: Mapping[str, int]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Send ``rate`` requests a second; returns each process's memory, MB, and its open files, every ten seconds."""
    rng = random.Random(0)
    memory: dict[str, list[float]] = {name: [] for name in pids}
    files: dict[str, list[float]] = {name: [] for name in pids}
    running: set[asyncio.Task[None]] = set()

    async def one(kind: Any) -> None:
        try:
            async with asyncio.timeout(3 * _PATIENCE_S):
                await kind(clients, rng)
        except (Wrong, OSError, ValueError, KeyError) as exc:
            clients.seen.errors[f"{kind.__name__}: {type(exc).__name__}: {exc}"[:120]] += 1

    began = time.monotonic()
    begun = noted = 0
    while (now := time.monotonic() - began) < seconds:
        while begun < now * rate / 3:
            chance = rng.random()
            kind = teaching if chance < learning else with_tools if chance < learning + 0.2 else scripted
            task = asyncio.create_task(one(kind))
            running.add(task)
            task.add_done_callback(running.discard)
            begun += 1
        if now >= _NOTED_S * noted:
            noted += 1
            for name, pid in pids.items():
                memory[name].append(resident_mb(pid))
                files[name].append(open_files(pid))
            if noted % 6 == 1:
                sizes = " ".join(f"{name} {values[-1]:.0f}" for name, values in memory.items())
                print(
                    f"{now / 60:.0f} min: {len(clients.seen.ended)} replies, {sum(clients.seen.errors.values())} errors, "
                    f"{len(running)} conversations open, load {os.getloadavg()[0]:.1f}, MB: {sizes} {dict(clients.seen.errors.most_common(2)) or ''}",
                    file=sys.stderr,
                    flush=True,
                )
        await asyncio.sleep(0.01)
    if running:
        await asyncio.wait(running, timeout=3 * _PATIENCE_S)
    return memory, files


async def watch(port: int, key: str, seen: SoakObservations) -> None:
    """Read what a monitor and an open page read, until cancelled.

    The process of the page starts beside the others and may be ready after the first reply: its first answer is waited for.
    """
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30.0
    ) as client:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            with suppress(httpx.HTTPError):
                if (await client.get(_WATCHED[0])).status_code not in (
                    502,
                    503,
                ) or time.monotonic() > give_up:
                    break
            await asyncio.sleep(_POLL_S)
        while True:
            for path in _WATCHED:
                try:
                    (await client.get(path)).raise_for_status()
                except httpx.HTTPError as exc:
                    seen.errors[f"{path}: {type(exc).__name__}: {exc}"[:120]] += 1
            seen.watched += 1
            await asyncio.sleep(_WATCHED_S)


def resident_mb(pid: int) -> float:
    """Return what of a process is in memory; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def open_files(pid: int) -> int:
    """Return how many file descriptors a process has; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def unwritten(database: Path, ended: list[str], timeout_s: float = 60.0) -> list[str]:
    """Return which turns whose end a client saw are not in the record, in the end."""
    deadline = time.monotonic() + timeout_s
    while True:
        with closing(sqlite3.connect(database)) as connection:
            there = {row[0] for row in connection.execute("SELECT turn_id FROM turns")}
        missing = [turn for turn in ended if turn not in there]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.5)


async def verified(settings: Settings) -> list[str]:
    record = await Record.open(settings.database_url)
    try:
        return await record.verify()
    finally:
        await record.close()


def tenths(values: list[float]) -> list[int]:
    """Return the median of each tenth of a run."""
    size = max(1, len(values) // 10)
    return [round(statistics.median(values[i : i + size])) for i in range(0, len(values), size)][:10]


def grown(values: list[float]) -> float:
    """Return the median of the last third over that of the second."""
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) / max(
        1.0, statistics.median(values[third : 2 * third] or values)
    )


def error_lines(home: Path) -> dict[str, int]:
    """Return the number of lines with errors in each process's log."""
    signs = ("Traceback", "ERROR", "CRITICAL", "patina: the")
    found = {}
    for path in [home / "stack.log", *sorted((home / "logs").glob("*.log"))]:
        lines = path.read_text(errors="replace").splitlines()
        found[path.stem] = sum(any(sign in line for sign in signs) for line in lines)
    return found


@contextmanager
def scripted_engine(home: Path) -> Iterator[dict[str, Server]]:
    """Start the built-in engine and the scripted backend in front of it."""
    own = toy_settings()
    with ExitStack() as stack:
        engine = stack.enter_context(
            started(
                "engine",
                lambda port: [
                    sys.executable, "-m", "serving.embedded", "--model", own.model_path, "--port", str(port),
                    "--served-model-name", own.policy, "--threads", "1", "--max-loras", str(own.adapter_slots),
                ],
                home,
            )
        )  # fmt: skip
        backend = stack.enter_context(
            started(
                "backend",
                lambda port: [
                    sys.executable, "-m", "lab.bench.hybrid_backend", "--port", str(port), "--engine", str(engine.port),
                ],
                home,
            )
        )  # fmt: skip
        yield {"engine": engine, "scripted backend": backend}


def run(minutes: float, rate: float, learning: float, home: Path, fill: int = 0) -> dict[str, Any]:
    """Return the numbers of a soak after `fill` turns; `wrong` lists what must not be."""
    with scripted_engine(home) as servers, collecting() as collector:
        upstream = f"http://127.0.0.1:{servers['scripted backend'].port}"
        traces = f"http://127.0.0.1:{collector.server_port}"
        settings = toy_settings(
            {"backend": "vllm", "upstream": upstream, "threads": 1, "judge": "none", "otlp_endpoint": traces}
        )
        with Stack(settings, home=home / "stack") as stack:
            pids = {"supervisor": stack.pid, **stack.pids()}
            pids |= {name: server.process.pid for name, server in servers.items()}
            clients = Clients(stack.port, stack.key, settings.policy)

            async def measured() -> tuple[dict[str, list[float]], dict[str, list[float]]]:
                watching = asyncio.create_task(watch(stack.port, stack.key, clients.seen))
                try:
                    await drive(clients, _FILL_RATE, 0.0, fill / _FILL_RATE, pids)
                    clients.seen.latencies.clear()
                    return await drive(clients, rate, learning, 60 * minutes, pids)
                finally:
                    watching.cancel()
                    await clients.close()

            memory, files = uvloop.run(measured())
            found = {
                "minutes": minutes,
                **_seen(clients.seen),
                "exports_to_collector": collector.received,  # type: ignore[attr-defined]
                "lost": len(unwritten(stack.home / "patina.db", clients.seen.ended)),
                "memory_mb_each_tenth": {name: tenths(values) for name, values in memory.items()},
                "open_files_each_tenth": {name: tenths(values) for name, values in files.items()},
                "grown": {name: round(grown(values), 3) for name, values in memory.items()},
                "error_lines_in_logs": error_lines(stack.home),
                **_status(stack.status()),
                "record_mb": round((stack.home / "patina.db").stat().st_size / 1e6),
            }
    found["verify"] = asyncio.run(verified(read_settings({"home": home / "stack"})))
    return {**found, "wrong": _wrong(found)}


def _seen(seen: SoakObservations) -> dict[str, Any]:
    latencies = sorted(seen.latencies)
    return {
        "replies": len(seen.ended),
        "kinds": dict(seen.kinds),
        "feedback": seen.feedback,
        "feedback_retries": seen.feedback_retries,
        "watched": seen.watched,
        "errors": dict(seen.errors),
        "p50_ms": round(1e3 * statistics.median(latencies), 2),
        "p99_ms": round(1e3 * latencies[int(0.99 * len(latencies)) - 1], 2),
    }


def _status(status: Mapping[str, Any]) -> dict[str, Any]:
    beats = {beat["process"]: beat["detail"] for beat in status["heartbeats"]}
    store = ("state", "written", "lag_turns", "lag_s", "in_memory", "lost", "rejected", "failed_writes")
    return {
        "restarts": {name: child["restarts"] for name, child in beats["supervisor"].items()},
        "store": {name: status["store"][name] for name in store},
        "unrecorded": status["proxy"]["unrecorded"],
        "trainer": beats.get("trainer"),
        **{name: status[name] for name in ("live", "versions", "stages", "drop_reasons")},
    }


def _wrong(found: Mapping[str, Any]) -> list[str]:
    wrong = []
    if found["errors"]:
        wrong.append(f"{sum(found['errors'].values())} conversations broke")
    if found["lost"] or found["store"]["lost"] or found["store"]["rejected"] or found["unrecorded"]:
        wrong.append("turns are missing")
    if found["verify"]:
        wrong.append("verify finds something")
    if any(found["restarts"].values()):
        wrong.append("a process died")
    if found["minutes"] >= 10:  # before, caches are still being filled
        wrong += [f"{name} grew" for name, ratio in found["grown"].items() if ratio > 1.1]
        # A few connections come and go; a leak does not stop at them.
        wrong += [
            f"{name} has more and more open files"
            for name, counts in found["open_files_each_tenth"].items()
            if counts[-1] > counts[len(counts) // 2] + 16
        ]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument(
        "--learning", type=float, default=0.02, help="share of conversations that the built-in engine answers"
    )
    parser.add_argument("--fill", type=int, default=0, help="turns to send before the measured minutes")
    parser.add_argument("--home", type=Path, help="folder to leave everything in; default: none is left")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        home = arguments.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="patina-soak-")))
        home.mkdir(parents=True, exist_ok=True)
        found = run(arguments.minutes, arguments.rate, arguments.learning, home, arguments.fill)
    Console().print_json(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
