"""Text overlap: finds the lines of recorded turns inside a prompt. Sans-IO.

Titles, summaries, suggestions and memory calls are fresh requests that *quote* the conversation. Some frameworks write the whole history into
one prompt, and some clients wrap prompts and replies in text that is gone a turn later. Exact keys do not survive that, but lines do. A line
counts by its letters and digits alone, so speaker names, quotation marks, mark-up, escapes and indentation do not matter, in any language.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from store.texts import content_text
from store.values import Completion, Tip
from wire.line_text import FIELDS, NOT_WORDS, normalise_line
from wire.user_text import strip_client_context, strip_reasoning

Message = Mapping[str, Any]

#: Lines of one prompt or reply that are indexed: the first and the last ones.
_EDGE_LINES = 6
#: Characters and lines that are read from the beginning and from the end of a prompt.
_MAX_PROMPT_CHARS, _MAX_PROMPT_LINES = 48_000, 400
#: Characters of a line's beginning in which a quote is searched, behind a speaker's name.
_LINE_START = 320

_ASCII_NOT_WORDS = bytes(code for code in range(128) if not chr(code).isalnum())
#: A speaker's name in front of a line: "Human: …", "**USER** > …", "[2026-11-20 15:00] ASSISTANT: …", "Nutzer：…".
_SPEAKER = re.compile(
    r"^\s*(?:[\[(][^\])\n]{1,40}[\])]\s*)?[#>*|<\-\s\"'\[(]*[^\W\d_][\w .'-]{0,30}[\])*_\"'>]*\s*[:：>]+\s*"
)
#: A prompt that ends with a speaker's name alone: it waits for the next line of a dialogue.
_WAITING = re.compile(r"[ \t]*[#*|<\[]{0,4}[ \t]*([^\W\d_][\w -]{0,24}?)[ \t]*[\]*>|]{0,3}[ \t]*[:：][ \t]*")
#: A line that only opens or closes a block.
_TAG = re.compile(r"^\s*(</?[A-Za-z][^>]*>|[`~]{3,}\w*|[-=*_]{3,})\s*$")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.){2,})"')


def edge_lines(text: str) -> tuple[str, ...]:
    """Return the normalised lines by which a prompt or a reply is found again: all of a short text, the first and the last of a long one."""
    return _edges(text.splitlines(), normalise_line)


def utterance_lines(text: str) -> tuple[str, ...]:
    """Return the lines of `edge_lines` without the names in front of them: clients keep what follows "Final Answer:"."""
    return _edges(text.splitlines(), lambda line: normalise_line(_SPEAKER.sub("", line, count=1) or line))


def _edges(lines: Sequence[str], normalise: Callable[[str], str]) -> tuple[str, ...]:
    """Return the normalised edges of lines; lines between the edges are not looked at."""
    first = list(islice(filter(None, map(normalise, lines)), 2 * _EDGE_LINES + 1))
    if len(first) <= 2 * _EDGE_LINES:
        return tuple(first)
    last = list(islice(filter(None, map(normalise, reversed(lines))), _EDGE_LINES))
    return (*first[:_EDGE_LINES], *reversed(last))


@dataclass(slots=True, kw_only=True)
class PromptLines:
    """A prompt as lines.

    Attributes:
        positions: normalised line -> its last position; with the speaker's name and without.
        last: the last line with text: most often the subject of a side request.
    """

    positions: Mapping[str, int]
    last: str


def read_prompt_lines(messages: Iterable[Message], *, with_system: bool = False) -> PromptLines:
    """Return the lines of the user messages (and of the system messages, on request)."""
    roles = ("user", "system", "developer") if with_system else ("user",)
    text = "\n".join(content_text(m.get("content")) for m in messages if m.get("role") in roles)
    if len(text) > 2 * _MAX_PROMPT_CHARS:
        text = f"{text[:_MAX_PROMPT_CHARS]}\n{text[-_MAX_PROMPT_CHARS:]}"
    positions: dict[str, int] = {}
    raw = _raw_lines(text)
    if len(raw) > 2 * _MAX_PROMPT_LINES:
        raw = raw[:_MAX_PROMPT_LINES] + raw[-_MAX_PROMPT_LINES:]
    for position, line in enumerate(raw):
        for form in line_forms(line):
            positions[form] = position
    last = ""
    for line in reversed(raw):
        last = "" if _TAG.match(line) else normalise_line(_SPEAKER.sub("", line, count=1))
        if last:
            break
    return PromptLines(positions=positions, last=last)


def next_speaker(messages: Sequence[Message], *, with_system: bool = False) -> str | None:
    """Return the speaker's name that stands alone at the end of a prompt; None for any other prompt."""
    roles = ("user", "system", "developer") if with_system else ("user",)
    texts = (content_text(m.get("content")).rstrip() for m in reversed(messages) if m.get("role") in roles)
    waiting = _waiting_speaker(next(filter(None, texts), ""))
    return None if waiting is None or normalise_line(waiting[0]) in FIELDS else waiting[0]


