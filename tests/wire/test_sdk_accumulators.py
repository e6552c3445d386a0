"""The record of a reply equals what the official SDKs make of it: a thousand generated replies in each API, in any chunking of their bytes.

The backend's stream goes to the OpenAI SDK, its translations to the Anthropic SDK and to the Responses part of the OpenAI SDK, each by its own HTTP
client, parser and accumulator.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState

from store.values import ReplyOutcome
from tests.examples import FULL
from wire.api_translation import StreamTranslator
from wire.event_synthesizer import EventSynthesizer
from wire.messages_api.reply import MessageSynthesizer
from wire.reply_assembly import Assembler
from wire.responses_api.reply import ResponseSynthesizer
from wire.sse import DONE, EventSplitter, event_data

#: A thousand under a full profile; an example takes 13 ms.
FEWER = settings().max_examples
many = settings(max_examples=1000 if FEWER >= FULL else FEWER)
TURN = "turn_0123456789abcd01234567"
USER: Any = [{"role": "user", "content": "a"}]
Call = tuple[str, str, str]

TEXTS = st.text(st.sampled_from(' \n\t"\\aé😀{}:'), max_size=24)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "é", "b c"]), TEXTS | st.integers() | st.lists(TEXTS, max_size=2), max_size=2).map(json.dumps)  # fmt: skip


@dataclass
class Reply:
    """A generated upstream reply."""

    text: str
    reasoning: str
    calls: list[Call]
    finish: str | None  #: None: the stream ends without one; "error": an error event ends it
    sizes: list[int]
    order: list[int]  #: which call the next piece is of
    cuts: list[int]
    line_end: str
    extras: bool  #: comments, pings, usage

    def chunks(self) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in self._pieces(self.reasoning)]
        deltas += [{"content": piece} for piece in self._pieces(self.text)]
        waiting = [
            [
                {"index": i, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}},
                *({"index": i, "function": {"arguments": piece}} for piece in self._pieces(arguments)),
            ]
            for i, (call_id, name, arguments) in enumerate(self.calls)
        ]
        order = itertools.chain(self.order, itertools.cycle(range(len(waiting) or 1)))
        begun = 0  # calls begin in the order of their index
        while any(waiting):
            which = min(next(order) % len(waiting), begun)
            if waiting[which]:
                deltas.append({"tool_calls": [waiting[which].pop(0)]})
                begun = max(begun, which + 1) if which + 1 < len(waiting) else begun
        chunks = [self._chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
        if self.finish == "error":
            return [*chunks, {"error": {"message": "the backend is gone", "code": 502}}]
        if self.finish is not None:
            chunks.append(self._chunk([{"index": 0, "delta": {}, "finish_reason": self.finish}]))
        if self.extras:
            usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
            chunks.append({**self._chunk([]), "usage": usage})
        return chunks

    def _pieces(self, text: str) -> Iterator[str]:
        at = 0
        for size in [*self.sizes, len(text)]:
            if text[at : at + size]:
                yield text[at : at + size]
            at += size

    @staticmethod
    def _chunk(choices: list[Any]) -> dict[str, Any]:
        return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}

    def whole(self) -> dict[str, Any]:
        called = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in self.calls
        ]
        message = {"role": "assistant", "content": self.text, "reasoning_content": self.reasoning}
        choice = {
            "index": 0,
            "message": {**message, "tool_calls": called or None},
            "finish_reason": self.finish,
        }
        return {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    def stream(self) -> bytes:
        end = self.line_end
        events = [f"data: {json.dumps(chunk, ensure_ascii=False)}{end}{end}" for chunk in self.chunks()]
        if self.extras:
            events.insert(1, f": keep-alive{end}{end}")
        done = "" if self.finish is None else f"data: [DONE]{end}{end}"
        return ("".join(events) + done).encode()

    def cut(self, data: bytes) -> list[bytes]:
        bounds = sorted({0, len(data), *(at % (len(data) + 1) for at in self.cuts)})
        return [data[a:b] for a, b in itertools.pairwise(bounds)]


REPLIES = st.builds(
    Reply,
    text=TEXTS,
    reasoning=TEXTS,
    calls=st.lists(st.tuples(st.sampled_from(["f", "get_weather"]), ARGUMENTS), max_size=3).map(
        lambda calls: [(f"call_{i}", *call) for i, call in enumerate(calls)]
    ),
    finish=st.sampled_from(["stop", "tool_calls", "length", "content_filter", "stop", "error", None]),
    sizes=st.lists(st.integers(0, 6), max_size=5),
    order=st.lists(st.integers(0, 2), max_size=8),
    cuts=st.lists(st.integers(0, 9000), max_size=9),
    line_end=st.sampled_from(["\n", "\r\n"]),
    extras=st.booleans(),
)


def recorded(reply: Reply, *, is_stream: bool = True) -> tuple[str, str, list[Call], ReplyOutcome]:
    """Return what Patina records."""
    assembler = Assembler()
    if is_stream:
        splitter = EventSplitter()
        events = [event for piece in reply.cut(reply.stream()) for event in splitter.feed(piece)]
        for event in [*events, splitter.flush()]:
            data = event_data(event)
            if data is not None and data != DONE:
                assembler.read(data, part="delta", event=event)
    else:
        assembler.read(json.dumps(reply.whole()).encode(), part="message")
    found = assembler.close()
    assert found.problem == ""
    outcome = (
        ReplyOutcome.FAILED
        if found.error is not None
        else ReplyOutcome.WHOLE
        if found.is_finished
        else ReplyOutcome.CUT
    )
    if not found.completions:
        return "", "", [], outcome
    [completion] = found.completions
    functions = [(call["id"], call["function"]) for call in completion.tool_calls]
    calls = [(call_id, function["name"], function["arguments"]) for call_id, function in functions]
    return completion.text, completion.reasoning, calls, outcome


class Server:
    """What the SDKs' HTTP clients reach."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.content_type = ""
        options: Any = {"api_key": "k", "base_url": "http://x", "max_retries": 0}
        self._openai = openai.OpenAI(http_client=httpx.Client(transport=httpx.MockTransport(lambda _: self._answer(httpx))), **options)  # fmt: skip
        self._anthropic = anthropic.Anthropic(http_client=httpx2.Client(transport=httpx2.MockTransport(lambda _: self._answer(httpx2))), **options)  # fmt: skip

    def _answer(self, module: Any) -> Any:
        return module.Response(200, headers={"content-type": self.content_type}, content=iter(self.pieces))

    def openai(self, pieces: list[bytes], content_type: str = "text/event-stream") -> openai.OpenAI:
        self.pieces, self.content_type = pieces, content_type
        return self._openai

    def anthropic(self, pieces: list[bytes]) -> anthropic.Anthropic:
        self.pieces, self.content_type = pieces, "text/event-stream"
        return self._anthropic


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def translated(reply: Reply, made: EventSynthesizer, begin: Callable[[str], bytes]) -> list[bytes]:
    translator = StreamTranslator(made)  # type: ignore[arg-type]  # each subclass has `begin` and `error`
    out = [begin(TURN), *(translator.feed(piece) for piece in reply.cut(reply.stream())), translator.close()]
    return reply.cut(b"".join(out))


