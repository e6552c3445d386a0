"""Train the wish classifier: ``python -m lab.models.wish_training`` writes ``scorers/data/wish_weights.bin``, in about a minute of one core.

Texts are made of ``wish_phrases.txt``: phrases in 17 languages, alone and in pairs (two wishes; a wish and a sentence that
states none), some in lower case, without accents or with a typo; and of ``wish_rows.jsonl``: messages labelled by hand, which
say what the phrases leave out, copied `ROW_COPIES` times; and of the reader's labelled reactions: those that have labels, and those that complain
about nothing, which state no wish. Logistic regression by Adagrad in one fixed order, without threads:
the same program gives the same bytes.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.models.labelled_rows import read_rows
from scorers.wish_labels import (
    OTHER_LANGUAGE,
    OUTPUTS,
    THIS_LANGUAGE,
    WEIGHT_STEP,
    WishWeights,
    features_of,
    fold,
    mask_languages,
    point_at,
)
from store.wishes import LANGUAGE_LABELS, STYLE_LABELS, language_label

FOLDER = Path(__file__).resolve().parent
WEIGHTS_FILE = FOLDER.parents[1] / "scorers" / "data" / "wish_weights.bin"
SEED = 17
#: Texts a line of the file gives at most, by whether it states a wish.
PER_LINE = {True: 260, False: 1300}
#: English has most forms, so each of its lines gives so many times as many.
ENGLISH_SHARE = 6
#: Texts a labelled message gives, and one that states no wish.
ROW_COPIES, REACTION_COPIES = 100, 1
MIN_COUNT = 3
MAX_FEATURES = 32_000
EPOCHS = 8
BATCH = 256
RATE = 0.25
DECAY = 2e-6
#: A missed label costs one, a wrong one so much: a wrong label teaches the wrong thing.
WRONG_COST = 2.0

_CHOICE = re.compile(r"\{([^{}]*)\}")
_ASKING = re.compile(
    r"(?:can|could|would|please|kannst|könntest|puedes|podrías|peux|pourrais|puoi|potresti|pode|kun|kan|możesz|можешь)\b",
    re.IGNORECASE,
)
#: The same text, asked about the other language.
_SWAPPED = str.maketrans({THIS_LANGUAGE: OTHER_LANGUAGE, OTHER_LANGUAGE: THIS_LANGUAGE})
_GROUPS = (
    {"shorter", "longer"},
    {"no_emoji", "emoji"},
    {"plain_text", "markdown"},
    {"formal", "casual"},
    {"json", "prose"},
    {"no_lists", "lists"},
    {"want_language", "unwant_language"},
)


#: A text and the labels that it states.
Labelled = tuple[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Phrases:
    """One line of the file."""

    language: str
    labels: frozenset[str]
    patterns: tuple[str, ...]


def read_phrases(text: str) -> list[Phrases]:
    """Parse the phrase file.

    Raises:
        ValueError: a line that is not "language labels: phrases", or a label that is none.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\w\w) ([\w+]+): (.+)", line)
        if match is None:
            raise ValueError(f"line {number} is not 'language labels: phrases'")
        labels = frozenset(match[2].split("+")) - {"none"}
        if labels - set(OUTPUTS):
            raise ValueError(f"line {number}: no label {sorted(labels - set(OUTPUTS))}")
        found.append(Phrases(match[1], labels, tuple(match[3].split(" | "))))
    return found


def labelled(rows: list[dict[str, Any]]) -> list[Labelled]:
    """Return the messages of rows ``{"text", "labels"}``, the labels those of `store.wishes`.

    Raises:
        ValueError: a label that is none.
    """
    found = []
    for row in rows:
        labels = frozenset(row["labels"])
        if unknown := labels - {*STYLE_LABELS, *LANGUAGE_LABELS}:
            raise ValueError(f"no label {sorted(unknown)}: {row['text']}")
        found.append((row["text"], labels))
    return found


def without_wish(reactions: list[dict[str, Any]]) -> list[Labelled]:
    """Return the reactions that are no complaints, each without a label."""
    return [(row["text"], frozenset()) for row in reactions if row["verdict"] != -1]


def row_texts(rows: Sequence[Labelled], copies: int, rng: random.Random) -> Iterator[Labelled]:
    """Yield copies of the rows with typing noise, languages masked: a text that names two languages is asked about each."""
    for text, labels in rows:
        styles = labels & frozenset(STYLE_LABELS)
        for copy in range(copies):
            masked, codes = mask_languages(roughened(text, rng) if copy else text)
            # A text that wants English and names other languages only wants none of these.
            is_turned_away = codes and "english" in labels and "en" not in codes
            unwanted = frozenset({"unwant_language"} if is_turned_away else ())
            for index in range(max(1, len(codes))):
                wanted = {language_label(code) for code in codes[index : index + 1]} & labels
                yield point_at(masked, index), styles | ({"want_language"} if wanted else unwanted)


def written(pattern: str, rng: random.Random) -> str:
    """Return one reading of a pattern."""
    text = _CHOICE.sub(lambda m: rng.choice(m[1].split("/")), pattern)
    text = text.replace("<L>", THIS_LANGUAGE).replace("<O>", OTHER_LANGUAGE).replace("EMO", "🙂")
    return re.sub(r"\s+", " ", text).strip()


def roughened(text: str, rng: random.Random) -> str:
    """Return the text as people type: in lower case, without accents, with a typo; mostly as it is."""
    if _ASKING.match(text) and rng.random() < 0.5:
        text += "?"
    if rng.random() < 0.15:
        text = "".join(c for c in unicodedata.normalize("NFD", text) if not "\u0300" <= c <= "\u036f")
        text = unicodedata.normalize("NFC", text)
    if rng.random() < 0.15:
        places = [i for i in range(1, len(text) - 1) if text[i - 1 : i + 2].isalpha() and text[i].isascii()]
        if places:
            i = rng.choice(places)
            text = rng.choice(
                (
                    text[:i] + text[i + 1 :],
                    text[:i] + text[i] + text[i:],
                    text[:i] + text[i + 1] + text[i] + text[i + 2 :],
                )
            )
    return text


