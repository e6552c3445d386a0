"""The whole loop with a real vLLM, as a person starts it: `run.py --backend vllm`, the test model, the openai SDK.

One stack for all tests; engine and trainer alternate (`--colocate sleep`): on a CPU a sleeping vLLM holds its requests and frees nothing, so
that who waits for whom is real, and what memory it saves is not seen. Needs an environment for vLLM (docs/backends.md); on a CPU its
starts are what takes the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lab.evals.stack import Stack
from store.record import Record
from store.settings import read_settings
from store.values import AdapterState
from tests import waiting
from tests.contract.backends import missing_vllm, vllm_python
from tests.waiting import recorded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(missing_vllm()), reason=f"no vLLM here: {missing_vllm()}"),
]

MODEL = "patina-tiny"
QUESTIONS = ("What is the capital of France?", "Tell me the capital of Japan.", "What is 2 plus 3?")
#: Each round of complaints states another wish: a complaint about a reply that already follows it teaches nothing.
COMPLAINTS = cycle(
    (
        "Please keep your answers short, and no emoji.",
        "Please answer in Spanish.",
        "Please answer in English again, and formally.",
    )
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = read_settings(
        {
            "backend": "vllm",
            "vllm_python": vllm_python(),
            "batch_size": 4,
            "max_wait_s": 3.0,
            "colocate": "sleep",
            "max_hold": 1.0,
        }
    )
    with Stack(settings, home=tmp_path_factory.mktemp("stack"), ready_s=900.0) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stack.base_url, api_key=stack.key, max_retries=0, timeout=900) as made:
        yield made


def rows(stack: Stack) -> dict[str, dict[str, Any]]:
    connection = sqlite3.connect(recorded(stack.home))
    connection.row_factory = sqlite3.Row
    try:
        return {row["turn_id"]: dict(row) for row in connection.execute("SELECT * FROM trajectories")}
    finally:
        connection.close()


until = partial(waiting.until, seconds=600)  # the engine starts on a crowded machine as well


def backend(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = stack.status()["proxy"]["backend"]
    return found


def complain(client: openai.OpenAI) -> None:
    complaint = next(COMPLAINTS)
    for i in range(6):
        question: Any = {"role": "user", "content": QUESTIONS[i % 3]}
        first = client.chat.completions.create(model=MODEL, messages=[question], max_tokens=100)
        answer: Any = {"role": "assistant", "content": first.choices[0].message.content}
        client.chat.completions.create(
            model=MODEL, messages=[question, answer, {"role": "user", "content": complaint}], max_tokens=100
        )


#: Stages of turns that the next batches may take.
WAITING = ("answered", "scored", "claimed")


def complain_until(
    stack: Stack, client: openai.OpenAI, condition: Callable[[], object], what: str, seconds: float = 1200
) -> None:
    """Wait until something comes true that a new version brings, and complain again whenever no turn waits to be trained.

    The gate may reject a version, and drops its turns the second time; so one round of complaints need not make a version.
    """

    def holds() -> object:
        found = condition()
        if not found and not any(row["stage"] in WAITING for row in rows(stack).values()):
            complain(client)
        return found

    try:
        until(holds, what, seconds=seconds)
    except AssertionError as late:
        turns = Counter((row["stage"], row["drop_reason"]) for row in rows(stack).values())
        raise AssertionError(f"{late}; turns: {turns}; processes: {stack.status()['processes']}") from late


def ask(client: openai.OpenAI, text: str) -> tuple[str, str]:
    """Return the turn id and the reply text."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=60
    )
    return raw.headers["x-patina-turn"], raw.parse().choices[0].message.content or ""


def test_complaints_make_a_version_live_in_vllm(stack: Stack, client: openai.OpenAI) -> None:
    shown = backend(stack)["capabilities"]
    assert shown["engine"].startswith("vLLM ")
    assert (shown["logprob_mode"], shown["adapters"], shown["tools"]) == ("raw_logprobs", True, True)
    assert shown["notes"] == []
    complain_until(stack, client, lambda: backend(stack)["live"] >= 1, "version 1 going live")
    turn, text = ask(client, "What is the capital of Norway?")
    assert text
    row = rows(stack)[turn]
    assert row["adapter_version"] >= 1
    assert row["completion_token_ids"]
    assert row["sampling_logprobs"]
    assert backend(stack)["live"] in backend(stack)["loaded"]


