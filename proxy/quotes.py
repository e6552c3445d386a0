"""What one text says of another: lines of recorded turns found again inside a prompt. Sans-IO.

Titles, summaries, suggestions and memory chores are asked for in a fresh request that *quotes* the conversation; some
frameworks write the whole history into one prompt; some clients put words around questions and answers that are gone a turn
later. None of that survives an exact key, but lines do. A line counts by its letters and digits alone, so that speaker names,
quotation marks, mark-up, escapes and indentation around it do not matter, in any language.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from proxy.words import content_text, own_words, spoken
from store.values import Completion, Tip

Message = Mapping[str, Any]

#: Lines taken of one question or answer: the first and the last so many. More would only cost memory.
_EDGE = 6
#: Of a prompt, so many characters and lines from its beginning and as many from its end are read.
_PAGE, _PAGE_LINES = 48_000, 400
#: Of a prompt whose lines say nothing, so many characters are searched.
_FLAT = 16_000
#: So much of a line counts: clients cut what they quote.
_CUT = 48

_NOT_WORDS = re.compile(r"[\W_]+")
_ELEMENT = re.compile(r"</?[A-Za-z][\w:-]*>")
#: A speaker's name in front of a line: "Human: …", "**USER** > …", "[2026-11-20 15:00] ASSISTANT: …", "Nutzer：…".
_SPEAKER = re.compile(
    r"^\s*(?:[\[(][^\])\n]{1,40}[\])]\s*)?[#>*|<\-\s\"'\[(]*[^\W\d_][\w .'-]{0,30}[\])*_\"'>]*\s*[:：>]+\s*"
)
#: A prompt that ends so waits for the next line of a dialogue: a speaker's name alone.
_WAITING = re.compile(
    r"(?:\A|\n)[ \t]*[#*|<\[]{0,4}[ \t]*([^\W\d_][\w -]{0,24}?)[ \t]*[\]*>|]{0,3}[ \t]*[:：][ \t]*\Z"
)
#: Names of fields, not of speakers: a form that ends so waits for what a program reads.
_FIELDS = frozenset(
    {
        "output", "result", "results", "json", "score", "rating", "verdict", "title", "summary", "query", "queries", "question", "keywords",
        "category", "label", "tags", "topic", "intent", "class", "rewritten", "rephrased", "standalonequestion", "newsummary", "decision",
        "passage", "value", "format",
    }
)  # fmt: skip
#: A line that only opens or closes something.
_TAG = re.compile(r"^\s*(</?[A-Za-z][^>]*>|[`~]{3,}\w*|[-=*_]{3,})\s*$")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.){2,})"')


def bare(text: str) -> str:
    """Return the first letters and digits of a line, in one case, tags apart."""
    return _bare(text[: 4 * _CUT])


@lru_cache(maxsize=4096)  # a question's lines are asked for as often as it is looked at
def _bare(text: str) -> str:
    if "<" in text:
        text = _ELEMENT.sub("", text)
    return _NOT_WORDS.sub("", text.casefold())[:_CUT]


def lines(text: str) -> list[str]:
    """Return the bare lines of a text, empty ones left out."""
    return [line for line in map(bare, text.splitlines()) if line]


def edges(text: str) -> tuple[str, ...]:
    """Return the bare lines by which a question or an answer is found again."""
    found = lines(text)
    if len(found) > 2 * _EDGE:
        found = found[:_EDGE] + found[-_EDGE:]
    return tuple(found)


@dataclass(slots=True, kw_only=True)
class Page:
    """A prompt as lines.

    Attributes:
        places: bare line -> where it stands last; with the speaker's name and without.
        last: the last line that says something: what a chore was asked for, most often.
        waits_for: the name that stands alone at the end: the next line is that speaker's. None for any other prompt.
    """

    places: Mapping[str, int]
    last: str
    waits_for: str | None


def read_page(messages: Iterable[Message], *, with_system: bool = False) -> Page:
    """Return the lines of the user messages (and of the system's, if asked for)."""
    roles = ("user", "system", "developer") if with_system else ("user",)
    text = "\n".join(content_text(m.get("content")) for m in messages if m.get("role") in roles)
    if len(text) > 2 * _PAGE:
        text = f"{text[:_PAGE]}\n{text[-_PAGE:]}"
    places: dict[str, int] = {}
    raw = list(_raw_lines(text))
    if len(raw) > 2 * _PAGE_LINES:
        raw = raw[:_PAGE_LINES] + raw[-_PAGE_LINES:]
    for place, line in enumerate(raw):
        for form in (line, _SPEAKER.sub("", line, count=1)):
            if name := bare(form):
                places[name] = place
    last = ""
    for line in reversed(raw):
        last = "" if _TAG.match(line) else bare(_SPEAKER.sub("", line, count=1))
        if last:
            break
    waiting = _WAITING.search(text.rstrip())
    speaker = waiting[1].strip() if waiting else None
    return Page(
        places=places, last=last, waits_for=None if speaker is None or bare(speaker) in _FIELDS else speaker
    )


def _raw_lines(text: str) -> Iterator[str]:
    if "&" in text:
        text = html.unescape(text)
    for line in text.splitlines():
        yield line
        if "\\" in line or '": "' in line or '":"' in line:
            for quoted in _STRING.finditer(line):
                try:
                    yield from str(json.loads(quoted[0])).splitlines()
                except ValueError:
                    continue


def last_words(text: str) -> str:
    """Return what was said last in a dialogue that is written out and waits for the next speaker."""
    waiting = _WAITING.search(text.rstrip())
    if waiting is None:
        return text.strip()
    told = text[: waiting.start()].rstrip().splitlines()
    own = _speaker_of(text[waiting.start() :].strip())
    names = {name for line in told if (name := _speaker_of(line))}
    others = names - {own}
    for i in range(len(told) - 1, -1, -1):
        name = _speaker_of(told[i])
        if name in others:
            return "\n".join([_SPEAKER.sub("", told[i], count=1), *told[i + 1 :]]).strip()
    return "\n".join(told[-1:]).strip()


def _speaker_of(line: str) -> str:
    found = _SPEAKER.match(line)
    return bare(found[0]) if found else ""


def flat_of(messages: Iterable[Message]) -> str:
    """Return all letters and digits of the user messages in one row: lines that stand inside a line are found in it."""
    text = "\n".join(content_text(m.get("content")) for m in messages if m.get("role") == "user")
    if len(text) > _FLAT:
        text = f"{text[: _FLAT // 2]}\n{text[-_FLAT // 2 :]}"
    return _NOT_WORDS.sub("", text.casefold())


@dataclass(slots=True, kw_only=True)
class Trace:
    """The lines by which one recorded turn is found again."""

    asked: tuple[str, ...]
    said: tuple[str, ...]


def read_trace(messages: Sequence[Message], completion: Completion) -> Trace:
    """Return the lines of a turn's question (the person's newest words) and of its answer."""
    words = "\n".join(_SPEAKER.sub("", line, count=1) or line for line in newest_words(messages).splitlines())
    return Trace(asked=edges(words), said=edges(spoken(completion.text)))


def newest_words(messages: Sequence[Message]) -> str:
    """Return the person's words since the last answer; of a dialogue that is written out, the last of them."""
    words: list[str] = []
    for message in reversed(messages):
        role = message.get("role")
        if role == "assistant":
            break
        if role == "user":
            words.append(own_words(content_text(message.get("content"))))
    return last_words("\n".join(reversed([w for w in words if w])))


@dataclass(slots=True, kw_only=True)
class Quote:
    """A recorded turn found inside a prompt.

    Attributes:
        asked, said: share of its question's and its answer's characters that stand there.
        size: characters found.
        place: where the last of them stand.
        newest: newest main turn of its session.
        has_chore: its session had this very chore done since the turn.
        asks_nothing: nobody spoke before its answer: it carried on with tool results.
        is_left_behind: its session went on since, by turns that kept what was said after it.
    """

    tip: Tip
    asked: float
    said: float
    size: int
    place: int
    newest: Tip | None = None
    has_chore: bool = False
    asks_nothing: bool = False
    is_left_behind: bool = False

    @property
    def is_exchange(self) -> bool:
        """Question and answer both."""
        return self.asked >= FOUND and self.said >= FOUND


#: Shorter lines stand inside others by chance.
_INSIDE = 12
#: A question or an answer counts as found when so much of it is.
FOUND = 0.6


def measure(page: Page, trace: Trace) -> tuple[float, float, int, int]:
    """Return (share asked, share said, characters found, last place) of a turn's lines on a page."""
    asked, asked_size, asked_place = _share(page, trace.asked)
    said, said_size, said_place = _share(page, trace.said)
    return asked, said, asked_size + said_size, max(asked_place, said_place)


def find_inside(flat: str, trace: Trace) -> tuple[float, float, int]:
    """Return (share asked, share said, characters found) of a turn's lines that stand anywhere inside ``flat``."""
    asked = [line for line in trace.asked if len(line) >= _INSIDE and line in flat]
    said = [line for line in trace.said if len(line) >= _INSIDE and line in flat]
    asked_size, said_size = sum(map(len, asked)), sum(map(len, said))
    return (
        asked_size / max(1, sum(map(len, trace.asked))),
        said_size / max(1, sum(map(len, trace.said))),
        asked_size + said_size,
    )


def _share(page: Page, wanted: Sequence[str]) -> tuple[float, int, int]:
    total = sum(map(len, wanted))
    size, last = 0, -1
    for line in wanted:
        place = page.places.get(line)
        if place is not None:
            size += len(line)
            last = max(last, place)
    return (size / total if total else 0.0), size, last
