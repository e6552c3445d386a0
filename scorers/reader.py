"""A turn's verdict without any judge: the rules, the word patterns and the classifier, composed. No network.

The scorer process reads turns by this module; `scorers.scorer_chain` adds the user's own reward and a judge.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorers.base import Opinion, compose, person_follow_up
from scorers.rules import RULES, Rule, opens_new_topic
from store.lifecycle import DropReason
from store.values import AnsweredTurn, Completion, Json, NextState, Relation, Verdict


def read_turn(
    turn: AnsweredTurn, *, now: float, rules: Sequence[Rule] = RULES
) -> tuple[Verdict, DropReason | None]:
    """Return the verdict of an answered turn, and why the turn is dropped if it is.

    Args:
        now: seconds since the epoch, for the verdict.
    """
    return compose_turn(turn, opinions_of(turn, rules), now=now)


def opinions_of(turn: AnsweredTurn, rules: Sequence[Rule] = RULES) -> list[Opinion]:
    """Return what the rules say of a turn, in their order."""
    return [opinion for rule in rules if (opinion := rule.read(turn)) is not None]


def compose_turn(
    turn: AnsweredTurn, opinions: Sequence[Opinion], *, now: float, notes: Json | None = None
) -> tuple[Verdict, DropReason | None]:
    """Compose opinions into the verdict of a turn, with the person's next words kept beside it."""
    follow_up = person_follow_up(turn)
    return compose(
        turn,
        opinions,
        now=now,
        notes=notes,
        follow_up_is_question=bool(follow_up) and opens_new_topic(follow_up),
    )


def turn_of(
    text: str,
    *,
    reply: str = "",
    prompt: str | Sequence[Json] = "",
    turn_id: str = "recorded",
    role: str = "user",
    relation: Relation = Relation.NEXT,
) -> AnsweredTurn:
    """Return recorded words as an answered turn.

    Args:
        prompt: the request's text, or its messages.
        role, relation: of the next state; see `store.values.NextState`.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    state = NextState(
        turn_id=turn_id,
        by_turn_id="",
        role=role,
        text=text,
        messages=({"role": "user", "content": text},),
        relation=relation,
        created_at=0.0,
    )
    return AnsweredTurn(
        turn_id=turn_id,
        session_id="",
        policy="",
        key_name="",
        messages=tuple(messages),
        request={},
        completion=Completion(text=reply),
        next_states=(state,),
        feedback=(),
        created_at=0.0,
    )
