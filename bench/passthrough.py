"""What the proxy is measured against: a bare Starlette + aiohttp pass-through as one would write it, without log, key or record.

`python -m bench.passthrough --port N --upstream URL`
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_DROPPED = frozenset({"host", "content-length", "connection", "transfer-encoding"})


def application(upstream: str) -> Starlette:
    """Return the pass-through for everything under ``upstream``."""
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

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in reply.content.iter_any():
                yield piece

        kept = {name: value for name, value in reply.headers.items() if name.lower() != "transfer-encoding"}
        return StreamingResponse(pieces(), status_code=reply.status, headers=kept)

    return Starlette(
        routes=[Route("/{path:path}", relay, methods=["GET", "POST", "DELETE"])], lifespan=lifespan
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.passthrough")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    arguments = parser.parse_args()
    uvicorn.run(
        application(arguments.upstream),
        host="127.0.0.1",
        port=arguments.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="critical",
    )


if __name__ == "__main__":
    main()