@many
@given(reply=REPLIES)
def test_a_recorded_stream_is_the_chat_sdks(server: Server, reply: Reply) -> None:
    client = server.openai(reply.cut(reply.stream()))  # fmt: skip
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    outcome = None
    try:
        for chunk in client.chat.completions.create(model="m", messages=USER, stream=True):
            state.handle_chunk(chunk)
    except openai.APIError:
        outcome = ReplyOutcome.FAILED
    except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
        outcome = ReplyOutcome.WHOLE
    choice = state.current_completion_snapshot.choices[0]
    message = choice.message
    calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    whole = ReplyOutcome.CUT if choice.finish_reason is None else ReplyOutcome.WHOLE
    reasoning = (message.model_extra or {}).get("reasoning_content") or ""
    assert recorded(reply) == (message.content or "", reasoning, calls, outcome or whole)


@many
@given(reply=REPLIES.filter(lambda reply: reply.finish not in ("error", None)))
def test_a_recorded_whole_reply_is_the_chat_sdks(server: Server, reply: Reply) -> None:
    pieces = reply.cut(json.dumps(reply.whole()).encode())
    client = server.openai(pieces, "application/json")  # fmt: skip
    choice = client.chat.completions.create(model="m", messages=USER).choices[0]
    message: Any = choice.message
    calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    expected = (message.content or "", message.reasoning_content, calls, ReplyOutcome.WHOLE)
    assert recorded(reply, is_stream=False) == expected


@many
@given(reply=REPLIES)
def test_a_recorded_stream_is_the_messages_sdks(server: Server, reply: Reply) -> None:
    made = MessageSynthesizer("m", thinks=True)
    pieces = translated(reply, made, made.begin)
    client = server.anthropic(pieces)  # fmt: skip
    text, reasoning, calls, outcome = recorded(reply)
    with client.messages.stream(model="m", max_tokens=9, messages=USER) as stream:
        try:
            for _ in stream:
                pass
        except anthropic.APIStatusError:
            assert outcome in (ReplyOutcome.FAILED, ReplyOutcome.CUT)  # the SDK keeps no message of it
            return
        message = stream.get_final_message()
    assert outcome is ReplyOutcome.WHOLE
    assert "".join(block.text for block in message.content if block.type == "text") == text
    assert "".join(block.thinking for block in message.content if block.type == "thinking") == reasoning
    found = [(b.id, b.name, b.input) for b in message.content if b.type == "tool_use"]
    assert found == [(call_id, name, json.loads(arguments)) for call_id, name, arguments in calls]
    reason = {"stop": "tool_use" if calls else "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    assert message.stop_reason == reason.get(str(reply.finish), "refusal")


@many
@given(reply=REPLIES)
def test_a_recorded_stream_is_the_responses_sdks(server: Server, reply: Reply) -> None:
    made = ResponseSynthesizer({"model": "m"}, {"name": "responses"}, instructions=None)
    pieces = translated(reply, made, made.begin)
    client = server.openai(pieces)  # fmt: skip
    text, reasoning, calls, outcome = recorded(reply)
    deltas: dict[str, str] = {}
    final: Any = None
    done = []
    with client.responses.stream(model="m", input="a") as stream:
        for event in stream:
            if event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
                deltas[event.type] = deltas.get(event.type, "") + event.delta
            elif event.type == "response.output_item.done" and event.item.type == "function_call":
                done.append((event.item.call_id, event.item.name, event.item.arguments))
            elif event.type in ("response.completed", "response.incomplete", "response.failed"):
                final = event.response
    assert deltas.get("response.output_text.delta", "") == text
    assert deltas.get("response.reasoning_text.delta", "") == reasoning
    if outcome is ReplyOutcome.WHOLE:
        assert final.status == ("completed" if reply.finish in ("stop", "tool_calls") else "incomplete")
        assert final.output_text == text
        assert [(i.call_id, i.name, i.arguments) for i in final.output if i.type == "function_call"] == calls
        assert done == calls
    else:
        assert final.status == "failed"
        assert final.error.message == (
            "the backend is gone" if reply.finish == "error" else final.error.message
        )
        assert done == calls[: len(done)]  # no half of a call is done
