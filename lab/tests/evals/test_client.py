from __future__ import annotations

import socket
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tenacity import stop_after_delay

from lab.evals.client import IdleDetector, PatinaClient, child_pids, live_version
from lab.tests.evals.scripted import KEY, ScriptedPatina, serving
from store.errors import RecordUnavailable, UpstreamError, UpstreamUnreachable


def status(beat_at: float = 0.0, state: str = "waiting", /, **stages: int) -> dict[str, Any]:
    return {"stages": stages, "heartbeats": [{"process": "trainer", "state": state, "at": beat_at}]}


def test_it_is_quiet_when_less_than_a_batch_waits_and_nothing_is_under_way_twice() -> None:
    detector = IdleDetector(batch_size=4)
    assert [detector.update(status(scored=3, trained=8)) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("busy", [{"answered": 1}, {"claimed": 4}])
def test_it_is_not_quiet_while_a_turn_is_on_its_way(busy: dict[str, int]) -> None:
    detector = IdleDetector(batch_size=4)
    assert not any(detector.update(status(float(at), **busy)) for at in range(9))


def test_a_full_batch_is_waited_for_until_it_is_claimed() -> None:
    detector = IdleDetector(batch_size=4)
    assert not any(detector.update(status(0.0, scored=4)) for _ in range(9))
    assert not detector.update(status(1.0, "training", claimed=4))
    assert [detector.update(status(2.0, trained=4)) for _ in range(2)] == [False, True]


def test_turns_the_trainer_leaves_alone_are_not_waited_for_for_ever() -> None:
    detector = IdleDetector(batch_size=4)
    assert [detector.update(status(float(at), scored=6)) for at in range(3)] == [False, False, True]


def test_a_trainer_that_trains_or_loads_is_waited_for() -> None:
    for state in ("training", "loading", "failed"):
        detector = IdleDetector(batch_size=4)
        assert not any(detector.update(status(float(at), state, scored=6)) for at in range(9))


def test_the_status_has_version_and_process_ids() -> None:
    assert live_version({"live": {}}) == 0
    assert live_version({"live": {"tiny": 3}}) == 3
    beats = [
        {"process": "proxy", "pid": 1, "detail": {}},
        {"process": "supervisor", "pid": 2, "detail": {"proxy": {"pid": 7}, "trainer": {"pid": None}}},
    ]
    assert child_pids({"heartbeats": beats}) == {"proxy": 7}


async def test_waiting_reports_a_system_that_never_becomes_idle() -> None:
    patina = ScriptedPatina(stuck=True)
    with serving(patina.app()) as url:
        async with PatinaClient(url, KEY) as client:
            assert not await client.wait_until_idle(batch_size=4, timeout_s=0.3)
            patina.stuck = False
            assert await client.wait_until_idle(batch_size=4, timeout_s=30.0)


async def test_a_record_that_is_away_for_a_moment_is_waited_for_and_one_that_stays_away_is_an_error() -> None:
    patina = ScriptedPatina(away=2)
    with serving(patina.app()) as url:
        async with PatinaClient(url, KEY) as client:
            assert (await client.status())["stages"]
        patina.away = 1_000
        async with PatinaClient(url, KEY) as client:
            impatient = PatinaClient.status.retry_with(stop=stop_after_delay(0.5))
            with pytest.raises(RecordUnavailable, match="cannot be read: the record does not answer"):
                await impatient(client)


async def test_a_chat_comes_with_the_turn_it_was_recorded_as() -> None:
    with serving(ScriptedPatina().app()) as url:
        async with PatinaClient(url, KEY) as client:
            reply = await client.chat([{"role": "user", "content": "hello"}])
    assert reply.turn_id == "turn-1"
    assert "😊" in reply.text


async def test_a_server_that_is_not_there_is_reported_in_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with PatinaClient(url, "", retries=1) as client:
            with pytest.raises(UpstreamUnreachable, match="no server answers at"):
                await client.chat([{"role": "user", "content": "hello"}])


async def test_an_endpoint_that_is_no_patina_is_reported_in_a_sentence() -> None:
    async def other(request: Request) -> JSONResponse:
        return JSONResponse({"hello": "world"})

    with serving(Starlette(routes=[Route("/v1/patina/status", other)])) as url:
        async with PatinaClient(url, "") as client:
            with pytest.raises(UpstreamError, match="is no Patina"):
                await client.status()
