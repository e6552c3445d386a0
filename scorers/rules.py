"""Verdicts that need no model. Sans-IO: an answered turn in, an opinion or None out.

A rule gives an opinion only where the evidence is clear: a tool that succeeded, a new question or "ok" is no opinion on the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scorers.base import Opinion, Rank, replies_to, sign
from scorers.combined import read_message
from scorers.hints import HintContext, check_hint, message_text
from scorers.reactions import Role, bounded, classify, read_reaction, without_code
from scorers.wish_labels import label_wishes
from store.values import AnsweredTurn, Json, Relation

#: Longest tool output that is searched for an error, in characters from either end.
_TOOL_READ = 4000

_ERROR_HEAD = re.compile(
    r"^\W*(?:\[?(?:tool |execution |runtime |internal |http )?(?:error|exception|failure|fatal|failed)\]?(?:\s*[:(\[!-]|\s+\d{3}\b|\s+(?:calling|executing|running|while)\b)"
    r"|traceback \(most recent call last\)|(?-i:(?:[\w.]*[a-z.])?(?:Error|Exception)\b\s*[:(])|(?:bash|sh|zsh): .*: (?:command not found|No such file)|panic: |command failed\b|permission denied\b)",
    re.IGNORECASE,
)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
_EXIT = re.compile(
    r"(?:^|\n|[{,;(<]\s*)\W{0,3}(?:process |command |script )?(?:exited with (?:exit )?(?:code|status)|exit[ _]?(?:code|status)|return[ _]?code|returned non-zero exit status)\W{0,4}(-?\d+)",
    re.IGNORECASE,
)
_EXIT_KEYS = ("exit_code", "exitCode", "exit_status", "returncode", "return_code", "code_exit")
_FALSE_KEYS = ("ok", "success", "succeeded")


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
    message = read_message(text, reply=turn.completion.text)
    value = sign(score) if score is not None else message.value
    candidate = message.hint
    if candidate is None and text and message.value != 1 and value != 1:
        candidate = bounded(
            [without_code(text)]
        )  # words given as feedback are about the reply, whatever their form
    hint, detail = filtered(candidate, turn)
    if score is not None:
        detail["score"] = score
    if value is None and hint is None:
        return None
    return Opinion(value=value, rank=Rank.FEEDBACK, source="feedback", hint=hint, detail=detail)


def read_follow_up(turn: AnsweredTurn) -> Opinion | None:
    """The person's next message as acceptance or complaint; of several branches the newest that says something counts."""
    for state in replies_to(turn):
        if state.role != "user":
            continue
        message = read_message(state.text, reply=turn.completion.text, prompt=_last_request(turn))
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
            detail=detail,
        )
    return None


def read_wish(turn: AnsweredTurn) -> Opinion | None:
    """A style wish without a complaint, such as "you can use emojis again": a hint, and no opinion of the reply.

    Questions and tasks are left out: they ask for the form of their own answer.
    """
    for state in replies_to(turn):
        if state.role != "user":
            continue
        if read_reaction(state.text, reply=turn.completion.text).value is not None:
            return None
        if read_message(state.text, reply=turn.completion.text).value is not None:
            return None
        stated = [
            sentence.text
            for sentence in classify(state.text, reply=turn.completion.text)
            if sentence.role is Role.STATEMENT and label_wishes(sentence.text)
        ]
        hint, detail = filtered(bounded(stated) or None, turn)
        if hint is None:
            return None
        return Opinion(
            value=None, rank=Rank.WEAK_RULE, source="rule:wish", confidence=0.9, hint=hint, detail=detail
        )
    return None


def _last_request(turn: AnsweredTurn) -> str:
    return next((message_text(m) for m in reversed(turn.messages) if m.get("role") == "user"), "")


def read_tool_results(turn: AnsweredTurn) -> Opinion | None:
    """A call of this turn that a tool refused or that failed; success says nothing about whether it was the right call."""
    for state in replies_to(turn):
        results = [m for m in state.messages if m.get("role") in ("tool", "function")]
        failures = [reason for m in results if (reason := tool_error(m.get("content")))]
        if failures:
            return Opinion(
                value=-1,
                rank=Rank.STRONG_RULE,
                source="rule:tool_error",
                confidence=len(failures) / len(results),
                detail={"errors": [failure[:200] for failure in failures[:5]]},
            )
    return None