def texts(lines: list[Phrases], rng: random.Random) -> Iterator[Labelled]:
    """Yield (text, labels), languages masked; a text may come twice."""
    alone: dict[str, list[Labelled]] = {}
    for line in lines:
        count = PER_LINE[bool(line.labels)] * (ENGLISH_SHARE if line.language == "en" else 1)
        made = [(written(rng.choice(line.patterns), rng), line.labels) for _ in range(count)]
        alone.setdefault(line.language, []).extend(made)
    for made in alone.values():
        for text, labels in made:
            yield roughened(text, rng), labels
            if "want_language" in labels and OTHER_LANGUAGE in text:
                yield text.translate(_SWAPPED), labels - {"want_language"}
        wishes = [pair for pair in made if pair[1]]
        others = [pair for pair in made if not pair[1] and THIS_LANGUAGE not in pair[0]]
        for text, labels in wishes:
            if rng.random() < 0.25:
                first, second = rng.sample(((text, labels), rng.choice(others)), 2)
                yield roughened(f"{first[0]}{rng.choice(('. ', ', ', '! ', '; '))}{second[0]}", rng), labels
            if rng.random() < 0.35:
                other, more = rng.choice(wishes)
                if not any(labels & group and more & group for group in _GROUPS):
                    middle = rng.choice((". ", ", ", " ", "! ", ", and "))
                    yield roughened(f"{text}{middle}{other}", rng), labels | more


def train(
    lines: list[Phrases],
    rows: Sequence[Labelled] = (),
    reactions: Sequence[Labelled] = (),
    *,
    seed: int = SEED,
    epochs: int = EPOCHS,
) -> WishWeights:
    """Return the weights learnt from these phrases, labelled messages, and reactions without a label."""
    rng = random.Random(seed)
    examples = [
        *texts(lines, rng),
        *row_texts(rows, ROW_COPIES, rng),
        *row_texts(reactions, REACTION_COPIES, rng),
    ]
    rng.shuffle(examples)
    features = [features_of(fold(text)) for text, _ in examples]
    counts = Counter(key for row in features for key in row)
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_FEATURES]
    keys = np.array(sorted(key for key, count in common if count >= MIN_COUNT), np.uint32)
    place = {int(key): index for index, key in enumerate(keys)}
    known = [np.array([place[key] for key in row if key in place], np.int64) for row in features]
    targets = np.array([[name in labels for name in OUTPUTS] for _, labels in examples], np.float64)
    values = np.zeros((len(keys), len(OUTPUTS)))
    bias = np.full(len(OUTPUTS), -3.0)
    seen = np.full_like(values, 1e-8)
    seen_bias = np.full_like(bias, 1e-8)
    order = np.random.default_rng(seed)
    for epoch in range(epochs):
        rate = RATE * (1 - epoch / epochs)
        shuffled = order.permutation(len(known))
        for start in range(0, len(known), BATCH):
            chosen = [int(i) for i in shuffled[start : start + BATCH]]
            slope = _slope([known[i] for i in chosen], targets[chosen], values, bias)
            flat = np.concatenate([known[i] for i in chosen])
            lengths = [len(known[i]) for i in chosen]
            used, inverse = np.unique(flat, return_inverse=True)
            spread = np.repeat(slope, lengths, axis=0)
            gradient = np.stack(
                [np.bincount(inverse, spread[:, k], len(used)) for k in range(len(OUTPUTS))], axis=1
            )
            gradient = gradient / len(chosen) + DECAY * values[used]
            seen[used] += gradient**2
            values[used] -= rate * gradient / np.sqrt(seen[used])
            step = slope.mean(axis=0)
            seen_bias += step**2
            bias -= rate * step / np.sqrt(seen_bias)
    return WishWeights(
        keys,
        np.clip(np.rint(values / WEIGHT_STEP), -127, 127).astype(np.int8),
        np.rint(bias / WEIGHT_STEP).astype(np.int16),
    )


def _slope(
    rows: list[NDArray[np.int64]],
    targets: NDArray[np.float64],
    values: NDArray[np.float64],
    bias: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the loss's derivative [batch, outputs] with respect to the logits."""
    logits = np.stack([values[row].sum(axis=0) for row in rows]) + bias
    error = 1 / (1 + np.exp(-logits)) - targets
    slope: NDArray[np.float64] = np.where(targets > 0, error, WRONG_COST * error)
    return slope


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.models.wish_training", description=__doc__)
    parser.add_argument("--phrases", type=Path, default=FOLDER / "wish_phrases.txt")
    parser.add_argument("--rows", type=Path, default=FOLDER / "wish_rows.jsonl")
    parser.add_argument("--reactions", type=Path, default=FOLDER / "reader/reactions")
    parser.add_argument("--out", type=Path, default=WEIGHTS_FILE)
    options = parser.parse_args(argv)
    # The tests of the labels read the utterances.
    files = sorted(set(options.reactions.glob("*.jsonl")) - {options.reactions / "utterances.jsonl"})
    reactions = [row for path in files for row in read_rows(path)]
    weights = train(
        read_phrases(options.phrases.read_text(encoding="utf-8")),
        labelled([*read_rows(options.rows), *(row for row in reactions if "labels" in row)]),
        without_wish(reactions),
    )
    data = weights.to_bytes()
    options.out.write_bytes(data)
    print(f"{len(weights.keys)} features, {len(data)} bytes: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
