"""The person's own words in a user message, apart from what their client put around them. Sans-IO.

Clients wrap what was typed in reminders, time stamps, file contents and "runtime" blocks, and many of these vanish again one
turn later. Two readers need the bare words: the scorer, who must not judge a time stamp, and the linker, to whom both forms
are the same message. Structure is preferred over known strings: a block that opens and closes with matching machine markers
is a wrapper whatever its name is, as long as something else is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

#: A pair of machine markers: <<<BEGIN_X>>> … <<<END_X>>>, [BEGIN X] … [END X].
_FENCES = (
    re.compile(r"<<<\s*BEGIN[_ ]([A-Z0-9_ ]+?)\s*>>>.*?<<<\s*END[_ ]\1\s*>>>", re.DOTALL),
    re.compile(r"\[BEGIN ([A-Z0-9_ ]+)\].*?\[END \1\]", re.DOTALL),
)

#: Element names that clients give to what the person did not type. A name counts when one of its words is listed.
_MACHINE_WORDS = frozenset(
    [
        "reminder",
        "context",
        "environment",
        "instructions",
        "metadata",
        "attached",
        "attachment",
        "attachments",
        "workspace",
        "editor",
        "runtime",
        "memory",
        "memories",
        "session",
        "system",
        "timestamp",
        "status",
        "hooks",
        "hook",
        "skills",
        "files",
        "file",
        "rules",
        "info",
    ]
)
_ELEMENT = re.compile(r"<([A-Za-z][A-Za-z0-9]*(?:[_:-][A-Za-z0-9]+)*)(?:\s[^<>]*)?>.*?</\1>", re.DOTALL)

#: "[Fri 2026-11-20 21:29 UTC]" and relatives in front of a line.
_STAMP = re.compile(
    r"^[ \t]*[\[(](?:[A-Z][a-z]{2,8},? )?\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?(?:[A-Z]{2,5}|Z|[+-]\d\d:?\d\d))?[\])][ \t]*",
    re.MULTILINE,
)

#: A line that is nothing but a bracketed marker ("[… heartbeat poll]"), or a row of key=value pairs ("Runtime: a=b | c=d | e=f").
_MARKER = re.compile(r"^[ \t]*\[[^\[\]\n]{3,60}\][ \t]*$", re.MULTILINE)
_PAIRS = re.compile(r"^(?:[A-Z]\w*: )?[\w.-]+=[^|\n]*(?: \| [\w.-]+=[^|\n]*){2,}$", re.MULTILINE)

_THINK = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
#: A template may open the block itself, so that only its end is in the text.
_THINK_TAIL = re.compile(r"^.*?</(?:think|thinking)>", re.DOTALL | re.IGNORECASE)
_THINK_CUT = re.compile(r"<(?:think|thinking)>.*\Z", re.DOTALL | re.IGNORECASE)

_SPACE = re.compile(r"\s+")


def content_text(content: Any) -> str:
    """Return the text of a message's content: string, list of parts or nothing; other parts are left out."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Mapping):
                text = part.get("text")
                if isinstance(text, str):
                    texts.append(text)
        return "\n".join(texts)
    return ""


def own_words(text: str) -> str:
    """Return ``text`` without the blocks and stamps that a client put around the person's words; may be empty."""
    bare = text
    for fence in _FENCES:
        bare = fence.sub("\n", bare)
    bare = _ELEMENT.sub(_drop_machine_element, bare)
    bare = _STAMP.sub("", bare)
    return _PAIRS.sub("", _MARKER.sub("", bare)).strip()


def _drop_machine_element(match: re.Match[str]) -> str:
    words = re.split(r"[_:-]", match[1].lower())
    return "\n" if any(word in _MACHINE_WORDS for word in words) else match[0]


def spoken(text: str) -> str:
    """Return an assistant's text without its thinking."""
    bare = _THINK.sub("", text)
    if "</think" in bare.lower():
        bare = _THINK_TAIL.sub("", bare)
    return _THINK_CUT.sub("", bare).strip()


def collapse(text: str) -> str:
    """Return ``text`` with every run of white space as one blank."""
    return _SPACE.sub(" ", text).strip()


def following_words(messages: Sequence[Message]) -> str:
    """Return what was said after a turn: the person's words, or where nobody spoke the tools' output.

    ``messages`` are those after the turn's reply. When they hold answers of the assistant too (turns that were not
    recorded, or side turns between), the newest words count.
    """
    people: list[str] = []
    tools: list[str] = []
    for message in messages:
        role = message.get("role")
        text = content_text(message.get("content"))
        if role == "user":
            people.append(text)
        elif role in ("tool", "function"):
            tools.append(text)
        elif role == "assistant":
            people, tools = [], []
    words = [bare for bare in map(own_words, people) if bare]
    if words:
        return "\n".join(words)
    if tools:
        return "\n".join(tools)
    return "\n".join(people).strip()
