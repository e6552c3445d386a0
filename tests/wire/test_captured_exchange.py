"""A captured exchange in the journal: it comes back as it was, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import WireError
from store.lifecycle import DropReason
from store.values import Completion, LogprobMode, TurnKind
from tests.recorder.exchanges import assistant, make_captured, user
from wire.captured_exchange import dump_exchange, load_exchange
from wire.chat_request import MAX_DEPTH, parse_chat
from wire.headers import RequestOptions
from wire.prefix_cache import MIN_BYTES, PrefixCache
from wire.reply_assembly import AssembledReply

SECRET = "sk-0123456789abcdef"


def raw_of(**body: Any) -> bytes:
    return orjson.dumps({"messages": [user("hello")], **body})


def request_of(payload: bytes) -> bytes:
    """Return the request's bytes in an entry's payload."""
    return payload.partition(b"\n")[2]


# ------------------------------------------------------------------------------------------------ round trip

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
TIME = st.floats(0.0, 4e9)
LOGPROB = st.floats(max_value=0.0, allow_nan=False, allow_infinity=False)
COMPLETION = st.builds(
    Completion,
    index=st.integers(0, 5), text=TEXT, reasoning=TEXT, tool_calls=st.lists(OBJECT, max_size=2).map(tuple),
    token_ids=st.lists(st.integers(0, 2**31), max_size=4).map(tuple), sampling_logprobs=st.lists(LOGPROB, max_size=4).map(tuple),
    finish_reason=st.none() | TEXT,
)  # fmt: skip
REPLY = st.builds(
    AssembledReply,
    completion_id=st.none() | TEXT, completions=st.lists(COMPLETION, max_size=3).map(tuple),
    prompt_token_ids=st.lists(st.integers(0, 2**31), max_size=4).map(tuple), usage=st.none() | OBJECT,
    is_finished=st.booleans(), problem=TEXT, error=st.none() | TEXT,
)  # fmt: skip
OPTIONS = st.builds(
    RequestOptions,
    kind=st.none() | st.sampled_from(TurnKind), session=st.none() | TEXT, is_session_done=st.booleans(),
    is_opted_out=st.booleans(), user=st.none() | TEXT,
)  # fmt: skip
MESSAGES = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, TEXT, TEXT), min_size=1, max_size=3
)
CHANGES = st.fixed_dictionaries(
    {
        "created_at": TIME, "finished_at": TIME, "client": TEXT, "options": OPTIONS, "policy": TEXT,
        "adapter_version": st.integers(0, 1000), "status_code": st.integers(200, 599), "streamed": st.booleans(),
        "reply": REPLY, "fault": st.none() | st.tuples(st.sampled_from(DropReason), TEXT),
        "temperature": st.floats(0.0, 2.0), "logprob_mode": st.sampled_from(LogprobMode), "size": st.integers(0, 2**40),
        "wish_text": TEXT, "wish_place": st.sampled_from(["", "behind", "system"]),
    }
)  # fmt: skip


@given(changes=CHANGES, messages=MESSAGES, more=OBJECT, keeps_raw=st.booleans())
def test_an_exchange_comes_back_from_its_payload(
    changes: Mapping[str, Any], messages: list[dict[str, Any]], more: dict[str, Any], keeps_raw: bool
) -> None:
    raw = orjson.dumps({**more, "messages": messages})
    made = make_captured("a", [user("x")], "x", **{**changes, "chat": parse_chat(raw)})
    found = load_exchange(dump_exchange(made, raw if keeps_raw else None))
    # Whether a secret was redacted is known of the bytes that were sent, not of those that are kept.
    found.chat.is_redacted = made.chat.is_redacted
    assert found == made
    assert found.is_whole == made.is_whole


def test_a_body_nested_as_deep_as_is_parsed_comes_back() -> None:
    depth = MAX_DEPTH - 1
    raw = b'{"messages":[{"role":"user","content":"hello"}],"metadata":' + b"[" * depth + b"]" * depth + b"}"
    made = make_captured("a", [user("x")], "x", chat=parse_chat(raw))
    assert load_exchange(dump_exchange(made, None)) == made
    assert load_exchange(dump_exchange(made, raw)) == made


# ------------------------------------------------------------------------------------------------ what is kept of the request


def test_a_request_without_secrets_is_kept_as_it_was_sent() -> None:
    raw = b'{ "messages": [ {"role":"user", "content":"h\\u00e9 \xf0\x9f\x8e\x89"} ],\n "seed": 1.50 }'
    made = make_captured("a", [user("x")], "x", chat=parse_chat(raw))
    assert request_of(dump_exchange(made, raw)) == raw


@pytest.mark.parametrize(
    "more",
    [
        {"api_key": SECRET},
        {"metadata": {"password": SECRET}},
        {"tools": [{"type": "mcp", "headers": {"Authorization": f"Bearer {SECRET}"}}]},
    ],
    ids=["field", "nested", "tool"],
)
def test_a_secret_is_redacted_before_the_journal(more: dict[str, Any]) -> None:
    raw = raw_of(**more)
    made = make_captured("a", [user("x")], "x", chat=parse_chat(raw))
    payload = dump_exchange(made, raw)
    assert SECRET.encode() not in payload
    assert load_exchange(payload).chat.body == made.chat.body


@pytest.mark.parametrize("is_first", [True, False], ids=["before the messages", "behind the messages"])
def test_a_secret_is_redacted_in_requests_that_extend_a_cached_prefix(is_first: bool) -> None:
    cache = PrefixCache()
    messages = [user("x" * MIN_BYTES)]
    is_extended = False
    for i in range(4):
        secret = {"api_key": SECRET}
        raw = orjson.dumps({**secret, "messages": messages} if is_first else {"messages": messages, **secret})
        chat = parse_chat(raw, cache)
        is_extended = is_extended or chat.previous is not None
        payload = dump_exchange(make_captured("a", [user("x")], "x", chat=chat), raw)
        assert SECRET.encode() not in payload, i
        assert list(load_exchange(payload).chat.messages) == messages
        messages = [*messages, assistant(f"answer {i}"), user(f"question {i}")]
    assert is_extended


def test_a_conversation_read_through_a_cache_equals_one_read_without() -> None:
    cache = PrefixCache()
    messages = [user("x" * MIN_BYTES)]
    is_extended = False
    for i in range(4):
        raw = orjson.dumps({"model": "tiny", "messages": messages, "seed": i})
        payload = dump_exchange(make_captured("a", [user("x")], "x", chat=parse_chat(raw)), raw)
        found, alone = load_exchange(payload, cache), load_exchange(payload)
        assert (found.chat.body, found.chat.messages) == (alone.chat.body, alone.chat.messages)
        is_extended = is_extended or found.chat.previous is not None
        messages = [*messages, assistant(f"answer {i}"), user(f"question {i}")]
    assert is_extended


def test_a_payload_that_is_none_raises() -> None:
    payload = dump_exchange(make_captured("a", [user("x")], "x"), None)
    head, _, raw = payload.partition(b"\n")
    without = orjson.dumps({k: v for k, v in orjson.loads(head).items() if k != "key_name"})
    for damaged in (b"", b"{}\n{}", head, without + b"\n" + raw, b"[]\n" + raw):
        with pytest.raises((ValueError, KeyError, TypeError, WireError)):
            load_exchange(damaged)


def test_a_journal_of_0_2_0_is_read() -> None:
    captured = make_captured("a", [user("x")], "x")
    head, _, raw = dump_exchange(captured, None).partition(b"\n")
    older = {("scope" if name == "key_name" else name): value for name, value in orjson.loads(head).items()}
    assert load_exchange(orjson.dumps(older) + b"\n" + raw).key_name == captured.key_name
