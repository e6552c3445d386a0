"""Keys, explicit words, headers and feedback bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from proxy.feedback import MAX_TEXT, parse_feedback
from store.errors import WireError
from store.values import TurnKind
from wire.headers import (
    forward_request_headers,
    forward_response_headers,
    parse_request_options,
)


def test_explicit_words_in_headers_and_metadata() -> None:
    options = parse_request_options(
        [
            (b"x-turn-type", b"Side"),
            (b"x-session-id", b"s1"),
            (b"x-session-done", b"1"),
            (b"x-patina-train", b"off"),
        ],
        {"user": "ann"},
    )
    assert (options.kind, options.session, options.is_session_done, options.is_opted_out, options.user) == (
        TurnKind.SIDE,
        "s1",
        True,
        True,
        "ann",
    )
    assert parse_request_options([], {"metadata": {"patina_train": False}}).is_opted_out
    said = parse_request_options([], {"metadata": {"session_id": "s2", "patina_train": "off"}})
    assert (said.session, said.is_opted_out, said.kind) == ("s2", True, None)
    assert parse_request_options([], {}, "in-path").session == "in-path"


def test_store_false_is_no_opting_out() -> None:
    assert not parse_request_options([], {"store": False}).is_opted_out


_HOP_BY_HOP = (
    "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "HTTP2-Settings", "TE", "Trailer",
    "Transfer-Encoding", "Upgrade", "X-Named",
)  # fmt: skip


@pytest.mark.parametrize("is_page", [False, True])
@pytest.mark.parametrize("passes_credentials", [False, True])
def test_secrets_our_own_words_cookies_and_hop_by_hop_fields_stay_here(
    is_page: bool, passes_credentials: bool
) -> None:
    ends = ["Content-Type", "X-Request-Id", "OpenAI-Organization"]
    ours = [
        "Host",
        "Expect",
        "X-Turn-Type",
        "X-Session-Id",
        "X-Session-Done",
        "X-Patina-Train",
        "X-Patina-Wishes",
    ]
    cookies, credentials = ["Cookie", "Set-Cookie"], ["Authorization", "X-Api-Key", "Api-Key"]

    def fields(*groups: Sequence[str]) -> list[tuple[bytes, bytes]]:
        named = [(b"connection", b"close, x-NAMED")]
        both = [spelt for group in groups for name in group for spelt in (name, name.lower())]
        return named + [(name.encode(), b"v") for name in both]

    sent = fields(ends, _HOP_BY_HOP, ours, cookies, credentials, ["X-Patina-Key"])
    passed = forward_request_headers(sent, passes_credentials=passes_credentials, is_page=is_page)
    expected = fields(
        ends,
        cookies if is_page else (),
        credentials if passes_credentials else (),
        ["X-Patina-Key"] if is_page else (),
    )
    assert passed == expected[1:]
    got = fields(ends, _HOP_BY_HOP, cookies, ["X-Patina-Turn", "Access-Control-Allow-Origin"])
    expected = fields(ends, cookies if is_page else ())
    assert forward_response_headers(got, is_page=is_page) == expected[1:]


@pytest.mark.parametrize(
    ("body", "score", "text"),
    [
        ({"turn_id": "t", "score": 0.5}, 0.5, ""),
        ({"turn_id": "t", "thumbs": "up"}, 1.0, ""),
        ({"turn_id": "t", "thumbs": False}, -1.0, ""),
        ({"completion_id": "c", "rating": 1, "comment": "no"}, -1.0, "no"),
        ({"turn_id": "t", "rating": "down"}, -1.0, ""),
        ({"turn_id": "t", "rating": 4}, 0.5, ""),
        ({"prompt": "p", "response": "r", "feedback": "shorter"}, None, "shorter"),
        ({"prompt": [{"role": "user", "content": "p"}], "response": "r", "text": "x"}, None, "x"),
    ],
)
def test_feedback_bodies_in_every_form(body: Any, score: Any, text: str) -> None:
    found = parse_feedback(body)
    assert (found.score, found.text) == (score, text)
    assert found.reference is not None or (found.prompt, found.response) == ("p", "r")


@pytest.mark.parametrize(
    "body",
    [
        [], {}, {"turn_id": "t"}, {"turn_id": 7, "score": 1}, {"turn_id": "t", "score": 2}, {"turn_id": "t", "score": True},
        {"turn_id": "t", "thumbs": "sideways"}, {"turn_id": "t", "rating": 9}, {"prompt": "p", "text": "x"}, {"score": 1},
        {"turn_id": "t", "score": 1, "idempotency_key": ""}, {"turn_id": "t", "text": "x" * (MAX_TEXT + 1)},
    ],
)  # fmt: skip
def test_wrong_feedback_is_told_what_is_wrong(body: Any) -> None:
    with pytest.raises(WireError):
        parse_feedback(body)
