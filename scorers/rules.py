"""Verdicts that need no model. Sans-IO: an answered turn in, an opinion or None out.

A rule gives an opinion only where the evidence is clear: what a tool answers, a new question or "ok" is no opinion on the reply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scorers.base import Opinion, Rank, replies_to, sign
from scorers.combined import read_message
from scorers.hints import HintContext, check_hint, message_text, without_reply
from scorers.reactions import Role, bounded, classify, without_code
from scorers.tool_calls import malformed_calls
from store.values import EXPLICIT_SOURCE, LOOP_SOURCE, AnsweredTurn, Json, Relation, WishScope

#: Weight, in training, of what a person says about an answer for each turn of the tool loop that led to it.
LOOP_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Rule:
    """A pure rule as a `Scorer`."""

    name: str
    read: Callable[[AnsweredTurn], Opinion | None]

    async def score(self, turn: AnsweredTurn) -> Opinion | None:
        return self.read(turn)


def read_feedback(turn: AnsweredTurn) -> Opinion | None:
    """Explicit feedback: the newest score counts, the newest words are the hint unless they are praise."""
    if not turn.feedback:
        return None
    score = next((f.score for f in reversed(turn.feedback) if f.score is not None), None)
    text = next((f.text.strip() for f in reversed(turn.feedback) if f.text.strip()), "")
    message = read_message(text, reply=turn.reply_text, prompt=last_request(turn))
    value = sign(score) if score is not None else message.value
    candidate = message.hint
    if candidate is None and text and message.value != 1 and value != 1:
        candidate = bounded(
            [without_code(text)]
        )  # words given as feedback are about the reply, whatever their form
    hint, detail = filtered(candidate, turn)
    if score is not None:
        detail["score"] = score
    if value is None and hint is None and message.wish is None:
        return None
    return Opinion(
        value=value, rank=Rank.FEEDBACK, source=EXPLICIT_SOURCE, hint=hint, wish=message.wish, detail=detail
    )


def read_follow_up(turn: AnsweredTurn) -> Opinion | None:
    """The person's next message as acceptance or complaint; of several branches the newest that says something counts."""
    for state in replies_to(turn):
        if state.role != "user":
            continue
        message = read_message(state.text, reply=turn.reply_text, prompt=last_request(turn))
        if message.value is None:
            continue
        hint, detail = filtered(message.hint, turn)
        if message.patterns:
            detail["patterns"] = list(message.patterns)
        detail["reason"] = message.reason
        kind = "complaint" if message.value < 0 else "thanks"
        return Opinion(
            value=message.value,
            rank=Rank.STRONG_RULE if message.is_sure else Rank.LIKELY,
            source=f"{message.source}:{kind}",
            confidence=message.confidence,
            hint=hint,
            wish=message.wish,
            detail=detail,
        )
    return None


def read_wish(turn: AnsweredTurn) -> Opinion | None:
    """A wish without a verdict, such as "you can use emojis again" or "just this once": no opinion of the reply. Only a withdrawal is a hint."""
    for state in replies_to(turn):
        if state.role != "user":
            continue
        message = read_message(state.text, reply=turn.reply_text, prompt=last_request(turn))
        if message.value is not None or message.wish is None:
            return None
        hint, detail = None, {"reason": message.reason}
        if message.wish.scope is WishScope.WITHDRAWAL:
            hint, refused = filtered(message.wish.text, turn)
            detail |= refused
        return Opinion(
            value=None, rank=Rank.WEAK_RULE, source="rule:wish", hint=hint, wish=message.wish, detail=detail
        )
    return None


def last_request(turn: AnsweredTurn) -> str:
    """Return the newest words of the user before the reply."""
    return next((message_text(m) for m in reversed(turn.messages) if m.get("role") == "user"), "")


