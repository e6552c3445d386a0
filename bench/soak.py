"""Is it the same after half an hour? ``python -m bench.soak [--minutes 30] [--rate 50] [--learning .02]``.

The house as its users run it: `run.py` with its proxy, scorer and trainer, on the built-in model, learning all the while. Two cores cannot
sample 50 replies a second, so the engine has a scripted backend in front (`bench.mixed`): the share ``--learning`` of the conversations is
answered by the built-in engine and complained about (in words and by ``/v1/feedback``), so that versions are trained, published and
swapped in; the others are answered by heart, recorded whole and not trained on. Open loop, conversations of three turns: streamed (at once, or with 5 ms between the chunks)
and plain, with and without a tool call, every conversation a session of its own.

Printed: what clients saw, memory of every process in each tenth, versions, what was late, and what of the turns whose end a client saw
is not in the record (`lost`). Exit code 1 when there was an error, something was lost, `verify` finds something wrong, a process died, or
memory in the last third is more than a tenth above that of the second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop
from rich.console import Console

from bench.backend import TEXT
from bench.mixed import CALL
from bench.proxy import started
from evals.pools import ASKED
from evals.stack import Stack
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
_PATIENCE_S = 60.0
_KEPT_S = 15.0

Message = dict[str, Any]


@dataclass
class Seen:
    """What the clients saw."""

    ended: list[str] = field(default_factory=list)  #: turns whose end arrived
    kinds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)  #: of scripted replies without pauses, seconds
    feedback: int = 0
    feedback_retries: int = 0


class Wrong(Exception):
    """A reply that must not be."""


class Clients:
    """All clients: connections that are kept and used again."""

    def __init__(self, port: int, key: str, model: str) -> None:
        self._port, self._key, self._model = port, key, model
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []
        self.seen = Seen()

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return (head, body) of a reply with status 200. Raises: Wrong, OSError, EOFError."""
        data = orjson.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\ncontent-length: {len(data)}\r\n\r\n"
        reader, writer = await self._connection()
        try:
            writer.write(head.encode() + data)
            answered = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            _, told, length = answered.partition("content-length:")
            if told:
                said = await reader.readexactly(int(length.split("\r\n")[0]))
            else:
                said = await reader.readuntil(b"\r\n0\r\n\r\n")
            if not answered.startswith("http/1.1 200"):
                status = answered.partition("\r\n")[0]
                raise Wrong(f"{status} {said[:200].decode(errors='replace')}")
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer, time.monotonic()))
        return answered, said

    async def give(self, feedback: Mapping[str, Any]) -> None:
        """Give feedback; as the SDKs do, ask again (twice) where the answer is that the record is busy. Raises: as `post`."""
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

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return one that is kept, if it was used lately (servers close idle ones), or a new one."""
        while self._idle:
            reader, writer, since = self._idle.pop()
            if time.monotonic() - since < _KEPT_S and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def close(self) -> None:
        """Close what is kept."""
        for _, writer, _ in self._idle:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        self._idle.clear()

    async def ask(
        self, kind: str, messages: list[Message], *, stream: bool, **more: Any
    ) -> tuple[str, Message]:
        """Ask for one reply; returns (turn id, the reply as a message). Raises: as `post`."""
        began = time.perf_counter()
        head, said = await self.post(
            "/v1/chat/completions", {"model": self._model, "messages": messages, "stream": stream, **more}
        )
        took = time.perf_counter() - began
        _, told, turn = head.partition("x-patina-turn:")
        if not told:
            raise Wrong("no turn id")
        if stream and b"data: [DONE]" not in said:
            raise Wrong("a stream without its end")
        message = _streamed(said) if stream else orjson.loads(said)["choices"][0]["message"]
        self.seen.ended.append(turn.split("\r\n")[0].strip())
        self.seen.kinds[f"{kind}, {'streamed' if stream else 'plain'}"] += 1
        if "scripted" in more and not more.get("paced"):
            self.seen.latencies.append(took)
        return self.seen.ended[-1], {"role": "assistant", **message}


def _streamed(said: bytes) -> Message:
    """Return the message that a stream's chunks make; arguments of tool calls come in one piece here."""
    text: list[str] = []
    calls: list[Any] = []
    for line in said.split(b"\n"):
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
    """Three turns that nobody samples: nothing is added to or missing from what the backend says."""
    messages: list[Message] = [{"role": "user", "content": f"Tell me about number {rng.random()}."}]
    paced = {"paced": True} if rng.random() < 0.2 else {}
    for _ in range(3):
        _, said = await clients.ask(
            "text", messages, stream=bool(paced) or rng.random() < 0.6, scripted="text", **paced
        )
        if said["content"] != TEXT:
            raise Wrong(f"another text: {str(said)[:60]}")
        messages = [*messages, said, {"role": "user", "content": f"And what of number {rng.random()}?"}]


