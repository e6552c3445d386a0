"""Which style wishes a complaint or hint states: "keine Emojis mehr" -> ("no_emoji",). Pure but for reading its weights once.

A linear classifier over n-grams of words, of multilingual concepts (`data/wish_concepts.toml`) and of letters, one output a label of
`store.wishes` and two for a language that is named: wanted, or not wanted. Each language of a text is asked about by itself. Features are
32-bit hashes; one that did not occur in training counts nothing. The weights are made by ``python -m lab.models.wish_training``.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from store.wishes import OPPOSITES, STYLE_LABELS, language_label

_DATA = files("scorers") / "data"
_TABLES: Mapping[str, Mapping[str, str]] = tomllib.loads(
    (_DATA / "wish_concepts.toml").read_text(encoding="utf-8")
)
#: What the classifier decides, in the order of its weights.
OUTPUTS: tuple[str, ...] = (*STYLE_LABELS, "want_language", "unwant_language")
#: An output counts from this probability on ...
THRESHOLD = 0.75
#: ... and a label from this one on where the text has none of its concepts.
THRESHOLD_WITHOUT_CONCEPT = 0.9
#: A language that is not wanted counts from this one on: what is wanted instead is only inferred.
UNWANTED_THRESHOLD = 0.9
#: The concepts of a label: a text with none of them has to be surer to state it.
_TOPICS: Mapping[str, frozenset[str]] = {
    label: frozenset(concepts.split())
    for labels, concepts in {
        "shorter": "SHORT SHORTER LONG LONGER DETAIL FILLER POINT WORD TEXT LESS PROSE",
        "longer": "SHORT SHORTER LONG LONGER DETAIL WORD TEXT MORE PROSE",
        "no_emoji emoji": "EMOJI PICTURE FACE",
        "plain_text markdown": "MARKUP FORMAT PLAIN",
        "formal casual": "FORMAL CASUAL STIFF",
        "json": "JSON",
        "prose": "JSON PROSE TEXT",
        "no_lists lists": "LIST",
    }.items()
    for label in labels.split()
}
#: One step of a stored weight, which is a signed byte.
WEIGHT_STEP = 1 / 16
#: So much of a text is read, in characters.
MAX_READ = 2000
#: A longer text is read sentence by sentence, in words.
WHOLE_WORDS = 25
#: More languages in one text than these are a text about languages.
MAX_LANGUAGES = 3
#: Stands for the language that is asked about, and for any other one, in a text whose language names are masked.
THIS_LANGUAGE, OTHER_LANGUAGE = "\ue000", "\ue001"

_FOLDED = str.maketrans({"ß": "ss", "ı": "i", "ł": "l", "ø": "o", "’": "'", "‘": "'", "`": "'", "đ": "d"})
#: Characters of a regular expression's set.
EMOJI = "\U0001f000-\U0001faff\u2600-\u27bf\u2b50\u2b55"
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
# Vowel signs of Devanagari and Thai are no letters for `\w`.
_TOKEN = re.compile(
    rf"[{THIS_LANGUAGE}{OTHER_LANGUAGE}]|[{EMOJI}]|\*+|[?？؟]|[{_CJK}]+|(?:(?![{_CJK}{THIS_LANGUAGE}{OTHER_LANGUAGE}])[\w\u0900-\u0963\u0e31-\u0e4e])+"
)
_HANGUL = re.compile("[\uac00-\ud7a3]")
_SENTENCE = re.compile(r"(?<=[.!?。！？…])\s*|\n+")


def fold(text: str) -> str:
    """Return the text in lower case, without Latin accents, with contractions joined: "Don’t" -> "dont"."""
    lowered = unicodedata.normalize("NFD", text[:MAX_READ].lower().translate(_FOLDED))
    plain = unicodedata.normalize("NFC", re.sub("[\u0300-\u036f\u064b-\u0652\u200d\ufe0f]", "", lowered))
    return re.sub(r"n't\b", "nt", plain).replace("'", " ")


@dataclass(frozen=True, slots=True)
class _Words:
    """Which name a word has: by the whole word, or else by its longest known beginning."""

    whole: Mapping[str, str]
    beginnings: Mapping[str, str]
    longest: int

    @classmethod
    def of(cls, table: Mapping[str, str]) -> _Words:
        whole: dict[str, str] = {}
        beginnings: dict[str, str] = {}
        for name, words in table.items():
            for word in fold_table(words):
                if word.endswith("*"):
                    beginnings.setdefault(word[:-1], name)
                else:
                    whole.setdefault(word, name)
        return cls(whole, beginnings, max(map(len, beginnings)))

    def find(self, word: str) -> tuple[str, int] | None:
        """Return (name, length of what matched) or None."""
        if word in self.whole:
            return self.whole[word], len(word)
        for length in range(min(len(word), self.longest), 1, -1):
            if word[:length] in self.beginnings:
                return self.beginnings[word[:length]], length
        return None


def fold_table(words: str) -> list[str]:
    return [folded for word in words.split() for folded in fold(word).split()]


@cache
def _concepts() -> _Words:
    return _Words.of(_TABLES["words"])


@cache
def _language_names() -> _Words:
    return _Words.of(_TABLES["languages"])


@cache
def _script_table(languages: bool) -> tuple[re.Pattern[str], Mapping[str, str]]:
    table = _TABLES["language_scripts" if languages else "scripts"]
    names = {word: name for name, words in table.items() for word in words.lower().split()}
    return re.compile("|".join(sorted(map(re.escape, names), key=lambda w: (-len(w), w)))), names


def mask_languages(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the folded text with each language name as a private-use letter, and the codes of these languages.

    The letter of the language with index i is ``chr(0xE002 + i)``.
    """
    codes: list[str] = []

    def letter(code: str) -> str:
        if code not in codes:
            codes.append(code)
        return f" {chr(0xE002 + codes.index(code))} "

    pattern, names = _script_table(True)
    text = pattern.sub(lambda m: letter(names[m.group()]), fold(text))

    def word(match: re.Match[str]) -> str:
        found = _language_names().find(match.group())
        if found is None:
            return match.group()
        rest = match.group()[found[1] :] if _HANGUL.match(match.group()) else ""
        return letter(found[0]) + rest

    return _TOKEN.sub(word, text), tuple(codes)


