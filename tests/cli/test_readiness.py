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
from store.version import COMMAND
from tests.proxy.upstream import free_socket, running


@pytest.mark.parametrize(
    ("more", "step_s", "said"),
    [
        ({}, 12.4, " A version is trained after 4 reactions or when a complaint has waited 30 s; that takes about 12 s."),
        ({"batch_size": 8, "max_wait_s": 5.0}, None, " A version is trained after 8 reactions or when a complaint has waited 5 s; how long that takes here is not known yet."),
        ({}, 619.0, " A version is trained after 4 reactions or when a complaint has waited 30 s; that takes about 10 min."),
        ({"train_when": "23:00-07:00"}, 12.4, " A version is trained after 4 reactions or when a complaint has waited 30 s, as soon as the schedule (23:00-07:00) allows; that takes about 12 s."),
        ({"train_when": "manual"}, 12.0, f" `{COMMAND} train --now` trains what waits."),
        ({"upstream": "https://api.example/v1"}, None, ""),
    ],
)  # fmt: skip
def test_the_start_says_when_to_expect_a_version(
    more: dict[str, Any], step_s: float | None, said: str
) -> None:
    assert readiness.expectation(read_settings({"home": "/nowhere", **more}), step_s) == said


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
