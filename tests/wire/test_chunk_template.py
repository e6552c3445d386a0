"""The usual chunk: whatever is read by it is read, and shown, as if it had been parsed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import relay as relay_module
from proxy.auth import Principal
from proxy.relay import ChatRelay, RelayCounters, _Exchange
from store.errors import UpstreamError
from store.hashing import exact_json
from store.values import Json
from tests.examples import examples
from wire import reply_strip
from wire.chat_request import Injection, parse_chat
from wire.chunk_template import derive_template
from wire.reply_assembly import AssembledReply, Assembler
from wire.reply_strip import NullFieldStyle, observe_null_style
from wire.sse import event_data

HEAD = {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "tiny@3"}
RAW = b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}'
ADDED = Injection(logprobs=True, token_ids=True, usage=True, served_model="tiny@3", client_model="tiny")


class FakeReply:
    status, headers = 200, ()

    def __init__(self, pieces: list[bytes], cut: bool) -> None:
        self.pieces, self.cut = pieces, cut

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.cut:
            raise UpstreamError("cut")


class FakeEngine:
    address = "http://nowhere"


#: A journal that takes every entry.
WRITTEN: Any = SimpleNamespace(refuge=None)


def relayed(
    pieces: list[bytes], injection: Injection, *, tries: int, cut: bool = False
) -> tuple[list[bytes], bytes, AssembledReply]:
    """Return what the client got at once, what waited for the commit, and what was recorded."""
    none: Any = None
    engine: Any = FakeEngine()
    relay = ChatRelay(engine, none, WRITTEN, RelayCounters(), none)
    chat = parse_chat(RAW)
    exchange = _Exchange(
        turn_id="turn_1", created_at=1.0, principal=Principal(key_name="s", client="c"), raw=RAW, sent=RAW, chat=chat, options=none, size=0,
        assembler=Assembler(chat.n), injection=injection,
    )  # fmt: skip
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    reply: Any = FakeReply(pieces, cut)
    before = relay_module._MAX_TEMPLATE_ATTEMPTS
    relay_module._MAX_TEMPLATE_ATTEMPTS = tries
    try:
        asyncio.run(relay._stream_edited(exchange, reply, send, None, reply.chunks()))
    except UpstreamError:
        assert cut
    finally:
        relay_module._MAX_TEMPLATE_ATTEMPTS = before
    return (
        sent,
        exchange.final_response.body if exchange.final_response is not None else b"",
        exchange.assembler.close(),
    )


def entry(token: str, logprob: Any, spelt: Any = None) -> Json:
    return {"token": token, "logprob": logprob, "bytes": spelt, "top_logprobs": []}


def token_chunk(
    text: str, logprob: Any = -0.5, ids: Any = (5,), index: int = 0, channel: str = "content", **more: Any
) -> Json:
    choice = {
        "index": index,
        "delta": {channel: text},
        "logprobs": {"content": [entry(text, logprob, list(text.encode()))]},
        "finish_reason": None,
        "token_ids": list(ids),
    }
    return {**HEAD, "choices": [{**choice, **more}]}


def opening(index: int = 0) -> Json:
    said = {"role": "assistant", "content": ""}
    return {
        **HEAD,
        "choices": [{"index": index, "delta": said, "logprobs": None, "finish_reason": None}],
        "prompt_token_ids": [1, 2],
    }


def closing(index: int = 0) -> Json:
    last = {"index": index, "delta": {}, "logprobs": None, "finish_reason": "stop", "token_ids": [9]}
    return {**HEAD, "choices": [last]}


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else exact_json(value).encode()) + b"\n\n"


USAGE = {**HEAD, "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
texts = st.text(max_size=6) | st.sampled_from(
    [" word", "", '"', "\\", "\n", "\u2028", "😀", "ü", "data: [DONE]", '"logprobs":{"content":[', '},"token_ids":[7]', "\x00", "\x7f"]
)  # fmt: skip
numbers = st.sampled_from(
    [0, -1, -0.0, -0.25, 1e-7, -12345.678, -9999.0, 1e300, None, True, "x", 10**20]
) | st.floats(-50, 0)
plain = st.builds(
    token_chunk,
    texts,
    numbers,
    st.lists(st.integers(0, 200_000) | st.sampled_from([10**12, -1]), max_size=2),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from(["content", "content", "content", "reasoning_content", "reasoning", "refusal"]),
)
odd = st.sampled_from(
    [
        event(token_chunk("x", finish_reason="length")),
        event(token_chunk("x", logprobs=None)),
        event(token_chunk("x", logprobs={"content": [entry("a", -1), entry("b", -2)]}, token_ids=[1, 2])),
        event(token_chunk("x", logprobs={"content": [{**entry("a", -1), "top_logprobs": [entry("b", -2)]}]})),
        event({**token_chunk("x"), "usage": {"completion_tokens": 1}}),
        event({**token_chunk("x"), "error": {"message": "no"}}),
        event({**token_chunk("x"), "id": "c-2"}),
        event(token_chunk("x")).replace(b'"content":"x"', b'"content":"\\u00fc\\ud83d\\ude00"'),
        event(token_chunk("x")).replace(b'"content":"x"', b'"content":"\\ud800"'),
        event(token_chunk("x")).replace(b'"content":"x"', b'"content":"\xff"'),
        event(token_chunk("x")).replace(b"-0.5", b"-1e999"),
        event(token_chunk("x")).replace(b"-0.5", b"-00.5"),
        event(token_chunk("x")).replace(b"-0.5", b"NaN"),
        event(token_chunk("x")).replace(b"[5]", b"[05]"),
        event(token_chunk("x")).replace(b"\n", b"\r\n"),
        event(token_chunk("x")).replace(b'","', b'", "'),
        event(token_chunk("x")).replace(b'"delta":', b'"d\\u0065lta":'),
        event(b"nonsense"),
        b": ping\n\n",
        b":\n",
        b"event: ping\ndata: {}\n\n",
        b"event: message\n" + event(token_chunk("x")),
    ]
)
streams = st.lists(plain.map(event) | plain.map(event) | odd, max_size=14)


@settings(max_examples=examples(400))
@given(
    events=streams,
    cuts=st.lists(st.floats(0, 1), max_size=6),
    injection=st.sampled_from(
        [ADDED, Injection(token_ids=True), Injection(logprobs=True), Injection(usage=True), Injection(token_ids=True, logprobs=True)]
    ),
    cut=st.booleans(),
)  # fmt: skip
def test_streams_are_shown_and_recorded_as_if_every_chunk_were_parsed(
    events: list[bytes], cuts: list[float], injection: Injection, cut: bool
) -> None:
    usual_ones = [event(opening())] + [event(token_chunk(f" {i}", ids=[i])) for i in range(4)]
    data = b"".join([*usual_ones, *events, event(closing()), event(USAGE), event(b"[DONE]")])
    edge_lines = [0, *sorted(int(c * len(data)) for c in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edge_lines) if b > a]
    if cut:
        pieces = pieces[:-1]
    slow = relayed(pieces, injection, tries=0, cut=cut)
    quick = relayed(pieces, injection, tries=12, cut=cut)
    assert b"".join(quick[0]) == b"".join(slow[0])
    assert [len(piece) for piece in quick[0]] == [len(piece) for piece in slow[0]]  # and when it came
    assert repr(quick[1:]) == repr(slow[1:])  # NaN is not equal to itself


@pytest.mark.parametrize("indexes", [(0,), (0, 1), (2, 0, 1)])
def test_the_usual_chunk_is_found_and_used(indexes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    original = reply_strip.read_reply

    def counting(payload: bytes) -> Any:
        read.append(payload)
        return original(payload)

    monkeypatch.setattr(relay_module, "read_reply", counting)
    events = [event(opening(i)) for i in indexes]
    for number in range(50):
        events += [event(token_chunk(f" größe {number}", ids=[number], index=i)) for i in indexes]
    events += [event(closing(i)) for i in indexes] + [event(USAGE), event(b"[DONE]")]
    sent, end, reply = relayed([b"".join(events)], ADDED, tries=12)
    assert len(read) <= 4 * len(indexes) + 4
    assert end == event(b"[DONE]")
    assert b"logprob" not in b"".join(sent).replace(b'"logprobs":null', b"")
    assert b"token_ids" not in b"".join(sent)
    assert b"tiny@3" not in b"".join(sent)
    for completion in reply.completions:
        assert completion.text == "".join(f" größe {number}" for number in range(50))
        assert completion.token_ids == (*range(50), 9)
        assert completion.sampling_logprobs == (-0.5,) * 50


def test_a_stream_whose_client_asked_for_everything_passes_in_strides() -> None:
    chunks = [token_chunk(f" {i}", ids=[i]) for i in range(9)]
    found = None
    for chunk in chunks[:1]:
        raw = event(chunk)
        payload = event_data(raw)
        assert payload is not None
        found = derive_template(raw, payload, chunk, raw)
    assert found is not None
    out: list[bytes] = []
    data = b"".join(map(event, chunks[1:])) + event(closing())
    at = found.consume(data, 0, out)
    assert out == [data[:at]]
    assert data[at:] == event(closing())
    assert found.drain() == (" 1 2 3 4 5 6 7 8", [-0.5] * 8, list(range(1, 9)))
    assert not found.has_pending


def test_habits_that_change_meanwhile_are_kept_to() -> None:
    """What a backend does where nothing is asked may be learnt from another request while a stream runs."""
    none: Any = None
    engine: Any = FakeEngine()
    relay = ChatRelay(engine, none, WRITTEN, RelayCounters(), none)
    injection = Injection(logprobs=True, token_ids=True)
    chat = parse_chat(RAW)
    exchange = _Exchange(
        turn_id="turn_1", created_at=1.0, principal=Principal(key_name="s", client="c"), raw=RAW, sent=RAW, chat=chat, options=none, size=0,
        assembler=Assembler(1), injection=injection,
    )  # fmt: skip
    other = {"object": "chat.completion", "choices": [{"index": 0, "message": {}, "finish_reason": "stop"}]}
    sent: list[bytes] = []

    class Learning(FakeReply):
        async def chunks(self) -> AsyncIterator[bytes]:
            yield event(opening()) + b"".join(event(token_chunk(f" {i}")) for i in range(4))
            sent.clear()
            relay._quirks.record_null_style(observe_null_style(NullFieldStyle(), other, Injection(), {}))
            yield event(token_chunk(" last"))

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    reply: Any = Learning([], False)
    asyncio.run(relay._stream_edited(exchange, reply, send, None, reply.chunks()))
    choice = {"index": 0, "delta": {"content": " last"}, "finish_reason": None}
    assert sent == [event({**HEAD, "choices": [choice]})]
