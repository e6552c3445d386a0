"""Translated event streams, read by the Node SDKs' own accumulators: in any chunking they make the whole reply of them.

The Python SDKs' are in `tests/wire`; chat streams are the backend's own bytes (`tests/proxy/test_transparency.py`).
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.settings import child_environment
from tests.clients.packages import npm
from tests.clients.test_clients import HERE, NODE
from tests.examples import examples
from tests.wire.test_responses_api import REPLIES, TURN, stream_of, synthesizer
from wire.api_translation import StreamTranslator
from wire.messages_api.reply import MessageSynthesizer

Accumulate = Callable[[str, list[bytes]], dict[str, Any]]

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def accumulate() -> Iterator[Accumulate]:
    """A function that gives an API's stream, in pieces, to the SDK, and returns its final object."""
    with subprocess.Popen(
        ["node", str(HERE / "accumulators.mjs")], cwd=npm(*NODE), env=child_environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        written, read = process.stdin, process.stdout

        def ask(api: str, pieces: list[bytes]) -> dict[str, Any]:
            line = {"api": api, "pieces": [base64.b64encode(piece).decode() for piece in pieces]}
            written.write(json.dumps(line) + "\n")
            written.flush()
            made: dict[str, Any] = json.loads(read.readline())
            assert "failed" not in made, made["failed"]
            return made

        yield ask


CUTS = st.lists(st.integers(0, 6000), max_size=8)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    bounds = sorted({0, len(stream), *(each for each in cuts if each < len(stream))})
    return [stream[a:b] for a, b in itertools.pairwise(bounds)]


def translated(made: Any, reply: dict[str, Any], sizes: list[int]) -> bytes:
    """Return the events of a synthesizer for a backend's stream with texts in pieces of these sizes."""
    translator = StreamTranslator(made)
    out: bytes = made.begin(TURN)
    return out + translator.feed(stream_of(reply, sizes)) + translator.close()


@settings(max_examples=examples(60))
@given(reply=REPLIES, sizes=st.lists(st.integers(0, 5), max_size=5), cuts=CUTS)
def test_the_node_sdk_accumulates_a_response(
    accumulate: Accumulate, reply: dict[str, Any], sizes: list[int], cuts: list[int]
) -> None:
    found = accumulate("responses", cut(translated(synthesizer(), reply, sizes), cuts))
    whole = orjson.loads(synthesizer().whole(TURN, reply)[1])
    assert found["id"] == whole["id"]
    assert found["status"] == whole["status"]
    assert found["usage"] == whole["usage"]
    assert [shown(item) for item in found["output"]] == [shown(item) for item in whole["output"]]


def shown(item: dict[str, Any]) -> dict[str, Any]:
    """Return an output item without what the SDK adds when it parses."""
    kept = {name: value for name, value in item.items() if name != "parsed_arguments"}
    if kept["type"] == "message":
        kept["content"] = [{k: v for k, v in part.items() if k != "parsed"} for part in kept["content"]]
    return kept


@settings(max_examples=examples(60))
@given(reply=REPLIES, sizes=st.lists(st.integers(0, 5), max_size=5), cuts=CUTS)
def test_the_node_sdk_accumulates_a_message(
    accumulate: Accumulate, reply: dict[str, Any], sizes: list[int], cuts: list[int]
) -> None:
    made = MessageSynthesizer("m", thinks=True)
    found = accumulate("messages", cut(translated(made, reply, sizes), cuts))
    whole = orjson.loads(MessageSynthesizer("m", thinks=True).whole(TURN, reply)[1])
    assert found["content"] == whole["content"]
    assert found["stop_reason"] == whole["stop_reason"]
    assert found["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