def device(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = stack.status()["processes"]["device"]["detail"]
    return found


def trainer(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = stack.status()["processes"]["trainer"]
    return found


def test_the_engine_sleeps_while_a_step_runs_and_a_request_is_let_through(
    stack: Stack, client: openai.OpenAI
) -> None:
    assert device(stack)["leases"] >= 1  # the previous version was trained under a lease
    live, before = backend(stack)["live"], device(stack)
    complain(client)  # its later requests come while a step runs
    until(
        lambda: device(stack)["holder"] == "trainer" or backend(stack)["live"] > live,
        "the trainer holding the device",
    )
    assert ask(client, "What is the capital of Peru?")[1]  # with either holder of the device
    # A step may end between the look at its holder and the request: then a later step holds one.
    complain_until(
        stack,
        client,
        lambda: backend(stack)["live"] > live and device(stack)["held_requests"] > before["held_requests"],
        "the next version going live, and a request being held",
    )
    until(lambda: device(stack)["holder"] == "engine", "the engine being woken")
    # A heartbeat can fall between the turn's end and the last request's going on, and the next step may hold requests again.
    until(lambda: device(stack)["held_now"] == 0, "no request being held")
    after = device(stack)
    assert after["leases"] > before["leases"]
    assert after["held_requests"] > before["held_requests"]
    assert after["held_s"] > before["held_s"]
    assert "problem" not in after
    assert trainer(stack)["detail"]["device_wait_s"] > 0


def test_a_turn_whose_tokens_a_grammar_forced_waits_for_a_reaction(
    stack: Stack, client: openai.OpenAI
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Is Paris the capital of France?"}],
        max_tokens=20,
        extra_body={"structured_outputs": {"choice": ["certainly it is", "certainly not"]}},
    )
    assert raw.parse().choices[0].message.content in ("certainly it is", "certainly not")
    turn = raw.headers["x-patina-turn"]
    row = until(lambda: rows(stack).get(turn), "the turn being recorded")
    assert (row["stage"], row["drop_reason"]) == ("recorded", None)


def test_a_killed_engine_is_back_with_its_adapters_and_no_turn_is_lost(
    stack: Stack, client: openai.OpenAI
) -> None:
    assert backend(stack)["live"] >= 1  # from the test before
    keeper = stack.pids()["backend"]
    listener = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me all you know."}],
        stream=True,
        extra_body={"min_tokens": 1500, "max_tokens": 1500, "ignore_eos": True},
    )
    cut = stream.response.headers["x-patina-turn"]
    os.kill(listener, signal.SIGKILL)  # the head is here: a stream in flight
    with pytest.raises(httpx.RemoteProtocolError):  # a cut is a cut
        for _ in stream:
            pass
    with ThreadPoolExecutor(4) as pool:  # these arrive while the engine is down
        turns = list(pool.map(lambda i: ask(client, f"What is {i} plus 3?")[0], range(4)))
    state = backend(stack)
    assert state["live"] in state["loaded"]
    found = until(lambda: (r := rows(stack)) and {cut, *turns} <= r.keys() and r, "all turns being recorded")
    assert found[cut]["drop_reason"] == "unfinished"
    for turn in turns:
        assert found[turn]["adapter_version"] >= 1
        assert found[turn]["drop_reason"] is None
    detail = stack.status()["processes"]["supervisor"]["detail"]["backend"]
    assert detail["restarts"] >= 1
    assert detail["last_exit"] == 1


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def engine_core(stack: Stack) -> int:
    """The process that computes; vLLM names it so."""
    for pid in descendants(stack.pids()["backend"]):
        with contextlib.suppress(OSError):
            if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError("vLLM has no process that is called EngineCore")


def test_a_killed_engine_core_and_a_trainer_killed_in_its_turn_are_survived_without_training_twice(
    stack: Stack, client: openai.OpenAI
) -> None:
    live, restarts = backend(stack)["live"], stack.status()["processes"]["supervisor"]["detail"]
    complain(client)
    until(lambda: device(stack)["holder"] == "trainer", "the trainer holding the device")
    core = engine_core(stack)
    os.kill(core, signal.SIGSTOP)  # it will be asked to wake, and die before it answers: vLLM waits for ever
    os.kill(stack.pids()["trainer"], signal.SIGKILL)
    claimed = [turn for turn, row in rows(stack).items() if row["stage"] == "claimed"]
    until(lambda: device(stack)["holder"] == "engine", "the lease of the dead trainer ending")
    time.sleep(1.0)  # the request to wake is on its way
    os.kill(core, signal.SIGKILL)
    # neither trainer nor engine runs: both restart without an action of the user
    turn, text = ask(client, "What is the capital of Chile?")
    assert text
    assert until(lambda: rows(stack).get(turn), "the turn being recorded")["adapter_version"] >= 1
    state = backend(stack)
    assert state["live"] in state["loaded"]
    detail = stack.status()["processes"]["supervisor"]["detail"]
    for name in ("backend", "trainer"):
        until(
            lambda name=name: (
                stack.status()["processes"]["supervisor"]["detail"][name]["restarts"]  # type: ignore[misc]  # a loop's lambda
                > restarts[name]["restarts"]
            ),
            f"the restart of the {name} in the status",
        )
    assert detail["proxy"]["restarts"] == restarts["proxy"]["restarts"]
    # What the dead trainer had claimed is trained when its lease is over, once; or two versions of it are rejected.
    end_leases(stack)
    complain_until(
        stack, client, lambda: backend(stack)["live"] > live, "the version that the kill prevented"
    )
    until(
        lambda: not [r for r in rows(stack).values() if r["stage"] in WAITING],
        "no turn waiting to be trained",
    )
    stages = rows(stack)
    assert {stages[turn]["stage"] for turn in claimed} <= {"trained", "dropped"}
    published, trained = asyncio.run(counted(stack))
    assert published == trained > 0
    assert asyncio.run(verified(stack)) == []


def end_leases(stack: Stack) -> None:
    """Let two minutes pass for the record."""
    connection = sqlite3.connect(stack.home / "patina.db", timeout=30)
    try:
        with connection:
            connection.execute("UPDATE turn_states SET lease_until = 0 WHERE lease_until IS NOT NULL")
    finally:
        connection.close()


async def counted(stack: Stack) -> tuple[int, int]:
    """Turns that the versions say they were made of, and turns that are trained: more of the former would be trained twice."""
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    try:
        made = await record.adapters(MODEL)
        assert not [one.reason for one in made if one.state is AdapterState.REFUSED]
        trained = (await record.status()).stages.get("trained", 0)
    finally:
        await record.close()
    return sum(int(a.metrics["turns"]) for a in made if a.state is not AdapterState.REJECTED), trained


async def verified(stack: Stack) -> list[str]:
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    try:
        return await record.verify()
    finally:
        await record.close()