def tokens_of(masked: str) -> list[tuple[str, str]]:
    """Return (token, concept or "") of each token of a folded text whose languages are masked."""
    found: list[tuple[str, str]] = []
    pattern, names = _script_table(False)
    for match in _TOKEN.finditer(masked):
        token = match.group()
        if token == THIS_LANGUAGE:
            found.append(("", "THIS"))
        elif token == OTHER_LANGUAGE:
            found.append(("", "OTHER"))
        elif re.match(f"[{EMOJI}]", token):
            if not found or found[-1][1] != "FACE":
                found.append(("", "FACE"))
        elif token[0] == "*":
            found.append(("**", "MARKUP"))
        elif token in "?？؟":
            found.append(("?", ""))
        elif re.match(f"[{_CJK}]", token):
            place = 0
            for part in pattern.finditer(token):
                found.extend((c, "") for c in token[place : part.start()])
                found.append((part.group(), names[part.group()]))
                place = part.end()
            found.extend((c, "") for c in token[place:])
        else:
            concept = _concepts().find(token)
            found.append((token, concept[0] if concept else ""))
    return found


def features_of(masked: str) -> list[int]:
    """Return the distinct features of a folded, masked text as 32-bit hashes, ascending."""
    tokens = tokens_of(masked)
    mixed = [concept or token for token, concept in tokens]
    concepts = [concept for _, concept in tokens if concept]
    names = {f"n{min(len(tokens), 12) // 3}"}
    names.update(f"w{token}" for token, _ in tokens)
    names.update(f"c{concept}" for concept in concepts)
    for sequence, mark in ((["^", *mixed, "$"], "m"), (["^", *concepts, "$"], "k")):
        for size in (2, 3):
            names.update(mark + " ".join(sequence[i : i + size]) for i in range(len(sequence) - size + 1))
    for i, left in enumerate(concepts):
        names.update(f"s{left} {right}" for right in concepts[i + 2 : i + 5])
    for token, _ in tokens:
        if token.isalpha() and len(token) > 3:
            framed = f"<{token}>"
            names.update("g" + framed[i : i + 4] for i in range(len(framed) - 3))
    return sorted({zlib.crc32(name.encode()) for name in names})


