"""One conversation by chat, Responses and Messages, streamed or not, in any chunking of the backend's stream.

The official SDKs' own accumulators make the same reply of each, and the record holds the same turn.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.conftest import KEY
from tests.proxy.raw_http import Request, Step, answer
from tests.proxy.test_transparency import JSON_TYPE, Pair, Style, cut_up, pair_at

QUESTION = "Where is Oslo?"
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
#: White space, escapes and characters of several bytes.
TEXTS = st.text(st.sampled_from(' \n\t"\\aé😀{}:'), max_size=20)
STYLES = st.builds(
    Style,
    nulls=st.booleans(),
    ascii=st.booleans(),
    separators=st.sampled_from([(",", ":"), (", ", ": ")]),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    prefix=st.sampled_from([b"data: ", b"data:", b"event: message\ndata: "]),
    ping=st.sampled_from([b"", b": ping\n\n"]),
)
#: What a turn has in common by every API, and what streamed turns have among each other: the backend samples other tokens whole.
SAME = ("messages", "completion", "tool_calls", "finish_reason", "kind", "relation", "turn_index")
SAME_TOKENS = ("completion_token_ids", "sampling_logprobs", "drop_reason")


@dataclass(frozen=True)
class Scripted:
    """A reply: a text in pieces, then a call whose arguments are in pieces (none: no call)."""

    text: Sequence[str]
    arguments: Sequence[str]

    def __call__(self, request: Request, style: Style, points: Sequence[float]) -> list[Step]:
        asked, extra = request.json, {"model": "gpt-x", "created": 1}
        if asked.get("stream"):
            stream = b"".join(style.stream(asked, [self._deltas()], extra))
            kind = ("Content-Type", "text/event-stream")
            return answer(200, [kind], cut_up(stream, points), framing="chunked")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.text)}
        if self.arguments:
            message["tool_calls"] = [self._call("".join(self.arguments))]
        return answer(200, [JSON_TYPE], [style.whole(asked, [message], extra)])

    def _call(self, arguments: str) -> dict[str, Any]:
        function = {"name": "weather", "arguments": arguments}
        return {"id": "call_1", "type": "function", "function": function}

    def _deltas(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"content": piece} for piece in self.text]
        if self.arguments:
            found.append({"tool_calls": [{"index": 0, **self._call("")}]})
            found += [
                {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in self.arguments
            ]
        return found


@st.composite
def replies(draw: st.DrawFn) -> Scripted:
    def pieces(text: str) -> list[str]:
        cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=3))})
        return [text[a:b] for a, b in itertools.pairwise(cuts)]

    arguments = json.dumps({"a": draw(TEXTS)}, ensure_ascii=False) if draw(st.booleans()) else ""
    return Scripted(pieces(draw(TEXTS) + "."), pieces(arguments))


def reply_by_chat(pair: Pair, *, stream: bool, person: str) -> tuple[str, list[str]]:
    asked: Any = {
        "model": "gpt-x",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}],
        "user": person,
    }
    completions = pair.gateway.client.chat.completions
    if stream:
        with completions.stream(**asked) as opened:
            message: Any = opened.get_final_completion().choices[0].message
    else:
        message = completions.create(**asked).choices[0].message
    return message.content or "", [call.function.arguments for call in message.tool_calls or ()]


def reply_by_responses(pair: Pair, *, stream: bool, person: str) -> tuple[str, list[str]]:
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": None}
    asked: Any = {"model": "gpt-x", "input": QUESTION, "tools": [tool], "user": person}
    responses = pair.gateway.client.responses
    if stream:
        with responses.stream(**asked) as opened:
            response: Any = opened.get_final_response()
    else:
        response = responses.create(**asked)
    calls = [item.arguments for item in response.output if item.type == "function_call"]
    return response.output_text, calls


def reply_by_messages(claude: anthropic.Anthropic, *, stream: bool, person: str) -> tuple[str, list[Any]]:
    asked: Any = {
        "model": "gpt-x",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
        "metadata": {"user_id": person},
    }
    if stream:
        with claude.messages.stream(**asked) as opened:
            message = opened.get_final_message()
    else:
        message = claude.messages.create(**asked)
    text = "".join(block.text for block in message.content if block.type == "text")
    return text, [block.input for block in message.content if block.type == "tool_use"]


def test_every_api_makes_the_same_reply_and_turn_of_any_chunking(record_file: Path) -> None:
    with (
        pair_at(record_file) as pair,
        anthropic.Anthropic(
            base_url=pair.gateway.url,
            api_key=KEY,
            max_retries=0,
            _strict_response_validation=True,
        ) as claude,
    ):
        examples = itertools.count()

        @settings(max_examples=15)
        @given(reply=replies(), style=STYLES, points=st.lists(st.floats(0, 1), max_size=12))
        def ask_by_every_api(reply: Scripted, style: Style, points: list[float]) -> None:
            pair.upstream.script = lambda request: reply(request, style, points)
            person = f"person {next(examples)}"
            text, arguments = "".join(reply.text), "".join(reply.arguments)
            calls = [arguments] if arguments else []
            for stream in (False, True):
                assert reply_by_chat(pair, stream=stream, person=f"{person} chat {stream}") == (text, calls)
                found = reply_by_responses(pair, stream=stream, person=f"{person} responses {stream}")
                assert found == (text, calls)
                by_messages = reply_by_messages(claude, stream=stream, person=f"{person} messages {stream}")
                assert by_messages == (text, [json.loads(call) for call in calls])

        ask_by_every_api()
        rows = pair.gateway.rows(6 * next(examples))
    for at in range(0, len(rows), 6):
        whole, streamed = rows[at : at + 3], rows[at + 3 : at + 6]
        for names, group in ((SAME, [*whole, *streamed]), (SAME_TOKENS, whole), (SAME_TOKENS, streamed)):
            first, *others = [{name: row[name] for name in names} for row in group]
            assert others == [first] * len(others)
        assert whole[0]["completion_token_ids"]
        assert streamed[0]["completion_token_ids"]
    assert {(row["kind"], row["relation"]) for row in rows} == {("main", "first")}
