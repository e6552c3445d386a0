"""The user's own text in a message, without what their client put around it. Sans-IO.

Clients wrap typed text in reminders, time stamps, file contents and "runtime" blocks, and many of these are gone one turn later. The bare text
has two readers: the scorer, which must not judge a time stamp, and the linker, to which both forms are the same message. Structure counts more
than known strings: a block that opens and closes with matching machine markers is a wrapper whatever its name, as long as other text remains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from store.texts import content_text
from wire.framework_text import framework_retry

Message = Mapping[str, Any]

#: A pair of machine markers: <<<BEGIN_X>>> … <<<END_X>>>, [BEGIN X] … [END X].
_FENCES = (
    re.compile(r"<<<\s*BEGIN[_ ]([A-Z0-9_ ]+?)\s*>>>.*?<<<\s*END[_ ]\1\s*>>>", re.DOTALL),
    re.compile(r"\[BEGIN ([A-Z0-9_ ]+)\].*?\[END \1\]", re.DOTALL),
)

#: Words in the names of elements that clients add. Only elements with such a name are removed, so that "<source>" in an instruction does not
#: remove the text after it.
_MACHINE_WORDS = (
    "reminder", "context", "environment", "instructions", "metadata", "attached", "attachment", "attachments", "workspace",
    "editor", "runtime", "memory", "memories", "session", "system", "timestamp", "status", "hooks", "hook", "skills", "files",
    "file", "rules", "info",
)  # fmt: skip
_ELEMENT = re.compile(
    rf"<((?:[A-Za-z][A-Za-z0-9]*[_:-])*(?:{'|'.join(_MACHINE_WORDS)})(?:[_:-][A-Za-z0-9]+)*)(?:\s[^<>]*)?>.*?</\1>",
    re.DOTALL | re.IGNORECASE,
)

#: "[Fri 2026-11-20 21:29 UTC]" and similar stamps at the beginning of a line.
_STAMP = re.compile(
    r"^[ \t]*[\[(](?:[A-Z][a-z]{2,8},? )?\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?(?:[A-Z]{2,5}|Z|[+-]\d\d:?\d\d))?[\])][ \t]*",
    re.MULTILINE,
)

#: A line that consists of a bracketed marker ("[… heartbeat poll]"), or of key=value pairs ("Runtime: a=b | c=d | e=f").
_MARKER = re.compile(r"^[ \t]*\[(?=[^\[\]\n]*\w)[^\[\]\n]{3,60}\][ \t]*$", re.MULTILINE)
_PAIRS = re.compile(r"^(?:[A-Z]\w*: )?[\w.-]+=[^|\n]*(?: \| [\w.-]+=[^|\n]*){2,}$", re.MULTILINE)

#: Lines of events that happened between two messages: "System: [2026-11-25 20:00:00 UTC] Node connected"; the first one has a time.
_EVENTS = re.compile(r"^System: \[[^\]\n]*\d\d:\d\d[^\]\n]*\][^\n]*(?:\nSystem: [^\n]*)*$", re.MULTILINE)

#: "[Runtime]" and the rows of "Name: value" under it, at the end of a message.
_SECTION = re.compile(r"(?:\A|\n)[ \t]*\[[^\[\]\n]{3,40}\][ \t]*(?:\n[ \t]*[A-Z][\w ]{1,24}: [^\n]+)+\s*\Z")
#: Fields of an envelope (a JSON object) that may hold the user's text.
_ENVELOPE_TEXT_FIELDS = ("message", "text", "content")

_EVENT = re.compile(r"heartbeat|timer|cron|schedul|tick|event|login", re.IGNORECASE)

_THINK = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
#: A template may open the block itself, so that only its end is in the text.
_THINK_TAIL = re.compile(r"^.*?</(?:think|thinking)>", re.DOTALL | re.IGNORECASE)
_THINK_CUT = re.compile(r"<(?:think|thinking)>.*\Z", re.DOTALL | re.IGNORECASE)

#: Tool results that are sent as a user message: "Observation: …", "[read_file for 'x'] Result: …", <tool_response>…</tool_response>.
_OUTPUT = re.compile(
    r"\A\s*(?:(?:Observation|Code output|Tool (?:result|output|response)|Function (?:result|output)|Execution (?:result|output))s?:|"
    r"\[[\w-]+(?: [^\]\n]*)?\] Result:|<(?:tool|function)[_-](?:response|result|output)s?>)"
)
#: The user's text after such a result.
_REQUEST_AFTER_OUTPUT = re.compile(
    r"^[ \t]*(?:New task|New request|New message|User|Human|Feedback|Question):[ \t]*\n?|<(feedback|user_message|answer)>\s*",
    re.MULTILINE,
)

#: Elements in which clients put what a user typed. The plain names count only where nothing but elements is around them.
_USER_ELEMENT = re.compile(
    r"<(user[_-]?(?:query|request|message|input|prompt|text)|human[_-]?(?:message|input)|feedback|task|question|query|request|message|prompt|input)>\s*(.*?)\s*</\1>",
    re.DOTALL | re.IGNORECASE,
)
_PLAIN_USER_ELEMENTS = frozenset({"task", "question", "query", "request", "message", "prompt", "input"})
#: An element with a composed name: a program's. "<div>" is a user's own.
_COMPOSED_ELEMENT = re.compile(
    r"<([A-Za-z][A-Za-z0-9]*(?:[_:][A-Za-z0-9]+)+|[a-z]+[A-Z][A-Za-z0-9]*)(?:\s[^<>]*)?>.*?</\1>", re.DOTALL
)
_COMMENT = re.compile(
    r"<!--\s*(?:begin |start )?([a-z]+ [a-z]+)[^>]*-->.*?<!--\s*end (?:of )?\1[^>]*-->|<!--.*?-->",
    re.DOTALL | re.IGNORECASE,
)
#: A line in which a program announces what the user typed: "To tell you how to proceed, the user said:".
_ANNOUNCED = re.compile(
    r"^(?![^\n:]*\b(?:I|my|me)\b)(?:[^\n:]*[ .])?(?:user|human)(?:'s)?\b(?: \w+){0,9}?(?: (?:said|says|provided|responded|wrote|replied|asked|answered|feedback|comments?|instructions?|message|input|reason|request|response|query)\b[^\n:]{0,60})?:[ \t]*\n?",
    re.IGNORECASE | re.MULTILINE,
)
#: "Conversation info (untrusted metadata):" with a fenced object, before the text.
_METADATA = re.compile(
    r"\A(?:[^\n]{3,80}:[ \t]*(?:⟦[^⟧\n]{1,40}⟧)?\s*\n```(?:json|xml|yaml)\n.*?\n```\s*\n)+", re.DOTALL
)
#: "[Telegram Ann id:7 2026-11-20 21:29 UTC]" before the text.
_ENVELOPE_HEAD = re.compile(r"\A\[(?=[^\]\n]*(?:\d\d:\d\d|\bid[:=]))[^\]\n]{3,160}\][ \t]*")
#: Lines such as "Current time: …", "Timezone: …" before the text.
_FACTS = re.compile(
    r"\A(?:(?:(?:current |local |today's |user )?(?:date|time|timezone|time zone|locale|os|shell|cwd|working directory|workspace|channel|platform|device|location|language|user id|session id|model)): [^\n]{1,160}\n)+\s*\n?",
    re.IGNORECASE,
)
#: The last field of a retrieval template, which holds the question.
_TEMPLATE = re.compile(
    r"^(?:context|documents|sources|search results)\b[^\n]*:?\s*$|^context information is|^[-=]{5,}\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_TEMPLATE_QUESTION = re.compile(
    r"^(?:#+ )?(?:query|question|user(?: query| question| input| message)?|human|request)\s*:[ \t]*\n?(.*?)(?=\n\s*(?:#+ )?(?:answer|assistant|ai|response|helpful answer|output|thought)\s*:?\s*\Z|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
#: A bracketed reminder behind the text.
_TAIL = re.compile(
    r"\n[ \t]*(?:[\[(](?:reminder|system|note to|message_id|internal)\b[^\n]*[\])]|#{1,4} reminder\b.*)\s*\Z",
    re.IGNORECASE | re.DOTALL,
)

#: The line with which a program announces a new request: "New task:".
_NEW_REQUEST = re.compile(r"\A(?:New|Current|Next) (?:task|request|message):[ \t]*\n?", re.IGNORECASE)
#: What a client writes before the user's text.
_HEADS = (_METADATA, _ENVELOPE_HEAD, _FACTS, _NEW_REQUEST)
#: A text in one pair of quotation marks: how one client's command line writes its arguments.
_QUOTED = re.compile(r"\A(?:\"([^\"]+)\"|“([^“”]+)”|«([^«»]+)»)\Z")
#: Only an order to go on, as programs give behind a plan that they had written.
_GO_ON = re.compile(
    r"\A\W*(?:(?:now|please|ok(?:ay)?|then|and|you can|let's)\W+){0,3}(?:continue|proceed|go (?:on|ahead)|carry (?:on|out))\b(?: (?:and|with|carry|out|execute|follow|it|your|this|the|task|plan|work|now|please))*\W*\Z",
    re.IGNORECASE,
)

_PARAGRAPH_END = re.compile(r"\n\s*\n")
#: A shorter end of a message occurs in a system prompt by chance.
_MIN_REPEATED_CHARS = 80

#: Roles of messages that follow a reply; some clients put the reply's own text after its tools' results.
INPUT_ROLES = frozenset({"user", "tool", "function"})

#: Texts up to this length are cached, and the newest few up to this length.
_CACHED_CHARS, _CACHED_LONG_CHARS = 4096, 256_000
#: Placeholder of a removed element; no text contains it.
_GAP = "\x00"
_HEADING = re.compile(r"^#{1,6} \S", re.MULTILINE)


def strip_client_context(text: str) -> str:
    """Return ``text`` without the blocks and stamps that a client added; may be empty."""
    # One request asks for the same message about six times.
    if len(text) <= _CACHED_CHARS:
        return _cached_strip(text)
    return _cached_long_strip(text) if len(text) <= _CACHED_LONG_CHARS else _strip_client_context(text)


def _strip_client_context(text: str) -> str:
    cleaned = _open_envelope(text)
    # A cheap substring test precedes each pattern: most messages are plain, and a whole history is processed.
    if "BEGIN" in cleaned:
        for fence in _FENCES:
            cleaned = fence.sub("\n", cleaned)
    if "</" in cleaned:
        cleaned = _without_elements(cleaned)
    if "[" in cleaned:
        cleaned = _SECTION.sub("", cleaned)
    if "[" in cleaned or "(" in cleaned:
        cleaned = _STAMP.sub("", cleaned)
    if "[" in cleaned:
        cleaned = _MARKER.sub("", cleaned)
    if "System: [" in cleaned:
        cleaned = _EVENTS.sub("", cleaned)
    if " | " in cleaned:
        cleaned = _PAIRS.sub("", cleaned)
    return _text_after_tool_output(cleaned).strip()


_cached_strip = lru_cache(maxsize=1024)(_strip_client_context)
_cached_long_strip = lru_cache(maxsize=16)(_strip_client_context)


def is_tool_output(text: str) -> bool:
    """Whether a user message is a tool's result without user text."""
    return bool(_OUTPUT.match(text)) and _REQUEST_AFTER_OUTPUT.search(text) is None


