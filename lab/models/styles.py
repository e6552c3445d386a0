"""Styles a person can ask for: what complies, how it is asked for, how its absence is complained about (`styles.toml`, `free_wordings.toml`). Pure; no torch.

`instructions`, `complaints` and `free` occur in the pre-training text, `heldout_*` never do (a test scans a generated corpus). The
simulated users of the demo and the evals speak the held-out complaints, so what they show is generalisation to new wording.
Predicates read the text alone, so they also judge replies of any other model.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product

#: A reply of at most this many words (letters or digits; emoji do not count) is concise.
CONCISE_WORDS = 14

_EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\u2300-\u23ff\u203c\u2049\ufe0f\u200d\U000e0020-\U000e007f]"
)
_MARKDOWN = re.compile(r"\*|`|~~|^\s{0,3}(?:#{1,6}\s|[-+]\s|\d+[.)]\s|>\s)|__|\[[^\]]*\]\(", re.MULTILINE)
_CONTRACTION = re.compile(r"\b\w+(?:n['’]t|['’](?:s|re|ve|ll|m|d))\b", re.IGNORECASE)
_CASUAL_WORDS = re.compile(
    r"\b(?:hey|hi|yeah|yep|cool|awesome|sure|gonna|wanna|oh|okay|ok|hola|claro)\b", re.IGNORECASE
)
_DATA = tomllib.loads((files("lab.models") / "styles.toml").read_text(encoding="utf-8"))
_FREE: dict[str, list[str]] = tomllib.loads(
    (files("lab.models") / "free_wordings.toml").read_text(encoding="utf-8")
)
_SPANISH, _ENGLISH = (frozenset(_DATA["function_words"][name].split()) for name in ("spanish", "english"))


def has_emoji(text: str) -> bool:
    return _EMOJI.search(text) is not None


def has_markdown(text: str) -> bool:
    return _MARKDOWN.search(text) is not None


def is_json(text: str) -> bool:
    """Whether the whole text is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def is_concise(text: str) -> bool:
    return 0 < len(re.findall(r"\w+(?:['’]\w+)?", text)) <= CONCISE_WORDS


def is_formal(text: str) -> bool:
    """Prose without exclamation marks, emoji, contractions or chatty words."""
    return bool(text.strip()) and not (
        "!" in text
        or has_emoji(text)
        or is_json(text)
        or _CONTRACTION.search(text)
        or _CASUAL_WORDS.search(text)
    )


def is_spanish(text: str) -> bool:
    """More Spanish than English function words, or a Spanish letter or mark and no English function word."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    spanish = sum(word in _SPANISH for word in words)
    english = sum(word in _ENGLISH for word in words)
    return spanish > english or (english == 0 and re.search("[¡¿ñáéíóú]", text.lower()) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """A preference of the person. `opposite` names the style that undoes it; `free` has the readings of each free wording."""

    name: str
    opposite: str | None
    instructions: tuple[str, ...]
    heldout_instructions: tuple[str, ...]
    complaints: tuple[str, ...]
    heldout_complaints: tuple[str, ...]
    free: tuple[tuple[str, ...], ...]
    predicate: Callable[[str], bool] = field(repr=False)

    def complies(self, text: str) -> bool:
        """Whether a reply has this style; an empty one has none."""
        return bool(text.strip()) and self.predicate(text.strip())


def expand(*patterns: str) -> tuple[str, ...]:
    """Every reading of patterns such as "Keep {it|your answer} short.", without repetition, in order."""
    readings: dict[str, None] = {}
    for pattern in patterns:
        parts = [part.split("|") for part in re.split(r"[{}]", pattern)]
        readings.update(dict.fromkeys("".join(choice) for choice in product(*parts)))
    return tuple(readings)


def draw(rng: random.Random, patterns: Sequence[Sequence[str]]) -> str:
    """Any reading of any pattern: a pattern with thousands of readings is drawn as often as one with ten."""
    return rng.choice(rng.choice(patterns))


_PREDICATES: dict[str, Callable[[str], bool]] = {
    "concise": is_concise,
    "verbose": lambda text: not is_concise(text),
    "no_emoji": lambda text: not has_emoji(text),
    "emoji": has_emoji,
    "plain": lambda text: not has_markdown(text),
    "markdown": has_markdown,
    "formal": is_formal,
    "casual": lambda text: not is_formal(text) and not is_json(text),
    "spanish": is_spanish,
    "english": lambda text: not is_spanish(text),
    "json": is_json,
    "prose": lambda text: not is_json(text),
}


def _style(name: str, opposite: str, **patterns: list[str]) -> Style:
    return Style(
        name=name,
        opposite=opposite,
        predicate=_PREDICATES[name],
        free=tuple(expand(pattern) for pattern in _FREE[name]),
        **{kind: expand(*some) for kind, some in patterns.items()},
    )


#: Every style by name: six preferences and their opposites (what the default manner mostly is).
STYLES: dict[str, Style] = {name: _style(name, **row) for name, row in _DATA["styles"].items()}
#: The preferences that the default manner rarely or never meets.
PREFERENCES: tuple[str, ...] = ("concise", "no_emoji", "plain", "formal", "spanish", "json")

#: What a satisfied user says; asks for no change.
THANKS: tuple[str, ...] = tuple(_DATA["thanks"])
HELDOUT_THANKS: tuple[str, ...] = tuple(_DATA["heldout_thanks"])
#: Follow-ups that say nothing about the last answer.
NEUTRAL: tuple[str, ...] = tuple(_DATA["neutral"])
