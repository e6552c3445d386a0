"""Where hints stand in the test model's pre-training text. The trainer of 0.2 put them there; wishes stand in the same places. Pure."""

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


def accepted(hint: str) -> list[dict[str, Any]]:
    """Return the turn in which a person utters this hint and the assistant accepts it."""
    return [{"role": "user", "content": hint}, {"role": "assistant", "content": _ACCEPTED}]
