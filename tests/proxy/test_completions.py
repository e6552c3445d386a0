"""`/v1/completions` and the list of models, on the built-in engine: served by the live version, recorded, and unchanged for the client."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from store.manifest import content_hash, read_served
from store.values import AdapterState, AdapterVersion, StepReport
from tests.proxy.conftest import KEY, Gateway, run_gateway_at
from tests.proxy.test_adapters import is_live
from tests.serving.embedded.test_app import running

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[str]:
    with running(tiny_model, "--served-model-name", "tiny", "--threads", "1") as (address, _):
        yield address


@pytest.fixture
def served(engine: str, record_file: Path, tiny_adapters: tuple[Path, Path]) -> Iterator[Gateway]:
    """A gateway on the engine, version 1 live."""
    with run_gateway_at(engine, None, record_file) as gateway:
        folder = tiny_adapters[0]
        adapter = AdapterVersion(
            policy="tiny", version=1, path=str(folder), content_hash=content_hash(read_served(folder)), parent_version=0,
            state=AdapterState.PUBLISHED, reason="", method="combine", metrics={}, created_at=time.time(),
        )  # fmt: skip
        step = StepReport(
            step_id="one", policy="tiny", method="combine", started_at=1.0, finished_at=2.0, version=1, error=None, metrics={}
        )  # fmt: skip
        gateway.in_record(lambda record: record.publish(adapter, [], step, worker="w"))
        is_live(gateway, 1)
        yield gateway


def post(url: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/completions", json=body, timeout=60, headers={"Authorization": f"Bearer {KEY}"}
    )


def events(reply: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def without_ids(value: dict[str, Any], model: str) -> dict[str, Any]:
    """Return a reply without what differs between two replies to one request."""
    return {name: inner for name, inner in value.items() if name not in ("id", "created")} | {"model": model}


def turns(gateway: Gateway) -> dict[str, sqlite3.Row]:
    """Return the stored turns, each with the body of its request, by id."""
    with contextlib.closing(
        sqlite3.connect(gateway.record_url.removeprefix("sqlite+aiosqlite:///"))
    ) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT turns.*, body FROM turns JOIN messages ON hash = request")
        return {row["turn_id"]: row for row in rows}


def joined(reply: httpx.Response) -> dict[str, Any]:
    """Return what a stream amounts to; the engine may send several tokens as one chunk."""
    chunks = events(reply)
    texts: dict[int, str] = {}
    ids: dict[int, list[int]] = {}
    tokens: dict[int, list[str]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        index = choice["index"]
        texts[index] = texts.get(index, "") + choice["text"]
        ids[index] = ids.get(index, []) + (choice.get("token_ids") or [])
        tokens[index] = tokens.get(index, []) + ((choice["logprobs"] or {}).get("tokens") or [])
    return {
        "texts": texts, "ids": ids, "tokens": tokens, "usage": [chunk.get("usage") for chunk in chunks if chunk.get("usage")],
        "fields": {tuple(sorted(choice)) for chunk in chunks for choice in chunk["choices"]},
    }  # fmt: skip


def test_a_completion_is_served_by_the_live_version_and_recorded_with_its_tokens(served: Gateway) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    direct = post(served.upstream_url, {**body, "model": "tiny@1", "return_token_ids": True, "logprobs": 0})
    base = post(served.upstream_url, body).json()
    plain = post(served.upstream_url, {**body, "model": "tiny@1"}).json()
    reply = post(served.url, body)
    assert reply.status_code == 200
    assert without_ids(reply.json(), "tiny") == without_ids(plain, "tiny")  # and the client's name is back
    assert reply.json()["model"] == "tiny"
    assert reply.json()["choices"][0]["text"] != base["choices"][0]["text"]
    streamed = post(served.url, {**body, "stream": True})
    told = post(served.upstream_url, {**body, "model": "tiny@1", "stream": True})
    assert joined(streamed) == joined(told)
    assert {one["model"] for one in events(streamed)} == {"tiny"}
    rows = served.rows(2)
    wanted = direct.json()["choices"][0]
    for row, answer in zip(rows, (reply, streamed), strict=True):
        assert row["turn_id"] == answer.headers["x-patina-turn"]
        assert row["messages"] == [{"role": "user", "content": PROMPT}]
        assert row["completion"] == wanted["text"]
        stored = turns(served)[row["turn_id"]]
        assert json.loads(stored["prompt_token_ids"]) == wanted["prompt_token_ids"]
        assert json.loads(stored["completion_token_ids"]) == wanted["token_ids"]
        logprobs = wanted["logprobs"]["token_logprobs"]
        assert json.loads(stored["sampling_logprobs"]) == pytest.approx(logprobs, abs=1e-5)
        assert (row["adapter_version"], row["drop_reason"]) == (1, None)


def score(url: str, body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/score", json=body, timeout=60, headers={"Authorization": f"Bearer {KEY}"})


def test_a_score_is_of_the_live_version_or_the_named_one_and_no_turn(served: Gateway) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    found = {}
    for name in ("tiny", "tiny@0"):
        reply = score(served.url, {"model": name, "messages": messages, "completion": "It is Paris."})
        assert reply.status_code == 200
        scored = reply.json()
        assert "".join(scored["tokens"]) == "It is Paris."
        assert len(scored["logprobs"]) == len(scored["tokens"]) == scored["completion_tokens"]
        assert all(value < 0 for value in scored["logprobs"])
        assert scored["logprob_sum"] == pytest.approx(sum(scored["logprobs"]))
        found[scored["model"]] = scored
    assert set(found) == {"tiny@1", "tiny@0"}
    assert found["tiny@1"]["logprobs"] != pytest.approx(found["tiny@0"]["logprobs"], abs=1e-2)
    asked: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 1}
    chat = served.client.chat.completions.create(**asked)
    assert chat.usage.prompt_tokens == found["tiny@1"]["prompt_tokens"]
    assert len(served.rows(1)) == 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ([], 400, None),
        ({"messages": [], "completion": "x"}, 422, "messages"),
        ({"messages": ["x"], "completion": "x"}, 422, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "completion": ""}, 422, "completion"),
        ({"messages": [{"role": "user", "content": "x"}], "completion": "x", "model": 3}, 422, "model"),
        ({"messages": [{"role": "user", "content": "x"}], "completion": "x", "model": "tiny@7"}, 404, "model"),
        ({"messages": [{"role": "nobody", "content": "x"}], "completion": "x"}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "completion": "word " * 40_000}, 400, None),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused_with_a_sentence(
    served: Gateway, body: Any, status: int, param: str | None
) -> None:
    reply = score(served.url, body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["message"]
    if param is not None:
        assert error["param"] == param


def test_what_the_client_asked_for_stays_in_a_completion(served: Gateway) -> None:
    body = {
        "model": "tiny@1", "prompt": [PROMPT], "max_tokens": 4, "temperature": 0, "logprobs": 2, "n": 2,
        "return_token_ids": True, "stream_options": {"include_usage": True}, "stream": True,
    }  # fmt: skip
    reply, told = post(served.url, body), post(served.upstream_url, body)

    assert joined(reply) == joined(told)
    assert len(served.rows(2)) == 2  # one for each choice


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"prompt": ["one", "two"]}, "the completion's prompt is not one text"),
        ({"prompt": [5, 6, 7]}, "the completion's prompt is not one text"),
    ],
)
def test_a_completion_that_is_no_turn_is_served_by_the_live_version_too(
    served: Gateway, more: dict[str, Any], reason: str
) -> None:
    body = {"model": "tiny", "max_tokens": 4, "temperature": 0, **more}
    reply = post(served.url, body)
    told = post(served.upstream_url, {**body, "model": "tiny@1"})
    assert without_ids(reply.json(), "") == without_ids(told.json(), "")
    assert reply.json()["model"] == "tiny"
    assert "x-patina-turn" not in reply.headers
    assert served.proxy._counters.not_captured == {reason: 1}
    assert served.rows() == []


def test_a_secret_field_of_a_completion_is_redacted_in_the_record(served: Gateway) -> None:
    secret = "a1B2" * 20
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 2, "user": "ann", "api_key": secret}
    assert post(served.url, body).is_success
    (row,) = served.rows(1)
    stored = turns(served)[row["turn_id"]]
    assert row["messages"] == [{"role": "user", "content": PROMPT}]
    assert json.loads(stored["body"])["api_key"] == "***"
    assert all(secret.encode() not in path.read_bytes() for path in served.journal.glob("*.journal"))


def test_an_unknown_model_has_one_error_on_every_path(served: Gateway) -> None:
    for name in ("gpt-4o-mini", "tiny@7", "tiny.bob"):
        found = []
        for ask in (
            lambda name: served.client.completions.create(model=name, prompt="x"),
            lambda name: served.client.chat.completions.create(model=name, messages=[{"role": "user", "content": "x"}]),
            lambda name: served.client.models.retrieve(name),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError) as caught:
                ask(name)
            found.append((caught.value.body, caught.value.code))
        assert found[0] == found[1] == found[2]
        assert found[0][1] == "model_not_found"


def test_the_models_are_the_policy_and_its_retained_versions(served: Gateway) -> None:
    cards = {card.id: card.model_dump() for card in served.client.models.list()}
    assert list(cards) == ["tiny", "tiny@1"]
    assert all(card["max_model_len"] > 0 for card in cards.values())
    for name in ("tiny", "tiny@1", "tiny@0", "patina", "default"):
        assert served.client.models.retrieve(name).id == name
    served.in_record(lambda record: record.mark_pruned("tiny", [1]))
    assert [card.id for card in served.client.models.list()] == ["tiny"]


def test_where_any_model_is_accepted_the_policy_answers_and_the_record_has_the_name(
    engine: str, record_file: Path, tmp_path: Path
) -> None:
    record = Path(shutil.copy(record_file, tmp_path / "other.db"))
    with run_gateway_at(engine, None, record, accepts_any_model=None) as gateway:
        reply = gateway.client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": "x"}], max_tokens=3
        )
        assert reply.model == "gpt-4o-mini"
        assert gateway.client.completions.create(model="gpt-4o", prompt="x", max_tokens=3).model == "gpt-4o"
        assert gateway.client.models.retrieve("gpt-4o").id == "gpt-4o"
        for name in ("tiny@7", "tiny.bob"):  # these name a version and a policy, which do not exist
            with pytest.raises(openai.NotFoundError):
                gateway.client.completions.create(model=name, prompt="x")
        rows, stored = gateway.rows(2), turns(gateway)
        names = [json.loads(stored[row["turn_id"]]["body"])["model"] for row in rows]
        assert names == ["gpt-4o-mini", "gpt-4o"]
        assert {row["policy"] for row in rows} == {"tiny"}
