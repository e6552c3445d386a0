"""Text that a framework wrote in a user's place: validation retries, refused calls, lint and test output, reminders. Sans-IO.

A framework that rejects a reply sends its own instruction as the next user or tool message. No person wrote it: it is no complaint and gives
no hint. It is recognised by form, because frameworks are many and their wordings change: what a validator prints, a quote of the reply, error
headings, rule lines and blocks, and prose that speaks of the reply as of an object with a format. Each is a `Form` with a
weight (`framework_forms.toml`); signs of a person (first person, questions, informal spelling) count against it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from wire.regex_prefilter import PatternSet

#: Weight from which a text counts as a framework's.
THRESHOLD = 2.0
#: A text of prose alone needs more.
_PROSE_THRESHOLD = 2.5
#: What each sign of a person counts against it.
_PERSON_WEIGHT = 1.25
#: A text without any machine form must at least be this long: people write short sentences about formats too.
_MIN_PROSE_CHARS = 48
#: Longer texts are read at both ends.
_READ_CHARS = 6000
#: A shorter reply, or part of one, occurs in other texts by chance (characters without white space).
_MIN_QUOTE_CHARS = 24
_QUOTE_WINDOW = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form that frameworks' texts have.

    Attributes:
        example: a text that has it.
        is_validation: the form is what a validator says about the reply.
    """

    name: str
    weight: float
    pattern: re.Pattern[str]
    example: str
    is_validation: bool = False


_DATA = tomllib.loads((files("wire") / "framework_forms.toml").read_text(encoding="utf-8"))


def _form(
    name: str,
    weight: float,
    example: str,
    pattern: str = r"\A(?!)",
    is_case_sensitive: bool = False,
    is_validation: bool = False,
) -> Form:
    for part in ("reply", "failed"):
        pattern = pattern.replace(f"{{{part}}}", _DATA[part])
    flags = re.MULTILINE if is_case_sensitive else re.MULTILINE | re.IGNORECASE
    return Form(
        name=name,
        weight=weight,
        example=example,
        pattern=re.compile(pattern, flags),
        is_validation=is_validation,
    )


EVIDENCE: tuple[Form, ...] = tuple(_form(**row) for row in _DATA["forms"])

_EVIDENCE = PatternSet((e.pattern, e) for e in EVIDENCE)

_PERSON = tuple(re.compile(sign) for sign in _DATA["person"]["signs"])
_NO_PERSON = re.compile(_DATA["person"]["except"])
_BLOCKS = re.compile(
    r"^(`{3,}|~{3,}).*?^\1|<([A-Za-z][\w:.-]*)(?: [^<>]*)?>.*?</\2>", re.MULTILINE | re.DOTALL
)
_MACHINE_LINE = re.compile(
    r"^\s*(?:[-=*_#~]{4,}\s*$|[{}\[\]\"'<>|/\\$`].*|#{1,4} .*|[\w./-]+:\d+.*|File \".*|exit ?code.*|\S*(?:Error|Exception)\b.*|traceback .*|(?!.*\b(?:I|my|me|you)\b)[\w ./]{1,30}: *\S*\s*$|\s{4,}\S.*|[A-Z][\w ]{0,20}: *[{\[\"].*|https?://\S+.*)",
    re.IGNORECASE,
)  # fmt: skip
_OBJECT = re.compile(r"[\[{]")
_ERROR_PLACE = frozenset({"loc", "path", "instancePath", "instance_path", "param", "pointer", "field"})
_ERROR_TEXT = frozenset({"msg", "message", "error", "detail", "reason", "error_messages", "error_message"})


