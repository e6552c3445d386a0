"""The person's own words in a user message, apart from what their client put around them. Sans-IO.

Clients wrap what was typed in reminders, time stamps, file contents and "runtime" blocks, and many of these vanish again one
turn later. Two readers need the bare words: the scorer, who must not judge a time stamp, and the linker, to whom both forms
are the same message. Structure is preferred over known strings: a block that opens and closes with matching machine markers
is a wrapper whatever its name is, as long as something else is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

Message = Mapping[str, Any]

#: A pair of machine markers: <<<BEGIN_X>>> … <<<END_X>>>, [BEGIN X] … [END X].
_FENCES = (
    re.compile(r"<<<\s*BEGIN[_ ]([A-Z0-9_ ]+?)\s*>>>.*?<<<\s*END[_ ]\1\s*>>>", re.DOTALL),
    re.compile(r"\[BEGIN ([A-Z0-9_ ]+)\].*?\[END \1\]", re.DOTALL),
)

#: Names that clients give to elements which the person did not type. A name counts when one of its words is listed; only such
#: names are looked for, so that "<source>" in an instruction does not swallow what stands after it.
_MACHINE_WORDS = (
    "reminder", "context", "environment", "instructions", "metadata", "attached", "attachment", "attachments", "workspace",
    "editor", "runtime", "memory", "memories", "session", "system", "timestamp", "status", "hooks", "hook", "skills", "files",
    "file", "rules", "info",
)  # fmt: skip
_ELEMENT = re.compile(
    rf"<((?:[A-Za-z][A-Za-z0-9]*[_:-])*(?:{'|'.join(_MACHINE_WORDS)})(?:[_:-][A-Za-z0-9]+)*)(?:\s[^<>]*)?>.*?</\1>",
    re.DOTALL | re.IGNORECASE,
)

#: "[Fri 2026-11-20 21:29 UTC]" and relatives in front of a line.
_STAMP = re.compile(
    r"^[ \t]*[\[(](?:[A-Z][a-z]{2,8},? )?\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?(?:[A-Z]{2,5}|Z|[+-]\d\d:?\d\d))?[\])][ \t]*",
    re.MULTILINE,
)

#: A line that is nothing but a bracketed marker ("[… heartbeat poll]"), or a row of key=value pairs ("Runtime: a=b | c=d | e=f").
_MARKER = re.compile(r"^[ \t]*\[[^\[\]\n]{3,60}\][ \t]*$", re.MULTILINE)
_PAIRS = re.compile(r"^(?:[A-Z]\w*: )?[\w.-]+=[^|\n]*(?: \| [\w.-]+=[^|\n]*){2,}$", re.MULTILINE)

#: "[Runtime]" and the rows of "Name: value" under it, at the end of a message.
_SECTION = re.compile(r"(?:\A|\n)[ \t]*\[[^\[\]\n]{3,40}\][ \t]*(?:\n[ \t]*[A-Z][\w ]{1,24}: [^\n]+)+\s*\Z")
#: An envelope: an object with the person's words under one of these names, and when or by whom they were said.
_WORDS_IN_ENVELOPE = ("message", "text", "content")

_EVENT = re.compile(r"heartbeat|timer|cron|schedul|tick|event|login", re.IGNORECASE)

_THINK = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
#: A template may open the block itself, so that only its end is in the text.
_THINK_TAIL = re.compile(r"^.*?</(?:think|thinking)>", re.DOTALL | re.IGNORECASE)
_THINK_CUT = re.compile(r"<(?:think|thinking)>.*\Z", re.DOTALL | re.IGNORECASE)

#: Tool results that travel as a user message: "Observation: …", "[read_file for 'x'] Result: …", <tool_response>…</tool_response>.
_OUTPUT = re.compile(
    r"\A\s*(?:(?:Observation|Tool (?:result|output|response)|Function (?:result|output)|Execution (?:result|output))s?:|"
    r"\[[\w-]+(?: [^\]\n]*)?\] Result:|<(?:tool|function)[_-](?:response|result|output)s?>)"
)
#: What the person says behind them.
_ASKED_BEHIND = re.compile(
    r"^[ \t]*(?:New task|New request|New message|User|Human|Feedback|Question):[ \t]*\n?|<(feedback|user_message|answer)>\s*",
    re.MULTILINE,
)

#: Roles of messages that follow an answer; some clients put the answer's own text behind its tools' results.
_HEARD = frozenset({"user", "tool", "function"})

#: Texts up to this are worth remembering what was found in them.
_SHORT = 4096
#: Stands for an element that was taken out; no text holds it.
_GAP = "\x00"
_HEADING = re.compile(r"^#{1,6} \S", re.MULTILINE)


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
    # One request asks this about the same message half a dozen times.
    return _remembered_words(text) if len(text) <= _SHORT else _own_words(text)


def _own_words(text: str) -> str:
    bare = _opened(text)
    # What each pattern cannot do without is looked for first: most messages are plain, and all of a history are read each time.
    if "BEGIN" in bare:
        for fence in _FENCES:
            bare = fence.sub("\n", bare)
    if "</" in bare:
        bare = _without_elements(bare)
    if "[" in bare:
        bare = _SECTION.sub("", bare)
    if "[" in bare or "(" in bare:
        bare = _STAMP.sub("", bare)
    if "[" in bare:
        bare = _MARKER.sub("", bare)
    if " | " in bare:
        bare = _PAIRS.sub("", bare)
    return _behind_output(bare).strip()


_remembered_words = lru_cache(maxsize=1024)(_own_words)


def is_tool_output(text: str) -> bool:
    """Whether a user message is a tool's result and nobody speaks in it."""
    return bool(_OUTPUT.match(text)) and _ASKED_BEHIND.search(text) is None