def read_retry(turn: AnsweredTurn) -> Opinion | None:
    """The same prompt was asked again: the reply was not wanted, but nothing says why."""
    count = sum(state.relation is Relation.RETRY for state in turn.next_states)
    if not count:
        return None
    return Opinion(
        value=-1, rank=Rank.STRONG_RULE, source="rule:retry", confidence=0.7, detail={"retries": count}
    )


def read_edit(turn: AnsweredTurn) -> Opinion | None:
    """The user went back and sent another message to this reply: weak evidence, it may be a typo."""
    if not any(state.relation is Relation.BRANCH for state in turn.next_states):
        return None
    return Opinion(value=0, rank=Rank.WEAK_RULE, source="rule:edited", confidence=0.3)


#: Strong rules in their order: words are better evidence than a repeated request.
RULES: tuple[Rule, ...] = (
    Rule("feedback", read_feedback),
    Rule("follow_up", read_follow_up),
    Rule("tool_error", read_tool_results),
    Rule("retry", read_retry),
    Rule("edited", read_edit),
    Rule("wish", read_wish),
)


def filtered(hint: str | None, turn: AnsweredTurn) -> tuple[str | None, Json]:
    """Return (the person's words if they can serve as a hint, detail with the reason if they cannot)."""
    if hint is None:
        return None, {}
    reason = check_hint(hint, HintContext.of(turn), is_reaction=True)
    if reason is None:
        return hint, {}
    return None, {"rejected_hints": [{"hint": hint[:400], "reason": reason}]}


def opens_new_topic(text: str) -> bool:
    """Whether a message is nothing but questions or tasks of its own (and thanks)."""
    roles = {sentence.role for sentence in classify(text)}
    return Role.QUESTION in roles and roles <= {Role.QUESTION, Role.THANKS}


def tool_error(content: Any) -> str | None:
    """Return the sign of failure in a tool message's content, or None.

    Only structure counts (an error key, a non-zero exit code, a traceback, a leading "Error:"): a file or a log that
    mentions errors is a fine result.
    """
    text = _text(content).strip()
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the second: brackets nested for mischief
        return _text_error(text)
    return _value_error(value)


def _value_error(value: Any, depth: int = 0) -> str | None:
    if isinstance(value, str):
        return _text_error(value.strip())
    if not isinstance(value, dict):
        return None
    for key, entry in value.items():
        if key.lower() in ("error", "errors", "exception", "iserror", "is_error") and entry not in (
            None,
            False,
            "",
            [],
            {},
            0,
        ):
            return f"{key}: {entry}"
        if key in _EXIT_KEYS and isinstance(entry, int) and entry != 0:
            return f"{key}: {entry}"
        if key in _FALSE_KEYS and entry is False:
            return f"{key}: false"
        if key == "status" and isinstance(entry, str) and entry.lower() in ("error", "failed", "failure"):
            return f"status: {entry}"
    if depth == 0:
        # Harnesses wrap: {"output": "...", "metadata": {"exit_code": 1}}
        for key in ("metadata", "result"):
            found = _value_error(value[key], 1) if isinstance(value.get(key), dict) else None
            if found:
                return found
    return None


def _text_error(text: str) -> str | None:
    head = text[:_TOOL_READ]
    tail = text[-_TOOL_READ:]
    if _ERROR_HEAD.search(head):
        return head.splitlines()[0]
    for part in (head, tail):
        for match in _EXIT.finditer(part):
            if int(match.group(1)) != 0:
                return match.group(0).strip()
        if _TRACEBACK.search(part) and re.search(
            r"^[\w.]+(?:Error|Exception|Exit|Interrupt)\b", part, re.MULTILINE
        ):
            return "Traceback (most recent call last)"
    return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(p.get("text", "")) for p in content if isinstance(p, dict) and p.get("text"))
    return ""
