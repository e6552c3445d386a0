"""The hindsight prompt: where hints go so that the same policy becomes its own teacher. Sans-IO, no torch.

The teacher sees system prompt, history and tools exactly as the student did. A hint alone is appended to the **last user
message**; several are uttered and accepted as turns of their own before it. The student's own answer never appears (with it in
context the teacher copies it: the SDPO paper's ablation falls from 48.3 to 44.5). The wording below is also part of the
2 M test model's training text (`lab/models/`), so a change here asks for a re-trained test model.

Why not several in one place: four complaints in the one template, and the 2 M test model states .60 of the facts (one: .94); as
turns .96, and more of it is as wished (lab/research/2026-11-23-hint-placement.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: The assistant's reply to a hint that stands in a message pair of its own.
_ACCEPTED = "OK."
#: For a hint that is the person's own words (raw follow-up).
REACTION_TEMPLATE = (
    "\n\n[The user's reaction to an earlier answer to this message]\n{hint}\n"
    "[Answer the message above again so that the reaction is taken into account.]"
)
#: For a hint a judge phrased as a general preference.
HINT_TEMPLATE = "\n\n[Hint for this answer]\n{hint}"


def with_hint(messages: Sequence[Mapping[str, Any]], hint: str, *, is_reaction: bool) -> list[dict[str, Any]]:
    """Return ``messages`` with the hint appended to the last user message; the input is left untouched.

    List-of-parts content keeps its parts and gains one text part.

    Raises:
        ValueError: no user message to attach the hint to, or an empty hint.
    """
    if not hint.strip():
        raise ValueError("an empty hint teaches nothing")
    suffix = (REACTION_TEMPLATE if is_reaction else HINT_TEMPLATE).format(hint=hint.strip())
    result = [dict(message) for message in messages]
    for message in reversed(result):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, list):
            message["content"] = [*content, {"type": "text", "text": suffix}]
        else:
            message["content"] = (content or "") + suffix
        return result
    raise ValueError("no user message to attach the hint to")


def after_hints(messages: Sequence[Mapping[str, Any]], hints: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``messages`` with the hints uttered and accepted, one after the other, just before the last user message.

    Raises:
        ValueError: no user message to tell them before.
    """
    result = [dict(message) for message in messages]
    last = max((i for i, message in enumerate(result) if message.get("role") == "user"), default=None)
    if last is None:
        raise ValueError("no user message to tell the hints before")
    pairs = [message for hint in hints for message in accepted(hint)]
    return [*result[:last], *pairs, *result[last:]]


def accepted(hint: str) -> list[dict[str, Any]]:
    """Return the turn in which a person utters this hint and the assistant accepts it."""
    return [{"role": "user", "content": hint}, {"role": "assistant", "content": _ACCEPTED}]
