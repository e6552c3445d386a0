"""What can be said of a turn without asking a model. Sans-IO: an answered turn in, an opinion or None out.

A rule speaks only when it knows. A tool that succeeded, a new question, "ok": none of these says whether the reply was good.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scorers.base import Opinion, Rank, replies_to, sign
from scorers.hints import HintContext, check_hint
from scorers.reactions import Role, bounded, classify, read_reaction, without_code
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
    reaction = read_reaction(text, reply=turn.completion.text)
    value = sign(score) if score is not None else reaction.value
    candidate = reaction.hint
    if candidate is None and text and reaction.value != 1 and value != 1:
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
    """The person's next words as thanks or complaint; of several branches the newest that says something counts."""
    for state in replies_to(turn):
        if state.role != "user":
            continue
        reaction = read_reaction(state.text, reply=turn.completion.text)
        if reaction.value is None:
            continue
        hint, detail = filtered(reaction.hint, turn)
        detail["patterns"] = list(reaction.patterns)
        return Opinion(
            value=reaction.value,
            rank=Rank.STRONG_RULE,
            source="rule:complaint" if reaction.value < 0 else "rule:thanks",
            confidence=reaction.confidence,
            hint=hint,
            detail=detail,
        )
    return None


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
    """The person went back and said something else to this reply: weak, it may as well be a typo."""
    if not any(state.relation is Relation.BRANCH for state in turn.next_states):
        return None
    return Opinion(value=0, rank=Rank.WEAK_RULE, source="rule:edited", confidence=0.3)


#: Strong rules in the order in which they are heard: words say more than a repeated request.
RULES: tuple[Rule, ...] = (
    Rule("feedback", read_feedback),
    Rule("follow_up", read_follow_up),
    Rule("tool_error", read_tool_results),
    Rule("retry", read_retry),
    Rule("edited", read_edit),
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