def line_forms(line: str) -> tuple[str, ...]:
    """Return the beginning of a line normalised, with the speaker's name and without; no empty one."""
    return _forms(line[:_LINE_START])


@lru_cache(maxsize=8192)  # many prompts begin with the same file or template
def _forms(line: str) -> tuple[str, ...]:
    whole = normalise_line(line)
    text = normalise_line(_SPEAKER.sub("", line, count=1))
    return tuple(filter(None, (whole,) if text == whole else (whole, text)))


def _raw_lines(text: str) -> list[str]:
    """Return the lines of a text, each followed by the lines of the strings that it quotes."""
    if "&" in text:
        text = html.unescape(text)
    lines = text.splitlines()
    if not _may_quote(text):
        return lines
    found: list[str] = []
    for line in lines:
        found.append(line)
        if _may_quote(line):
            for quoted in json_strings(line):
                found += quoted.splitlines()
    return found


def json_strings(text: str) -> Iterator[str]:
    """Yield the JSON strings in a text."""
    for quoted in _STRING.finditer(text):
        try:
            yield str(json.loads(quoted[0]))
        except ValueError:
            continue


def _may_quote(text: str) -> bool:
    return "\\" in text or '": "' in text or '":"' in text


def _waiting_speaker(text: str) -> tuple[str, int] | None:
    """Return the speaker's name that stands alone in the last line, and where that line begins."""
    stripped = text.rstrip()
    start = stripped.rfind("\n") + 1
    found = _WAITING.fullmatch(stripped, start)
    return None if found is None else (found[1].strip(), start)


def last_utterance(text: str) -> str:
    """Return the last utterance of a written-out dialogue that waits for the next speaker."""
    waiting = _waiting_speaker(text)
    if waiting is None:
        return text.strip()
    _, start = waiting
    dialogue = text[:start].rstrip().splitlines()
    own = _speaker_of(text[start:].strip())
    names = {name for line in dialogue if (name := _speaker_of(line))}
    others = names - {own}
    for i in range(len(dialogue) - 1, -1, -1):
        name = _speaker_of(dialogue[i])
        if name in others:
            return "\n".join([_SPEAKER.sub("", dialogue[i], count=1), *dialogue[i + 1 :]]).strip()
    return "\n".join(dialogue[-1:]).strip()


def _speaker_of(line: str) -> str:
    found = _SPEAKER.match(line)
    return normalise_line(found[0]) if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLines:
    """The lines by which one recorded turn is found again; ``bare_answer`` without the names in front ("Final Answer:")."""

    question: tuple[str, ...]
    answer: tuple[str, ...]
    bare_answer: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """Return the lines of the reply in both forms."""
        return self.answer if self.bare_answer == self.answer else (*self.answer, *self.bare_answer)


