"""Words and patterns by which people react to a reply, loaded once from the TOML files of this folder (`README.md` there).

One file a language, so that a native speaker can review it. `scorers.reactions`, `scorers.hints`, `scorers.own_words`, `scorers.evidence` and `scorers.features` use what is loaded.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any

#: Languages with word classes, in the order in which they are tried.
LANGUAGES = ("english", "spanish", "german", "french")


class Kind(StrEnum):
    """What a pattern says of the reply."""

    JUDGEMENT = "judgement"  #: it is bad: a complaint wherever it stands
    INSTRUCTION = "instruction"  #: how it should be: after a new question it is about the next reply only
    PRAISE = "praise"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to react.

    Attributes:
        name: goes into the verdict's detail.
        residue: content words that may remain beside the match and the word classes; None: any number.
        in_question: it also counts inside a real question ("why so long?").
        sets_scene: it opens a role play as well; it is about the reply only where no question or task goes with it.
        reason: why this is a reaction to the reply and not a new topic.
    """

    name: str
    kind: Kind
    regex: str
    reason: str
    residue: int | None = None
    in_question: bool = False
    sets_scene: bool = False


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))


def _joined(regex: str | Sequence[str]) -> str:
    return regex if isinstance(regex, str) else "".join(regex)


def _patterns(rows: Sequence[dict[str, Any]]) -> tuple[Pattern, ...]:
    return tuple(
        Pattern(**{**row, "kind": Kind(row["kind"]), "regex": _joined(row["regex"])}) for row in rows
    )


_FILES = {name: _load(name) for name in LANGUAGES}
_SHARED = _load("shared")

#: Language -> word class -> its words, separated by spaces.
WORDS: dict[str, dict[str, str]] = {
    name: {key: " ".join(words.split()) for key, words in file["words"].items()}
    for name, file in _FILES.items()
}
#: Language -> regex of a polite request, at the start of a sentence.
POLITE: dict[str, str] = {name: _joined(file["polite"]) for name, file in _FILES.items()}
PATTERNS: dict[str, tuple[Pattern, ...]] = {
    name: _patterns(file["patterns"]) for name, file in _FILES.items()
}
#: Patterns without slots, of languages that have no word classes.
ANY_LANGUAGE = _patterns(_load("other_languages")["patterns"])

#: Names of the patterns that say that a reply was bad.
JUDGEMENTS = frozenset(
    pattern.name
    for patterns in (*PATTERNS.values(), ANY_LANGUAGE)
    for pattern in patterns
    if pattern.kind is Kind.JUDGEMENT
)

BUT, ASKS_FOR_A_NAME, YOU_ARE, SCENE, TAG = (
    _joined(_SHARED[name]) for name in ("but", "asks_for_a_name", "you_are", "scene", "tag")
)
WEAK_TASK: str = _SHARED["weak_task"]
APPLAUSE: str = _SHARED["applause"]
PROTEST: str = _SHARED["protest"]
EMPTY_ADVICE: str = _SHARED["empty_advice"]
#: Words that negate what follows, as `scorers.features` folds them.
NEGATORS = frozenset(word for words in _SHARED["negators"].values() for word in words.split())


def _alternatives(by_language: Mapping[str, str]) -> str:
    return "|".join(by_language.values()).replace(" ", r"\s")


_CLAUSES = _load("clauses")
CONTRAST, CONTRAST_UNSPACED, JOINT, JOINT_UNSPACED, BEFORE_WHEN, WHEN, PERMITS, AGAIN, BEFORE_THING, LIKING, DECLINING, CLOSING, DENIED_FAULT, SALUTATION = (
    _alternatives(_CLAUSES[name])
    for name in (
        "contrast", "contrast_unspaced", "joint", "joint_unspaced", "before_when", "when", "permits", "again", "before_thing", "liking", "declining", "closing",
        "denied_fault", "salutation",
    )
)  # fmt: skip
#: Scope of a wish -> regex alternatives of the words that say so; of languages without spaces.
SCOPE_WORDS: dict[str, str] = {}
SCOPE_UNSPACED: dict[str, str] = {}
for _name in ("lasting", "once", "answer", "back"):
    SCOPE_UNSPACED[_name] = _CLAUSES[_name].pop("unspaced")
    SCOPE_WORDS[_name] = _alternatives(_CLAUSES[_name])