async def with_tools(clients: Clients, rng: random.Random) -> None:
    """A call, its result, an answer and a question more."""
    tools = {"tools": [TOOL]}
    messages: list[Message] = [{"role": "user", "content": f"What is the weather at hour {rng.random()}?"}]
    stream = rng.random() < 0.6
    _, said = await clients.ask("tool call", messages, stream=stream, scripted="call", **tools)
    if said.get("tool_calls") != [CALL]:
        raise Wrong(f"another call: {str(said)[:60]}")
    result = {"role": "tool", "tool_call_id": CALL["id"], "content": f"{rng.random()} degrees"}
    messages = [*messages, said, result]
    for _ in range(2):
        _, said = await clients.ask("after a tool", messages, stream=stream, scripted="text", **tools)
        messages = [*messages, said, {"role": "user", "content": f"And at hour {rng.random()}?"}]


async def teaching(clients: Clients, rng: random.Random) -> None:
    """Three turns of the built-in engine: a question, a complaint, thanks; and now and then a thumb."""
    wish = rng.choice(WISHES)
    messages: list[Message] = [{"role": "user", "content": rng.choice(ASKED).text}]
    for reaction in (wish, "Thanks, much better!", ""):
        turn, said = await clients.ask(
            "sampled", messages, stream=rng.random() < 0.5, max_tokens=64, temperature=1.0
        )
        if reaction == wish and rng.random() < 0.3:
            await clients.give({"turn_id": turn, "thumbs": "down", "text": wish})
        messages = [*messages, said, {"role": "user", "content": reaction}]


async def drive(
    clients: Clients, rate: float, learning: float, seconds: float, pids: Mapping[str, int]
) -> dict[str, list[float]]:
    """Send ``rate`` requests a second; returns each process's memory, MB, every ten seconds."""
    rng = random.Random(0)
    memory: dict[str, list[float]] = {name: [] for name in pids}
    talks: set[asyncio.Task[None]] = set()

    async def one(kind: Any) -> None:
        try:
            async with asyncio.timeout(3 * _PATIENCE_S):
                await kind(clients, rng)
        except (Wrong, OSError, EOFError, asyncio.LimitOverrunError, ValueError, KeyError) as exc:
            clients.seen.errors[f"{kind.__name__}: {type(exc).__name__}: {exc}"[:120]] += 1

    began = time.monotonic()
    begun = noted = 0
    while (now := time.monotonic() - began) < seconds:
        while begun < now * rate / 3:
            chance = rng.random()
            kind = teaching if chance < learning else with_tools if chance < learning + 0.2 else scripted
            task = asyncio.create_task(one(kind))
            talks.add(task)
            task.add_done_callback(talks.discard)
            begun += 1
        if now >= _NOTED_S * noted:
            noted += 1
            for name, pid in pids.items():
                memory[name].append(resident_mb(pid))
            if noted % 6 == 1:
                told = " ".join(f"{name} {values[-1]:.0f}" for name, values in memory.items())
                print(
                    f"{now / 60:.0f} min: {len(clients.seen.ended)} replies, {sum(clients.seen.errors.values())} errors, "
                    f"{len(talks)} talks open, load {os.getloadavg()[0]:.1f}, MB: {told} {dict(clients.seen.errors.most_common(2)) or ''}",
                    file=sys.stderr,
                    flush=True,
                )
        await asyncio.sleep(0.01)
    if talks:
        await asyncio.wait(talks, timeout=3 * _PATIENCE_S)
    await clients.close()
    return memory