def read_turn_lines(messages: Sequence[Message], completion: Completion) -> TurnLines:
    """Return the lines of a turn's prompt (the newest user text) and of its reply."""
    reply = strip_reasoning(completion.text)
    return TurnLines(
        question=utterance_lines(newest_user_text(messages)),
        answer=edge_lines(reply),
        bare_answer=utterance_lines(reply),
    )


def newest_user_text(messages: Sequence[Message]) -> str:
    """Return the user text since the last reply; of a written-out dialogue, its last utterance."""
    words: list[str] = []
    for message in reversed(messages):
        role = message.get("role")
        if role == "assistant":
            break
        if role == "user":
            words.append(strip_client_context(content_text(message.get("content"))))
    return last_utterance("\n".join(reversed([w for w in words if w])))


@dataclass(slots=True, kw_only=True)
class Quote:
    """A recorded turn that a prompt quotes.

    Attributes:
        question_share, answer_share: share of the characters of its prompt and of its reply that were found.
        size: characters found.
        position: position of the last of them.
        newest: newest main turn of its session.
        has_same_side_turn: its session has had a side turn of the same kind since.
        has_no_question: no user text preceded its reply: it continued with tool results.
        is_left_behind: its session went on since, by turns that kept what followed it.
    """

    tip: Tip
    question_share: float
    answer_share: float
    size: int
    position: int
    newest: Tip | None = None
    has_same_side_turn: bool = False
    has_no_question: bool = False
    is_left_behind: bool = False

    @property
    def is_exchange(self) -> bool:
        """Whether prompt and reply were both found."""
        return self.question_share >= MATCH_SHARE and self.answer_share >= MATCH_SHARE


#: Characters at the end of two prompts that are equal where both are made from one form.
FORM_CHARS = 60


def words_behind(text: str, answer: str) -> str | None:
    """Return what stands behind a line of a prompt, without its speaker's name; None where there is no such line.

    Args:
        answer: the line, normalised.
    """
    lines = text.splitlines()
    for i in range(len(lines) - 1, -1, -1):
        if answer in line_forms(lines[i]):
            return _SPEAKER.sub("", "\n".join(lines[i + 1 :]).strip(), count=1).strip()
    return None


def squeeze(text: str) -> str:
    """Return the letters and digits of a text alone, in one case; of a beginning of the text it is a beginning."""
    folded = text.casefold()
    if folded.isascii():  # twenty times as fast
        return folded.encode().translate(None, _ASCII_NOT_WORDS).decode()
    return NOT_WORDS.sub("", folded)


#: A prompt or a reply counts as found from this share on.
MATCH_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How much of a recorded turn a prompt contains; the fields are those of a `Quote`."""

    question_share: float
    answer_share: float
    size: int
    position: int = 0

    @property
    def is_match(self) -> bool:
        return self.question_share >= MATCH_SHARE or self.answer_share >= MATCH_SHARE


def measure_overlap(prompt_lines: PromptLines, trace: TurnLines) -> Overlap:
    """Return which share of a turn's lines a prompt contains."""
    question_share, question_size, question_position = _share(prompt_lines, trace.question)
    answer_share, answer_size, answer_position = _share(prompt_lines, trace.answer)
    if answer_share < MATCH_SHARE and trace.bare_answer != trace.answer:
        answer_share, answer_size, answer_position = _share(prompt_lines, trace.bare_answer)
    return Overlap(
        question_share=question_share,
        answer_share=answer_share,
        size=question_size + answer_size,
        position=max(question_position, answer_position),
    )


def _share(prompt_lines: PromptLines, wanted: Sequence[str]) -> tuple[float, int, int]:
    total = sum(map(len, wanted))
    size, last = 0, -1
    for line in wanted:
        position = prompt_lines.positions.get(line)
        if position is not None:
            size += len(line)
            last = max(last, position)
    return (size / total if total else 0.0), size, last
