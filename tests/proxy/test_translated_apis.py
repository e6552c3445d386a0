"""The Responses and Messages APIs through a running gateway: the official SDKs' own accumulators, and what is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from store.journal import JournalWriter
from store.keys import KeyFile, Keyring
from store.values import Selection
from tests.proxy.conftest import KEY, Gateway, run_gateway_at, score
from tests.proxy.upstream import Upstream, running

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":  "Oslo",\n "days": 1.50}'},
}
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
ANTHROPIC_TOOL: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture
def claude(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=gateway.url, api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def scripted(**script: Any) -> Any:
    return {"scripted": script}


def test_a_response_is_recorded_as_a_chat_turn_with_the_samplers_tokens(gateway: Gateway) -> None:
    response = gateway.client.responses.create(
        model="tiny",
        input="Where is Oslo?",
        instructions="Be brief.",
        extra_body=scripted(text="In Norway. "),
    )
    assert response.output_text == "In Norway. "
    assert response.status == "completed"
    assert response.instructions == "Be brief."
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    [row] = gateway.rows()
    assert row["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is Oslo?"},
    ]
    assert row["completion"] == "In Norway. "
    assert len(row["completion_token_ids"]) == len(row["sampling_logprobs"]) > 0
    assert response.id == f"resp_{row['turn_id'].removeprefix('turn_')}"


def test_the_python_sdk_accumulates_a_streamed_response(gateway: Gateway) -> None:
    with gateway.client.responses.stream(
        model="tiny", input="Where is Oslo?", extra_body=scripted(text="In  Norway \n ok", reasoning="hm")
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "In  Norway \n ok"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == "In  Norway \n ok"
    assert [item.type for item in final.output] == ["reasoning", "message"]


def test_a_tool_call_keeps_its_json_byte_for_byte(gateway: Gateway, claude: anthropic.Anthropic) -> None:
    arguments = CALL["function"]["arguments"]  # type: ignore[index]
    for stream in (False, True):
        if stream:
            with gateway.client.responses.stream(
                model="tiny", input="Weather?", tools=[TOOL], extra_body=scripted(tool_calls=[CALL], text="")
            ) as opened:
                response: Any = opened.get_final_response()
        else:
            response = gateway.client.responses.create(
                model="tiny", input="Weather?", tools=[TOOL], extra_body=scripted(tool_calls=[CALL], text="")
            )
        [item] = response.output
        assert (item.type, item.call_id, item.name, item.arguments) == (
            "function_call",
            "call_1",
            "weather",
            arguments,
        )
    pieces = []
    with claude.messages.stream(
        model="tiny",
        max_tokens=50,
        messages=[{"role": "user", "content": "Weather?"}],
        tools=[ANTHROPIC_TOOL],
        extra_body=scripted(tool_calls=[CALL], text=""),
    ) as messages:
        pieces = [
            event.delta.partial_json
            for event in messages
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
        ]
        message = messages.get_final_message()
    assert "".join(pieces) == arguments
    assert message.stop_reason == "tool_use"
    raw = claude.messages.with_raw_response.create(
        model="tiny",
        max_tokens=50,
        messages=[{"role": "user", "content": "Weather?"}],
        tools=[ANTHROPIC_TOOL],
        extra_body=scripted(tool_calls=[CALL], text=""),
    )
    assert arguments.encode() in raw.http_response.content


def test_previous_response_id_continues_that_very_turn(gateway: Gateway) -> None:
    first = gateway.client.responses.create(
        model="tiny", input="hi there", instructions="One.", extra_body=scripted(text="Hello!")
    )
    twin = gateway.client.responses.create(
        model="tiny", input="hi there", instructions="One.", extra_body=scripted(text="Hello!")
    )
    second = gateway.client.responses.create(
        model="tiny", input="And now?", previous_response_id=first.id, instructions="Two."
    )
    rows = {row["turn_id"]: row for row in gateway.rows(3)}
    one, other, two = (rows[f"turn_{r.id.removeprefix('resp_')}"] for r in (first, twin, second))
    assert two["parent_turn_id"] == one["turn_id"]
    assert two["session_id"] == one["session_id"] != other["session_id"]
    assert two["messages"] == [
        {"role": "system", "content": "Two."},
        {"role": "user", "content": "hi there"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "And now?"},
    ]
    items = gateway.client.responses.input_items.list(second.id)
    assert [item.to_dict()["content"] for item in items] == [[{"type": "input_text", "text": "And now?"}]]
    assert gateway.client.responses.retrieve(second.id).to_dict() == {
        **second.to_dict(),
        "completed_at": pytest.approx(second.to_dict()["completed_at"], abs=2),
    }


def test_a_response_is_retrieved_as_the_stream_that_it_was(gateway: Gateway) -> None:
    client = gateway.client
    with client.responses.stream(
        model="tiny", input="Where?", extra_body=scripted(text="In  Norway", tool_calls=[CALL])
    ) as stream:
        final = stream.get_final_response()
    events = list(client.responses.retrieve(final.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output == client.responses.retrieve(final.id).output
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "In  Norway"
    rest = client.responses.retrieve(final.id, stream=True, starting_after=3)
    assert [event.sequence_number for event in rest] == list(range(4, len(events)))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_is_retrieved_with_the_logprobs_that_its_request_asked_for(
    gateway: Gateway, streamed: bool
) -> None:
    client = gateway.client
    wanted: Any = ["message.output_text.logprobs"]
    asked: Any = {
        "model": "tiny",
        "input": "Where?",
        "tools": [TOOL],
        "extra_body": scripted(text="In Norway \n é", reasoning="hm", tool_calls=[CALL]),
    }
    made = client.conversations.create()
    if streamed:
        with client.responses.stream(**asked, include=wanted, conversation=made.id) as stream:
            first: Any = stream.get_final_response()
    else:
        first = client.responses.create(**asked, include=wanted, conversation=made.id)
    text = next(item.content[0] for item in first.output if item.type == "message")
    shown_text = "".join(entry.token for entry in text.logprobs)
    assert shown_text.startswith("In Norway \n é")
    assert (
        not streamed or shown_text == "In Norway \n é"
    )  # a whole reply does not say which tokens its text has
    gateway.settle()
    again: Any = client.responses.retrieve(first.id, include=["reasoning.encrypted_content", *wanted])
    assert [item.id for item in again.output] == [item.id for item in first.output]
    part = next(item.content[0] for item in again.output if item.type == "message")
    assert (part.text, part.logprobs) == (text.text, text.logprobs)
    last = list(client.responses.retrieve(first.id, stream=True, include=wanted))[-1]
    assert last.type == "response.completed"
    assert last.response.output == again.output
    without: Any = client.responses.retrieve(first.id)
    assert [part.logprobs for item in without.output if item.type == "message" for part in item.content] == [
        []
    ]
    shown = {item.id: item for item in client.conversations.items.list(made.id, include=wanted)}
    listed: Any = next(shown[item.id] for item in first.output if item.type == "message")
    assert [entry.to_dict() for entry in listed.content[0].logprobs] == [e.to_dict() for e in text.logprobs]
    other: Any = client.responses.create(**asked)
    none: Any = client.responses.retrieve(other.id, include=wanted)
    assert [part.logprobs for item in none.output if item.type == "message" for part in item.content] == [[]]


def test_a_deleted_or_unknown_response_is_not_found(gateway: Gateway) -> None:
    kept = gateway.client.responses.create(model="tiny", input="a")
    unstored = gateway.client.responses.create(model="tiny", input="b", store=False)
    gateway.client.responses.delete(kept.id)
    for name in (kept.id, unstored.id, "resp_0123456789abcdef012345", "resp_x"):
        with pytest.raises(openai.NotFoundError):
            gateway.client.responses.retrieve(name)
        with pytest.raises(openai.BadRequestError) as caught:
            gateway.client.responses.create(model="tiny", input="c", previous_response_id=name)
        assert caught.value.code == "previous_response_not_found"


def test_only_an_existing_response_is_refused_to_be_cancelled_for_being_finished(gateway: Gateway) -> None:
    """OpenAI cancels background responses alone, and Patina runs none: each response is finished when its id can be named."""
    client = gateway.client
    finished = client.responses.create(model="tiny", input="a")
    hidden = client.responses.create(model="tiny", input="b")
    client.responses.delete(hidden.id)
    for _ in range(2):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.cancel(finished.id)
        assert refused.value.body == {
            "message": "Only background responses can be cancelled, and Patina runs none.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    for name in (hidden.id, "resp_0123456789abcdef012345", "resp_x"):
        with pytest.raises(openai.NotFoundError) as missing:
            client.responses.cancel(name)
        assert missing.value.body == {
            "message": f"Response with id '{name}' not found.",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_found",
        }
    assert client.responses.retrieve(finished.id).status == "completed"


def test_a_message_is_recorded_as_a_chat_turn(gateway: Gateway, claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model="tiny", max_tokens=50, system=[{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
        messages=[{"role": "user", "content": "Where?"}], extra_body=scripted(text="In  Norway \n"),
    )  # fmt: skip
    assert message.content[0].to_dict() == {"type": "text", "text": "In  Norway \n"}
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 0
    [row] = gateway.rows()
    assert row["messages"][1] == {"role": "user", "content": "Where?"}
    assert [part["text"] for part in row["messages"][0]["content"]] == ["One.", "Two."]
    assert message.id == f"msg_{row['turn_id'].removeprefix('turn_')}"
    with claude.messages.stream(
        model="tiny",
        max_tokens=50,
        messages=[{"role": "user", "content": "Where?"}],
        thinking={"type": "adaptive"},
        extra_body=scripted(text="In  Norway \n", reasoning="Hm."),
    ) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.usage.input_tokens > 0
    with claude.messages.stream(
        model="tiny", max_tokens=50, messages=[{"role": "user", "content": "Where?"}]
    ) as stream:
        first = next(iter(stream))
        assert first.type == "message_start"
        assert first.message.usage.input_tokens == stream.get_final_message().usage.input_tokens > 0
    with pytest.raises(anthropic.InternalServerError, match="did not count the tokens"):
        # This backend has no tokenizer.
        claude.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "Where?"}])


def test_a_prefilled_reply_is_continued_and_linked(gateway: Gateway, claude: anthropic.Anthropic) -> None:
    asked: list[Any] = [{"role": "user", "content": "Where?"}]
    begun: Any = {"role": "assistant", "content": "In"}
    reply = claude.messages.create(
        model="tiny", max_tokens=50, messages=[*asked, begun], extra_body=scripted(text=" Norway.")
    )
    assert reply.content[0].to_dict()["text"] == " Norway."
    assert gateway.upstream.seen[-1].body["continue_final_message"] is True
    whole: Any = {"role": "assistant", "content": "In Norway."}
    claude.messages.create(
        model="tiny", max_tokens=50, messages=[*asked, whole, {"role": "user", "content": "Shorter!"}]
    )
    first, second = gateway.rows(2)
    assert second["parent_turn_id"] == first["turn_id"]
    assert first["next_text"] == "Shorter!"


def test_errors_have_the_shape_of_their_api(gateway: Gateway, claude: anthropic.Anthropic) -> None:
    user: Any = [{"role": "user", "content": "a"}]
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="other", max_tokens=5, messages=user)
    assert missing.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "The model `other` does not exist. This server serves `tiny`.",
        },
    }
    assert missing.value.request_id
    with (
        pytest.raises(anthropic.AuthenticationError) as refused,
        anthropic.Anthropic(base_url=gateway.url, api_key="wrong", max_retries=0) as other,
    ):
        other.messages.create(model="tiny", max_tokens=5, messages=user)
    assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    full = '{"error":{"message":"This model\'s maximum context length is 2048 tokens. However, your prompt has 3000 tokens.","code":400}}'
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 3000 tokens > 2048 maximum"):
        claude.messages.create(
            model="tiny", max_tokens=5, messages=user, extra_body=scripted(status=400, body=full)
        )
    with pytest.raises(openai.BadRequestError, match="background is not served"):
        gateway.client.responses.create(model="tiny", input="a", background=True)
    with pytest.raises(openai.BadRequestError, match="web_search"):
        gateway.client.responses.create(model="tiny", input="a", tools=[{"type": "web_search"}])
    for path, body in (("responses", b"{"), ("messages", b"[]")):
        with httpx.Client(verify=False) as plain:
            found = plain.post(
                f"{gateway.url}/v1/{path}", content=body, headers={"authorization": f"Bearer {KEY}"}
            )
        assert found.status_code == 400
        assert found.json()["error"]["type"] == "invalid_request_error"


def test_the_anthropic_sdk_lists_the_models(gateway: Gateway, claude: anthropic.Anthropic) -> None:
    (card,) = claude.models.list()
    assert (card.id, card.display_name, card.created_at.year >= 2025) == ("tiny", "tiny", True)
    assert claude.models.retrieve("tiny") == card
    with pytest.raises(anthropic.NotFoundError, match="This server serves `tiny`") as missing:
        claude.models.retrieve("other")
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert [card.id for card in gateway.client.models.list()] == ["tiny"]


def test_a_conversation_goes_on_by_its_name(gateway: Gateway) -> None:
    client = gateway.client
    made = client.conversations.create(
        metadata={"a": "b"}, items=[{"type": "message", "role": "user", "content": "I am Ada."}]
    )
    first = client.responses.create(
        model="tiny", input="Who am I?", conversation=made.id, extra_body=scripted(text="Ada.")
    )
    second = client.responses.create(model="tiny", input="Sure?", conversation={"id": made.id})
    one, two = gateway.rows(2)
    assert [m["content"] for m in two["messages"]] == ["I am Ada.", "Who am I?", "Ada.", "Sure?"]
    assert two["parent_turn_id"] == one["turn_id"]
    assert one["session_id"] == two["session_id"] == made.id
    assert (first.conversation, second.conversation) != (None, None)
    items = client.conversations.items.list(made.id, order="asc", limit=2)
    assert [item.to_dict()["content"][0]["text"] for item in items.data] == ["I am Ada.", "Who am I?"]  # type: ignore[index]
    assert len(list(items)) == 5
    assert client.conversations.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.delete(made.id).deleted
    for call in (
        lambda: client.conversations.retrieve(made.id),
        lambda: client.responses.create(model="tiny", input="a", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_items_of_a_conversation_are_added_listed_read_and_deleted(gateway: Gateway) -> None:
    client = gateway.client
    made = client.conversations.create(items=[{"role": "system", "content": "Be kind."}])
    added = client.conversations.items.create(
        made.id,
        items=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "I am Ada."}]},
            {"role": "assistant", "content": "Hello Ada."},
        ],
    )
    assert [(item.type, item.to_dict()["content"][0]["type"]) for item in added.data] == [  # type: ignore[index]
        ("message", "input_text"),
        ("message", "output_text"),
    ]
    first = client.responses.create(
        model="tiny",
        input=[
            {"role": "user", "content": "Weather?"},
            {"role": "system", "content": "Use the tool."},
        ],
        tools=[TOOL],
        conversation=made.id,
        extra_body=scripted(text="I will look. ", tool_calls=[CALL]),
    )
    second = client.responses.create(
        model="tiny",
        input=[{"type": "function_call_output", "call_id": "call_1", "output": "5 degrees"}],
        tools=[TOOL],
        conversation=made.id,
        extra_body=scripted(text="It is cold."),
    )
    listed = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [item.type for item in listed] == [
        *["message"] * 6, "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert [item.id for item in listed[1:3]] == [item.id for item in added.data]
    assert [item.id for item in listed[5:7]] == [item.id for item in first.output]
    assert listed[-1].id == second.output[0].id
    assert [item.id for item in client.conversations.items.list(made.id)] == [i.id for i in listed[::-1]]
    assert [i.id for i in client.responses.input_items.list(first.id)] == [listed[4].id, listed[3].id]
    with pytest.raises(openai.NotFoundError, match="no item 'absent'"):
        client.responses.input_items.list(first.id, after="absent")
    (after,) = client.conversations.items.list(made.id, after=str(listed[1].id)).data
    assert after.id == listed[0].id
    with pytest.raises(openai.NotFoundError, match="no item 'msg_absent'"):
        client.conversations.items.list(made.id, after="msg_absent")
    with pytest.raises(openai.BadRequestError, match="'asc' or 'desc'"):
        client.conversations.items.list(made.id, extra_query={"order": "newest"})
    for item in listed:
        assert client.conversations.items.retrieve(str(item.id), conversation_id=made.id) == item
    for item in (listed[1], listed[5], listed[-1]):
        assert client.conversations.items.delete(str(item.id), conversation_id=made.id).id == made.id
    for call in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError, match="not found in conversation"):
            call(str(listed[5].id), conversation_id=made.id)
    assert len(list(client.conversations.items.list(made.id))) == 6
    client.conversations.items.create(made.id, items=[{"role": "user", "content": "And Bergen?"}])
    client.responses.create(model="tiny", input="Please.", conversation=made.id, instructions="Be short.")
    rows = gateway.rows(3)
    assert [m.get("content") for m in rows[2]["messages"]] == [
        [{"type": "text", "text": "Be short."}, {"type": "text", "text": "Be kind."}],
        "Hello Ada.",
        [
            {"type": "text", "text": "Weather?"},
            {"type": "text", "text": "<system-reminder>\nUse the tool.\n</system-reminder>"},
        ],
        None,
        "5 degrees",
        "And Bergen?",
        "Please.",
    ]
    assert rows[2]["messages"][3]["tool_calls"] == [CALL]
    # Its client deleted the second reply, so its words are no reaction to it.
    assert [row["parent_turn_id"] for row in rows] == [None, rows[0]["turn_id"], rows[0]["turn_id"]]
    assert rows[1]["next_text"] is None
    assert (rows[0]["relation"], rows[2]["relation"]) == ("first", "branch")


def test_a_conversation_without_its_turns_begins_again(gateway: Gateway) -> None:
    client = gateway.client
    made = client.conversations.create()
    for text in ("one", "two"):
        client.responses.create(model="tiny", input=text, conversation=made.id)
    for item in list(client.conversations.items.list(made.id)):
        client.conversations.items.delete(str(item.id), conversation_id=made.id)
    assert client.conversations.items.list(made.id).data == []
    client.responses.create(model="tiny", input="No, that is wrong!", conversation=made.id)
    *_, second, third = gateway.rows(3)
    assert [m["content"] for m in third["messages"]] == ["No, that is wrong!"]
    assert (third["relation"], third["parent_turn_id"], second["next_text"]) == ("first", None, None)


def test_words_behind_a_reply_that_the_client_added_are_no_reaction_to_the_turn(gateway: Gateway) -> None:
    client = gateway.client
    made = client.conversations.create()
    client.responses.create(
        model="tiny", input="Capital?", conversation=made.id, extra_body=scripted(text="Rome.")
    )
    client.conversations.items.create(
        made.id,
        items=[{"role": "user", "content": "And Spain?"}, {"role": "assistant", "content": "Lisbon."}],
    )
    client.responses.create(model="tiny", input="No, that is wrong!", conversation=made.id)
    first, second = gateway.rows(2)
    assert (first["next_text"], second["parent_turn_id"]) == ("And Spain?", first["turn_id"])


def test_items_that_cannot_be_served_are_refused(gateway: Gateway) -> None:
    client = gateway.client
    made = client.conversations.create()
    user: Any = {"role": "user", "content": "a"}
    refused: list[tuple[Any, str]] = [
        ([user] * 21, "at most 20 items"),
        ([], "Missing required parameter: 'items'"),
        ([{"type": "web_search_call"}], r"items\[0\] is a web_search_call"),
    ]
    for items, message in refused:
        with pytest.raises(openai.BadRequestError, match=message):
            client.conversations.items.create(made.id, items=items)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.create("conv_other", items=[user])


def test_forgotten_words_leave_the_conversation_too(gateway: Gateway) -> None:
    client = gateway.client
    made = client.conversations.create(items=[{"role": "user", "content": 'My "word" is hush-hush.'}])
    client.conversations.items.create(made.id, items=[{"role": "user", "content": "Fine."}])
    client.responses.create(model="tiny", input="Go.", conversation=made.id)
    gateway.in_record(lambda record: record.forget(Selection(match='"word" is HUSH-hush'), key=b"k"))
    (left,) = client.conversations.items.list(made.id).data
    assert left.to_dict()["content"] == [{"type": "input_text", "text": "Fine."}]
    client.responses.create(model="tiny", input="Go on.", conversation=made.id)
    assert [m["content"] for m in gateway.rows(1)[-1]["messages"]] == ["Fine.", "Go on."]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call_output", "call_id": "call_9", "output": "5"},
        {"type": "custom_tool_call_output", "call_id": "call_9", "output": "5"},
    ],
)
def test_the_output_of_an_unknown_call_is_refused(gateway: Gateway, item: dict[str, Any]) -> None:
    client = gateway.client
    first = client.responses.create(
        model="tiny", input="a", tools=[TOOL], extra_body=scripted(text="", tool_calls=[CALL])
    )
    known: Any = {**item, "call_id": "call_1"}
    client.responses.create(model="tiny", input=[known], previous_response_id=first.id)
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    client.responses.create(model="tiny", input=[reference, known])
    what = item["type"].removesuffix("_output").replace("_", " ")
    calls: list[Any] = [
        {"previous_response_id": first.id},
        {},
        {"conversation": client.conversations.create().id},
    ]
    for more in calls:
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="tiny", input=[item], **more)  # type: ignore[list-item]
        assert refused.value.body == {
            "message": f"No tool call found for {what} output with call_id call_9.",
            "type": "invalid_request_error",
            "param": "input",
            "code": None,
        }


def test_an_item_reference_names_a_recorded_reply(gateway: Gateway) -> None:
    first = gateway.client.responses.create(model="tiny", input="hi", extra_body=scripted(text="Hello!"))
    items: Any = [
        {"role": "user", "content": "hi"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "more"},
    ]
    gateway.client.responses.create(model="tiny", input=items)
    one, two = gateway.rows(2)
    assert two["messages"][1] == {"role": "assistant", "content": "Hello!"}
    assert two["parent_turn_id"] == one["turn_id"]


def test_another_gateway_and_a_restarted_one_know_the_response(gateway: Gateway, record_file: Path) -> None:
    first = gateway.client.responses.create(model="tiny", input="hi", extra_body=scripted(text="Hello!"))
    other = JournalWriter(gateway.journal, "gateway-2")
    with run_gateway_at(gateway.upstream_url, gateway.upstream, record_file, journal=other) as restarted:
        second = restarted.client.responses.create(model="tiny", input="more", previous_response_id=first.id)
        assert restarted.client.responses.retrieve(first.id).output_text == "Hello!"
        [_, two] = restarted.rows(2)
    assert [m["content"] for m in two["messages"]] == ["hi", "Hello!", "more"]
    assert two["turn_id"] == f"turn_{second.id.removeprefix('resp_')}"


def test_another_key_does_not_see_a_response(record_file: Path, upstream: Upstream, tmp_path: Path) -> None:
    named = KeyFile(tmp_path / "keys.json")
    token = named.add("bob", trains=True)
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, keys=Keyring(KEY, named=named)) as gateway,
    ):
        mine = gateway.client.responses.create(model="tiny", input="a secret")
        bob = gateway.client.with_options(api_key=token)
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(mine.id)
        with pytest.raises(openai.BadRequestError):
            bob.responses.create(model="tiny", input="b", previous_response_id=mine.id)
        item: Any = {"role": "user", "content": "a secret"}
        talk = gateway.client.conversations.create(items=[item])
        items = bob.conversations.items
        (kept,) = gateway.client.conversations.items.list(talk.id).data
        refused: list[Any] = [
            lambda: items.list(talk.id),
            lambda: items.create(talk.id, items=[item]),
            lambda: items.retrieve(str(kept.id), conversation_id=talk.id),
            lambda: items.delete(str(kept.id), conversation_id=talk.id),
            lambda: bob.responses.create(model="tiny", input="b", conversation=talk.id),
        ]
        for call in refused:
            with pytest.raises(openai.NotFoundError):
                call()
        his = bob.conversations.create(items=[item])
        bob.responses.create(model="tiny", input="b", conversation=his.id)
        gateway.in_record(lambda record: record.forget(Selection(match="secret", key_name="bob"), key=b"k"))
        assert items.list(his.id).data == []
        assert gateway.client.conversations.items.list(talk.id).data == [kept]


def test_feedback_may_name_a_response_or_a_message(gateway: Gateway, claude: anthropic.Anthropic) -> None:
    response = gateway.client.responses.create(model="tiny", input="a")
    message = claude.messages.create(model="tiny", max_tokens=5, messages=[{"role": "user", "content": "b"}])
    for name in (response.id, message.id):
        found = gateway.client.post(
            "/feedback", body={"completion_id": name, "score": 1}, cast_to=dict[str, Any]
        )
        assert found["turn_id"] == f"turn_{name.partition('_')[2]}"


def test_the_same_conversation_by_every_api_is_recorded_alike(
    gateway: Gateway, claude: anthropic.Anthropic
) -> None:
    """Three turns, with a complaint and a tool call, by chat, Responses and Messages."""
    said = ["Where is Oslo?", "No, answer in one word.", "And the weather there?"]
    replies: list[dict[str, Any]] = [
        {"text": "In the south of  Norway."},
        {"text": "Norway."},
        {"text": "", "tool_calls": [CALL]},
    ]
    history: list[Any] = []
    for text, script in zip(said, replies, strict=True):
        history.append({"role": "user", "content": text})
        chat = gateway.client.chat.completions.create(
            model="tiny",
            messages=history,
            tools=[{"type": "function", "function": {"name": "weather", "parameters": TOOL["parameters"]}}],
            user="chat",
            extra_body=scripted(**script),
        )
        history.append(chat.choices[0].message.to_dict())
    previous = None
    for text, script in zip(said, replies, strict=True):
        with gateway.client.responses.stream(
            model="tiny",
            input=text,
            previous_response_id=previous,
            tools=[TOOL],
            user="responses",
            extra_body=scripted(**script),
        ) as stream:
            previous = stream.get_final_response().id
    blocks: list[Any] = []
    for text, script in zip(said, replies, strict=True):
        blocks.append({"role": "user", "content": text})
        with claude.messages.stream(
            model="tiny",
            max_tokens=50,
            messages=blocks,
            tools=[ANTHROPIC_TOOL],
            metadata={"user_id": "messages"},
            extra_body=scripted(**script),
        ) as messages:
            final = messages.get_final_message()
        blocks.append({"role": "assistant", "content": [block.to_dict() for block in final.content]})
    gateway.rows(9)
    gateway.in_record(score)
    rows = gateway.rows(9)
    same = (
        "messages",
        "completion",
        "tool_calls",
        "completion_token_ids",
        "sampling_logprobs",
        "finish_reason",
        "turn_index",
        "kind",
        "relation",
        "next_role",
        "next_text",
        "verdict",
        "hint",
        "stage",
        "drop_reason",
    )
    by_api = [[{name: row[name] for name in same} for row in rows[at : at + 3]] for at in (0, 3, 6)]
    assert by_api[0] == by_api[1] == by_api[2]
    assert [row["relation"] for row in rows[:3]] == ["first", "next", "next"]
    assert by_api[0][0]["next_text"] == said[1]
    assert (by_api[0][0]["verdict"], by_api[0][0]["hint"]) == (-1, said[1])
    assert len({row["session_id"] for row in rows}) == 3
    assert [row["parent_turn_id"] for row in rows[4:6]] == [row["turn_id"] for row in rows[3:5]]


def test_native_apis_are_forwarded_unread_and_counted(upstream: Upstream, record_file: Path) -> None:
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, native_apis=True) as gateway,
        httpx.Client(verify=False) as plain,
    ):
        headers = {"authorization": f"Bearer {KEY}"}
        for path in ("responses", "messages", "messages/count_tokens", "embeddings"):
            assert (
                plain.post(f"{gateway.url}/v1/{path}", content=b"any bytes", headers=headers).content
                == b"first any bytes last"
            )
        status = plain.get(f"{gateway.url}/v1/patina/status", headers=headers).json()["proxy"]
        assert status["unrecorded_by_path"] == {
            "/v1/responses": 1,
            "/v1/messages": 1,
            "/v1/messages/count_tokens": 1,
            "/v1/embeddings": 1,
        }
        assert status["native_apis"] is True
        assert gateway.rows() == []


def test_hosted_tools_that_are_left_out_are_counted(gateway: Gateway) -> None:
    tools: Any = [TOOL, {"type": "web_search"}]
    response = gateway.client.responses.create(model="tiny", input="a", tools=tools)
    assert [tool.type for tool in response.tools] == ["function"]
    status = gateway.client.get("/patina/status", cast_to=dict[str, Any])
    assert status["proxy"]["tools_left_out"] == {"web_search": 1}
    assert status["proxy"]["recorded_by_api"] == {"responses": 1}


def test_a_truncated_stream_is_truncated_for_the_client_and_recorded_as_unfinished(gateway: Gateway) -> None:
    with (
        pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError, RuntimeError)),
        gateway.client.responses.stream(
            model="tiny", input="a", extra_body=scripted(text="one two three four", cut_after=2)
        ) as stream,
    ):
        stream.get_final_response()
    [row] = gateway.rows(1)
    assert row["drop_reason"] == "unfinished"


def test_clients_read_openais_codes(gateway: Gateway) -> None:
    full = '{"error":{"message":"This model\'s maximum context length is 2048 tokens. However, your prompt has 3000 tokens.","type":"BadRequestError","code":400}}'
    refusal = scripted(status=400, headers={"content-type": "application/json"}, body=full)
    for call in (
        lambda: gateway.ask("a", extra_body=refusal),
        lambda: gateway.client.responses.create(model="tiny", input="a", extra_body=refusal),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            call()
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
        assert caught.value.request_id
    with pytest.raises(openai.NotFoundError, match="This server serves `tiny`") as missing:
        gateway.client.models.retrieve("other")
    assert missing.value.code == "model_not_found"
    assert gateway.ask("a")._request_id == gateway.rows()[-1]["turn_id"]


@pytest.mark.parametrize(
    "path", ["/v1//chat/completions", "/v1/chat/completions/", "//v1/chat//completions//"]
)
def test_doubled_and_closing_slashes_are_served(gateway: Gateway, path: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    with httpx.Client(verify=False) as plain:
        found = plain.post(f"{gateway.url}{path}", json=body, headers={"authorization": f"Bearer {KEY}"})
    assert found.status_code == 200
    assert gateway.upstream.seen[-1].path == "/v1/chat/completions"
    assert len(gateway.rows()) == 1


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/openai/deployments/tiny/chat/completions?api-version=1", "Azure's paths are not served"),
        ("/openai/v1/chat/completions?api-version=preview", "Azure's paths are not served"),
        (
            "/chat/completions",
            "did you mean /v1/chat/completions? The base URL of this client ends in /v1.",
        ),
    ],
)
def test_a_wrong_path_is_named_with_what_to_do(gateway: Gateway, path: str, sentence: str) -> None:
    with httpx.Client(verify=False) as plain:
        found = plain.post(f"{gateway.url}{path}", json={}, headers={"authorization": f"Bearer {KEY}"})
    assert found.status_code == 404
    assert sentence in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/messages", "POST"),
        ("GET", "/v1/responses", "POST"),
        ("PUT", "/v1/chat/completions", "POST, GET"),
    ],
)
def test_another_method_is_answered_with_those_that_are_served(
    gateway: Gateway, method: str, path: str, allowed: str
) -> None:
    with httpx.Client(verify=False) as plain:
        found = plain.request(method, f"{gateway.url}{path}", headers={"authorization": f"Bearer {KEY}"})
    assert (found.status_code, found.headers["allow"]) == (405, allowed)
    assert f"{method} {path} is not served" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    "refused", [(), ("stream_options",), ("logprobs", "return_token_ids", "stream_options")]
)
def test_a_stream_has_its_usage_where_the_backend_gives_it(
    record_file: Path, refused: tuple[str, ...]
) -> None:
    with (
        running(Upstream(refuses=refused)) as url,
        run_gateway_at(url, None, record_file, is_local=False) as gateway,
    ):
        for train in ("on", "off"):
            with gateway.client.responses.stream(
                model="tiny", input="a", extra_headers={"x-patina-train": train}
            ) as stream:
                final = stream.get_final_response()
            assert final.status == "completed"
            assert (final.usage is None) == ("stream_options" in refused)
        rows = gateway.rows(2)
    assert [row["drop_reason"] for row in rows] == [
        "no_tokens" if "logprobs" in refused else None,
        "opted_out",
    ]


def test_a_forgotten_turn_is_not_continued_from_memory(gateway: Gateway) -> None:
    first = gateway.client.responses.create(model="tiny", input="my secret")
    turn_id = f"turn_{first.id.removeprefix('resp_')}"
    gateway.in_record(lambda record: record.forget(Selection(turn=turn_id), key=b"k"))
    with pytest.raises(openai.BadRequestError) as caught:
        gateway.client.responses.create(model="tiny", input="more", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


def test_tokens_are_counted_without_a_recorded_turn(remote_gateway: Gateway) -> None:
    with anthropic.Anthropic(
        base_url=remote_gateway.url, api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as client:
        messages: Any = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        assert client.messages.count_tokens(model="tiny", messages=messages).input_tokens == 3
        assert client.messages.count_tokens(model="tiny", messages=messages[:2]).input_tokens == 2
    counted = remote_gateway.client.responses.input_tokens.count(model="tiny", input="a", instructions="b")
    assert counted.input_tokens == 2
    assert remote_gateway.rows() == []
