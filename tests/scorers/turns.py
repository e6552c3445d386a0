"""Answered turns for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from store.values import AnsweredTurn, Completion, Feedback, Json, NextState, Relation
from tests.making import make_answer

REPLY = "The capital of France is **Paris**! 😊 It lies on the river Seine and I hope this helps you a lot."


def turn(*states: NextState, feedback: tuple[Feedback, ...] = (), **changes: Any) -> AnsweredTurn:
    made = AnsweredTurn(
        turn_id="t",
        session_id="s",
        policy="patina-tiny",
        key_name="alice",
        messages=({"role": "user", "content": "What is the capital of France?"},),
        request={"model": "patina-tiny"},
        completion=Completion(text=REPLY),
        next_states=states,
        feedback=feedback,
        created_at=1_000.0,
    )
    return replace(made, **changes)


def said(text: str, relation: Relation = Relation.NEXT, by: str = "u") -> NextState:
    return make_answer("t", by, text, relation=relation)


def tool(*contents: Any, by: str = "u") -> NextState:
    messages: tuple[Json, ...] = tuple(
        {"role": "tool", "tool_call_id": f"c{i}", "content": c} for i, c in enumerate(contents)
    )
    return make_answer("t", by, "\n".join(str(c) for c in contents), role="tool", messages=messages)


def feedback(score: float | None = None, text: str = "", number: int = 1) -> Feedback:
    return Feedback(
        feedback_id=f"f{number}",
        turn_id="t",
        score=score,
        text=text,
        idempotency_key=f"k{number}",
        created_at=1_000.0 + number,
    )