def _text_after_tool_output(text: str) -> str:
    """Return the user's text after a tool's result, or the text unchanged."""
    if not _OUTPUT.match(text):
        return text
    found = list(_REQUEST_AFTER_OUTPUT.finditer(text))
    if not found:
        return text
    asked = found[-1]
    behind = text[asked.end() :]
    return behind.split(f"</{asked[1]}>")[0] if asked[1] else behind


def _open_envelope(text: str) -> str:
    """Return the text inside an envelope, or the text unchanged: {"type": "user_message", "message": "hi", "time": …}."""
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
    words = [envelope[name] for name in _ENVELOPE_TEXT_FIELDS if isinstance(envelope.get(name), str)]
    return words[0] if len(words) == 1 else text


def is_machine_event(text: str) -> bool:
    """Whether a message is an envelope without user text: {"type": "heartbeat", "reason": …, "time": …}."""
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
        isinstance(envelope.get(name), str) for name in _ENVELOPE_TEXT_FIELDS
    )


def _without_elements(text: str) -> str:
    """Return ``text`` without client elements.

    Instructions, often with headings, precede a retrieved context; the user's question follows it.
    """
    cleaned = _ELEMENT.sub(_GAP, text)
    if cleaned == text:
        return text
    before, gap, after = cleaned.rpartition(_GAP)
    if gap and after.strip() and _HEADING.search(before):
        return after
    return cleaned.replace(_GAP, "\n")