def read_tool_calls(turn: AnsweredTurn) -> Opinion | None:
    """A malformed call: an unknown tool, or arguments that are unreadable or against the tool's schema. What the tool answers is no opinion."""
    if not turn.completion.tool_calls:
        return None
    faults = malformed_calls(turn.completion.tool_calls, turn.request)
    if not faults:
        return None
    return Opinion(
        value=-1,
        rank=Rank.STRONG_RULE,
        source="rule:tool_error",
        confidence=len(faults) / len(turn.completion.tool_calls),
        detail={"errors": [fault[:200] for fault in faults[:5]]},
    )


def read_retry(turn: AnsweredTurn) -> Opinion | None:
    """A person asked the same again and went on with the newer reply: this one was not wanted, but nothing says why."""
    count = sum(state.relation is Relation.RETRY for state in turn.next_states)
    if not count or any(state.relation is Relation.NEXT for state in turn.next_states):
        return None  # a reply that was itself continued belongs to another conversation with the same opening
    return Opinion(
        value=-1, rank=Rank.STRONG_RULE, source="rule:retry", confidence=0.7, detail={"retries": count}
    )


def read_framework_retry(turn: AnsweredTurn) -> Opinion | None:
    """A validator rejected a reply in a conversation: weak evidence. Its text is no hint.

    Nothing shows that a person waits for the reply to an opening that only a validator followed: an extraction looks the same.
    """
    is_opening = not any(m.get("role") == "assistant" for m in turn.messages)
    if is_opening or not any(
        s.relation is Relation.FRAMEWORK_RETRY and s.role == "validator" for s in turn.next_states
    ):
        return None
    return Opinion(value=-1, rank=Rank.WEAK_RULE, source="rule:schema", confidence=0.5)


def read_tool_loop(turn: AnsweredTurn) -> Opinion | None:
    """What a person wrote about the answer that this turn's tool calls led to: a share of it, and never its hint."""
    for state in reversed(turn.next_states):
        if state.relation is not Relation.TOOL_LOOP:
            continue
        message = read_message(state.text)
        if message.value is not None:
            return Opinion(
                value=message.value,
                rank=Rank.WEAK_RULE,
                source=LOOP_SOURCE,
                confidence=message.confidence,
                share=LOOP_SHARE,
                detail={"reason": message.reason},
            )
    return None


def read_edit(turn: AnsweredTurn) -> Opinion | None:
    """The user went back and sent another message to this reply: weak evidence, it may be a typo."""
    if not any(state.relation is Relation.BRANCH for state in turn.next_states):
        return None
    return Opinion(value=0, rank=Rank.WEAK_RULE, source="rule:edited", confidence=0.3)


#: Strong rules in their order: words are better evidence than a repeated request.
RULES: tuple[Rule, ...] = (
    Rule("feedback", read_feedback),
    Rule("follow_up", read_follow_up),
    Rule("tool_error", read_tool_calls),
    Rule("retry", read_retry),
    Rule("framework_retry", read_framework_retry),
    Rule("tool_loop", read_tool_loop),
    Rule("edited", read_edit),
    Rule("wish", read_wish),
)


def filtered(hint: str | None, turn: AnsweredTurn) -> tuple[str | None, Json]:
    """Return (the person's words if they can serve as a hint, detail with the reason if they cannot)."""
    if hint is None:
        return None, {}
    hint, kept = without_reply(hint, turn.reply_text), hint
    if not hint:
        return None, {"rejected_hints": [{"hint": kept[:400], "reason": "leaking: it repeats the reply"}]}
    reason = check_hint(hint, HintContext.of(turn), is_reaction=True)
    if reason is None:
        return hint, {}
    return None, {"rejected_hints": [{"hint": hint[:400], "reason": reason}]}


def opens_new_topic(text: str) -> bool:
    """Whether a message is nothing but questions or tasks of its own (and thanks)."""
    roles = {sentence.role for sentence in classify(text)}
    return Role.QUESTION in roles and roles <= {Role.QUESTION, Role.THANKS}
