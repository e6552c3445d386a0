"""Whether a reply is whole: not empty, no broken characters or markup, no repetition without end, only words that exist. Pure."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache
from itertools import pairwise

from lab.models.corpus import conversation
from lab.models.questions import FACTS

#: Conversations of the test model's recipe that its words are taken from: each fact occurs several times.
_CONVERSATIONS = 16_000
#: A word of the recipe's replies occurs in at least so many conversations; its made-up names do not.
_LEAST_OCCURRENCES = 3
#: A word, or a pair of words, so many times in a row is repetition without end.
_REPEATS = 4

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_BROKEN = re.compile("[\ufffd\x00-\x08\x0b-\x1f\x7f]|\\*{4,}|</?\\w*[_|]\\w*|<\\|")


@cache
def built_in_words() -> frozenset[str]:
    """Return the words of the replies that the test model is trained on, in lower case, made-up names left out."""
    rng = random.Random(0)
    counts: Counter[str] = Counter()
    for _ in range(_CONVERSATIONS):
        for message in conversation(rng).messages:
            if message["role"] == "assistant" and message.get("content"):
                counts.update(set(_words(message["content"])))
    answers = {word for fact in FACTS for word in _words(f"{fact.subject} {fact.answer}")}
    return frozenset({word for word, count in counts.items() if count >= _LEAST_OCCURRENCES} | answers)


def _words(text: str) -> list[str]:
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]


def is_well_formed(text: str, vocabulary: frozenset[str] | None = None) -> bool:
    """Return whether a reply is whole.

    Args:
        vocabulary: the words there are, in lower case; None where they are not known, and only the rest is checked.
    """
    words = _words(text)
    if not text.strip() or _BROKEN.search(text) or text.count("**") % 2:
        return False
    if _repeats(words):
        return False
    return vocabulary is None or vocabulary.issuperset(words)


def _repeats(words: list[str]) -> bool:
    for items in (words, list(pairwise(words))[::2], list(pairwise(words))[1::2]):
        run = 1
        for one, other in pairwise(items):
            run = run + 1 if one == other else 1
            if run >= _REPEATS:
                return True
    return False
