"""Reading style wishes: unseen wordings in 17 languages, withdrawals, negatives, and the training that made the weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lab.models.labelled_rows import read_rows
from lab.models.reader.labelled import REACTIONS
from lab.models.styles import HELDOUT_THANKS, NEUTRAL, STYLES, THANKS
from lab.models.wish_training import FOLDER, labelled, main, read_phrases, train
from scorers.wish_labels import (
    MAX_READ,
    OUTPUTS,
    WishWeights,
    features_of,
    fold,
    label_wishes,
    mask_languages,
    point_at,
    tokens_of,
)
from store.wishes import CANONICAL, OPPOSITES

#: Written before the classifier was made. The training templates can make 91 of the 373 by chance; on the other 282 precision is .985, recall .862.
UNSEEN = read_rows(Path(__file__).parent / "wishes.jsonl")
#: Free and indirect wordings by another author than the labelled messages of the training (one threshold was chosen with them in sight).
FREE = read_rows(Path(__file__).parent / "wishes-nov26.jsonl")
#: 360 messages in plain words of many people, by an author who saw none of the training: .968 of the labels right, .92 found.
PLAIN = read_rows(Path(__file__).parent / "wishes-nov27.jsonl")
#: Wishes that are taken back, and texts that only look like it. The templates were chosen on the half "first"; "last" was read once,
#: afterwards: precision 1.00, recall .97 (before: .93 and .71).
WITHDRAWALS = read_rows(Path(__file__).parent / "withdrawals.jsonl")
UTTERANCES = read_rows(REACTIONS / "utterances.jsonl")
STYLE_NAMES = {"concise": "shorter", "verbose": "longer", "plain": "plain_text"}


def precision_and_recall(cases: list[tuple[str, set[str]]]) -> tuple[float, float]:
    count: Counter[str] = Counter()
    for text, wanted in cases:
        found = set(label_wishes(text))
        count["right"] += len(found & wanted)
        count["found"] += len(found)
        count["wanted"] += len(wanted)
    return count["right"] / count["found"], count["right"] / count["wanted"]


def test_unseen_wordings_are_labelled_with_high_precision() -> None:
    precision, recall = precision_and_recall([(case["text"], set(case["wishes"])) for case in UNSEEN])
    assert precision >= 0.97
    assert recall >= 0.85


def test_free_wordings_are_labelled_with_high_precision() -> None:
    precision, recall = precision_and_recall([(case["text"], set(case["wishes"])) for case in FREE])
    assert precision >= 0.94
    assert recall >= 0.8
    trained_on = {row["text"].casefold() for row in read_rows(FOLDER / "wish_rows.jsonl")}
    assert not {case["text"].casefold() for case in (*FREE, *PLAIN, *UNSEEN, *WITHDRAWALS)} & trained_on


def test_plain_wordings_are_labelled_and_tasks_that_name_a_style_are_not() -> None:
    precision, recall = precision_and_recall([(case["text"], set(case["wishes"])) for case in PLAIN])
    assert precision >= 0.96
    assert recall >= 0.91
    assert sum(bool(label_wishes(case["text"])) for case in PLAIN if not case["wishes"]) <= 6  # of 120


@pytest.mark.parametrize("half", ["first", "last"])
def test_withdrawals_in_many_languages_are_labelled_with_what_holds_instead(half: str) -> None:
    cases = [(case["text"], set(case["wishes"])) for case in WITHDRAWALS if case["half"] == half]
    precision, recall = precision_and_recall(cases)
    assert precision >= 0.97
    assert recall >= 0.9


def test_what_states_no_wish_is_hardly_ever_labelled() -> None:
    texts = [case["text"] for case in UNSEEN if not case["wishes"]]
    texts += [case["text"] for case in UTTERANCES if case["verdict"] != -1]
    texts += [*THANKS, *HELDOUT_THANKS, *NEUTRAL]
    assert sum(bool(label_wishes(text)) for text in texts) <= 0.01 * len(texts)


@pytest.mark.parametrize("name", sorted(STYLES))
def test_the_complaints_that_the_test_model_knows_get_their_label(name: str) -> None:
    label = STYLE_NAMES.get(name, name)
    complaints = [*STYLES[name].complaints, *STYLES[name].heldout_complaints]
    precision, recall = precision_and_recall([(text, {label}) for text in complaints])
    assert precision >= 0.99
    assert recall >= 0.8


def test_a_canonical_wording_states_its_own_label() -> None:
    assert {label: label_wishes(text) for label, text in CANONICAL.items()} == {
        label: (label,) for label in CANONICAL
    }


@pytest.mark.parametrize(
    ("wish", "withdrawal"),
    [
        ("No emojis.", "You can use emojis again."),
        ("Keep it short.", "You don't have to keep it short any more."),
        ("Be more formal.", "You don't have to be so formal."),
        ("Answer in Spanish.", "Stop answering in Spanish."),
        ("JSON only.", "No more JSON, please."),
        ("bitte keine Emojis", "du darfst wieder Emojis benutzen"),
    ],
)
def test_a_withdrawal_is_labelled_as_the_opposite(wish: str, withdrawal: str) -> None:
    (stated,) = label_wishes(wish)
    (withdrawn,) = label_wishes(withdrawal)
    assert withdrawn in OPPOSITES[stated]


def test_several_wishes_of_one_message_are_all_labelled() -> None:
    assert label_wishes("Shorter, and without emojis, please.") == ("shorter", "no_emoji")


def test_a_long_message_is_read_sentence_by_sentence() -> None:
    story = "We met at the station and then walked along the river until it was dark. " * 4
    assert label_wishes(f"{story} Please keep your answers shorter.") == ("shorter",)


def test_no_text_gets_a_label_and_its_opposite() -> None:
    for case in (*UNSEEN, *UTTERANCES):
        labels = label_wishes(case["text"])
        assert not any(set(labels) & set(OPPOSITES[label]) for label in labels)


@pytest.mark.parametrize(
    "text", ["", " ", "???", "🙂", "\ue000", "\x00", "a" * (2 * MAX_READ), "no " * MAX_READ]
)
def test_odd_texts_are_read_without_a_label(text: str) -> None:
    assert label_wishes(text) == ()


def test_a_language_is_masked_by_whatever_name_it_has() -> None:
    masked, codes = mask_languages("Not Spanish, auf Deutsch, nicht auf Spanisch: 日本語で")
    assert set(codes) == {"es", "de", "ja"}
    assert "span" not in masked


def test_the_same_concept_stands_beside_words_of_different_languages() -> None:
    def concepts(text: str) -> list[str]:
        return [concept for _, concept in tokens_of(fold(text)) if concept]

    assert concepts("no emojis") == concepts("keine Emojis") == concepts("sin emojis") == ["NEG", "EMOJI"]
    assert concepts("絵文字なし") == ["EMOJI", "NEG"]


def test_no_unseen_text_stands_as_it_is_among_the_training_templates() -> None:
    phrases = {
        fold(pattern)
        for line in read_phrases((FOLDER / "wish_phrases.txt").read_text(encoding="utf-8"))
        for pattern in line.patterns
    }
    assert not phrases & {fold(case["text"]) for case in UNSEEN}


def test_training_gives_the_same_bytes_twice_and_learns_the_phrases(tmp_path: Path) -> None:
    phrases = tmp_path / "phrases.txt"
    phrases.write_text(
        "# a comment\nen shorter: {shorter/briefer} {/please} | too long\nen no_emoji: no {emojis/smileys}\n"
        "en none: {thanks/hello there/what is this}\n",
        encoding="utf-8",
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"text": "make it snappy", "labels": ["shorter"]}\n{"text": "en español", "labels": ["spanish"]}\n',
        encoding="utf-8",
    )
    reactions = tmp_path / "reactions"
    reactions.mkdir()
    (reactions / "some.jsonl").write_text('{"text": "well done", "verdict": 1}\n', encoding="utf-8")
    outs = [tmp_path / "a", tmp_path / "b"]
    given = ["--phrases", str(phrases), "--rows", str(rows), "--reactions", str(reactions)]
    for out in outs:
        assert main([*given, "--out", str(out)]) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    weights = WishWeights.from_bytes(outs[0].read_bytes())
    shorter = weights.probabilities(features_of(fold("shorter please")))
    assert shorter[OUTPUTS.index("shorter")] > 0.9
    assert shorter[OUTPUTS.index("no_emoji")] < 0.1
    snappy = weights.probabilities(features_of(fold("make it snappy")))
    assert snappy[OUTPUTS.index("shorter")] > 0.9
    spanish = weights.probabilities(features_of(point_at(mask_languages("en español")[0], 0)))
    assert spanish[OUTPUTS.index("want_language")] > 0.9
    thanks = weights.probabilities(features_of(fold("well done")))
    assert max(thanks) < 0.1


def test_a_line_of_phrases_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1"):
        read_phrases("en shorter too long")
    with pytest.raises(ValueError, match="no label"):
        read_phrases("en louder: speak up")
    with pytest.raises(ValueError, match="no label"):
        labelled([{"text": "speak up", "labels": ["louder"]}])


def test_weights_of_another_program_are_refused() -> None:
    weights = train(read_phrases("en shorter: too long\nen none: thanks"), epochs=1)
    with pytest.raises(ValueError, match="do not belong"):
        WishWeights.from_bytes(weights.to_bytes() + b"\0")


@pytest.mark.parametrize(
    ("text", "reply", "labels"),
    [
        ("Boxes appear where you put emoji", "It's Paris! 🎉", ()),
        ("You may use emojis again", "It's Paris! 🎉", ()),
        ("You may use emojis again", "It is Paris.", ("emoji",)),
        ("no emojis please", "It's Paris! 🎉", ("no_emoji",)),
        ("Please use markdown.", "It's **Paris**.", ()),
        ("Please use markdown.", "It's Paris.", ("markdown",)),
        ("Please use bullet points.", "Buy:\n- milk\n- eggs", ()),
        ("JSON, please.", '{"answer": "Paris"}', ()),
        ("JSON, please.", "It's Paris [France].", ("json",)),
    ],
)
def test_what_the_reply_has_already_is_not_asked_for(text: str, reply: str, labels: tuple[str, ...]) -> None:
    assert label_wishes(text, about=reply) == labels