def strip_reasoning(text: str) -> str:
    """Return an assistant's text without its reasoning."""
    if "<" not in text:
        return text.strip()
    cleaned = _THINK.sub("", text)
    if "</think" in cleaned.lower():
        cleaned = _THINK_TAIL.sub("", cleaned)
    return _THINK_CUT.sub("", cleaned).strip()


def collapse_whitespace(text: str) -> str:
    """Return ``text`` with every run of white space as one space."""
    return " ".join(text.split())


def typed_words(text: str, reply: str = "") -> str:
    """Return what a person typed in a user message: without client context, wrappers and framework text; "" when a program wrote it all.

    Args:
        reply: the reply before the message.
    """
    # Without an end, each beginning of an element or comment is searched to the end of the text.
    if "-->" in text:
        text = _COMMENT.sub("", text).strip() or text
    for element in reversed(list(_USER_ELEMENT.finditer(text) if "</" in text else ())):
        around = _COMPOSED_ELEMENT.sub(
            "", _ELEMENT.sub("", text[: element.start()] + text[element.end() :])
        ).strip()
        if element[1].lower() not in _PLAIN_USER_ELEMENTS or not around:
            return _unwrapped(element[2])
    announced = list(_ANNOUNCED.finditer(text))
    if announced and (words := text[announced[-1].end() :].strip()):
        return _unwrapped(words)
    bare = strip_client_context(text)
    # An envelope may hold the validator's message alone; other wrappers are templates that people's words stand in.
    forms = {bare, text} if text.lstrip().startswith("{") else {bare}
    if not bare or any(framework_retry(form, reply) is not None for form in forms):
        return ""
    return _unwrapped(bare)


