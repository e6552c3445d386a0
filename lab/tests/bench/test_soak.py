"""A few seconds of `lab.bench.soak`: Patina learns, every kind of conversation comes through, nothing is missing."""

import asyncio
import socket
from pathlib import Path

import orjson
import pytest

from lab.bench import soak
from lab.bench.backend import TEXT
from lab.bench.hybrid_backend import CALL, HybridConnection
from lab.bench.soak import Clients, SoakObservations, grown, run, tenths


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_short_soak_of_a_real_stack_has_no_error_and_loses_nothing(tmp_path: Path) -> None:
    found = run(minutes=0.15, rate=10, learning=0.3, home=tmp_path)
    assert found["wrong"] == [], (found["wrong"], found["errors"], found)
    assert found["replies"] >= 60
    kinds = {name.split(",")[0] for name in found["kinds"]}
    assert {"text", "tool call", "after a tool", "sampled"} <= kinds
    assert found["drop_reasons"]["token_mismatch"] >= 30  # by heart
    assert found["stages"].get("recorded", 0) + found["stages"].get("scored", 0) > 0  # sampled
    assert set(found["memory_mb_each_tenth"]) == set(found["open_files_each_tenth"]) == {
        "supervisor", "proxy", "recorder", "dashboard", "scorer", "trainer", "engine", "scripted backend",
    }  # fmt: skip


async def test_scripted_replies_are_the_same_streamed_and_not_and_the_rest_is_the_engines() -> None:
    asked: list[bytes] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        body = orjson.dumps({"choices": [{"message": {"content": "sampled"}}]})
        writer.write(b"HTTP/1.1 200 OK\r\nx-patina-turn: t\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    behind = await asyncio.start_server(engine, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    front = await asyncio.get_running_loop().create_server(
        lambda: HybridConnection(behind.sockets[0].getsockname()[1]), sock=listener
    )
    clients = Clients(listener.getsockname()[1], "key", "m")
    try:
        for stream in (False, True):
            for kind in ("text", "call"):
                body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, "scripted": kind}
                reply = await clients.post("/v1/chat/completions", body)
                assert ("text/event-stream" in reply.head) == stream
                wanted = TEXT.split()[-1].encode() if kind == "text" else CALL["function"]["name"].encode()
                assert wanted in reply.body
        turn, message = await clients.ask("sampled", [{"role": "user", "content": "hi"}], stream=False)
        assert (turn, message["content"]) == ("t", "sampled")
        assert asked[0].count(b"\r\nconnection: close\r\n") == 1
    finally:
        await clients.close()
        front.close()
        behind.close()


def test_what_grew_is_the_last_third_against_the_second() -> None:
    assert grown([10, 20, 30, 100, 100, 100, 150, 150, 150]) == 1.5
    assert tenths([float(i) for i in range(20)]) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]


async def test_the_page_may_start_late_but_must_not_fail_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_WATCHED_S", 0.0)
    monkeypatch.setattr(soak, "_POLL_S", 0.0)
    # Not ready twice; the answer that ends the wait; a good round; then the second path of the next round fails.
    statuses = iter([503, 503, 200, 200, 200, 200, 200, 503])
    all_asked = asyncio.Event()

    async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = next(statuses, None)
        if status is None:
            all_asked.set()
        writer.write(
            b"HTTP/1.1 %d Status\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % (status or 200)
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(gateway, "127.0.0.1", 0)
    seen = SoakObservations()
    watching = asyncio.create_task(soak.watch(server.sockets[0].getsockname()[1], "key", seen))
    async with server:
        await all_asked.wait()
        watching.cancel()
    assert [name.split(":")[0] for name in seen.errors] == ["/healthz"]
    assert seen.watched >= 1
