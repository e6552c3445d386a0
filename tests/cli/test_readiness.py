"""What a start says: when requests are answered, and when to expect a version."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli import readiness
from migrations import upgrade
from serving.ports import free_port
from store.settings import read_settings
from tests.proxy.upstream import free_socket, running


async def test_it_is_ready_once_backend_and_record_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    settings = read_settings({"home": tmp_path, "proxy_port": port})
    upgrade(settings.database_url)
    asked = 0

    async def gateway(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        state = {"backend": {"ready": asked > 1}, "record": {"available": asked > 2}}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": orjson.dumps(state)})

    task = asyncio.create_task(readiness.announce_ready(settings))
    await asyncio.sleep(0)  # nothing listens yet
    with running(gateway, free_socket(port)):
        await task
    assert asked == 3
    printed = capsys.readouterr().out
    assert printed.startswith("Ready after ")
    assert printed.endswith("30 s; how long that takes here is not known yet.\n")


async def test_an_endpoint_that_does_not_answer_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_PATIENCE_S", 0.0)
    port = free_port()
    settings = read_settings({"home": tmp_path, "proxy_port": port, "upstream": "http://127.0.0.1:9"})
    upgrade(settings.database_url)
    asked = 0

    async def gateway(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        state = {"backend": {"ready": asked > 3}, "record": {"available": True}}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": orjson.dumps(state)})

    with running(gateway, free_socket(port)):
        await readiness.announce_ready(settings)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "http://127.0.0.1:9 does not answer yet: requests fail until it does."
    assert second.startswith("Ready after ")
