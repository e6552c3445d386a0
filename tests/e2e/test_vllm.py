"""The whole loop with a real vLLM, as a person starts it: `run.py --backend vllm`, the built-in model, the openai SDK.

Needs an environment for vLLM (docs/backends.md); on a CPU its starts are what takes the time.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from evals.stack import Stack
from store.settings import read_settings
from tests.contract.backends import missing_vllm, vllm_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(missing_vllm()), reason=f"no vLLM here: {missing_vllm()}"),
]

MODEL = "patina-tiny"
QUESTIONS = ("What is the capital of France?", "Tell me the capital of Japan.", "What is 2 plus 3?")
COMPLAINT = "Please keep your answers short, and no emoji."


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = read_settings(
        {"backend": "vllm", "vllm_python": vllm_python(), "batch_size": 4, "max_wait_s": 3.0}
    )
    with Stack(settings, home=tmp_path_factory.mktemp("house"), ready_s=900.0) as stack:
        yield stack


@pytest.fixture
def client(house: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=house.base_url, api_key=house.key, max_retries=0, timeout=900) as made:
        yield made


def rows(house: Stack) -> dict[str, dict[str, Any]]:
    connection = sqlite3.connect(house.home / "patina.db")
    connection.row_factory = sqlite3.Row
    try:
        return {row["turn_id"]: dict(row) for row in connection.execute("SELECT * FROM trajectories")}
    finally:
        connection.close()


def until(condition: Callable[[], Any], what: str, seconds: float = 600) -> Any:
    """Wait for something to come true; the bound is there to end a broken run, not to measure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} did not happen within {seconds:.0f} s")


def backend(house: Stack) -> dict[str, Any]:
    found: dict[str, Any] = house.status()["proxy"]["backend"]
    return found


def complain(client: openai.OpenAI) -> None:
    for i in range(6):
        question: Any = {"role": "user", "content": QUESTIONS[i % 3]}
        first = client.chat.completions.create(model=MODEL, messages=[question], max_tokens=100)
        answer: Any = {"role": "assistant", "content": first.choices[0].message.content}
        client.chat.completions.create(
            model=MODEL, messages=[question, answer, {"role": "user", "content": COMPLAINT}], max_tokens=100
        )


def ask(client: openai.OpenAI, text: str) -> tuple[str, str]:
    """Return the id of the turn and what was said."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=60
    )
    return raw.headers["x-patina-turn"], raw.parse().choices[0].message.content or ""


def test_complaints_make_a_version_live_in_vllm(house: Stack, client: openai.OpenAI) -> None:
    shown = backend(house)["capabilities"]
    assert shown["engine"].startswith("vLLM ")
    assert (shown["logprob_mode"], shown["adapters"], shown["tools"]) == ("raw_logprobs", True, True)
    assert shown["notes"] == []
    complain(client)
    until(lambda: backend(house)["live"] >= 1, "version 1 going live")
    turn, text = ask(client, "What is the capital of Norway?")
    assert text
    row = rows(house)[turn]
    assert row["adapter_version"] >= 1
    assert row["completion_token_ids"]
    assert row["sampling_logprobs"]
    assert backend(house)["live"] in backend(house)["loaded"]


def test_a_killed_engine_is_back_with_its_adapters_and_no_turn_is_lost(
    house: Stack, client: openai.OpenAI
) -> None:
    assert backend(house)["live"] >= 1  # from the test before
    keeper = house.pids()["backend"]
    listener = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me all you know."}],
        stream=True,
        extra_body={"min_tokens": 1500, "max_tokens": 1500, "ignore_eos": True},
    )
    cut = stream.response.headers["x-patina-turn"]
    for _ in range(3):
        next(stream)
    os.kill(listener, signal.SIGKILL)
    with pytest.raises(httpx.RemoteProtocolError):  # a cut is a cut
        for _ in stream:
            pass
    with ThreadPoolExecutor(4) as pool:  # these come while nobody is there
        turns = list(pool.map(lambda i: ask(client, f"What is {i} plus 3?")[0], range(4)))
    state = backend(house)
    assert state["live"] in state["loaded"]
    found = until(lambda: (r := rows(house)) and {cut, *turns} <= r.keys() and r, "all turns being recorded")
    assert found[cut]["drop_reason"] == "unfinished"
    for turn in turns:
        assert found[turn]["adapter_version"] >= 1
        assert found[turn]["drop_reason"] is None
    told = house.status()["processes"]["supervisor"]["detail"]["backend"]
    assert told["restarts"] >= 1
    assert told["last_exit"] == 1
