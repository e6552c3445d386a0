"""Copies of one engine, on real ports: an adapter is on all or on none, and a copy that is away costs no request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from serving.http import HttpBackend
from serving.replicas import ReplicatedBackend
from store.errors import AdapterError, UpstreamUnreachable
from tests.proxy.upstream import Upstream, free_socket, running

BODY = b'{"model":"tiny","messages":[{"role":"user","content":"hi"}]}'


@contextlib.asynccontextmanager
async def copies_of(*urls: str) -> AsyncIterator[ReplicatedBackend]:
    engine = ReplicatedBackend([HttpBackend(url) for url in urls])
    try:
        yield engine
    finally:
        await engine.close()


async def ask(engine: ReplicatedBackend) -> int:
    reply = await engine.open("POST", "/v1/chat/completions", [(b"content-type", b"application/json")], BODY)
    await reply.read()
    reply.close()
    return reply.status


async def test_an_adapter_is_on_all_copies_before_it_counts() -> None:
    capabilities_of_one, two = Upstream(), Upstream()
    with running(capabilities_of_one) as first, running(two) as second:
        async with copies_of(first, second) as engine:
            assert [m.name for m in await engine.models()] == ["tiny"]
            await engine.load_adapter("tiny@1", "/folder")
            assert capabilities_of_one.adapters == two.adapters == {"tiny@1": "/folder"}
            assert [m.name for m in await engine.models()] == ["tiny", "tiny@1"]
            await engine.unload_adapter("tiny@1")
            assert capabilities_of_one.adapters == two.adapters == {}


async def test_one_that_a_copy_refuses_is_on_none() -> None:
    capabilities_of_one, two = Upstream(), Upstream(broken_adapters={"tiny@1"})
    with running(capabilities_of_one) as first, running(two) as second:
        async with copies_of(first, second) as engine:
            await engine.models()
            with pytest.raises(AdapterError, match="torn"):
                await engine.load_adapter("tiny@1", "/folder")
            assert capabilities_of_one.adapters == two.adapters == {}
            assert [m.name for m in await engine.models()] == ["tiny"]


async def test_what_only_one_copy_has_does_not_count() -> None:
    capabilities_of_one, two = Upstream(adapters={"tiny@1": "/folder", "other": "/theirs"}), Upstream()
    with running(capabilities_of_one) as first, running(two) as second:
        async with copies_of(first, second) as engine:
            assert [m.name for m in await engine.models()] == ["tiny"]
            await engine.load_adapter("tiny@1", "/folder")  # there already on one of them
            assert "tiny@1" in two.adapters
            assert "other" not in two.adapters


async def test_requests_go_where_fewest_are_in_flight() -> None:
    capabilities_of_one, two = Upstream(), Upstream()
    with running(capabilities_of_one) as first, running(two) as second:
        async with copies_of(first, second) as engine:
            await engine.models()
            held = [await engine.open("POST", "/v1/chat/completions", [], BODY) for _ in range(4)]
            assert (len(capabilities_of_one.seen), len(two.seen)) == (2, 2)
            for reply in held:
                await reply.read()
                reply.close()
                reply.close()  # a second time does not count
            activity = await engine.activity()
            assert [own["in_flight"] for own in activity.values()] == [0, 0]


async def test_a_copy_that_is_away_is_left_out_and_gets_its_adapters_before_it_is_in_again() -> None:
    capabilities_of_one, two = Upstream(), Upstream()
    listener = free_socket()
    port = listener.getsockname()[1]
    with running(capabilities_of_one) as first:
        async with copies_of(first, f"http://127.0.0.1:{port}") as engine:
            with running(two, listener):
                await engine.models()
                await engine.load_adapter("tiny@1", "/folder")
            assert [await ask(engine) for _ in range(4)] == [200] * 4  # also the one that finds it gone
            assert len(capabilities_of_one.seen) == 4
            assert "tiny@1" in {m.name for m in await engine.models()}
            await engine.load_adapter("tiny@2", "/second")
            two.adapters.clear()  # as after a restart
            with running(two, free_socket(port)):
                await engine.models()
                assert two.adapters == {"tiny@1": "/folder", "tiny@2": "/second"}
                assert [await ask(engine) for _ in range(4)] == [200] * 4
                assert len(two.seen) == 2
            problems = [own.get("problem") for own in (await engine.activity()).values()]
            assert problems[0] is None


async def test_when_all_replicas_are_away_the_error_lists_their_addresses() -> None:
    async with copies_of("http://127.0.0.1:9", "http://127.0.0.1:19") as engine:
        for attempt in (engine.models(), ask(engine), engine.load_adapter("tiny@1", "/folder")):
            with pytest.raises(
                UpstreamUnreachable, match=r"http://127\.0\.0\.1:9 and http://127\.0\.0\.1:19"
            ):
                await attempt
        assert not await engine.is_healthy()


async def test_what_one_cannot_do_they_cannot_do() -> None:
    with running(Upstream()) as first, running(Upstream()) as second:
        async with copies_of(first, second) as engine:
            found = await engine.capabilities()
            assert found.adapters
            assert found.adapter_slots is None


async def test_a_copy_that_comes_back_with_an_adapter_is_attested_before_it_is_in_again() -> None:
    """It may be another process, and another gateway may have loaded the adapter."""
    one, two = Upstream(), Upstream()
    listener = free_socket()
    port = listener.getsockname()[1]
    with running(one) as first:
        async with copies_of(first, f"http://127.0.0.1:{port}") as engine:
            with running(two, listener):
                await engine.models()
                await engine.load_adapter("tiny@1", "/folder")
            assert [await ask(engine) for _ in range(2)] == [200] * 2
            two.admin.clear()
            with running(two, free_socket(port)):
                await engine.models()
                assert [await ask(engine) for _ in range(4)] == [200] * 4
                assert two.admin == [("load", "tiny@1")]
