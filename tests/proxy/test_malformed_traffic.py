"""Hostile requests: the backend's word is passed on whatever it is, and nothing of the proxy's own breaks. Ten thousand: `bench/hostile.py`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bench.hostile import ATTACKS, BAD_REPLIES, Attack, Findings, attacks, run
from store.errors import WireError
from tests.proxy.raw_http import Cut, Request, Step, answer
from tests.proxy.test_transparency import JSON_TYPE, SSE, Pair, many, pairs, unpacked
from wire.chat_request import parse_chat

__all__ = ["pairs"]  # a fixture

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def rather(*right: Any) -> st.SearchStrategy[Any]:
    """Mostly one of what the API wants here, else anything at all."""
    return st.sampled_from(right) | anything


requests = st.fixed_dictionaries(
    {},
    optional={
        "model": rather("m", "m@1"),
        "messages": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "role": rather("user", "assistant", "system", "tool"),
                    "content": rather("hi", None, [{"type": "text", "text": "hi"}], [{"type": "image_url"}]),
                    "tool_calls": rather([{"id": "c", "function": {"name": "f", "arguments": "{"}}]),
                    "tool_call_id": rather("c"),
                    "name": anything,
                },
            )
            | anything,
            max_size=4,
        )
        | anything,
        "stream": rather(True, False),
        "stream_options": rather({"include_usage": True}, {"include_usage": None}, {}),
        "n": rather(1, 0, -1, 2),
        "temperature": rather(0, 1.5),
        "logprobs": rather(True, False, 5),
        "top_logprobs": rather(0, 2),
        "return_token_ids": rather(True, False),
        "metadata": rather({"session_id": "s"}, {"patina_train": "off"}),
        "user": rather("u"),
        "tools": rather([], [{"type": "function", "function": {"name": "f"}}]),
        "tool_choice": rather("auto", "required", {"type": "function"}),
        "response_format": rather({"type": "json_object"}),
    },
)


@many
@given(body=requests, stream=st.booleans(), status=st.sampled_from([200, 200, 400]))
def test_a_request_of_any_shape_gets_the_backends_very_answer(
    pairs: dict[bool, Pair], body: Any, stream: bool, status: int
) -> None:
    def script(request: Request) -> list[Step]:
        if stream:
            return answer(status, [SSE], [b"data: {}\n\n", b"data: [DONE]\n\n"], framing="chunked")
        return answer(status, [JSON_TYPE], [b'{"choices":[]}'])

    direct, proxied, _, passed = pairs[True].both(script, body=json.dumps(body).encode())
    assert proxied.comparable() == direct.comparable()
    given = json.loads(passed.body)
    added = {"logprobs", "return_token_ids", "stream_options"}
    assert {k: v for k, v in given.items() if k not in added} == {
        k: v for k, v in body.items() if k not in added
    }


@many
@given(
    pieces=st.lists(
        st.binary(max_size=40)
        | st.sampled_from(
            [b"data: ", b"\n\n", b"\r", b"{", b"}", b'"choices"', b":", b"[", b"]", b'"logprobs":', b"null", b"[DONE]", b": c\n", b"NaN"]
        ),
        max_size=12,
    ),
    kind=st.sampled_from([JSON_TYPE, SSE, ("Content-Type", "text/plain"), ("X-None", "1")]),
    stream=st.booleans(),
    cut=st.booleans(),
)  # fmt: skip
def test_a_reply_of_any_bytes_is_passed_on(
    pairs: dict[bool, Pair], pieces: list[bytes], kind: tuple[str, str], stream: bool, cut: bool
) -> None:
    """What is no reply of the format at all has nothing of ours in it, so it is the same to the byte."""
    body = b"".join(pieces)
    if b'"logprobs"' in body or b'"choices"' in body:
        pieces = [b"x", *pieces]  # neither an object nor an event

    def script(request: Request) -> list[Step]:
        return answer(200, [kind], [*pieces, Cut()] if cut else pieces, framing="chunked")

    asked = orjson.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
    direct, proxied, _, _ = pairs[True].both(script, body=asked)
    if cut:
        assert (proxied.status, proxied.is_whole) == (200, False)
        assert direct.body.startswith(proxied.body)
    else:
        assert unpacked(proxied) == unpacked(direct)


@pytest.mark.parametrize("body", [b'{"role":5}', b'{"role":{}}', b"7", b"null"])
def test_messages_that_are_none_are_the_backends_to_refuse(body: bytes) -> None:
    with pytest.raises(WireError):
        parse_chat(b'{"messages":[' + body + b"]}")


def test_millions_of_tiny_values_are_passed_on_and_not_read() -> None:
    with pytest.raises(WireError, match="too many values"):
        parse_chat(b'{"x":[' + b"0," * 4_000_001 + b'0],"messages":[{"role":"user"}]}')


def test_a_storm_is_the_same_for_the_same_seed_and_has_everything_in_it() -> None:
    first, again = list(attacks(2000, 3)), list(attacks(2000, 3))
    assert first == again
    assert len({attack.kind for attack in first}) == len(ATTACKS)
    assert len(BAD_REPLIES) > 20


def test_what_must_not_be_is_found() -> None:
    findings = Findings()
    attack = Attack("x", (b"GET / HTTP/1.1\r\n\r\n",))
    findings.judge(attack, b"HTTP/1.1 500 Oops\r\n\r\nInternal Server Error")
    findings.judge(attack, b'HTTP/1.1 502 Bad\r\n\r\n{"code":"upstream_unavailable"}')
    findings.judge(attack, b"rubbish")
    assert len(findings.wrong) == 3
    findings.judge(attack, b"HTTP/1.1 500 Oops\r\nX-From: backend\r\n\r\n")
    findings.judge(Attack("bad backend", (b"",)), b'HTTP/1.1 502 Bad\r\n\r\n{"code":"upstream_unavailable"}')
    findings.judge(attack, b"")
    assert len(findings.wrong) == 3


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_few_hundred_hostile_requests_break_nothing(tmp_path: Path) -> None:
    found = asyncio.run(run(400, seed=11, at_once=8))
    assert found["wrong"] == []
    assert found["requests"] == 400
    assert found["lost"] == 0
    assert found["honest_requests_meanwhile"] > 5
