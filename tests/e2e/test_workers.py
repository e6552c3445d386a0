"""Several gateways on one port: `--workers 2`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from lab.evals.stack import Stack
from store.record import Record
from store.settings import read_settings
from store.values import adapter_name
from tests import waiting
from tests.fixtures import PATINA_TINY
from tests.waiting import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

until = partial(waiting.until, seconds=240)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(read_settings({"workers": 2, "batch_size": 4, "max_wait_s": 2.0}), home=tmp_path) as running:
        yield running


def ask(stack: Stack, text: str, history: list[Any] | None = None) -> tuple[str, str]:
    """Ask over a connection of its own; returns (turn id, reply)."""
    with openai.OpenAI(base_url=stack.base_url, api_key=stack.key, max_retries=2) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=PATINA_TINY.name,
            messages=[*(history or []), {"role": "user", "content": text}],
            max_tokens=30,
        )
        return raw.headers["x-patina-turn"], raw.parse().choices[0].message.content or ""


def requests_by_gateway(stack: Stack) -> dict[str, int]:
    found = stack.status()["processes"]
    return {name: beat["detail"]["requests"] for name, beat in found.items() if name.startswith("proxy")}


def live_by_gateway(stack: Stack) -> dict[str, int]:
    found = stack.status()["processes"]
    return {
        name: beat["detail"]["backend"]["live"] for name, beat in found.items() if name.startswith("proxy")
    }


def all_have_attested(stack: Stack) -> bool:
    """Whether each gateway has itself compared the version that it serves with the trainer's."""
    backends = [
        beat["detail"]["backend"]
        for name, beat in stack.status()["processes"].items()
        if name.startswith("proxy")
    ]
    return all(
        one["attested"].get(adapter_name(PATINA_TINY.name, one["live"]), "").startswith("attested: ")
        for one in backends
    )


def test_two_gateways_share_the_port_and_the_record_and_survive_the_death_of_one(stack: Stack) -> None:
    def converse(number: int) -> list[str]:
        question = f"What is {number} plus 2?"
        first, reply = ask(stack, question)
        history = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        second, _ = ask(stack, "Please keep your answers short, and no emoji.", history)
        return [first, second]

    with ThreadPoolExecutor(4) as pool:
        turns = [turn for pair in pool.map(converse, range(12)) for turn in pair]
    recorded(stack.home)
    until(lambda: min(requests_by_gateway(stack).values()) > 0, "both gateways being used")
    until(lambda: stack.status()["proxy"]["requests"] >= 25, "the counters adding up")
    until(lambda: min(live_by_gateway(stack).values()) > 0, "a version going live in both")

    killed = stack.pids()["proxy-2"]
    os.kill(killed, signal.SIGKILL)
    after = [ask(stack, f"Still there, {number}?")[0] for number in range(6)]
    until(lambda: stack.pids().get("proxy-2") not in (None, killed), "the gateway being started again")
    until(lambda: all_have_attested(stack), "the new gateway attesting the live version, too")
    times = Counter(turn["turn_id"] for turn in read_turns(stack))
    assert {times[turn] for turn in [*turns, *after]} == {1}


def read_turns(stack: Stack) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        record = await Record.open(read_settings({"home": stack.home}).database_url)
        try:
            return await record.trajectories(limit=1000)
        finally:
            await record.close()

    recorded(stack.home)
    return asyncio.run(read())
