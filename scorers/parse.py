r"""A judge's text -> vote, votes -> one verdict, hints -> one hint. Sans-IO.

Tolerant of form, strict of content: `\boxed{1}`, JSON or "Score: 1" are all read, with thinking before them. The final answer is what
follows the last marker of the prompt (`scorers.prompts.new_marker`); a judge that leaves the marker out is read by its last lines, where
a score that the material holds word for word does not count as the judge's own. Two scores in the final answer that contradict each
other are an error, never a guess.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scorers.hints import content_words
from store.errors import JudgeError
from store.values import WishReading, WishScope

_THINK = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_THINK_END = re.compile(r"^.*</(?:think|thinking|thought|reasoning)>", re.DOTALL | re.IGNORECASE)
_THINK_OPEN = re.compile(r"<(?:think|thinking|thought|reasoning)>", re.IGNORECASE)

_BOXED = re.compile(r"\\+boxed\s*\{\s*(?:\\text\s*\{)?\s*([^{}]*?)\s*\}")
_NUMBER = re.compile(r"^[+]?(-?\d+(?:\.\d+)?)$")
_LINE = re.compile(
    r"^[\W_]*(?:final\s+)?(?:score|verdict|rating|reward|vote|answer|result)[\W_]*?[:=]\W*?([+-]?\d+(?:\.\d+)?)[\W_]*$",
    re.IGNORECASE | re.MULTILINE,
)
_INLINE = re.compile(
    r"(?:score|verdict|rating|reward|vote)(?:\s+(?:is|of|would be|should be))?\s*[:=]?\s*[*_`\"']*([+-]?\d+(?:\.\d+)?)\b",
    re.IGNORECASE,
)
_SCORE_KEYS = ("score", "verdict", "value", "rating", "reward", "vote")
_NO_HINT = frozenset({"", "none", "null", "no", "no hint", "n/a", "nothing", "nil", "-"})


def without_thinking(text: str) -> str:
    """Return what a judge says after its reasoning.

    Raises:
        JudgeError: the reasoning was cut off, so that nothing follows it.
    """
    bare = _THINK.sub(" ", text)
    bare = _THINK_END.sub(" ", bare)  # a template may have opened the block itself
    if _THINK_OPEN.search(bare):
        raise JudgeError("the judge's answer ends inside its reasoning")
    return bare.replace("−", "-").strip()


def final_answer(text: str, marker: str) -> str:
    """Return what a judge's text holds after its last marker, or beside it; all of the text when there is no marker."""
    head, found, tail = text.rpartition(marker) if marker else ("", "", text)
    if not found or tail.strip(" *_`.:=\n"):
        return tail
    return head.rpartition("\n")[2]  # "\boxed{1} 0a1b2c": the score stands before the marker


def parse_score(text: str, *, marker: str = "", material: str = "") -> int:
    """Return the vote in a judge's text.

    Args:
        marker: the prompt's own, "" where it has none.
        material: what the prompt quoted; without a marker in the answer, lines of it that the judge repeats are left out.

    Raises:
        JudgeError: no score, several that differ, or one that is not -1, 0 or 1.
    """
    answer = _own_words(without_thinking(text), marker, material)
    found = _BOXED.findall(answer)
    found += [value for obj in _objects(answer) for value in _scores(obj)]
    found += _LINE.findall(answer)
    if not found:
        found = _INLINE.findall(answer)
    if not found:
        lines = [line.strip(" *_`.") for line in answer.splitlines() if line.strip()]
        found = [line for line in lines[-1:] if _NUMBER.match(line)]
    if not found:
        raise JudgeError(f"no score in the judge's answer: {answer[:120]!r}")
    votes = {_vote(value) for value in found}
    if len(votes) > 1:
        raise JudgeError(f"the judge gave scores that contradict each other: {sorted(votes)}")
    return votes.pop()


def _own_words(answer: str, marker: str, material: str) -> str:
    if marker and marker in answer:
        return final_answer(answer, marker)
    quoted = {match.group() for match in re.finditer(r"\\+boxed\s*\{[^{}]*\}|\{[^{}]*\}", material)}
    if not any(quote in answer for quote in quoted):
        return answer
    # Scores of the material are among the judge's words: its own is the last one, if it ends with it.
    lines = [line for line in answer.splitlines() if line.strip()]
    return lines[-1] if lines else answer


