"""Which wishes the test model learns: rewordings are one, weather is none, and what it does not follow when asked stays in the prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from store.calibration import Calibration
from store.values import Json
from store.wish_states import LEAST_GAIN, in_prompt
from tests.fixtures import PATINA_TINY
from tests.making import make_wish
from trainer.calibrate import _cosines
from trainer.canaries import load_canaries
from trainer.policy import LocalPolicy
from trainer.protocol import Merge
from trainer.wish_meter import NEUTRAL, Followed, WishMeter
from trainer.wish_review import IN_WEIGHTS, Reviewed, WishReview, falls_behind, wish_rows

SHORT = make_wish(1, "Please keep your answers short.")
REWORDED = make_wish(2, "Keep your answers short, please.")
EMOJI = make_wish(3, "I want it free of emoji.")
WEATHER = make_wish(4, NEUTRAL[0])


@pytest.fixture(scope="module")
def review() -> WishReview:
    policy = LocalPolicy(str(PATINA_TINY), rank=4, learning_rate=1e-3, seed=0, device="cpu")
    canaries = load_canaries(str(PATINA_TINY))
    meter = WishMeter(policy, canaries.plain_questions(), "behind")
    same, different = _cosines(meter, canaries)
    calibration = Calibration(
        same_wish=(sum(same) / len(same) + sum(different) / len(different)) / 2,
        neutral=max(meter.size(words) for words in NEUTRAL),
    )
    return WishReview(policy, meter, calibration)


@pytest.fixture(scope="module")
def found(review: WishReview) -> Reviewed:
    return review.review([SHORT, REWORDED, EMOJI, WEATHER])


def test_a_rewording_is_merged_into_the_oldest_and_another_wish_stays_apart(found: Reviewed) -> None:
    (merge,) = found.merged
    assert (merge.into, merge.others) == (1, (2,))
    assert merge.text in (SHORT.text, REWORDED.text)
    assert found.measures is not None
    assert set(found.measures) == {1, 3, 4}


def test_weather_is_no_wish_and_its_measure_says_so(found: Reviewed) -> None:
    assert found.measures is not None
    assert WEATHER not in found.learnt
    measure = found.measures[WEATHER.wish_id]
    assert measure["told"] - measure["base"] < LEAST_GAIN


def test_a_wish_is_learnt_where_the_model_follows_it_when_asked(found: Reviewed) -> None:
    assert found.measures is not None
    learnt = {wish.wish_id for wish in found.learnt}
    assert SHORT.wish_id in learnt
    for wish in (SHORT, EMOJI):
        measure = found.measures[wish.wish_id]
        assert (wish.wish_id in learnt) is (measure["told"] - measure["base"] >= LEAST_GAIN)
    assert found.texts == tuple(wish.text for wish in found.learnt)


def test_the_teacher_reads_the_wishes_in_the_order_of_a_prompt() -> None:
    again = replace(SHORT, changed_at=5_000.0)
    assert (
        Reviewed(learnt=(again, EMOJI)).texts
        == tuple(wish.text for wish in in_prompt([again, EMOJI]))
        == (EMOJI.text, SHORT.text)
    )


def test_a_wish_that_the_model_does_not_follow_when_asked_is_not_learnt_and_says_so(
    review: WishReview, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(review, "_told", lambda wishes: [])  # no reply of the teacher follows it
    deaf = review.review([SHORT])
    assert deaf.learnt == ()
    assert deaf.measures is not None
    assert deaf.measures[1]["told"] == 0.0
    assert wish_rows(review.followed(deaf)) == []


#: Change of the probability of two tokens by each wording: what all of them share is the first token.
EFFECTS = {
    "Still too long for me.": {(0, 0, 0): 0.1},
    "Short, please.": {(0, 0, 0): 0.5, (0, 0, 1): 0.1},
    "Say only: it is Paris, in short.": {(0, 0, 0): 0.4, (0, 0, 1): 2.0},
}


@pytest.fixture
def merging(review: WishReview, monkeypatch: pytest.MonkeyPatch) -> WishReview:
    """A review for which all wishes are one."""
    monkeypatch.setattr(review._meter, "cosine", lambda one, other: 1.0)
    monkeypatch.setattr(review._meter, "size", lambda text: 9.0)
    monkeypatch.setattr(review._meter, "effect", EFFECTS.__getitem__)
    monkeypatch.setattr(review, "_told", lambda wishes: [])
    monkeypatch.setattr(review._meter, "base_share", lambda text: 0.0)
    return review


def test_a10_of_several_wordings_the_clearest_is_kept_and_not_one_that_gives_the_answer_away(
    merging: WishReview,
) -> None:
    """The longest hint was taken: the one that gives most of the answer away."""
    wordings = [make_wish(number, text) for number, text in enumerate(EFFECTS, start=1)]
    assert merging.review(wordings).merged == (Merge(into=1, others=(2, 3), text="Short, please."),)


def test_the_words_of_the_owner_stay_whatever_is_clearer(merging: WishReview) -> None:
    first, second, third = (make_wish(number, text) for number, text in enumerate(EFFECTS, start=1))
    found = merging.review([first, second, replace(third, edited=True)])
    assert found.merged == (Merge(into=1, others=(2, 3), text=third.text),)


def test_what_was_in_a_prompt_in_any_wording_is_known() -> None:
    assert Reviewed(learnt=(SHORT,), reworded=(REWORDED,)).wordings >= {SHORT.text, REWORDED.text}


def test_a_policy_that_learnt_nothing_follows_a_wish_about_as_often_as_the_base_model(
    review: WishReview, found: Reviewed
) -> None:
    followed = review.followed(found)
    assert set(followed) == {wish.wish_id for wish in found.learnt}
    for one in followed.values():
        assert one.weights is not None
        assert one.weights < IN_WEIGHTS * one.told
        assert one.replies > 0
    assert not any(row["retired"] for row in wish_rows(followed))


def test_the_way_of_replies_is_0_at_the_base_models_1_at_the_teachers_and_between_for_some_of_each(
    review: WishReview, found: Reviewed
) -> None:
    wish, *_ = found.learnt
    plain = [(question, reply.token_ids) for question, reply in review._meter.probes]
    told = list(found.told)
    assert review._way(wish, plain, told) == 0.0
    assert review._way(wish, told, told) == pytest.approx(1.0)
    ratios = [review._meter.log_ratio(wish.text, some) for some in (plain, [*plain, *told], told)]
    assert review._way(wish, [*plain, *told], told) == pytest.approx(
        (ratios[1] - ratios[0]) / (ratios[2] - ratios[0])
    )
    assert 0.2 < review._way(wish, [*plain, *told], told) < 0.8
    assert review._way(wish, told, plain) == 0.0  # asking brings nothing
    assert review._meter.log_ratio(wish.text, []) == 0.0


@pytest.mark.parametrize(("weights", "retired"), [(0.73, True), (0.7, False)])
def test_a_version_has_a_wish_in_its_weights_at_nine_tenths_of_what_asking_gives(
    weights: float, retired: bool
) -> None:
    row = {"wish_id": 1, "base": 0.1, "told": 0.8, "weights": weights, "replies": 12, "retired": retired}
    followed = {1: Followed(base=0.1, told=0.8, weights=weights, replies=12)}
    assert wish_rows(followed) == [row]


def test_a_version_that_follows_the_live_ones_wishes_less_says_so() -> None:
    def rows(**weights: float) -> list[Json]:
        return [
            {"wish_id": int(name[1:]), "weights": share, "replies": 10} for name, share in weights.items()
        ]

    assert falls_behind(rows(w1=0.2, w2=0.5), rows(w1=0.5, w2=0.5)) == (
        "the wishes are followed in 35% of replies, by the live version in 50%",
    )
    for now, before in (
        (rows(w1=0.45), rows(w1=0.5)),  # half a reply
        (rows(w1=0.9), rows(w1=0.5)),
        (rows(w1=0.2), rows(w1=0.5, w2=0.5)),  # other wishes
        (rows(w3=0.2), rows(w1=0.5)),
        (rows(w1=0.2), []),
        ([], rows(w1=0.5)),
    ):
        assert falls_behind(now, before) == ()
