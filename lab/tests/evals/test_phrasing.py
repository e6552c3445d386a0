"""The grammar of free wordings shares nothing with what the scorer, the test model and the trainer were written from."""

from __future__ import annotations

import json
import random
from itertools import chain, pairwise

import pytest

from lab.evals.phrasing import add_typos, every_wording, has_wordings, phrase_thanks, phrase_wishes
from lab.evals.preferences import PREFERENCES
from lab.models.styles import HELDOUT_THANKS, NEUTRAL, STYLES, THANKS
from lab.models.styles import PREFERENCES as SIX
from scorers.reactions import fold
from store.settings import REPOSITORY

#: A wording shares no run of so many words with a source file that words are read or taught from.
RUN = 5
CANARIES = ("trainer/canaries.json", "tests/fixtures/patina-tiny/canaries.json")
FOLDERS = ("scorers", "models", "trainer")


def templates() -> set[str]:
    found: set[str] = {*THANKS, *HELDOUT_THANKS, *NEUTRAL}
    for style in STYLES.values():
        found |= {
            *style.instructions,
            *style.heldout_instructions,
            *style.complaints,
            *style.heldout_complaints,
            *chain(*style.free),
        }
    for preference in PREFERENCES.values():
        found |= {*preference.complaints, *preference.undo, *preference.withdrawals, preference.wish}
    for name in CANARIES:
        canaries = json.loads((REPOSITORY / name).read_text(encoding="utf-8"))
        found |= {anchor["prompt"] for anchor in canaries["anchors"]}
        found |= {text for texts in canaries["instructions"].values() for text in texts}
    return {fold(text) for text in found} - {""}


def runs(text: str, length: int) -> set[str]:
    words = fold(text).split()
    return {" ".join(words[at : at + length]) for at in range(len(words) - length + 1)}


def test_no_wording_equals_or_contains_a_template_of_the_recipe_or_the_anchors() -> None:
    known = templates()
    assert len(known) > 2_000
    rendered = {fold(text) for text in every_wording()}
    assert len(rendered) > 150
    assert not rendered & known
    several = [template for template in known if " " in template]
    assert not [
        (text, template) for text in rendered for template in several if f" {template} " in f" {text} "
    ]


def test_no_wording_shares_a_run_of_words_with_the_sources_that_read_or_teach_wishes() -> None:
    known: set[str] = set()
    for folder in FOLDERS:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in (".py", ".json", ".jsonl", ".toml") and path.name not in (
                "tokenizer.json",
                "pretrain.json",
            ):
                known |= runs(path.read_text(encoding="utf-8"), RUN)
    assert "names of languages and formats" in known
    assert not [text for text in every_wording() if runs(text, RUN) & known]


@pytest.mark.parametrize("name", SIX)
def test_each_of_the_six_wishes_has_many_wordings_in_five_languages(name: str) -> None:
    rng = random.Random(0)
    found = {phrase_wishes([name], rng) for _ in range(300)}
    assert len(found) > 100
    assert has_wordings(name)
    assert not has_wordings("persona")


def test_several_wishes_are_worded_in_one_message_of_one_language() -> None:
    rng = random.Random(2)
    wordings = every_wording()
    for _ in range(200):
        text = phrase_wishes(["concise", "no_emoji"], rng)
        assert text.strip()
        phrases = [one for one in wordings if one.rstrip(".!?") in text]
        assert len(phrases) <= 3


def test_typing_errors_change_one_or_two_longer_words_and_nothing_else() -> None:
    rng = random.Random(0)
    text = "Short words and considerably longer words"
    changed = [add_typos(text, rng) for _ in range(50)]
    assert all(len(one.split()) == len(text.split()) for one in changed)
    for one in changed:
        pairs = [(a, b) for a, b in zip(text.split(), one.split(), strict=True) if a != b]
        assert len(pairs) <= 2
        assert all(len(before) >= 5 for before, _ in pairs)
    assert len(set(changed)) > 10
    assert add_typos("no ok", rng) == "no ok"


def test_the_same_seed_gives_the_same_words() -> None:
    phrases = [[phrase_wishes(["json"], random.Random(7)), phrase_thanks(random.Random(7))] for _ in range(2)]
    assert all(one == other for one, other in pairwise(phrases))
