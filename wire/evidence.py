"""Evidence for the kind of a turn: word patterns, loaded once from the TOML files in `words/`, one a language. Sans-IO.

Words are the weaker half of the evidence. They are searched in the newest user text (beginning and end) and in the beginning of a short system
prompt, never in a long one: what an agent's manual mentions is not what is requested. Weights are in `weights.json` (`lab.evals.train_classifier`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from wire.regex_prefilter import PatternSet

LANGUAGES = (
    "english", "german", "french", "spanish", "italian", "portuguese", "russian", "chinese", "japanese", "korean", "several",
)  # fmt: skip
#: Characters of a text's beginning in which words are searched.
READ_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class WordPattern:
    """A word pattern.

    Attributes:
        code: name of the evidence; ``ask_<code>`` in the newest user text, ``role_<code>`` in a short system prompt.
        topic: reason code of a side turn that this evidence decides; "" where it names no topic.
        branches: alternatives.
        meaning: what `explain` displays.
        example: a text in which it is found.
    """

    code: str
    topic: str = ""
    branches: tuple[re.Pattern[str], ...]
    meaning: str
    example: str


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "words" / f"{name}.toml").read_text(encoding="utf-8"))


_WORDS = [_load(name) for name in LANGUAGES]
_PATTERNS = _load("patterns")


def _compile(branches: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(branch, re.IGNORECASE) for branch in branches)


def _group(name: str) -> tuple[WordPattern, ...]:
    return tuple(
        WordPattern(
            code=code, branches=_compile(branch for words in _WORDS for branch in words.get(code, ())), **row
        )
        for code, row in _PATTERNS[name].items()
    )


#: What is requested: an object that clients request.
TOPICS = _group("topics")
#: Who speaks: a clock or a program, not a person.
MACHINES = _group("machines")
#: How it is requested: forms that programs use, and forms that people use (`human`, `answer`).
FORMS = _group("forms")

_BRANCHES = PatternSet(
    (branch, (pattern, branch)) for pattern in (*TOPICS, *MACHINES, *FORMS) for branch in pattern.branches
)


def find_words(text: str) -> frozenset[str]:
    """Return the codes of the word patterns that a text contains."""
    text = text[:READ_CHARS]
    codes: set[str] = set()
    for pattern, branch in _BRANCHES.candidates(text):
        if pattern.code not in codes and branch.search(text):
            codes.add(pattern.code)
    return frozenset(codes)
