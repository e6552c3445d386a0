"""How long others wait while a backend sends hostile streams: ``python -m lab.bench.hostile_streams [--rounds 5] [--seconds 4] [--streams 10] [--kind KIND]``.

Rounds without and with the streams alternate; an honest client asks one short question after the other and measures each. The streams read
as fast as they can and begin again when they end: one event without an end, events of one byte a chunk, and floods of comments and of events.
Prints one JSON object: milliseconds at the 50th and 95th percentile, their ratios, the gateway's memory, and what the streams read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from lab.bench.hostile import KEY, memory_mb, request
from lab.bench.proxy import recording
from migrations import upgrade
from serving.ports import free_port
from store.settings import REPOSITORY, child_environment, read_settings

_OK = b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
_EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi "},"finish_reason":null}]}\n\n'
_SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
#: kind -> (what a stream begins with, what it repeats)
_STREAMS = {
    "endless event": (b"data: ", b"x" * 65_536),
    "one byte a chunk": (b"", _EVENT),
    "comments": (b"", b": keep-alive\n\n" * 500),
    "events": (b"", _EVENT * 20),
}
_KINDS = tuple(_STREAMS)


def body(content: str, *, stream: bool) -> bytes:
    return json.dumps(
        {"model": "m", "stream": stream, "messages": [{"role": "user", "content": content}]}
    ).encode()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one connection of the gateway: an honest question at once, a hostile one with its stream."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            asked = await reader.readexactly(length)
            kind = next((one for one in _KINDS if one.encode() in asked), None)
            if kind is None:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                    % (len(_OK), _OK)
                )
                await writer.drain()
                continue
            start, repeated = _STREAMS[kind]
            writer.write(_SSE + start)
            while True:
                pieces = [repeated] if kind != _KINDS[1] else [bytes([one]) for one in repeated]
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
    except (ConnectionError, asyncio.IncompleteReadError):
        return  # the gateway closed it
    finally:
        writer.close()


def serve(port: int) -> None:
    async def forever() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
            await server.serve_forever()

    asyncio.run(forever())


def attack(port: int, kinds: Sequence[str], is_on: Event, read: Synchronized[int]) -> None:
    """Hold a hostile stream of each of these kinds open while ``is_on`` is set; blocking, for a process of its own."""

    async def one(kind: str) -> None:
        while True:
            if not is_on.is_set():
                await asyncio.sleep(0.05)
                continue
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(body(kind, stream=True)))
            while is_on.is_set() and (data := await reader.read(1 << 18)):
                with read.get_lock():
                    read.value += len(data)
            writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, kinds))

    asyncio.run(all_of_them())


async def ask(port: int, seconds: float) -> list[float]:
    """Ask one question after the other over one connection; returns the milliseconds of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took, end = list[float](), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        writer.write(request(body(f"question {len(took)}", stream=False)))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"an honest request got {head[:100]!r}")
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
        took.append(1000 * (time.monotonic() - began))
        await asyncio.sleep(0.01)
    writer.close()
    return took


async def _until_up(port: int) -> None:
    for _ in range(600):
        try:
            await ask(port, 0.01)
            return
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)
    raise SystemExit("the gateway did not start")


def measure(pid: int, port: int, rounds: int, seconds: float, kinds: Sequence[str]) -> dict[str, Any]:
    is_on, read = multiprocessing.Event(), multiprocessing.Value("q", 0)
    attacker = multiprocessing.Process(target=attack, args=(port, kinds, is_on, read), daemon=True)
    attacker.start()
    took: dict[bool, list[float]] = {False: [], True: []}
    most_mb = 0.0
    for _ in range(rounds):
        for hostile in (False, True):
            (is_on.set if hostile else is_on.clear)()
            time.sleep(1.0)
            took[hostile] += asyncio.run(ask(port, seconds))
            most_mb = max(most_mb, memory_mb(pid))
    attacker.terminate()
    attacker.join()
    centiles = {hostile: statistics.quantiles(found, n=100) for hostile, found in took.items()}
    return {
        "requests": {"without": len(took[False]), "with": len(took[True])},
        **{
            f"p{one}": {
                "without": round(centiles[False][one - 1], 2),
                "with": round(centiles[True][one - 1], 2),
                "ratio": round(centiles[True][one - 1] / centiles[False][one - 1], 2),
            }
            for one in (50, 95)
        },
        "gateway_mb_at_most": round(most_mb, 1),
        "hostile_mb_read": round(read.value / 1e6, 1),
    }


def run(rounds: int, seconds: float, kinds: Sequence[str]) -> dict[str, Any]:
    """Start a backend, a gateway and a recorder, and measure."""
    behind = free_port()
    server = multiprocessing.Process(target=serve, args=(behind,), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory(prefix="patina-hostile-streams-") as folder:
        home, port = Path(folder), free_port()
        upstream = f"http://127.0.0.1:{behind}"
        chosen = read_settings({"home": home, "proxy_port": port, "api_key": KEY, "upstream": upstream})
        upgrade(chosen.database_url)
        chosen.dump(home / "settings.json")
        gateway = subprocess.Popen(
            [sys.executable, "-m", "proxy", "--settings", str(home / "settings.json")],
            cwd=REPOSITORY,
            env=child_environment(),
            stderr=subprocess.DEVNULL,
        )
        try:
            with recording(home, home):
                asyncio.run(_until_up(port))
                return measure(gateway.pid, port, rounds, seconds, kinds)
        finally:
            gateway.terminate()
            gateway.wait(30)
            server.terminate()
            server.join()


def main() -> int:
    parser = argparse.ArgumentParser(description="the wait of others beside hostile streams")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument(
        "--kind", choices=_KINDS, help="all streams are of this one; default: each kind in turn"
    )
    arguments = parser.parse_args()
    kinds = [arguments.kind or _KINDS[i % len(_KINDS)] for i in range(arguments.streams)]
    print(json.dumps(run(arguments.rounds, arguments.seconds, kinds), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
