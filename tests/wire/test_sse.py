"""Events from bytes: every chunking gives the same result, and no byte is lost or moved."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.sse import DoneEventHolder, EventSplitter, event_data, replace_data

STREAM = (
    b": ping\n\n"
    b'data: {"a":1}\n\n'
    b"event: odd\r\ndata: one\r\ndata: two\r\n\r\n"
    b"data:no blank\n\n"
    b"data: data: [DONE] inside\n\n"
    b"data: [DONE]\n\n"
)


def cuts(data: bytes, points: list[int]) -> list[bytes]:
    edge_lines = [0, *sorted(p % (len(data) + 1) for p in points), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edge_lines)]


def split(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.flush()


def test_a_stream_is_split_into_its_events_whatever_its_line_ends() -> None:
    events, rest = split([STREAM])
    assert [event_data(e) for e in events] == [
        None,
        b'{"a":1}',
        b"one\ntwo",
        b"no blank",
        b"data: [DONE] inside",
        b"[DONE]",
    ]
    assert rest == b""
    assert b"".join(events) == STREAM


def meaning(found: tuple[list[bytes], bytes]) -> tuple[list[bytes | None], bytes, bytes]:
    """What a split says, whether or not a comment went ahead of its event: the payloads, all the bytes, and what is left."""
    events, rest = found
    return [p for e in events if (p := event_data(e)) is not None], b"".join(events), rest


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_one_cut_anywhere_changes_nothing(cut: int) -> None:
    assert meaning(split([STREAM[:cut], STREAM[cut:]])) == meaning(split([STREAM]))


def test_single_bytes_change_nothing() -> None:
    assert meaning(split([STREAM[i : i + 1] for i in range(len(STREAM))])) == meaning(split([STREAM]))


def test_a_comment_waits_for_no_event() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b": ping\n") == [b": ping\n"]
    assert splitter.feed(b": pi") == []
    assert splitter.feed(b"ng\r") == []  # perhaps half of CR LF
    assert splitter.feed(b"\ndata: x\n: inside\n") == [b": ping\r\n"]
    assert splitter.feed(b"\n") == [b"data: x\n: inside\n\n"]


def test_a_lone_cr_ends_a_line_and_empty_lines_belong_to_no_event() -> None:
    assert event_data(b"data: x\rdata: y\n\n") == b"x\ny"
    splitter = EventSplitter()
    assert splitter.feed(b":ping\n") == [b":ping\n"]
    assert splitter.feed(b"\r\ndata: x") == [b"\r\n"]
    assert splitter.flush() == b"data: x"


def test_a_payload_is_replaced_and_every_other_line_stays() -> None:
    for event, expected in [
        (b"data: {}\n\n", b"data: [1,\ndata: 2]\n\n"),
        (b"id: {}\ndata:{}\r\n\r\n", b"id: {}\ndata: [1,\r\ndata: 2]\r\n\r\n"),
        (b"id: 1\ndata: {\n: c\ndata: }\nretry: 2\n\n", b"id: 1\ndata: [1,\ndata: 2]\n: c\nretry: 2\n\n"),
    ]:
        payload = event_data(event)
        assert payload is not None
        assert replace_data(event, payload, b"[1,\n2]") == expected
    assert replace_data(b"event: a\ndata: {}\n\n", b"{}", b"[]") == b"event: a\ndata: []\n\n"


@given(
    st.lists(st.sampled_from([b"data: x", b"data:", b":", b"\n", b"\r\n", b"\r", b"[DONE]", b"\xff"])),
    st.lists(st.integers(0, 500)),
)
def test_any_bytes_in_any_chunking_give_the_same_events_and_keep_every_byte(
    parts: list[bytes], points: list[int]
) -> None:
    data = b"".join(parts)
    whole, rest = split([data])
    assert meaning(split(cuts(data, points))) == meaning((whole, rest))
    assert b"".join(whole) + rest == data


class _RescanningSplitter:
    """The definition of `EventSplitter`: the whole buffer is searched after every piece."""

    def __init__(self) -> None:
        self.buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        self.buffer += data
        events, start = [], 0
        while (match := re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}").search(self.buffer, start)) is not None:
            if match.end() == len(self.buffer) and self.buffer.endswith(b"\r"):
                break
            events.append(self.buffer[start : match.end()])
            start = match.end()
        self.buffer = self.buffer[start:]
        while self.buffer.startswith((b":", b"\r", b"\n")):
            line = re.search(rb"\r\n|\n|\r", self.buffer)
            if line is None or (line[0] == b"\r" and line.end() == len(self.buffer)):
                break
            events.append(self.buffer[: line.end()])
            self.buffer = self.buffer[line.end() :]
        return events


@given(
    st.lists(
        st.lists(st.sampled_from([b"data: x", b":", b"\n", b"\n\n", b"\r\n", b"\r", b"x"]), max_size=5).map(
            b"".join
        ),
        max_size=20,
    )
)
def test_every_piece_gives_the_events_that_a_search_of_the_whole_buffer_gives(pieces: list[bytes]) -> None:
    splitter, expected = EventSplitter(), _RescanningSplitter()
    for piece in pieces:
        assert splitter.feed(piece) == expected.feed(piece)
    assert splitter.flush() == expected.buffer


class _CountingSplitter(EventSplitter):
    joined = 0  #: bytes that were joined

    def flush(self) -> bytes:
        rest = super().flush()
        self.joined += len(rest)
        return rest


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("head", [b"data: ", b": "])
def test_the_bytes_of_an_open_event_are_joined_once(head: bytes, end: bytes) -> None:
    splitter = _CountingSplitter()
    pieces = [head, *[b"x\\n" * 100] * 500, end]
    events = [event for piece in pieces for event in splitter.feed(piece)]
    assert b"".join(events) == b"".join(pieces)
    assert splitter.joined < sum(map(len, pieces))


@given(
    st.lists(
        st.sampled_from(
            [b"data: x\n\n", b"data: [DONE]", b"data: [DON\n\n", b"\n", b"\r\n", b"data:[DONE]\n\n", b"da"]
        )
    ),
    st.lists(st.integers(0, 500)),
)
def test_the_gate_lets_all_through_up_to_the_closing_event(parts: list[bytes], points: list[int]) -> None:
    data = b"".join(parts)
    gate = DoneEventHolder()
    whole = gate.feed(data)
    held = gate.flush()
    chopped = DoneEventHolder()
    passed = b"".join(chopped.feed(piece) for piece in cuts(data, points))
    assert (passed, chopped.flush()) == (whole, held)
    assert whole + held == data
    if gate.is_closed:
        assert held.startswith((b"data: [DONE]", b"data:[DONE]"))
    for line in whole.replace(b"\r", b"\n").split(b"\n"):
        assert not line.startswith((b"data: [DONE]", b"data:[DONE]"))


def test_the_gate_does_not_hold_back_what_cannot_be_the_end() -> None:
    gate = DoneEventHolder()
    assert gate.feed(b'data: {"x":1}\n\n') == b'data: {"x":1}\n\n'
    assert gate.feed(b"data: [DO") == b""
    assert gate.feed(b"G]") == b"data: [DOG]"
    assert gate.feed(b"\n\ndata: [DONE]\n") == b"\n\n"
    assert gate.feed(b"\n") == b""
    assert gate.flush() == b"data: [DONE]\n\n"
