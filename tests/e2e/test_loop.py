"""The whole stack as users run it: real processes, the test model, the openai SDK.

One stack serves all tests of this file, and they share its record. test_kills.py kills its processes.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from transformers import AutoTokenizer

from lab.evals.stack import Stack
from store.settings import REPOSITORY, child_environment, read_settings
from tests.fixtures import PATINA_TINY
from tests.waiting import recorded, until

pytestmark = pytest.mark.timeout(900)

QUESTIONS = ("What is the capital of France?", "Tell me the capital of Japan.", "What is 2 plus 3?")
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = read_settings({"batch_size": 4, "max_wait_s": 3.0})
    with Stack(settings, home=tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.base_url, api_key=stack.key, max_retries=4, timeout=300) as made:
        yield made


def rows(stack: Stack, where: str = "1", *values: object) -> list[dict[str, Any]]:
    """What a person's plain SQL query says."""
    connection = sqlite3.connect(recorded(stack.home))
    connection.row_factory = sqlite3.Row
    try:
        found = connection.execute(f"SELECT * FROM trajectories WHERE {where} ORDER BY created_at", values)
        return [dict(row) for row in found]
    finally:
        connection.close()


def command(stack: Stack, *argv: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "run.py", *argv, "--home", str(home or stack.home)],
        cwd=REPOSITORY,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_interleaved_sessions_get_their_own_turns_next_states_and_exact_ids(
    stack: Stack, client: OpenAI
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(PATINA_TINY)
    histories: list[list[ChatCompletionMessageParam]] = [[], []]
    ids: list[list[str]] = [[], []]
    texts = [
        ["What is the capital of Norway?", "shorter please", "Thanks!"],
        ["What is the capital of Peru?", "no emoji", "ok"],
    ]
    for step in range(3):
        for one in (0, 1):
            histories[one].append({"role": "user", "content": texts[one][step]})
            raw = client.chat.completions.with_raw_response.create(
                model="patina-tiny", messages=histories[one], max_tokens=120
            )
            ids[one].append(raw.headers["x-patina-turn"])
            message = raw.parse().choices[0].message
            histories[one].append({"role": "assistant", "content": message.content})
    for one in (0, 1):
        found = [rows(stack, "turn_id = ?", turn_id)[0] for turn_id in ids[one]]
        assert len({row["session_id"] for row in found}) == 1
        assert [row["relation"] for row in found] == ["first", "next", "next"]
        assert [row["parent_turn_id"] for row in found] == [None, ids[one][0], ids[one][1]]
        assert [row["next_text"] for row in found] == [texts[one][1], texts[one][2], None]
        for row in found:
            sampled = json.loads(row["completion_token_ids"])
            logprobs = json.loads(row["sampling_logprobs"])
            assert len(sampled) == len(logprobs) > 0
            assert tokenizer.decode(sampled, skip_special_tokens=True).strip() == row["completion"].strip()
            assert all(value <= 0 for value in logprobs)
    assert (
        rows(stack, "turn_id = ?", ids[0][0])[0]["session_id"]
        != rows(stack, "turn_id = ?", ids[1][0])[0]["session_id"]
    )


def test_a_streamed_reply_is_the_recorded_one_and_nothing_we_asked_for_shows(
    stack: Stack, client: OpenAI
) -> None:
    stream = client.chat.completions.create(
        model="patina-tiny", messages=[{"role": "user", "content": QUESTIONS[0]}], stream=True, seed=7
    )
    text = ""
    for chunk in stream:
        assert chunk.usage is None
        assert "prompt_token_ids" not in (chunk.model_extra or {})
        for choice in chunk.choices:
            assert choice.logprobs is None
            assert "token_ids" not in (choice.model_extra or {})
            text += choice.delta.content or ""
    turn = stream.response.headers["x-patina-turn"]
    (row,) = rows(stack, "turn_id = ?", turn)
    assert row["completion"] == text != ""
    assert row["finish_reason"] == "stop"
    assert len(json.loads(row["completion_token_ids"])) == len(json.loads(row["sampling_logprobs"])) > 0


def test_a_tool_turn_links_to_its_result(stack: Stack, client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "What is the weather in Paris?"}
    ]
    raw = client.chat.completions.with_raw_response.create(
        model="patina-tiny",
        messages=messages,
        tools=[WEATHER],
        tool_choice="required",  # so that it calls at all; a forced call alone in a fresh list would be classified as a side turn
        temperature=0,
        extra_headers={"X-Turn-Type": "main"},
    )
    message = raw.parse().choices[0].message
    assert message.tool_calls
    call = message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name == "get_weather"
    messages += [
        {"role": "assistant", "content": message.content, "tool_calls": [call.model_dump()]},  # type: ignore[list-item]  # the SDK's own dump
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"},
    ]
    client.chat.completions.create(model="patina-tiny", messages=messages, tools=[WEATHER])
    (row,) = rows(stack, "turn_id = ?", raw.headers["x-patina-turn"])
    assert (row["next_role"], row["next_text"]) == ("tool", "sunny, 20 degrees")
    assert json.loads(row["tool_calls"])[0]["function"]["name"] == "get_weather"
    assert row["drop_reason"] in (None, "abstained")  # a forced call waits for a reaction like any other turn


