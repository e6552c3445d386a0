"""Two real vLLM servers that Patina does not start (`--upstream` twice): a version is on both before it serves, and one may die."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from lab.bench.swap import QUESTIONS, Stream, agree, load, make_versions, publish, stream
from lab.evals.stack import Stack
from serving.http import HttpBackend
from store.record import Record
from store.settings import read_settings
from tests.contract.backends import BACKEND_KEY, Backend, missing_vllm
from tests.e2e.test_vllm import ask, backend, rows, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(missing_vllm()), reason=f"no vLLM here: {missing_vllm()}"),
]

MODEL = "patina-tiny"


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Backend]]:
    made = [Backend("vllm", tmp_path_factory.mktemp(f"vllm{i}")) for i in range(2)]
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Backend.start, made))
        yield made
    finally:
        for one in made:
            one.stop()


@pytest.fixture(scope="module")
def stack(copies: list[Backend], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = read_settings(
        {
            "backend": "vllm",
            "upstream": ",".join(one.url for one in copies),
            "upstream_api_key": BACKEND_KEY,
            "batch_size": 1_000_000,  # versions are published by the test
            "max_wait_s": 1e9,
        }
    )
    with Stack(settings, home=tmp_path_factory.mktemp("stack"), ready_s=900.0) as stack:
        yield stack


def served(copy: Backend) -> set[str]:
    asked = urllib.request.Request(
        f"{copy.url}/v1/models", headers={"Authorization": f"Bearer {BACKEND_KEY}"}
    )
    with urllib.request.urlopen(asked, timeout=60) as response:
        return {card["id"] for card in json.load(response)["data"]}


async def make_live(stack: Stack, number: int, folder: Path, digest: str) -> None:
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    try:
        await publish(record, number, folder, digest)
    finally:
        await record.close()


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    return make_versions(tmp_path_factory.mktemp("made"), 13)


def test_ten_versions_under_sixteen_streams_fail_or_hold_no_stream_and_each_stream_keeps_its_version(
    copies: list[Backend], stack: Stack, versions: list[tuple[Path, str]]
) -> None:
    held = backend(stack)["held"]
    found = asyncio.run(load(stack, versions[:11], streams=16, rounds=1, tokens=24, every_s=0.6))
    streams = found.streams
    assert {(one.status, one.is_ended) for one in streams} == {(200, True)}
    assert backend(stack)["held"] == held
    recorded = until(
        lambda: (r := rows(stack)) and {one.turn_id for one in streams} <= r.keys() and r,
        "all turns being recorded",
    )
    seen = {one.turn_id: int(recorded[one.turn_id]["adapter_version"]) for one in streams}
    assert max(seen.values()) == 11
    alone = asyncio.run(asked_alone(copies[0], versions, sorted(set(seen.values()))))
    assert all(agree(one, alone[seen[one.turn_id], one.question]) for one in streams)


async def asked_alone(
    copy: Backend, versions: list[tuple[Path, str]], wanted: list[int]
) -> dict[tuple[int, str], Stream]:
    """Return the reply of each version, loaded alone under a new name."""
    engine = HttpBackend(copy.url, api_key=BACKEND_KEY)
    found: dict[tuple[int, str], Stream] = {}
    try:
        for number in wanted:
            name = f"alone-{number}" if number else MODEL
            if number:
                await engine.load_adapter(name, str(versions[number - 1][0]))
            for question in QUESTIONS:
                found[number, question] = await stream(engine, BACKEND_KEY, name, question, 24)
            if number:
                await engine.unload_adapter(name)
    finally:
        await engine.close()
    return found


def test_a_version_is_on_all_copies_before_it_serves_and_one_may_die(
    copies: list[Backend], stack: Stack, versions: list[tuple[Path, str]]
) -> None:
    with openai.OpenAI(base_url=stack.base_url, api_key=stack.key, max_retries=0, timeout=600) as client:
        asyncio.run(make_live(stack, 12, *versions[11]))
        until(lambda: backend(stack)["live"] == 12, "version 12 going live")
        # Its name there ends with the tag of the home that loaded it.
        assert all(any(name.startswith(f"{MODEL}@12.") for name in served(copy)) for copy in copies)
        with ThreadPoolExecutor(8) as pool:
            turns = list(pool.map(lambda i: ask(client, f"What is {i} plus 4?")[0], range(8)))
        shown: dict[str, Any] = until(
            lambda: (
                (a := backend(stack)["activity"])
                and all(one.get("generated_tokens") for one in a.values())
                and a
            ),
            "both copies having answered",
        )
        assert shown.keys() == {copy.url for copy in copies}
        assert all(one["ready"] for one in shown.values())

        copies[0].kill()
        with ThreadPoolExecutor(4) as pool:
            turns += list(pool.map(lambda i: ask(client, f"What is {i} plus 5?")[0], range(4)))
        dead = until(
            lambda: (one := backend(stack)["activity"].get(copies[0].url)) and not one["ready"] and one,
            "the death in the status",
        )
        assert dead["problem"]
        asyncio.run(make_live(stack, 13, *versions[12]))  # with one copy away
        until(lambda: backend(stack)["live"] == 13, "version 13 going live")
        turns.append(ask(client, "What is the capital of Italy?")[0])
        found = until(lambda: (r := rows(stack)) and set(turns) <= r.keys() and r, "all turns being recorded")
        assert [found[turn]["adapter_version"] for turn in turns] == [12] * 12 + [13]
