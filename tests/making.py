"""Values for tests: a turn with every field set, of which a test names only what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from store.values import (
    AdapterState,
    AdapterVersion,
    Completion,
    Json,
    LogprobMode,
    NewTurn,
    NextState,
    Relation,
    TurnKind,
    Verdict,
    Wish,
    WishState,
)


def make_turn(turn_id: str, messages: list[Json] | None = None, **changes: Any) -> NewTurn:
    """Return a finished main turn of two tokens; ``changes`` are fields of NewTurn."""
    text = changes.pop("text", "ok")
    turn = NewTurn(
        turn_id=turn_id,
        completion_id=f"chatcmpl-{turn_id}",
        session_id="session",
        parent_turn_id=None,
        turn_index=0,
        kind=TurnKind.MAIN,
        relation=Relation.FIRST,
        link_reason="no_recorded_prefix",
        kind_reason="conversation",
        link_confidence=1.0,
        policy="patina-tiny",
        key_name="alice",
        adapter_version=0,
        client="test",
        user=None,
        created_at=1_000.0,
        finished_at=1_001.0,
        status_code=200,
        streamed=False,
        messages=tuple(messages or [{"role": "user", "content": "hi"}]),
        request={"model": "patina-tiny"},
        completion=Completion(
            text=text, token_ids=(5, 6), sampling_logprobs=(-0.5, -0.25), finish_reason="stop"
        ),
        prompt_token_ids=(1, 2, 3),
        temperature=1.0,
        logprob_mode=LogprobMode.RAW,
        usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        request_key=f"request-{turn_id}",
        reply_key=f"reply-{turn_id}",
    )
    return replace(turn, **changes)


def make_answer(turn_id: str, by_turn_id: str, text: str, **changes: Any) -> NextState:
    """Return what the turn ``by_turn_id`` says about its parent ``turn_id``."""
    state = NextState(
        turn_id=turn_id,
        by_turn_id=by_turn_id,
        role="user",
        text=text,
        messages=({"role": "user", "content": text},),
        relation=Relation.NEXT,
        created_at=1_010.0,
    )
    return replace(state, **changes)


def make_verdict(turn_id: str, value: int | None = -1, **changes: Any) -> Verdict:
    verdict = Verdict(
        turn_id=turn_id,
        value=value,
        hint="shorter please" if value == -1 else None,
        source="rule:complaint",
        created_at=1_020.0,
    )
    return replace(verdict, **changes)


def make_wish(wish_id: int, text: str, state: WishState = WishState.PROMPT, **changes: Any) -> Wish:
    """A wish of the record; ``changes`` are fields of Wish."""
    fields: dict[str, Any] = {
        "wish_id": wish_id,
        "policy": "patina-tiny",
        "state": state,
        "text": text,
        "edited": False,
        "measures": {},
        "statements": (),
        "created_at": 1_000.0 + wish_id,
        "changed_at": 1_000.0 + wish_id,
    }
    return Wish(**{**fields, **changes})


def make_adapter(policy: str, version: int, **changes: Any) -> AdapterVersion:
    """Return the row of a published version; ``changes`` are fields of AdapterVersion."""
    adapter = AdapterVersion(
        policy=policy,
        version=version,
        path=f"/adapters/{policy}@{version}",
        content_hash="",
        parent_version=0,
        state=AdapterState.PUBLISHED,
        reason="",
        method="rl",
        metrics={},
        created_at=float(version),
    )
    return replace(adapter, **changes)