def framework_retry(text: str, reply: str = "") -> str | None:
    """Return why a message is a framework's and no person's: "validation" or "retry"; None for a person's message.

    Args:
        reply: the reply before it, which frameworks quote.
    """
    if len(text) > 2 * _READ_CHARS:
        text = f"{text[:_READ_CHARS]}\n{text[-_READ_CHARS:]}"
    text = text.strip()
    if len(text) < 16:
        return None
    found = [e for e in _EVIDENCE.candidates(text) if e.pattern.search(text) is not None]
    names = {e.name for e in found}
    weight = sum(e.weight for e in found)
    is_validation = any(e.is_validation for e in found)
    if _has_error_objects(text):
        weight, is_validation = weight + 2.0, True
        names.add("error_objects")
    if not names:
        return None
    prose = _prose(text, reply)
    quoted = quoted_share(text, reply)
    if quoted >= 0.8 and names and not re.search(r"^>", text, re.MULTILINE):
        weight += 2.0
    if not prose and names & _MACHINE_FORMS:
        weight += 1.5
    has_form = bool(names & _MACHINE_FORMS) or quoted >= 0.8
    if not has_form and len(text) < _MIN_PROSE_CHARS:
        return None
    weight -= _signs_of_person(prose) * _PERSON_WEIGHT
    if weight < (THRESHOLD if has_form else _PROSE_THRESHOLD):
        return None
    return "validation" if is_validation else "retry"


#: Forms that prose alone does not have.
_MACHINE_FORMS = frozenset(
    {
        "validator_count", "validator_details", "error_objects", "parser_position", "schema_message", "validation_head", "error_head",
        "trace", "error_name", "error_opening", "failed_opening", "role_head", "search_replace", "rule_lines", "error_element", "form_lines", "automated", "unknown_call",
    }
)  # fmt: skip


def _prose(text: str, reply: str) -> str:
    """Return the sentences of a text, without blocks, elements, machine lines and lines of the reply."""
    theirs = {line.strip() for line in reply.splitlines()}
    kept = [line.strip() for line in _BLOCKS.sub("\n", text).splitlines() if not _MACHINE_LINE.match(line)]
    return "\n".join(line for line in kept if line and line not in theirs)


def _signs_of_person(prose: str) -> int:
    bare = _NO_PERSON.sub("", prose)
    return min(4, sum(pattern.search(bare) is not None for pattern in _PERSON))


def _has_error_objects(text: str) -> bool:
    """Whether a text contains JSON objects that each name a place and what is wrong there."""
    return any(_describes_error(value) for value in json_values(text))


def _describes_error(value: Any) -> bool:
    if isinstance(value, list):
        return any(_describes_error(item) for item in value[:4])
    if not isinstance(value, dict):
        return False
    keys = value.keys()
    return bool(keys & _ERROR_TEXT and keys & _ERROR_PLACE) or bool(
        keys & {"error_messages", "incorrect_value"} and len(keys) > 1
    ) or any(_describes_error(item) for item in list(value.values())[:8])  # fmt: skip


def json_values(text: str, limit: int = 4) -> Iterator[Any]:
    """Yield the JSON arrays and objects inside a text, the first ones only."""
    decoder = json.JSONDecoder()
    position = tries = 0
    while tries < 16 and limit and (match := _OBJECT.search(text, position)) is not None:
        tries += 1
        try:
            value, position = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            position = match.end()
            continue
        limit -= 1
        yield value


def quoted_share(text: str, reply: str) -> float:
    """Return the share of a reply that a text repeats, in [0, 1]; 0 for a reply too short to tell."""
    mine, theirs = _bare(text), _bare(reply)
    if len(theirs) < _MIN_QUOTE_CHARS:
        return 0.0
    if theirs in mine:
        return 1.0
    starts = range(0, max(1, len(theirs) - _QUOTE_WINDOW + 1), _QUOTE_WINDOW)
    hits = sum(theirs[i : i + _QUOTE_WINDOW] in mine for i in starts)
    # Validators cut what they quote: its beginning is enough.
    return max(hits / len(starts), 0.8 if theirs[:_QUOTE_WINDOW] in mine else 0.0)


def _bare(text: str) -> str:
    """Return a text without white space and escapes: JSON and Python quote differently."""
    return re.sub(r"\\[nrt]|\\|\s+|[\"'`]", "", text)