def resident_mb(pid: int) -> float:
    """Return what of a process is in memory; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


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


def told_in_logs(home: Path) -> dict[str, int]:
    """Return how many lines of each process's log tell of an error."""
    signs = ("Traceback", "ERROR", "CRITICAL", "patina: the")
    found = {}
    for path in [home / "stack.log", *sorted((home / "logs").glob("*.log"))]:
        lines = path.read_text(errors="replace").splitlines()
        found[path.stem] = sum(any(sign in line for sign in signs) for line in lines)
    return found


def run(minutes: float, rate: float, learning: float, home: Path) -> dict[str, Any]:
    """Return what was seen."""
    with ExitStack() as stack:
        own = read_settings({})
        engine = stack.enter_context(
            started(
                "engine",
                lambda port: [
                    *(
                        sys.executable,
                        "-m",
                        "serving.embedded",
                        "--model",
                        own.model_path,
                        "--port",
                        str(port),
                    ),
                    *(
                        "--served-model-name",
                        own.policy,
                        "--threads",
                        "1",
                        "--max-loras",
                        str(own.adapter_slots),
                    ),
                ],
                home,
            )
        )
        backend = stack.enter_context(
            started(
                "backend",
                lambda port: [
                    sys.executable,
                    "-m",
                    "bench.mixed",
                    "--port",
                    str(port),
                    "--engine",
                    str(engine.port),
                ],
                home,
            )
        )
        upstream = f"http://127.0.0.1:{backend.port}"
        settings = read_settings({"backend": "vllm", "upstream": upstream, "threads": 1, "judge": "none"})
        house = stack.enter_context(Stack(settings, home=home / "house"))
        pids = {"supervisor": house.pid, **house.pids()}
        pids |= {"engine": engine.process.pid, "scripted backend": backend.process.pid}
        clients = Clients(house.port, house.key, settings.policy)
        began = time.monotonic()
        memory = uvloop.run(drive(clients, rate, learning, 60 * minutes, pids))
        took = time.monotonic() - began
        seen = clients.seen
        lost = unwritten(house.home / "patina.db", seen.ended)
        told = house.status()
        beats = {beat["process"]: beat["detail"] for beat in told["heartbeats"]}
        restarts = {name: child["restarts"] for name, child in beats["supervisor"].items()}
        latencies = sorted(seen.latencies)
        found: dict[str, Any] = {
            "minutes": minutes,
            "replies": len(seen.ended),
            "replies_per_second": round(len(seen.ended) / took, 1),
            "kinds": dict(seen.kinds),
            "feedback": seen.feedback,
            "feedback_retries": seen.feedback_retries,
            "errors": dict(seen.errors),
            "lost": len(lost),
            "p50_ms": round(1e3 * statistics.median(latencies), 2),
            "p99_ms": round(1e3 * latencies[int(0.99 * len(latencies)) - 1], 2),
            "memory_mb_each_tenth": {name: tenths(values) for name, values in memory.items()},
            "grown": {name: round(grown(values), 3) for name, values in memory.items()},
            "restarts": restarts,
            "error_lines_in_logs": told_in_logs(house.home),
            "store": {
                k: told["store"][k] for k in ("state", "written", "late", "exposed", "lost", "waiting")
            },
            "unrecorded": told["proxy"]["unrecorded"],
            "live": told["live"],
            "versions": told["versions"],
            "trainer": beats.get("trainer"),
            "stages": told["stages"],
            "drop_reasons": told["drop_reasons"],
        }
        found["record_mb"] = round((house.home / "patina.db").stat().st_size / 1e6)
    found["verify"] = asyncio.run(verified(read_settings({"home": home / "house"})))
    wrong = []
    if seen.errors:
        wrong.append(f"{sum(seen.errors.values())} conversations broke")
    if lost or found["store"]["lost"] or found["unrecorded"]:
        wrong.append("turns are missing")
    if found["verify"]:
        wrong.append("verify finds something")
    if any(restarts.values()):
        wrong.append("a process died")
    if minutes >= 10:  # before, caches are still being filled
        wrong += [f"{name} grew" for name, much in found["grown"].items() if much > 1.1]
    return {**found, "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument(
        "--learning", type=float, default=0.02, help="share of conversations that the built-in engine answers"
    )
    parser.add_argument("--home", type=Path, help="folder to leave everything in; default: none is left")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        home = arguments.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="patina-soak-")))
        home.mkdir(parents=True, exist_ok=True)
        found = run(arguments.minutes, arguments.rate, arguments.learning, home)
    Console().print_json(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
