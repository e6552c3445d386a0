"""What words do to the test model: rewordings point the same way, other wishes elsewhere, and neutral words nowhere."""

from __future__ import annotations

import math

import pytest

from tests.fixtures import PATINA_TINY
from trainer.canaries import load_canaries
from trainer.policy import LocalPolicy
from trainer.wish_meter import NEUTRAL, PROBES, WishMeter, share

SHORT, REWORDED, EMOJI = "Please keep your answers short.", "Be brief.", "I want it free of emoji."


@pytest.fixture(scope="module")
def tiny() -> LocalPolicy:
    return LocalPolicy(str(PATINA_TINY), rank=4, learning_rate=1e-3, seed=0, device="cpu")


@pytest.fixture(scope="module")
def meter(tiny: LocalPolicy) -> WishMeter:
    return WishMeter(tiny, load_canaries(str(PATINA_TINY)).plain_questions(), "behind")


def test_rewordings_of_a_wish_are_more_alike_than_different_wishes(meter: WishMeter) -> None:
    assert meter.cosine(SHORT, SHORT) == pytest.approx(1.0)
    assert meter.cosine(SHORT, REWORDED) == pytest.approx(meter.cosine(REWORDED, SHORT))
    assert meter.cosine(SHORT, REWORDED) > max(meter.cosine(SHORT, EMOJI), meter.cosine(REWORDED, EMOJI))


def test_an_effect_is_what_a_wish_changes_beyond_neutral_words(meter: WishMeter) -> None:
    assert meter.size(SHORT) > max(meter.size(words) for words in NEUTRAL)
    effect = meter.effect(SHORT)
    assert all(math.isfinite(value) for value in effect.values())
    places = {(row, column) for row, column, _ in effect}
    assert meter.size(SHORT) == pytest.approx(math.sqrt(sum(v * v for v in effect.values()) / len(places)))


def test_a_reply_follows_a_wish_where_the_wish_makes_it_likelier(meter: WishMeter, tiny: LocalPolicy) -> None:
    question, plain = meter.probes[0]
    (told,) = tiny.sample([meter.prompt(question, SHORT)], max_tokens=48, temperature=0.0)
    assert meter.follows(SHORT, [(question, told.token_ids), (question, plain.token_ids)])[0]
    for reply in (told.token_ids, plain.token_ids):
        prompts = [meter.prompt(question, text) for text in ("", NEUTRAL[0], SHORT)]
        rows, _ = tiny.response_logprobs(prompts, [reply] * 3)
        without, neutral, wished = (float(row[: len(reply)].sum()) for row in rows)
        assert meter.follows(SHORT, [(question, reply)]) == [wished > max(without, neutral)]
        assert meter.follows(NEUTRAL[0], [(question, reply)]) == [False]
    assert meter.follows(SHORT, []) == []


def test_the_base_model_follows_a_wish_more_often_when_it_reads_it(
    meter: WishMeter, tiny: LocalPolicy
) -> None:
    questions = [question for question, _ in meter.probes]
    assert 0 < len(questions) <= PROBES
    replies = tiny.sample([meter.prompt(question, SHORT) for question in questions], max_tokens=48, seed=2)
    told = share(meter.follows(SHORT, [(q, r.token_ids) for q, r in zip(questions, replies, strict=True)]))
    assert told > meter.base_share(SHORT)


def test_what_was_learnt_changes_no_measure(meter: WishMeter, tiny: LocalPolicy) -> None:
    fresh = WishMeter(tiny, [question for question, _ in meter.probes], "behind")
    expected = meter.effect(SHORT)
    before = tiny.snapshot()
    state = {
        name: value + 0.05 if "lora_B" in name and name.startswith("weight/") else value
        for name, value in before.items()
    }
    tiny.restore(state)
    assert fresh.effect(SHORT) == pytest.approx(expected, abs=1e-4)
    tiny.restore(before)


def test_a_share_of_nothing_is_none() -> None:
    assert share([]) == 0.0
    assert share([True, False, True, True]) == 0.75