def _behind_output(text: str) -> str:
    """Return what the person says behind a tool's result, or the text as it is."""
    if not _OUTPUT.match(text):
        return text
    found = list(_ASKED_BEHIND.finditer(text))
    if not found:
        return text
    asked = found[-1]
    behind = text[asked.end() :]
    return behind.split(f"</{asked[1]}>")[0] if asked[1] else behind


def _opened(text: str) -> str:
    """Return what an envelope holds, or the text as it is: {"type": "user_message", "message": "hi", "time": …}."""
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}") and len(stripped) < 100_000):
        return text
    try:
        envelope = json.loads(stripped)
    except (ValueError, RecursionError):
        return text
    if not isinstance(envelope, dict) or not 2 <= len(envelope) <= 8:
        return text
    if not all(isinstance(value, str | int | float | None) for value in envelope.values()):
        return text
    words = [envelope[name] for name in _WORDS_IN_ENVELOPE if isinstance(envelope.get(name), str)]
    return words[0] if len(words) == 1 else text


def is_machine_event(text: str) -> bool:
    """Whether a message is an envelope in which nobody speaks: {"type": "heartbeat", "reason": …, "time": …}."""
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}") and len(stripped) < 10_000):
        return False
    try:
        envelope = json.loads(stripped)
    except (ValueError, RecursionError):
        return False
    if not isinstance(envelope, dict) or not isinstance(envelope.get("type"), str):
        return False
    return bool(_EVENT.search(envelope["type"])) and not any(
        isinstance(envelope.get(name), str) for name in _WORDS_IN_ENVELOPE
    )


def _without_elements(text: str) -> str:
    """Return ``text`` without machine elements.

    In front of a retrieved context stand instructions, often with headings of their own; what the person asked comes after it.
    """
    bare = _ELEMENT.sub(_GAP, text)
    if bare == text:
        return text
    before, gap, after = bare.rpartition(_GAP)
    if gap and after.strip() and _HEADING.search(before):
        return after
    return bare.replace(_GAP, "\n")


def spoken(text: str) -> str:
    """Return an assistant's text without its thinking."""
    if "<" not in text:
        return text.strip()
    bare = _THINK.sub("", text)
    if "</think" in bare.lower():
        bare = _THINK_TAIL.sub("", bare)
    return _THINK_CUT.sub("", bare).strip()


def collapse(text: str) -> str:
    """Return ``text`` with every run of white space as one blank."""
    return " ".join(text.split())


def following(messages: Sequence[Message]) -> tuple[str, str] | None:
    """Return (role, text) of what was said after a turn, or None when nothing was.

    The person's words ("user"), or where nobody spoke the tools' output ("tool"). ``messages`` are those after the turn's
    reply. When they hold answers of the assistant too (turns that were not recorded, or side turns between), the newest words
    count.
    """
    people: list[tuple[object, str]] = []
    tools: list[str] = []
    told: list[str] = []  # some agents give tool results the system's role
    for position, message in enumerate(messages):
        role = message.get("role")
        text = content_text(message.get("content"))
        if role in ("tool", "function") or (role == "user" and is_tool_output(text)):
            tools.append(text)
        elif role == "user":
            people.append((message.get("name"), text))
        elif role in ("system", "developer"):
            told.append(text)
        elif role == "assistant" and any(m.get("role") in _HEARD for m in messages[position + 1 :]):
            people, tools, told = [], [], []
    # Where several speak, the last of them answers; the others are agents that it heard.
    texts = [text for name, text in people if name == people[-1][0]]
    words = [bare for bare in map(own_words, texts) if bare]
    if words:
        return "user", "\n".join(words)
    if tools or (told and not texts):
        return "tool", "\n".join(tools or told)
    return ("user", "\n".join(texts).strip()) if texts else None
