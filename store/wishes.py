"""The style wishes that Patina knows by name: labels, one canonical wording of each, and which withdraw each other. Values only.

A scorer puts labels on a hint (`scorers.wish_labels`), the verdict carries them (`Verdict.wishes`), and the trainer may use the
canonical wording where the model does not understand the person's own. The wordings are reviewed by hand. For the 2 M test model
they were measured as an earlier turn before 12 questions (mean over the questions of the largest Jensen-Shannon divergence along
the base reply, and the share of replies that then comply): shorter .51, no_emoji .36, plain_text .47, formal .40, spanish .66 and json
.66, all complying. Before a wording that withdraws an earlier one, only english (.58, 1.00) and prose (.50, .75) take effect; longer,
emoji, markdown and casual do not (at most .14): what withdraws a wish has to remove the earlier wish from the context. The built-in
model knows no lists and no other language.

A label is one of `STYLE_LABELS`, or names the language of replies: ``spanish``, ``english``, or ``language:`` and an ISO 639-1 code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Wishes that do not name a language.
STYLE_LABELS: tuple[str, ...] = (
    "shorter",
    "longer",
    "no_emoji",
    "emoji",
    "plain_text",
    "markdown",
    "formal",
    "casual",
    "json",
    "prose",
    "no_lists",
    "lists",
)

#: Label of a wish for a reply language by ISO 639-1 code, and the language's English name.
LANGUAGES: Mapping[str, str] = MappingProxyType(
    {
        "ar": "Arabic",
        "ca": "Catalan",
        "cs": "Czech",
        "da": "Danish",
        "de": "German",
        "el": "Greek",
        "en": "English",
        "es": "Spanish",
        "fi": "Finnish",
        "fr": "French",
        "he": "Hebrew",
        "hi": "Hindi",
        "hu": "Hungarian",
        "id": "Indonesian",
        "it": "Italian",
        "ja": "Japanese",
        "ko": "Korean",
        "nb": "Norwegian",
        "nl": "Dutch",
        "pl": "Polish",
        "pt": "Portuguese",
        "ro": "Romanian",
        "ru": "Russian",
        "sv": "Swedish",
        "th": "Thai",
        "tr": "Turkish",
        "uk": "Ukrainian",
        "vi": "Vietnamese",
        "zh": "Chinese",
    }
)


def language_label(code: str) -> str:
    """Return the label of a wish for replies in the language with this ISO 639-1 code."""
    return {"es": "spanish", "en": "english"}.get(code, f"language:{code}")


LANGUAGE_LABELS: tuple[str, ...] = tuple(language_label(code) for code in LANGUAGES)

#: Label -> the wording to put into a model's context.
CANONICAL: Mapping[str, str] = MappingProxyType(
    {
        "shorter": "Make it shorter.",
        "longer": "Please be more detailed.",
        "no_emoji": "no emojis please",
        "emoji": "Please use some emojis.",
        "plain_text": "Plain text, please.",
        "markdown": "Please use markdown.",
        "formal": "Please be more formal.",
        "casual": "Please be more casual.",
        "json": "JSON, please.",
        "prose": "Please use normal text.",
        "no_lists": "No lists, please.",
        "lists": "Please use bullet points.",
    }
    | {language_label(code): f"In {name}, please." for code, name in LANGUAGES.items()}
)

_PAIRS = (
    ("shorter", "longer"),
    ("no_emoji", "emoji"),
    ("plain_text", "markdown"),
    ("formal", "casual"),
    ("json", "prose"),
    ("no_lists", "lists"),
)


def _opposites() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {a: (b,) for pair in _PAIRS for a, b in (pair, pair[::-1])}
    for label in LANGUAGE_LABELS:
        found[label] = tuple(other for other in LANGUAGE_LABELS if other != label)
    return found


#: Label -> the labels that it withdraws and replaces.
OPPOSITES: Mapping[str, tuple[str, ...]] = MappingProxyType(_opposites())