def test_any_model_name_is_served_and_an_unknown_version_is_the_usual_error(client: OpenAI) -> None:
    # One policy is served, so a name that is no version of it means that policy.
    reply = client.chat.completions.create(model="gpt-17", messages=[{"role": "user", "content": "hi"}])
    assert reply.model == "gpt-17"
    with pytest.raises(NotFoundError, match="is not loaded"):
        client.chat.completions.create(model="patina-tiny@99", messages=[{"role": "user", "content": "hi"}])


def test_complaints_make_a_version_live_without_a_command_and_rollback_undoes_it(
    stack: Stack, client: OpenAI
) -> None:
    def complain() -> None:
        for i in range(6):
            first = client.chat.completions.create(
                model="patina-tiny", messages=[{"role": "user", "content": QUESTIONS[i % 3]}]
            )
            client.chat.completions.create(
                model="patina-tiny",
                messages=[
                    {"role": "user", "content": QUESTIONS[i % 3]},
                    {"role": "assistant", "content": first.choices[0].message.content},
                    {"role": "user", "content": "Please keep your answers short, and no emoji."},
                ],
            )

    complain()
    until(lambda: stack.status()["live"].get("patina-tiny"), "version 1 going live", 480)
    until(lambda: stack.status()["proxy"]["backend"]["live"] >= 1, "the proxy serving it", 480)
    reply = client.chat.completions.with_raw_response.create(
        model="patina-tiny", messages=[{"role": "user", "content": "Hello!"}]
    )
    (row,) = rows(stack, "turn_id = ?", reply.headers["x-patina-turn"])
    assert row["adapter_version"] >= 1
    trained = rows(stack, "trained_in_version = 1")
    assert trained
    assert {row["stage"] for row in trained} == {"trained"}
    assert all(row["verdict"] is not None for row in trained)
    assert "shorter" in command(stack, "why", "1").stdout or "short" in command(stack, "why", "1").stdout
    assert command(stack, "pause").returncode == 0
    until(lambda: stack.status()["stages"].get("claimed", 0) == 0, "the step under way ending")
    done = command(stack, "rollback", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is live" in done.stdout
    reply = client.chat.completions.with_raw_response.create(
        model="patina-tiny", messages=[{"role": "user", "content": "Hello again!"}]
    )
    (row,) = rows(stack, "turn_id = ?", reply.headers["x-patina-turn"])
    assert row["adapter_version"] == 0
    assert command(stack, "resume").returncode == 0
    shown = json.loads(command(stack, "versions", "--json").stdout)
    assert shown["live"] == 0
    assert shown["versions"][0]["state"] == "published"


def test_feedback_by_turn_id_is_scored(stack: Stack, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="patina-tiny", messages=[{"role": "user", "content": QUESTIONS[1]}]
    )
    turn = raw.headers["x-patina-turn"]
    body = {"turn_id": turn, "thumbs": "down", "text": "in Spanish please"}
    assert client.post("/feedback", body=body, cast_to=object) is not None
    row = until(
        lambda: next((r for r in rows(stack, "turn_id = ?", turn) if r["verdict"] is not None), None),
        "the verdict",
    )
    assert (row["verdict"], row["verdict_source"]) == (-1, "feedback")


@pytest.mark.long_run
def test_a_batch_of_feedback_that_waits_is_answered_with_the_version_it_made(
    stack: Stack, client: OpenAI
) -> None:
    turns = [
        client.chat.completions.with_raw_response.create(
            model="patina-tiny", messages=[{"role": "user", "content": question}]
        ).headers["x-patina-turn"]
        for question in QUESTIONS
    ]
    words = "Please keep your answers short, and no emoji."
    items = [{"lora_id": "patina-tiny", "turn_id": one, "feedback": words, "thumbs": "down"} for one in turns]
    reply = httpx.post(
        f"{stack.base_url}/feedback?wait=true",
        json={"requests": items},
        headers={"authorization": f"Bearer {stack.key}"},
        timeout=280,
    )
    answer = reply.json()
    assert (reply.status_code, answer["status"], answer["batch_size"]) == (200, "ok", 3)
    trained = rows(stack, "trained_in_version = ?", answer["version"])
    assert {row["turn_id"] for row in trained} & {*turns}
    made = json.loads(command(stack, "versions", "--json").stdout)
    assert answer["version"] in [one["version"] for one in made["versions"] if one["state"] == "published"]
    assert answer["distill_result"]["metadata"]["batch_size"] >= 1
    assert min(answer["timing_ms"][name] for name in ("distill", "save", "logprobs", "total")) > 0
    polled = httpx.get(
        f"{stack.base_url}/feedback/{answer['request_id']}", headers={"authorization": f"Bearer {stack.key}"}
    )
    assert polled.json()["version"] == answer["version"]


def test_the_record_verifies_and_each_dropped_turn_has_a_reason(stack: Stack, client: OpenAI) -> None:
    done = command(stack, "verify")
    assert done.returncode == 0, done.stdout
    assert all(row["drop_reason"] for row in rows(stack, "stage = 'dropped'"))


@pytest.mark.slow
def test_a_backup_of_the_running_home_is_restored_with_its_turns_and_versions(
    stack: Stack, tmp_path: Path
) -> None:
    before = rows(stack)
    made = command(stack, "backup", str(tmp_path / "backup"))
    assert made.returncode == 0, made.stderr
    home = tmp_path / "restored"
    for argv in (["restore", str(tmp_path / "backup")], ["verify"]):
        done = command(stack, *argv, home=home)
        assert done.returncode == 0, done.stdout + done.stderr
    with closing(sqlite3.connect(home / "patina.db")) as copy:
        ids = {row[0] for row in copy.execute("SELECT turn_id FROM trajectories")}
        paths = [Path(row[0]) for row in copy.execute("SELECT path FROM adapters WHERE state = 'published'")]
    assert paths
    assert all(path.is_relative_to(home) and path.is_dir() for path in paths)
    assert {row["turn_id"] for row in before} <= ids
    assert (home / "api_key").read_text(encoding="utf-8").strip() == stack.key


@pytest.mark.long_run  # starts a second stack
def test_a_restored_home_starts_and_serves_its_live_version(stack: Stack, tmp_path: Path) -> None:
    assert command(stack, "backup", str(tmp_path / "backup")).returncode == 0
    home = tmp_path / "restored"
    assert command(stack, "restore", str(tmp_path / "backup"), home=home).returncode == 0
    with Stack(stack.settings, home=home) as again:
        assert again.key == stack.key
        assert again.status()["live"] == stack.status()["live"]
        with OpenAI(base_url=again.base_url, api_key=again.key, max_retries=4, timeout=300) as client:
            ask: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTIONS[0]}]
            assert (
                client.chat.completions.create(model="patina-tiny", messages=ask).choices[0].message.content
            )
        done = command(again, "verify")
        assert done.returncode == 0, done.stdout
