import asyncio
import signal
import socket
import subprocess
import sys
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp
import pytest
import uvicorn

from serving.openai_server.quiet_server import QuietServer

_PROGRAM = """
import socket, uvicorn
from serving.openai_server.quiet_server import QuietServer
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
QuietServer(uvicorn.Config("tests.serving.openai_server.test_quiet_server:answer", loop="LOOP", lifespan="off")).run(sockets=[listener])
print("drained", flush=True)
"""


async def answer(scope: dict[str, object], receive: object, send) -> None:  # type: ignore[no-untyped-def]  # ASGI
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_signal_ends_it_at_once_and_it_sleeps_until_then(loop: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.replace("LOOP", loop)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    port = int(process.stdout.readline())
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        while client.recv(4096):
            pass
    before = _switches(process.pid)
    time.sleep(1.0)
    assert _switches(process.pid) - before <= 2
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert b"drained" in output or process.returncode == -signal.SIGTERM


def _switches(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("voluntary_ctxt"))


async def test_it_can_be_ended_from_within_and_every_response_has_the_date() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = QuietServer(uvicorn.Config(answer, lifespan="off", headers=[("x-more", "1")]))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    async with aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        dates = []
        for _ in range(2):
            async with client.get(url) as response:
                assert response.headers["x-more"] == "1"
                dates.append(parsedate_to_datetime(response.headers["date"]).timestamp())
            await asyncio.sleep(1.1)
    assert dates[1] > dates[0] >= time.time() - 10
    server.should_exit = True
    await asyncio.wait_for(running, 10)


async def test_a_server_without_a_date_header_sends_none() -> None:
    server = QuietServer(uvicorn.Config(answer, lifespan="off", date_header=False))
    server.config.load()
    assert server.server_state.default_headers == [(b"server", b"uvicorn")]