def _without(patterns: Sequence[re.Pattern[str]], text: str) -> str:
    """Return a text without what each pattern matches, unless that is all of it."""
    for pattern in patterns:
        text = pattern.sub("", text).strip() or text
    return text


def _unwrapped(text: str) -> str:
    """Return a text without wrappers; a wrapper that is all of the text is kept."""
    text = _without(_HEADS, text)
    if "</" in text:
        text = _without((_COMPOSED_ELEMENT,), text)
    text = _without((_TAIL,), text)
    if len(_TEMPLATE.findall(text)) >= 1 and (question := list(_TEMPLATE_QUESTION.finditer(text))):
        text = question[-1][1].strip() or text
    text = strip_client_context(text) or text.strip()
    quoted = _QUOTED.match(text)
    return text if quoted is None else quoted[quoted.lastindex or 0].strip() or text


def without_repeated_system_text(text: str, system: str) -> str:
    """Return a user message without the last paragraphs that its system prompt has too: a reminder that the client adds."""
    end = text.strip()
    if end[-_MIN_REPEATED_CHARS:] not in system:
        return text
    if len(end) >= _MIN_REPEATED_CHARS and end in system:
        return ""
    for gap in _PARAGRAPH_END.finditer(end):
        tail = end[gap.end() :]
        if len(tail) < _MIN_REPEATED_CHARS:
            break
        if tail in system:
            return end[: gap.start()].strip() or text
    return text


def next_state_text(messages: Sequence[Message], reply: str = "", system: str = "") -> tuple[str, str] | None:
    """Return (role, text) of what followed a turn, or None when nothing did.

    A person's words ("user"); without any, a framework's rejection of the reply ("validator" where it says what a validator found, else
    "framework"), or the tools' output ("tool"). ``messages`` are those after the turn's reply. If they contain replies too (turns that were not recorded, or side turns), the newest text counts, unless it is
    only an order to go on.

    Args:
        reply: the text of the turn's reply, which frameworks quote.
        system: the system prompt, which some clients repeat behind a person's words.
    """
    people: list[tuple[object, str]] = []
    reminders: list[str] = []  # messages that only repeat the system prompt
    earlier: list[str] = []  # a person's words before the newest text
    tools: list[str] = []
    system_texts: list[str] = []  # some agents send tool results as system messages
    for position, message in enumerate(messages):
        role = message.get("role")
        text = content_text(message.get("content"))
        if role in ("tool", "function") or (role == "user" and is_tool_output(text)):
            tools.append(text)
        elif role == "user":
            own = without_repeated_system_text(text, system)
            if own or not text:
                people.append((message.get("name"), own))
            else:
                reminders.append(text)
        elif role in ("system", "developer"):
            system_texts.append(text)
        elif role == "assistant" and any(m.get("role") in INPUT_ROLES for m in messages[position + 1 :]):
            earlier = _words_of(people, reply) or earlier
            people, reminders, tools, system_texts = [], [], [], []
    texts = _newest_speaker(people)
    words = _words_of(people, reply)
    if words:
        return "user", "\n".join(earlier if earlier and all(map(_GO_ON.match, words)) else words)
    rejections = [
        why
        for text in texts
        if (why := framework_retry(text, reply) or framework_retry(strip_client_context(text), reply))
        is not None
    ]
    if rejections:
        return "validator" if "validation" in rejections else "framework", "\n".join(texts).strip()
    if any(framework_retry(text, reply) == "validation" for text in tools):
        return "validator", "\n".join(tools)
    if tools or (system_texts and not texts):
        return "tool", "\n".join(tools or system_texts)
    if reminders and not texts:
        return "framework", "\n".join(reminders)
    return ("user", "\n".join(texts).strip()) if texts else None


def _newest_speaker(people: Sequence[tuple[object, str]]) -> list[str]:
    """Return the texts of the last of several speakers; the others are agents."""
    return [text for name, text in people if name == people[-1][0]]


def _words_of(people: Sequence[tuple[object, str]], reply: str) -> list[str]:
    return [words for text in _newest_speaker(people) if (words := typed_words(text, reply))]
