"""Wishes in the prompt: from the next request on, only where a person speaks, and gone when they are removed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from proxy.prompt_wishes import read_placement
from store.keys import KeyFile, Keyring
from store.values import StepReport, Verdict, Wish, WishReading, WishScope, WishState
from tests.proxy.conftest import KEY, Gateway, run_gateway_at
from tests.proxy.test_adapters import make_adapter
from tests.proxy.test_security import ask, bearer
from tests.proxy.upstream import Upstream, running
from tests.waiting import until
from wire.wish_text import prompt_text

CAPTAIN, SHORT = "Call me Captain.", "Short, please."


@contextmanager
def run_with_wishes(upstream: Upstream, record_file: Path, **more: Any) -> Iterator[Gateway]:
    with (
        running(upstream) as url,
        run_gateway_at(
            url, upstream, record_file, **{"read_wish_place": lambda: "behind", **more}
        ) as gateway,
    ):
        yield gateway


@pytest.fixture
def wished(upstream: Upstream, record_file: Path) -> Iterator[Gateway]:
    with run_with_wishes(upstream, record_file) as gateway:
        yield gateway


def in_prompt(gateway: Gateway) -> dict[str, int]:
    state: dict[str, int] = gateway.proxy._wishes.state()["in_prompt"]
    return state


def state_wish(
    gateway: Gateway, text: str, *, client: openai.OpenAI | None = None, policy: str = "tiny"
) -> None:
    """Complain in a conversation, let a scorer find the wish, and wait for the gateway to have it."""
    count = in_prompt(gateway).get(policy, 0)
    client = client or gateway.client
    asked: Any = [{"role": "user", "content": f"How do I boil an egg? ({text})"}]
    reply = client.chat.completions.create(model="tiny", messages=asked)
    answer: Any = {"role": "assistant", "content": reply.choices[0].message.content}
    client.chat.completions.create(model="tiny", messages=[*asked, answer, {"role": "user", "content": text}])
    turn_id = next(
        row["turn_id"] for row in reversed(gateway.rows()) if row["completion"] == answer["content"]
    )
    verdict = Verdict(
        turn_id=turn_id, value=-1, wish=WishReading(text=text, scope=WishScope.LASTING), source="test", created_at=time.time()
    )  # fmt: skip
    gateway.in_record(lambda record: record.add_verdict(verdict))
    until(lambda: in_prompt(gateway).get(policy, 0) == count + 1, "the gateway has the wish")
    wishes = gateway.proxy._wishes
    until(lambda: wishes._texts[policy].tokens or wishes._backend is None, "the backend has counted it")


def read_wishes(gateway: Gateway) -> tuple[Wish, ...]:
    found: tuple[Wish, ...] = gateway.in_record(lambda record: record.wishes())
    return found


def remove(gateway: Gateway, wish: Wish) -> None:
    gateway.in_record(lambda record: record.change_wish(wish.wish_id, state=WishState.WITHDRAWN))
    until(lambda: wish.policy not in in_prompt(gateway), "the gateway has removed it")


def last_body(gateway: Gateway) -> Any:
    return gateway.upstream.seen[-1].body


def test_a_stated_wish_is_in_the_next_prompt_and_a_removed_one_is_gone(wished: Gateway) -> None:
    plain = wished.client.chat.completions.with_raw_response.create(
        model="tiny", messages=[{"role": "user", "content": "Hello?"}]
    )
    assert "x-patina-wishes" not in plain.headers
    state_wish(wished, CAPTAIN)
    state_wish(wished, SHORT)
    asked = wished.client.chat.completions.with_raw_response.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Where is Oslo?"}],
    )
    assert asked.headers["x-patina-wishes"] == "2"
    assert last_body(wished)["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": f"Where is Oslo?\n\n{prompt_text(CAPTAIN)}\n- {SHORT}"},
    ]
    usage = asked.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.model_dump()["wish_tokens"] == 8  # as the backend counts
    # The record has what the client sent, and what was added.
    row = wished.rows()[-1]
    assert row["messages"][-1] == {"role": "user", "content": "Where is Oslo?"}
    (turn,) = wished.in_record(lambda record: _served(record, row["turn_id"]))
    assert turn == (f"{CAPTAIN}\n{SHORT}", "behind")
    captain, short = read_wishes(wished)
    wished.in_record(lambda record: record.change_wish(captain.wish_id, state=WishState.WITHDRAWN))
    until(lambda: in_prompt(wished) == {"tiny": 1}, "one is removed")
    wished.ask("And Bergen?")
    assert last_body(wished)["messages"][-1]["content"] == f"And Bergen?\n\n{prompt_text(SHORT)}"
    remove(wished, short)
    wished.ask("And Voss?")
    assert last_body(wished)["messages"][-1]["content"] == "And Voss?"


async def _served(record: Any, turn_id: str) -> list[tuple[str, str]]:
    story = await record.story(turn_id)
    return [(story["wish_text"], story["wish_place"])]


def test_a_conversation_is_linked_by_what_its_client_sent(wished: Gateway) -> None:
    state_wish(wished, CAPTAIN)
    first = wished.ask("Where is Oslo?").choices[0].message.content
    history = [{"role": "user", "content": "Where is Oslo?"}, {"role": "assistant", "content": first}]
    wished.ask("And Bergen?", history)
    # Only the newest message of a request is extended.
    assert [m["content"] for m in last_body(wished)["messages"]] == [
        "Where is Oslo?",
        first,
        f"And Bergen?\n\n{prompt_text(CAPTAIN)}",
    ]
    *_, one, other = wished.rows()
    assert other["parent_turn_id"] == one["turn_id"]
    assert one["next_text"] == "And Bergen?"


def test_every_other_byte_of_the_request_and_the_reply_stays(wished: Gateway) -> None:
    state_wish(wished, CAPTAIN)
    body = b'{ "model" : "tiny","messages":[{"content":"Wo\\u00dfe?", "role":"user"}],\n"seed": 12345678901234567890, "top_p":0.50}'
    off = ask(wished.url, [*bearer(KEY), ("x-patina-wishes", "off")], body=body)
    assert off.status == 200
    without = wished.upstream.seen[-1].raw
    on = ask(wished.url, bearer(KEY), body=body)
    assert on.status == 200
    assert wished.upstream.seen[-1].raw == without.replace(
        b"Wo\\u00dfe?", b"Wo\\u00dfe?\\n\\nPreferences:\\n- Call me Captain."
    )
    assert wished.upstream.seen[-1].header("x-patina-wishes") is None
    assert b'"prompt_tokens_details":{"wish_tokens":5}' in on.body
    assert b"wish_tokens" not in off.body


def test_a_stream_has_the_header_and_the_count(wished: Gateway) -> None:
    state_wish(wished, CAPTAIN)
    messages: Any = [{"role": "user", "content": "Hello?"}]
    asked: Any = {"model": "tiny", "messages": messages, "stream": True}
    with wished.client.chat.completions.with_streaming_response.create(
        **asked, stream_options={"include_usage": True}
    ) as raw:
        assert raw.headers["x-patina-wishes"] == "1"
        events = [line.removeprefix("data: ") for line in raw.iter_lines() if line.startswith("data: {")]
    chunks = [json.loads(event) for event in events]
    assert [c["usage"]["prompt_tokens_details"] for c in chunks if c.get("usage")] == [{"wish_tokens": 5}]
    assert last_body(wished)["messages"][0]["content"] == f"Hello?\n\n{prompt_text(CAPTAIN)}"
    # A client that asked for no usage gets none.
    chunks = list(wished.client.chat.completions.create(**asked))
    assert all(chunk.usage is None for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).endswith(CAPTAIN)


def test_the_other_apis_get_the_same(wished: Gateway) -> None:
    state_wish(wished, CAPTAIN)
    response = wished.client.responses.with_raw_response.create(model="tiny", input="Where is Oslo?")
    assert response.headers["x-patina-wishes"] == "1"
    assert last_body(wished)["messages"][-1]["content"] == f"Where is Oslo?\n\n{prompt_text(CAPTAIN)}"
    usage = response.parse().usage
    assert usage is not None
    assert usage.input_tokens_details.model_dump()["wish_tokens"] == 5
    with anthropic.Anthropic(base_url=wished.url, api_key=KEY, max_retries=0) as claude:
        message = claude.messages.with_raw_response.create(
            model="tiny", max_tokens=9, messages=[{"role": "user", "content": "Where is Oslo?"}]
        )
    assert message.headers["x-patina-wishes"] == "1"
    assert last_body(wished)["messages"][-1]["content"] == f"Where is Oslo?\n\n{prompt_text(CAPTAIN)}"


TITLE = "Generate a concise title for this chat, 3-5 words.\n<chat_history>\nUSER: Hi\nASSISTANT: Hello\n</chat_history>"
QUESTION = {"role": "user", "content": "Where is Oslo?"}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "more"),
    [
        ([{"role": "user", "content": TITLE}], {}),
        ([QUESTION, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "North"}], {}),
        ([QUESTION], {"response_format": {"type": "json_object"}}),
        ([QUESTION], {"extra_body": {"guided_choice": ["a", "b"]}}),
        ([QUESTION], {"extra_headers": {"x-turn-type": "side"}}),
        ([QUESTION], {"extra_headers": {"x-patina-wishes": "off"}}),
        ([QUESTION], {"metadata": {"patina_wishes": "off"}}),
        ([QUESTION], {"model": "tiny@0"}),
    ],
    ids=["title", "tool", "json", "guided", "side", "off", "metadata", "base"],
)  # fmt: skip
def test_what_takes_no_wishes_is_forwarded_as_it_is(
    wished: Gateway, messages: list[Any], more: dict[str, Any]
) -> None:
    state_wish(wished, CAPTAIN)
    reply = wished.client.chat.completions.with_raw_response.create(
        **{"model": "tiny", "messages": messages, **more}
    )
    assert "x-patina-wishes" not in reply.headers
    assert last_body(wished)["messages"] == messages
    assert "wish_tokens" not in reply.text


def test_the_system_prompt_is_another_place(upstream: Upstream, record_file: Path) -> None:
    with run_with_wishes(upstream, record_file, read_wish_place=lambda: "system") as gateway:
        state_wish(gateway, CAPTAIN)
        gateway.ask("Where is Oslo?")
        assert last_body(gateway)["messages"] == [
            {"role": "system", "content": prompt_text(CAPTAIN)},
            QUESTION,
        ]


def test_a_request_that_the_backend_refuses_with_wishes_is_sent_without(
    upstream: Upstream, record_file: Path
) -> None:
    class Narrow(Upstream):
        async def _chat(self, seen: Any, receive: Any, send: Any) -> None:
            if len(seen.body["messages"][-1]["content"]) > 60:
                await self._json(send, 400, {"error": {"message": "maximum context length is 60"}})
                return
            await super()._chat(seen, receive, send)

    with run_with_wishes(Narrow(), record_file) as gateway:
        state_wish(gateway, CAPTAIN)
        long = "Where exactly is the old town of Oslo, by the water?"
        reply = gateway.client.chat.completions.with_raw_response.create(
            model="tiny", messages=[{"role": "user", "content": long}]
        )
        assert reply.status_code == 200
        assert "x-patina-wishes" not in reply.headers
        with pytest.raises(openai.BadRequestError, match="maximum context"):
            gateway.ask("x" * 70)


def test_a_gateway_that_starts_has_the_wishes_for_its_first_request(
    upstream: Upstream, record_file: Path
) -> None:
    with run_with_wishes(upstream, record_file) as gateway:
        state_wish(gateway, CAPTAIN)
    with run_with_wishes(upstream, record_file) as gateway:
        gateway.ask("Where is Oslo?")
        assert last_body(gateway)["messages"][-1]["content"] == f"Where is Oslo?\n\n{prompt_text(CAPTAIN)}"


def test_of_many_wishes_the_eight_that_were_stated_last_are_in_the_prompt(wished: Gateway) -> None:
    for number in range(10):
        wished.ask(f"question {number}")
    turns = [row["turn_id"] for row in wished.rows()]

    async def state_all(record: Any) -> None:
        for number, turn_id in enumerate(turns):
            wish = WishReading(text=f"wish number {number}", scope=WishScope.LASTING)
            await record.add_verdict(
                Verdict(turn_id=turn_id, value=-1, wish=wish, source="test", created_at=time.time())
            )

    wished.in_record(state_all)
    until(lambda: in_prompt(wished) == {"tiny": 8}, "the gateway has eight")
    until(lambda: "number 9" in wished.proxy._wishes._texts["tiny"].text, "the newest is there")
    wished.ask("Where is Oslo?")
    lines = last_body(wished)["messages"][-1]["content"].split("\n")[2:]
    assert lines == ["Preferences:", *(f"- wish number {number}" for number in range(2, 10))]


def test_policies_of_two_keys_have_wishes_of_their_own(upstream: Upstream, record_file: Path) -> None:
    file = KeyFile(record_file.with_name("keys.json"))
    keys = Keyring(KEY, named=file)
    ann, bob = file.add("ann"), file.add("bob")
    with run_with_wishes(upstream, record_file, keys=keys) as gateway:
        of = {name: gateway.client.with_options(api_key=key) for name, key in (("ann", ann), ("bob", bob))}
        state_wish(gateway, CAPTAIN, client=of["ann"], policy="tiny.ann")
        contents = {}
        for name, client in (*of.items(), ("default", gateway.client)):
            client.chat.completions.create(model="tiny", messages=[QUESTION])  # type: ignore[list-item]
            contents[name] = last_body(gateway)["messages"][-1]["content"]
        assert contents == {
            "ann": f"Where is Oslo?\n\n{prompt_text(CAPTAIN)}",
            "bob": "Where is Oslo?",
            "default": "Where is Oslo?",
        }


def test_an_endpoint_gets_wishes_where_they_are_asked_for_and_keys_share_none(
    upstream: Upstream, record_file: Path
) -> None:
    file = KeyFile(record_file.with_name("keys.json"))
    ann = file.add("ann")
    with run_with_wishes(upstream, record_file, keys=Keyring(KEY, named=file), is_local=False) as gateway:
        client = gateway.client.with_options(api_key=ann)
        state_wish(gateway, CAPTAIN, client=client, policy="tiny.ann")
        reply = client.chat.completions.with_raw_response.create(model="tiny", messages=[QUESTION])  # type: ignore[list-item]
        assert reply.headers["x-patina-wishes"] == "1"
        assert "wish_tokens" not in reply.text  # it cannot count them
        assert last_body(gateway)["messages"][-1]["content"] == f"Where is Oslo?\n\n{prompt_text(CAPTAIN)}"
        gateway.ask("Where is Oslo?")
        assert last_body(gateway)["messages"][-1]["content"] == "Where is Oslo?"


def test_a_gateway_that_adds_no_wishes_does_not(upstream: Upstream, record_file: Path) -> None:
    with run_with_wishes(upstream, record_file) as gateway:
        state_wish(gateway, CAPTAIN)
    with run_with_wishes(upstream, record_file, read_wish_place=None) as gateway:
        gateway.ask("Where is Oslo?")
        assert last_body(gateway)["messages"] == [QUESTION]


def test_wishes_stay_with_a_policy_that_gets_a_version_and_a_named_version_has_none(
    wished: Gateway, tmp_path: Path
) -> None:
    state_wish(wished, CAPTAIN)
    adapter = make_adapter("tiny", 1, tmp_path, created_at=time.time())
    step = StepReport(
        step_id="s", policy="tiny", method="combine", started_at=1.0, finished_at=2.0, version=1, error=None, metrics={}
    )  # fmt: skip
    wished.in_record(lambda record: record.publish(adapter, [], step, worker="w"))
    until(lambda: wished.proxy._alias.state()["live"] == 1, "version 1 is live")
    wished.ask("Where is Oslo?")
    assert (last_body(wished)["model"], last_body(wished)["messages"][-1]["content"]) == (
        "tiny@1",
        f"Where is Oslo?\n\n{prompt_text(CAPTAIN)}",
    )
    wished.client.chat.completions.create(model="tiny@1", messages=[QUESTION])  # type: ignore[list-item]
    assert last_body(wished)["messages"] == [QUESTION]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"placement": "system"}', "system"),
        ('{"placement": "front"}', "behind"),
        ("[1", "behind"),
        (None, "behind"),
    ],
)
def test_the_place_is_what_was_measured(tmp_path: Path, text: str | None, place: str) -> None:
    file = tmp_path / "calibration.json"
    if text is not None:
        file.write_text(text)
    assert read_placement(file) == place
