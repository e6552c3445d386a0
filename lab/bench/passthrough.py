"""What the proxy is measured against: a bare Starlette + aiohttp pass-through as one would write it, without log, key or record.

`python -m lab.bench.passthrough --port N --upstream URL [--log FILE]`. With ``--log`` it keeps each reply and writes it with its request to a file
when the reply has ended, as logging proxies do: what it has not written when it dies is lost, although a client saw its end.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_DROPPED = frozenset({"host", "content-length", "connection", "transfer-encoding"})


def application(upstream: str, log: Path | None = None) -> Starlette:
    """Return the pass-through for everything under ``upstream``; ``log`` takes requests and replies after their end."""
    session: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        ) as made:
            session.append(made)
            yield

    async def relay(request: Request) -> StreamingResponse:
        body = await request.body()
        headers = {name: value for name, value in request.headers.items() if name not in _DROPPED}
        reply = await session[0].request(
            request.method, upstream + request.url.path, headers=headers, data=body
        )

        logged: list[bytes] = []

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in reply.content.iter_any():
                if log is not None:
                    logged.append(piece)
                yield piece

        kept = {name: value for name, value in reply.headers.items() if name.lower() != "transfer-encoding"}
        after = None if log is None else BackgroundTask(write, log, body, logged)
        return StreamingResponse(pieces(), status_code=reply.status, headers=kept, background=after)

    return Starlette(
        routes=[Route("/{path:path}", relay, methods=["GET", "POST", "DELETE"])], lifespan=lifespan
    )


def write(log: Path, request: bytes, reply: list[bytes]) -> None:
    """Append one exchange to the log. Starlette runs it in a thread, after the response."""
    line = {
        "request": request.decode(errors="replace"),
        "reply": b"".join(reply).decode(errors="replace"),
    }
    with log.open("ab") as file:
        file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.passthrough")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--log", type=Path)
    arguments = parser.parse_args()
    uvicorn.run(
        application(arguments.upstream, arguments.log),
        host="127.0.0.1",
        port=arguments.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="critical",
    )


if __name__ == "__main__":
    main()
