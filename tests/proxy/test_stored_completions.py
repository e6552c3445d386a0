"""Stored completions through the openai SDK: what was recorded is listed, read, annotated and deleted by its own key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from store.keys import KeyFile, Keyring
from tests.proxy.conftest import KEY, Gateway, run_gateway_at
from tests.proxy.upstream import Upstream, running


def scripted(**script: Any) -> Any:
    return {"scripted": script}


@pytest.fixture
def three(gateway: Gateway) -> list[str]:
    """The ids of three completions, oldest first; the second has metadata, two choices and tools."""
    ids = [gateway.ask("one", extra_body=scripted(text="1"), metadata={"app": "a"}).id]
    ids.append(gateway.ask("two", n=2, extra_body=scripted(text="2"), metadata={"app": "b", "run": "7"}).id)
    ids.append(gateway.ask("three", extra_body=scripted(text="3"), temperature=0.5).id)
    return ids


def test_completions_are_listed_in_pages_and_filtered(gateway: Gateway, three: list[str]) -> None:
    stored = gateway.client.chat.completions
    gateway.ask("secret", store=False, extra_body=scripted(text="not stored"))
    assert [one.id for one in stored.list()] == three
    assert [one.id for one in stored.list(order="desc", limit=1)] == three[
        ::-1
    ]  # the SDK asks for page after page
    page = stored.list(limit=2)
    assert (len(page.data), page.has_more) == (2, True)
    assert [one.id for one in stored.list(after=three[1])] == three[2:]
    assert [one.id for one in stored.list(metadata={"app": "b", "run": "7"})] == three[1:2]
    assert [one.id for one in stored.list(model="tiny")] == three
    assert [one.id for one in stored.list(model="tiny@0")] == three
    assert not stored.list(model="other").data
    assert len(list(stored.list(extra_query={"stored": "all"}))) == 4
    with pytest.raises(openai.NotFoundError):
        stored.list(after="chatcmpl-absent")
    with pytest.raises(openai.BadRequestError, match="'asc' or 'desc'"):
        stored.list(extra_query={"order": "newest"})


def test_a_completion_reads_as_it_was_returned(gateway: Gateway) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    parts: Any = [{"type": "text", "text": "look"}, {"type": "text", "text": "here"}]
    sent = gateway.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}],
        tools=[tool],
        n=2,
        metadata={"k": "v"},
        extra_body=scripted(text="ok", tool_calls=[call]),
    )
    found = gateway.client.chat.completions.retrieve(sent.id)
    assert found.model == sent.model
    assert [(c.index, c.finish_reason, c.message.content) for c in found.choices] == [
        (c.index, c.finish_reason, c.message.content) for c in sent.choices
    ]
    calls = found.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].model_dump(exclude_unset=True) == call
    assert found.usage == sent.usage
    assert found.model_dump()["metadata"] == {"k": "v"}
    # The SDK types these messages as an assistant's, although OpenAI returns all: a copy of the client is not strict.
    stored = gateway.client.copy().chat.completions.messages
    messages = stored.list(sent.id)
    assert [(one.id, one.role, one.content) for one in messages] == [
        (f"{sent.id}-0", "system", "be brief"),
        (f"{sent.id}-1", "user", "look\nhere"),
    ]
    newest = stored.list(sent.id, order="desc", limit=1)
    assert newest.data[0].id == f"{sent.id}-1"
    kept = newest.data[0].content_parts or []
    assert [part.model_dump(exclude_unset=True) for part in kept] == parts


def test_metadata_is_replaced_and_an_opinion_in_it_is_feedback(gateway: Gateway, three: list[str]) -> None:
    stored = gateway.client.chat.completions
    changed = stored.update(three[0], metadata={"app": "z", "rating": "5", "feedback": "Shorter, please."})
    assert changed.model_dump()["metadata"]["app"] == "z"
    assert [one.id for one in stored.list(metadata={"app": "z"})] == three[:1]
    stored.update(three[2], metadata={"feedback": "down"})
    rows = {row["messages"][-1]["content"]: row["turn_id"] for row in gateway.rows()}

    async def given(record: Any) -> list[tuple[float, str]]:
        stories = [await record.story(rows[text]) for text in ("one", "three")]
        return [(one["score"], one["text"]) for story in stories for one in story["feedback"]]

    assert gateway.in_record(given) == [(1.0, "Shorter, please."), (-1.0, "")]
    for wrong in ({"rating": "11"}, {"x": "y" * 513}, {str(i): "" for i in range(17)}):
        with pytest.raises(openai.BadRequestError, match="metadata"):
            stored.update(three[0], metadata=wrong)


def test_a_deleted_completion_is_gone_for_its_client_and_waits_to_be_forgotten(
    gateway: Gateway, three: list[str]
) -> None:
    stored = gateway.client.chat.completions
    deleted = stored.delete(three[1])
    assert (deleted.id, deleted.deleted, deleted.object) == (three[1], True, "chat.completion.deleted")
    assert [one.id for one in stored.list()] == [three[0], three[2]]
    for ask in (stored.retrieve, stored.delete, stored.messages.list):
        with pytest.raises(openai.NotFoundError, match="not found"):
            ask(three[1])
    (turn_id,) = {
        row["turn_id"] for row in gateway.rows() if row["completion"] == "2" and "." not in row["turn_id"]
    }
    (job,) = gateway.in_record(lambda record: record.open_forget_jobs())
    assert (job.asked, job.key_name) == (f"turn {turn_id}", "default")


def test_another_key_sees_nothing_of_mine(upstream: Upstream, record_file: Path) -> None:
    file = KeyFile(record_file.with_name("keys.json"))
    other, keys = file.add("ann"), Keyring(KEY, named=file)
    with running(upstream) as url, run_gateway_at(url, upstream, record_file, keys=keys) as gateway:
        mine = gateway.ask("private", extra_body=scripted(text="words")).id
        theirs = gateway.client.with_options(api_key=other).chat.completions
        assert not theirs.list().data
        assert not theirs.list(extra_query={"stored": "all"}).data
        attempts: list[Any] = [
            lambda: theirs.retrieve(mine),
            lambda: theirs.update(mine, metadata={"a": "b"}),
            lambda: theirs.delete(mine),
            lambda: theirs.messages.list(mine),
            lambda: theirs.list(after=mine),
        ]
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError):
                attempt()
        assert gateway.client.chat.completions.retrieve(mine).choices[0].message.content == "words"


def test_responses_and_text_completions_are_not_among_them(gateway: Gateway) -> None:
    gateway.client.responses.create(model="tiny", input="hi", extra_body=scripted(text="r"))
    odd = gateway.client.copy()  # not strict: this backend has no completions
    odd.completions.create(model="tiny", prompt="hi", extra_body=scripted(text="c"))
    gateway.rows(2)
    assert not gateway.client.chat.completions.list().data


def test_an_upstream_with_native_apis_answers_for_itself(upstream: Upstream, record_file: Path) -> None:
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, is_local=False, native_apis=True) as gateway,
    ):
        httpx.get(
            f"{gateway.url}/v1/chat/completions", headers={"authorization": f"Bearer {KEY}"}, verify=False
        )
        assert upstream.seen[-1].path == "/v1/chat/completions"
