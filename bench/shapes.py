"""Does any shape of traffic cost more than another, or more with time? `python -m bench.shapes [--requests 20000] [--only NAME ...]`.

Each shape is sent through a gateway with a recorder beside it, on a record and a journal of its own, in front of the scripted backend.
Shown is the CPU time a request of gateway and recorder: of the first requests (after a warm-up), of the last, their ratio, and the last one's
ratio to varied conversations. A shape whose cost grows reads what it should look up. `--record N` puts N turns of other conversations into
the record before.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.backend import MODEL, TEXT
from bench.client import Client
from bench.growth import fill
from bench.proxy import KEY, Server, backend, patina, started
from recorder.turn_index import TURN_INDEX_CAPACITY

Body = dict[str, Any]
Message = dict[str, Any]

_CONNECTIONS = 4
_WARM_UP = 200


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _history(name: str, turns: int) -> list[Message]:
    """Return a conversation of complete turns."""
    found: list[Message] = []
    for turn in range(turns):
        found += [
            _user(f"question {turn} of {name}, about the weather in town {turn}"),
            {"role": "assistant", "content": TEXT},
        ]
    return found


def _chat(messages: list[Message], **more: Any) -> Body:
    return {"model": MODEL, "messages": messages, **more}


def _in_turns(number: int, turns: int, name: str) -> list[Message]:
    """Return the request ``number`` of conversations that have ``turns`` turns each, one after the other."""
    conversation, turn = divmod(number, turns)
    return [
        *_history(f"{name} {conversation}", turn),
        _user(f"question {turn} of {name} {conversation}, about the weather in town {turn}"),
    ]


def _resumed(number: int) -> list[Message]:
    """Return first turns of conversations, and from `_BEGUN` on their second turns, in the same order."""
    name, turn = f"resumed {number % _BEGUN}", number // _BEGUN
    return [*_history(name, turn), _user(f"question {turn} of {name}, about the weather in town {turn}")]


_LONG_SYSTEM = "You are a helpful assistant. " + "Follow each of these rules with care. " * 2700  # 100 KB
_LONG_FIRST = "Here is the file.\n" + "".join(
    f"line {number}: value {number * 7}\n" for number in range(700)
)  # 16 KB
_DEEP = _history("deep", 20)
#: Conversations that begin before the first one is resumed: by then its turn has left the recorder's memory. Each is resumed once.
_BEGUN = 5 * TURN_INDEX_CAPACITY
_NAMED, _RESUMED = "named", "resumed"
#: Shapes that are not sent to the chat endpoint.
_PATHS = {_NAMED: "/s/one-session/v1/chat/completions", "embeddings": "/v1/embeddings"}

#: Name -> the body of a request by its number.
SHAPES: dict[str, Callable[[int], Body]] = {
    "varied": lambda i: _chat(_in_turns(i, 5, "varied")),
    "identical": lambda i: _chat([_user("What is the time?")]),
    "same opening": lambda i: _chat(
        [_user("What is the time?")], temperature=round(i % 1000 / 1000, 3), max_tokens=100 + i % 7
    ),
    "seeds": lambda i: _chat([_user("What is 2 plus 3?")], seed=i, temperature=1.0),
    "n=8": lambda i: _chat([_user(f"Name a colour, please ({i // 50}).")], n=8),
    "heartbeat": lambda i: _chat(
        [*_DEEP[:4], _user("Read HEARTBEAT.md if it exists. If nothing needs attention, reply HEARTBEAT_OK.")]
    ),
    "deep retry": lambda i: _chat([*_DEEP, _user("And what now?")]),
    "same last words": lambda i: _chat([*_history(f"topic {i}", 2), _user("yes, continue")]),
    "long first": lambda i: _chat([_user(f"{_LONG_FIRST}\nWhat is in line {i}?")]),
    "long system": lambda i: _chat([{"role": "system", "content": _LONG_SYSTEM}, *_in_turns(i, 5, "system")]),
    "long system, time": lambda i: _chat(
        [{"role": "system", "content": f"Time: {i}\n{_LONG_SYSTEM}"}, *_in_turns(i, 5, "clock")]
    ),
    "long conversation": lambda i: _chat(_in_turns(i, 200, "long")),
    "titles": lambda i: _chat(
        _in_turns(i // 2, 5, "titled")
        if i % 2 == 0
        else [
            _user(
                "Generate a concise title of 3-5 words for this conversation, and nothing else.\n### Chat:\nUSER: "
                + _in_turns(i // 2, 5, "titled")[-1]["content"]
                + "\nASSISTANT: "
                + TEXT
            )
        ]
    ),
    _NAMED: lambda i: _chat([_user(f"message {i} of one session")]),
    _RESUMED: lambda i: _chat(_resumed(i)),
    "embeddings": lambda i: {"model": MODEL, "input": f"document {i}"},
}


async def _send(server: Server, shape: str, first: int, count: int) -> None:
    path = _PATHS.get(shape, "/v1/chat/completions")
    numbers = iter(range(first, first + count))
    client = Client(server.port, KEY)

    async def worker() -> None:
        for number in numbers:
            reply = await client.post(path, SHAPES[shape](number))
            if not reply.is_ok:
                raise RuntimeError(f"{shape}, request {number}: {bytes(reply.received[:200])!r}")

    try:
        await asyncio.gather(*(worker() for _ in range(_CONNECTIONS)))
    finally:
        await client.close()


def _cost(server: Server, shape: str, first: int, count: int) -> tuple[float, float]:
    """Return the CPU microseconds a request of gateway and recorder, with all of it recorded at the end."""
    gateway, recorder = server.cpu_s(), server.recorder_cpu_s()
    asyncio.run(_send(server, shape, first, count))
    server.settle()
    return 1e6 * (server.cpu_s() - gateway) / count, 1e6 * (server.recorder_cpu_s() - recorder) / count


def measure(
    shape: str, requests: int, sample: int, backend_url: str, recorded: int = 0
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the costs of the first and of the last ``sample`` requests, with ``recorded`` turns in the record before them."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        home = Path(name) / "home"
        if recorded:
            home.mkdir()
            fill(home, recorded)
        server = stack.enter_context(
            started("patina", patina(home, backend_url), Path(name), "/healthz", home)
        )
        # Conversations begin before they are resumed.
        first = _WARM_UP + (_BEGUN if shape == _RESUMED else 0)
        _cost(server, shape, 0, first)
        start = _cost(server, shape, first, sample)
        _cost(server, shape, first + sample, max(1, requests - 2 * sample))
        return start, _cost(server, shape, first + requests - sample, sample)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.shapes", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="of each shape (default: %(default)s)")
    parser.add_argument(
        "--sample",
        type=int,
        default=2000,
        help="requests that are measured at each end: fewer show the pauses of the garbage collector (default: %(default)s)",
    )
    parser.add_argument("--record", type=int, default=0, help="turns in the record before (default: none)")
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    arguments = parser.parse_args()
    if not 2 * arguments.sample <= arguments.requests <= _BEGUN - _WARM_UP:
        parser.error(f"--requests: at least two samples, and at most {_BEGUN - _WARM_UP}")
    table = Table(title=f"CPU µs a request, gateway + recorder: first and last of {arguments.requests}")
    for column in ("shape", "first", "last", "last / first", "last / varied"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    varied = 0.0
    with tempfile.TemporaryDirectory() as name, started("direct", backend, Path(name)) as direct:
        for shape in arguments.only:
            start, end = measure(
                shape,
                arguments.requests,
                arguments.sample,
                f"http://127.0.0.1:{direct.port}",
                arguments.record,
            )
            varied = varied or sum(end)
            table.add_row(
                shape,
                f"{start[0]:,.0f} + {start[1]:,.0f}",
                f"{end[0]:,.0f} + {end[1]:,.0f}",
                f"{sum(end) / max(1.0, sum(start)):.2f}",
                f"{sum(end) / varied:.2f}",
            )
            print(f"{shape}: {start} -> {end}", flush=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
