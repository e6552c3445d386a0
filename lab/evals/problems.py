"""Arithmetic word problems, generated: homework to be solved, and homework to be graded. Pure.

What users ask and what is measured on share no problem and no pair of numbers: the pair decides which of the two it is for.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import product

_STORIES = (
    ("{who} has {x} {what} and gets {y} more. How many {what} does {who} have now?", 1),
    ("{who} buys {x} {what} on Monday and {y} on Tuesday. How many {what} is that?", 1),
    ("There are {x} {what} in one bag and {y} in another. How many {what} are there?", 1),
    ("{who} has {x} {what} and gives {y} away. How many {what} are left?", -1),
    ("Of {x} {what}, {who} loses {y}. How many {what} does {who} still have?", -1),
)
_NAMES = ("Tom", "Mia", "Ben", "Lea", "Sam", "Eva", "Max", "Ida")
_THINGS = ("apples", "books", "pens", "coins", "cards", "stones", "eggs", "balls")
_NUMBERS = tuple((x, y) for x, y in product(range(2, 10), repeat=2) if x != y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A story with one number as its answer. `text` is what a student sends."""

    text: str
    answer: str
    numbers: tuple[int, int]

    def is_correct(self, reply: str) -> bool:
        """Whether the last number of the reply, markup aside, is the answer: working may come before it."""
        found = re.findall(r"\d+", re.sub(r"[*_`]", "", reply))
        return bool(found) and found[-1] == self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking:
    """A solved problem to be graded. `text` is what a teacher sends; `given` is what the student wrote."""

    text: str
    answer: str
    given: str
    numbers: tuple[int, int]

    @property
    def is_right(self) -> bool:
        return self.given == self.answer

    def is_correct(self, reply: str) -> bool:
        """Whether the reply judges it rightly: a right one is called so, of a wrong one the right answer is named."""
        words = reply.lower()
        blames = re.search(r"\b(?:wrong|incorrect|not (?:right|correct)|mistake|error)\b", words) is not None
        if self.is_right:
            return not blames and re.search(r"\b(?:right|correct|exactly)\b", words) is not None
        return re.search(rf"(?<!\d){self.answer}(?!\d)", reply) is not None


def _is_asked(numbers: tuple[int, int]) -> bool:
    x, y = numbers
    return (7 * x + 3 * y) % 5 < 3


def _stories(asked: bool) -> list[tuple[str, str, tuple[int, int]]]:
    rng = random.Random("problems")
    found = []
    for x, y in _NUMBERS:
        story, sign = _STORIES[rng.randrange(len(_STORIES))]
        if sign < 0:
            x, y = max(x, y) + 1, min(x, y)
        text = story.format(x=x, y=y, who=rng.choice(_NAMES), what=rng.choice(_THINGS))
        found.append((text, str(x + sign * y), (x, y)))
        more, sign = _STORIES[rng.randrange(3)]
        text = more.format(x=y, y=x, who=rng.choice(_NAMES), what=rng.choice(_THINGS))
        found.append((text, str(x + sign * y), (y, x)))
    unique = {text: (text, answer, numbers) for text, answer, numbers in found if _is_asked(numbers) is asked}
    return list(unique.values())


def problems(*, asked: bool) -> tuple[Problem, ...]:
    """Return the problems users ask, or those that are measured on."""
    return tuple(
        Problem(text=text, answer=answer, numbers=numbers) for text, answer, numbers in _stories(asked)
    )


def markings(*, asked: bool) -> tuple[Marking, ...]:
    """Return solved problems to grade; half of them are right."""
    rng = random.Random(f"markings/{asked}")
    found = []
    for index, (text, answer, numbers) in enumerate(_stories(asked)):
        given = answer if index % 2 == 0 else str(int(answer) + rng.choice((-1, 1, 2)))
        asked_text = f'Please grade this homework. The problem: "{text}" The pupil wrote: "{given}"'
        found.append(Marking(text=asked_text, answer=answer, given=given, numbers=numbers))
    return tuple(found)
