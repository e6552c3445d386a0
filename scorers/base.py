"""Opinions of many scorers and the one verdict made of them. Sans-IO.

Order of say: explicit feedback > the user's own reward > strong rules (sure readings of the next message, tool error, retry) > the
judges' majority > likely readings of the next message > weak rules. The first opinion with a value decides it; a hint may come from a later one as long as it does not
contradict the value. Nothing is invented: a turn without opinions and without reactions is abstained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from scorers.hints import repeats_reply
from store.lifecycle import DropReason
from store.values import NO_SOURCE, AnsweredTurn, FollowUp, Json, NextState, Relation, Verdict, WishReading

#: A score within this distance of 0 is "neither": thumbs are ±1, stars and graded rewards may be in between.
DEAD_ZONE = 0.1
#: Longest raw next text kept with a verdict, in characters.
MAX_FOLLOW_UP = 2000


#: Relations of next states whose text is no reaction to the reply.
_NO_REPLIES = frozenset({Relation.RETRY, Relation.FRAMEWORK_RETRY, Relation.TOOL_LOOP})


class Rank(IntEnum):
    """Order in which opinions count."""

    FEEDBACK = 0
    CUSTOM = 1
    STRONG_RULE = 2
    JUDGE = 3
    LIKELY = 4
    WEAK_RULE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What one scorer says of a turn.

    Attributes:
        value: -1, 0 or +1; None when it has only a hint to give.
        confidence: in [0, 1].
        hint_is_reaction: the hint is the person's own words.
        share, wish: see `store.values.Verdict`.
        source: who says so, as it will stand in the verdict.
        detail: votes, patterns, rejected hints with reasons.
    """

    value: int | None
    rank: Rank
    source: str
    confidence: float = 1.0
    hint: str | None = None
    hint_is_reaction: bool = True
    wish: WishReading | None = None
    share: float = 1.0
    detail: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value not in (-1, 0, 1, None):
            raise ValueError(f"an opinion is -1, 0, +1 or None, not {self.value!r}")


class Scorer(Protocol):
    """Anything that has an opinion of an answered turn."""

    @property
    def name(self) -> str: ...

    async def score(self, turn: AnsweredTurn) -> Opinion | None:
        """Return an opinion, or None when this scorer cannot decide.

        Raises:
            JudgeUnavailable: the turn has to wait.
            JudgeError: the judge answered, but not in a form that can be read.
            RewardError: the user's own function failed.
        """
        ...


def sign(score: float) -> int:
    """Map a graded score to a verdict: 0 within `DEAD_ZONE` of 0, else its sign."""
    if abs(score) <= DEAD_ZONE:
        return 0
    return 1 if score > 0 else -1


def replies_to(turn: AnsweredTurn) -> tuple[NextState, ...]:
    """Return the reactions *to* the reply, newest first: not a repeated prompt, not a framework's text, not words about a later answer."""
    return tuple(state for state in reversed(turn.next_states) if state.relation not in _NO_REPLIES)


def next_words(turn: AnsweredTurn) -> tuple[str, str] | None:
    """Return (role, text) of the newest reaction to the reply, or None."""
    for state in replies_to(turn):
        if state.text.strip():
            return state.role, state.text
    for feedback in reversed(turn.feedback):
        if feedback.text.strip():
            return "user", feedback.text
    return None


def person_follow_up(turn: AnsweredTurn) -> str:
    """Return the user's newest text after the reply, bounded; "" when only tools or nothing followed."""
    for state in replies_to(turn):
        if state.role == "user" and state.text.strip():
            return state.text.strip()[:MAX_FOLLOW_UP]
    return ""


def decided(opinions: Iterable[Opinion]) -> Opinion | None:
    """Return the opinion that outranks any judge, or None while the judge should decide."""
    ranked = sorted(opinions, key=lambda o: o.rank)
    return next((o for o in ranked if o.value is not None and o.rank < Rank.JUDGE), None)


def compose(
    turn: AnsweredTurn,
    opinions: Sequence[Opinion],
    *,
    now: float,
    notes: Json | None = None,
    follow_up_is_question: bool = False,
) -> tuple[Verdict, DropReason | None]:
    """Make the one verdict of a turn.

    `Verdict.follow_up` keeps the user's own text, so that a session whose verdicts are all 0 can still contribute a directive
    sample. A turn with neither opinion nor text is abstained; one with a neutral opinion and no text has nothing to teach. Both
    keep their verdict row.

    Args:
        opinions: in any order; within a rank the earlier one counts first.
        notes: what went wrong on the way (a judge that could not be read, ...), for the detail.
    """
    ranked = sorted(opinions, key=lambda o: o.rank)
    head = next((o for o in ranked if o.value is not None), None)
    hinting = _hinting(ranked, head)
    follow_up = person_follow_up(turn)
    detail: Json = {"opinions": [_row(o) for o in ranked]} if ranked else {}
    detail.update(notes or {})
    hint = hinting.hint if hinting else None
    if hint and repeats_reply(hint, turn.reply_text):
        hint, detail["hint_repeats_reply"] = None, True
    speaker = head or hinting
    verdict = Verdict(
        turn_id=turn.turn_id,
        value=head.value if head else (0 if hint or follow_up else None),
        hint=hint,
        hint_is_reaction=hinting.hint_is_reaction if hinting else True,
        wish=next((o.wish for o in ranked if o.wish), None),
        follow_up=FollowUp(text=follow_up, is_question=follow_up_is_question) if follow_up else None,
        source=speaker.source if speaker else NO_SOURCE,
        confidence=speaker.confidence if speaker else 0.0,
        share=head.share if head else 1.0,
        detail=detail,
        created_at=now,
    )
    if verdict.value is None:
        return verdict, DropReason.ABSTAINED
    if verdict.value == 0 and not hint and not follow_up:
        return verdict, DropReason.NO_SIGNAL
    return verdict, None


def _hinting(ranked: Sequence[Opinion], head: Opinion | None) -> Opinion | None:
    if head is not None and head.hint:
        return head
    if head is not None and head.value == 1:
        return None  # praise that outranks a complaint also outranks its hint
    return next((o for o in ranked if o.hint and o.value != 1), None)


def _row(opinion: Opinion) -> Json:
    row: Json = {
        "source": opinion.source,
        "value": opinion.value,
        "confidence": round(opinion.confidence, 3),
    }
    if opinion.hint:
        row["hint"] = opinion.hint
    if opinion.wish:
        row["wish"], row["wish_scope"] = opinion.wish.text, opinion.wish.scope.value
    if opinion.detail:
        row["detail"] = opinion.detail
    return row