@dataclass(frozen=True, slots=True)
class WishWeights:
    """keys [F] ascending hashes, values [F, outputs] signed bytes, bias [outputs] signed 16-bit; steps of `WEIGHT_STEP`."""

    keys: NDArray[np.uint32]
    values: NDArray[np.int8]
    bias: NDArray[np.int16]

    @classmethod
    def from_bytes(cls, data: bytes) -> WishWeights:
        """Raises: ValueError: the data is not what `to_bytes` wrote for these outputs."""
        width = len(OUTPUTS)
        rows, rest = divmod(len(data) - 2 * width, 4 + width)
        if rows < 0 or rest:
            raise ValueError("the weights of the wish classifier do not belong to this program")
        keys = np.frombuffer(data, "<u4", rows)
        values = np.frombuffer(data, "i1", rows * width, 4 * rows).reshape(rows, width)
        return cls(keys, values, np.frombuffer(data, "<i2", width, (4 + width) * rows))

    def to_bytes(self) -> bytes:
        return (
            self.keys.astype("<u4").tobytes()
            + self.values.astype("i1").tobytes()
            + self.bias.astype("<i2").tobytes()
        )

    def probabilities(self, features: Sequence[int]) -> NDArray[np.float64]:
        """Return [outputs]."""
        hashes = np.asarray(features, np.uint32)
        places = np.minimum(np.searchsorted(self.keys, hashes), len(self.keys) - 1)
        known = places[self.keys[places] == hashes]
        total = self.values[known].sum(axis=0, dtype=np.int64) + self.bias
        result: NDArray[np.float64] = 1 / (1 + np.exp(-total * WEIGHT_STEP))
        return result


@cache
def _weights() -> WishWeights:
    return WishWeights.from_bytes((_DATA / "wish_weights.bin").read_bytes())


#: Styles that a reply shows by its form.
_SHOWN = {
    "emoji": re.compile(f"[{EMOJI}]"),
    "markdown": re.compile(r"\*\*|^#+ |^[^\S\n]*[-*] ", re.MULTILINE),
    "lists": re.compile(r"^[^\S\n]*(?:[-*]|\d+[.)]) ", re.MULTILINE),
    "json": re.compile(r"\A\s*[{[].*[\]}]\s*\Z", re.DOTALL),
}


def label_wishes(text: str, *, about: str = "") -> tuple[str, ...]:
    """Return the labels of `store.wishes` that a complaint, hint or message states; () when it states none.

    A label and one that withdraws it are never both returned: a text that seems to state both states neither.

    Args:
        about: the reply that a complaint is about. It does not ask for what that has already: "Boxes appear where you put emoji", said of a
            reply with emoji, must not withdraw the wish for none.
    """
    labels = _read(text[:MAX_READ])
    return tuple(label for label in labels if label not in _SHOWN or not _SHOWN[label].search(about))


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[str, ...]:
    weights = _weights()
    # Letters of private use mask language names; a text that brings its own states nothing by them.
    text = re.sub("[\ue000-\uf8ff]", " ", text)
    parts = [text]
    if len(_TOKEN.findall(text)) > WHOLE_WORDS:
        parts = [part for part in _SENTENCE.split(text) if part.strip()]
    found = {label for part in parts for label in _read_part(part, weights)}
    order = (*STYLE_LABELS, *sorted(found - set(STYLE_LABELS)))
    return tuple(label for label in order if label in found and not found & set(OPPOSITES[label]))


def _read_part(text: str, weights: WishWeights) -> set[str]:
    masked, codes = mask_languages(text)
    if len(codes) > MAX_LANGUAGES:
        return set()
    found: set[str] = set()
    unwanted: set[str] = set()
    for index in range(max(1, len(codes))):
        pointed = point_at(masked, index)
        p = weights.probabilities(features_of(pointed))
        if index == 0:
            topics = {concept for _, concept in tokens_of(pointed)}
            found |= {
                label
                for label, value in zip(STYLE_LABELS, p, strict=False)
                if value >= (THRESHOLD if topics & _TOPICS[label] else THRESHOLD_WITHOUT_CONCEPT)
            }
        if codes and p[-2] >= THRESHOLD:
            found.add(language_label(codes[index]))
        elif codes and p[-1] >= UNWANTED_THRESHOLD:
            unwanted.add(codes[index])
    if unwanted and "en" not in unwanted and not any(label in _LANGUAGE_LABELS for label in found):
        found.add("english")  # what replies are in where no other language was asked for
    return found


_LANGUAGE_LABELS = frozenset(map(language_label, _TABLES["languages"]))


def point_at(masked: str, index: int) -> str:
    """Return a masked text in which the language with this index is the one that is asked about."""
    return re.sub(
        "[\ue002-\ue0ff]",
        lambda m: THIS_LANGUAGE if ord(m.group()) == 0xE002 + index else OTHER_LANGUAGE,
        masked,
    )