def _vote(value: Any) -> int:
    match = _NUMBER.match(str(value).strip())
    number = float(match.group(1)) if match else None
    if isinstance(value, bool) or number not in (-1.0, 0.0, 1.0):
        raise JudgeError(f"{str(value)[:40]!r} is not a score of -1, 0 or 1")
    return int(number)


def _scores(obj: dict[str, Any]) -> list[Any]:
    return [value for key, value in obj.items() if key.lower() in _SCORE_KEYS and value is not None]


def parse_hint(text: str, *, marker: str = "", material: str = "") -> str | None:
    """Return the hint in a judge's text, None when it says there is none; marker and material as in `parse_score`.

    Raises:
        JudgeError: neither a hint nor a clear "none".
    """
    answer = _own_words(without_thinking(text), marker, material)
    hints: list[str] = []
    for obj in _objects(answer):
        for key, value in obj.items():
            if key.lower() == "hint":
                if value is not None and not isinstance(value, str):
                    raise JudgeError(f"the judge's hint is not a text: {str(value)[:80]!r}")
                hints.append(value or "")
    if not hints:
        hints = re.findall(r"\[HINT_START\](.*?)\[HINT_END\]", answer, re.DOTALL)
        hints += re.findall(r"<hint>(.*?)</hint>", answer, re.DOTALL | re.IGNORECASE)
    if not hints:
        hints = re.findall(r"^[\W_]*hint[\W_]*:\s*(.+)$", answer, re.IGNORECASE | re.MULTILINE)
    if not hints:
        if answer.strip(" .*_`\"'").lower() in _NO_HINT or re.fullmatch(r"\W*(?:-1|0)\W*", answer):
            return None
        if any(boxed.strip() in ("-1", "0") for boxed in _BOXED.findall(answer)):
            return None
        raise JudgeError(f"neither a hint nor none in the judge's answer: {answer[:120]!r}")
    cleaned = {_clean(hint) for hint in hints}
    if len(cleaned) > 1:
        raise JudgeError("the judge gave several different hints")
    return cleaned.pop()


def parse_hindsight(
    text: str, *, marker: str = "", material: str = ""
) -> tuple[str | None, WishReading | None]:
    """Return the hint (`parse_hint`) and the wish in a judge's text; None for each that it says there is none of.

    Raises:
        JudgeError: neither a hint nor a clear "none", or a wish without a known scope.
    """
    hint = parse_hint(text, marker=marker, material=material)
    answer = _own_words(without_thinking(text), marker, material)
    stated = {
        (words.strip(), str(obj.get("scope")))
        for obj in _objects(answer)
        if isinstance(words := obj.get("wish"), str) and words.strip().lower() not in _NO_HINT
    }
    if not stated:
        return hint, None
    ((words, scope), *others) = stated
    if others or scope not in frozenset(WishScope):
        raise JudgeError(f"the judge's wish has no scope that is known: {scope[:40]!r}")
    return hint, WishReading(text=words, scope=WishScope(scope))


def _clean(hint: str) -> str | None:
    bare = " ".join(hint.split()).strip(' *_`"')
    return None if bare.strip(".").lower() in _NO_HINT else bare


def _objects(text: str) -> list[dict[str, Any]]:
    """Every JSON object in a text, outermost ones only."""
    decoder = json.JSONDecoder()
    found = []
    at = text.find("{")
    while at != -1:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # the second: brackets nested for mischief
            end = at + 1
        else:
            if isinstance(value, dict):
                found.append(value)
        at = text.find("{", end)
    return found


def majority(votes: Sequence[int]) -> tuple[int, float]:
    """Return (value, share of the votes for it). A tie is 0.

    Raises:
        ValueError: there are no votes.
    """
    if not votes:
        raise ValueError("no votes")
    (first, count), *rest = Counter(votes).most_common()
    if rest and rest[0][1] == count:
        return 0, votes.count(0) / len(votes)
    return first, count / len(votes)


def choose_hint(hints: Sequence[str]) -> str:
    """Return the hint that most agree on; among equals the shortest.

    Not the longest: length grows with how much of the answer a hint gives away.

    Raises:
        ValueError: there are no hints.
    """
    if not hints:
        raise ValueError("no hints")
    bags = [content_words(hint) for hint in hints]

    def support(index: int) -> float:
        mine = bags[index]
        others = [bag for i, bag in enumerate(bags) if i != index]
        return sum(len(mine & bag) / len(mine | bag) for bag in others if mine | bag)

    best = min(range(len(hints)), key=lambda i: (-round(support(i), 6), len(hints[i]), i))
    return hints[best]
