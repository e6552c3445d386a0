"""What each turn teaches, by method, and the reason where it teaches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from store.lifecycle import DropReason
from store.values import Completion, LogprobMode, ScoredTurn, WishReading, WishScope
from tests.trainer.conftest import step_once
from tests.trainer.plans import bare_plan
from tests.trainer.turns import accepted, sampled_turn, stated_in, wishing_turn
from trainer.batch import SampleKind
from trainer.plan import StepPlan
from trainer.policy import LocalPolicy
from trainer.samples import ActiveWishes, PreparedBatch, is_repetitive, prepare, weighed
from wire.wish_text import prompt_text

COMBINE = bare_plan()
WORDS = "Shorter, please."
WISHES = ActiveWishes(texts=(WORDS,))
METHODS = {
    "rl": bare_plan(method="rl", reads_wishes=False, w_rl=1.0),
    "opd": bare_plan(method="opd", begins_at_base=True, reads_verdicts=False),
    "combine": bare_plan(begins_at_base=True, only_explicit=True),
    "sdpo": bare_plan(method="sdpo", begins_at_base=True, reads_verdicts=False),
}


def ready(
    policy: LocalPolicy,
    *turns: ScoredTurn,
    plan: StepPlan = COMBINE,
    version: int = 0,
    wishes: ActiveWishes = WISHES,
    served: Sequence[ScoredTurn] = (),
    recent: Sequence[int] = (),
) -> PreparedBatch:
    wishes = stated_in(wishes, turns) if plan.reads_wishes and wishes.text else ActiveWishes()
    return prepare(policy, plan, turns, served, wishes, recent_verdicts=recent, version=version)


def thanks(policy: LocalPolicy, turn_id: str = "t", **verdict: Any) -> ScoredTurn:
    return sampled_turn(policy, turn_id, f"Hi {turn_id}", verdict={"value": 1, "hint": None, **verdict})


def blamed(policy: LocalPolicy, turn_id: str = "t", **verdict: Any) -> ScoredTurn:
    return sampled_turn(policy, turn_id, f"Hi {turn_id}", verdict={"value": -1, "hint": None, **verdict})


# -- wishes


def test_a_complaint_with_a_wish_becomes_a_sample_with_a_teacher_who_reads_it(policy: LocalPolicy) -> None:
    turn = wishing_turn(policy, "t", "What is the capital of France?", WORDS)
    (sample,) = ready(policy, turn, plan=METHODS["combine"]).samples
    assert sample.kind is SampleKind.WISH
    assert sample.completion_ids == turn.completion.token_ids
    assert sample.prompt_ids == turn.prompt_token_ids
    assert sample.sampling_logprobs is None  # it was not sampled to be stale against
    assert sample.teacher_prompt_ids is not None
    assert policy.tokenizer.decode(sample.teacher_prompt_ids) == policy.tokenizer.decode(
        sample.prompt_ids
    ).replace("France?", f"France?\n\n{prompt_text(WORDS)}")
    assert sample.streams is not None
    assert sample.streams.directive_weight == 1.0
    assert set(sample.streams.advantages) == {0.0}


def test_the_students_own_answer_is_never_in_the_teachers_context(policy: LocalPolicy) -> None:
    turn = wishing_turn(policy, "t", "Hello?", WORDS)
    (sample,) = ready(policy, turn, plan=METHODS["sdpo"]).samples
    reply, ids = list(turn.completion.token_ids[:4]), list(sample.teacher_prompt_ids or ())
    assert ids
    assert all(ids[i : i + 4] != reply for i in range(len(ids)))


@pytest.mark.parametrize("method", ["opd", "combine", "sdpo"])
def test_an_accepted_reply_is_learnt_behind_the_prompt_without_the_wishes(
    policy: LocalPolicy, method: str
) -> None:
    turn = accepted(policy, "t", "Hi there", WORDS)
    both = ActiveWishes(texts=(WORDS, "No lists."))
    (sample,) = ready(policy, turn, plan=METHODS[method], wishes=both).samples
    assert sample.prompt_ids == tuple(policy.render(turn.messages)) != turn.prompt_token_ids
    assert sample.completion_ids == turn.completion.token_ids
    assert f"Hi there\n\n{prompt_text(WORDS)}\n- No lists." in policy.tokenizer.decode(
        sample.teacher_prompt_ids or ()
    )
    assert sample.streams is not None
    assert sample.streams.directive_alpha == (1.0 if method == "opd" else COMBINE.objective.alpha)


def test_the_weight_of_the_teacher_is_that_of_the_plan(policy: LocalPolicy) -> None:
    plan = replace(METHODS["combine"], w_opd=0.4)
    (sample,) = ready(policy, wishing_turn(policy, "t", "Hi", WORDS), plan=plan).samples
    assert sample.streams is not None
    assert sample.streams.directive_weight == 0.4


def test_a_reply_that_was_served_with_a_wish_that_is_withdrawn_is_not_learnt(policy: LocalPolicy) -> None:
    turn = accepted(policy, "t", "Hi", f"{WORDS}\nNo lists.")
    prepared = ready(policy, turn, plan=METHODS["opd"])
    assert (prepared.samples, prepared.refused["t"].reason) == ((), DropReason.NO_SIGNAL)
    assert ready(policy, plan=METHODS["opd"], served=[turn]).samples == ()


@pytest.mark.parametrize("scope", [WishScope.ANSWER, WishScope.ONCE, WishScope.WITHDRAWAL])
def test_a_wish_that_does_not_last_teaches_nothing(policy: LocalPolicy, scope: WishScope) -> None:
    wish = WishReading(text=WORDS, scope=scope)
    turn = sampled_turn(policy, "t", "Hi", verdict={"value": -1, "wish": wish})
    assert ready(policy, turn, plan=METHODS["opd"]).refused["t"].reason is DropReason.NO_SIGNAL


def test_without_active_wishes_a_statement_teaches_nothing(policy: LocalPolicy) -> None:
    turn = wishing_turn(policy, "t", "Hi", WORDS)
    prepared = ready(policy, turn, plan=METHODS["opd"], wishes=ActiveWishes(), served=[turn])
    assert (prepared.samples, prepared.refused["t"].reason) == ((), DropReason.NO_SIGNAL)


def test_past_replies_fill_what_the_batch_leaves_of_the_samples(policy: LocalPolicy) -> None:
    turn = wishing_turn(policy, "t", "Hi", WORDS)
    past = [accepted(policy, f"past-{i}", "Hello", WORDS) for i in range(3)]
    torn = replace(past[0], turn_id="torn", prompt_token_ids=(5, 6))
    plan = replace(METHODS["sdpo"], samples=3)
    prepared = ready(policy, turn, plan=plan, served=[turn, torn, *past])
    assert [sample.turn_id for sample in prepared.samples] == ["t", "past-0", "past-1"]
    assert prepared.refused == {}  # what happens to turns of the past was decided before


# -- verdicts


def test_rl_judges_every_token_by_the_verdict_behind_the_recorded_prompt(policy: LocalPolicy) -> None:
    turn = accepted(policy, "t", "Hi", WORDS)
    (sample,) = ready(policy, turn, plan=METHODS["rl"]).samples
    assert sample.kind is SampleKind.VERDICT
    assert (sample.prompt_ids, sample.completion_ids) == (turn.prompt_token_ids, turn.completion.token_ids)
    assert sample.sampling_logprobs == turn.completion.sampling_logprobs
    assert sample.teacher_prompt_ids is None
    assert sample.streams is not None
    assert sample.streams.advantages == (1.0,) * len(sample.completion_ids)


@pytest.mark.parametrize("method", ["opd", "sdpo"])
def test_a_method_without_verdicts_learns_nothing_from_a_rated_reply_and_says_so(
    policy: LocalPolicy, method: str
) -> None:
    for turn in (thanks(policy), blamed(policy), thanks(policy, source="feedback")):
        prepared = ready(policy, turn, plan=METHODS[method])
        assert (prepared.samples, prepared.refused["t"].reason) == ((), DropReason.NO_SIGNAL)


def test_combine_learns_from_thumbs_rewards_and_failed_tools_and_leaves_words_to_their_wish(
    policy: LocalPolicy,
) -> None:
    def advantages(source: str) -> set[float]:
        samples = ready(policy, blamed(policy, source=source), plan=METHODS["combine"]).samples
        return {value for sample in samples if sample.streams for value in sample.streams.advantages}

    assert advantages("rule:complaint") == advantages("rule:retry") == advantages("judge") == set()
    for source in ("custom:rewards.py:reward", "rule:tool_error", "feedback"):
        assert advantages(source) == {-0.3}


def test_a_rated_reply_with_a_wish_teaches_by_both(policy: LocalPolicy) -> None:
    turn = wishing_turn(policy, "t", "Hi", WORDS)
    turn = replace(turn, verdict=replace(turn.verdict, source="feedback"))
    samples = ready(policy, turn, plan=METHODS["combine"]).samples
    assert [sample.kind for sample in samples] == [SampleKind.WISH, SampleKind.VERDICT]
    assert {sample.turn_id for sample in samples} == {"t"}


def test_praise_needs_no_teacher(policy: LocalPolicy) -> None:
    (sample,) = ready(policy, thanks(policy)).samples
    assert sample.streams is not None
    assert sample.streams.directive_weight == 0.0
    assert set(sample.streams.advantages) == {0.3}


def test_a_verdict_with_a_share_moves_the_tokens_by_that_share(policy: LocalPolicy) -> None:
    (sample,) = ready(policy, thanks(policy, share=0.5)).samples
    assert sample.streams is not None
    assert set(sample.streams.advantages) == {0.15}


@pytest.mark.parametrize("body", [{"response_format": {"type": "json_schema"}}, {"tool_choice": "required"}])
def test_a_turn_under_a_schema_is_not_judged_by_forced_tokens(
    policy: LocalPolicy, body: dict[str, Any]
) -> None:
    praised = sampled_turn(policy, "t", "Hi", request=body, verdict={"value": 1, "hint": None})
    prepared = ready(policy, praised)
    assert (prepared.samples, prepared.refused["t"].reason) == ((), DropReason.CONSTRAINED)
    told = replace(wishing_turn(policy, "t", "Hi", WORDS), request=body)
    (sample,) = ready(policy, told).samples  # the teacher's term asks nothing about how a token was drawn
    assert sample.kind is SampleKind.WISH


def test_the_baseline_comes_from_earlier_verdicts_and_none_is_the_seeds_form(policy: LocalPolicy) -> None:
    turns = thanks(policy, "t"), blamed(policy, "b")  # thanks alone would be no news
    for baseline, expected in (("running", 1 - 12 / 16), ("none", 1.0)):
        plan = replace(METHODS["rl"], baseline=baseline)  # type: ignore[arg-type]  # loop over literals
        sample, _ = ready(policy, *turns, plan=plan, recent=[1] * 12).samples
        assert sample.streams is not None
        assert sample.streams.advantages[0] == pytest.approx(expected)


def test_a_batch_of_thanks_as_always_teaches_nothing_and_says_so(policy: LocalPolicy) -> None:
    pleased = [thanks(policy, name) for name in "ab"]
    plain = replace(COMBINE, baseline="none")
    content = ready(policy, *pleased, recent=[1] * 32)
    assert not content.samples
    assert {refusal.reason for refusal in content.refused.values()} == {DropReason.NO_SIGNAL}
    assert all("thanks" in refusal.detail for refusal in content.refused.values())
    assert set(content.refused) == {"a", "b"}
    # Beside news they hold what is right; some complaints of late make thanks news, and so they are without a baseline.
    assert len(ready(policy, *pleased, blamed(policy, "d"), recent=[1] * 32).samples) == 3
    assert len(ready(policy, *pleased, wishing_turn(policy, "c", "Hi", WORDS), recent=[1] * 32).samples) == 4
    assert len(ready(policy, *pleased, recent=[1] * 24 + [-1] * 8).samples) == 2
    assert len(ready(policy, *pleased, plan=plain, recent=[1] * 32).samples) == 2


def test_thanks_as_always_take_no_reply_that_was_served_with_a_wish_away(policy: LocalPolicy) -> None:
    kept, past = accepted(policy, "kept", "Hi", WORDS), accepted(policy, "past", "Hello", WORDS)
    prepared = ready(policy, kept, plan=METHODS["opd"], served=[past], recent=[1] * 32)
    assert [sample.turn_id for sample in prepared.samples] == ["kept", "past"]
    assert prepared.refused == {}
    rated = ready(policy, thanks(policy), served=[past], recent=[1] * 32)
    assert [sample.turn_id for sample in rated.samples] == ["past"]
    assert set(rated.refused) == {"t"}


# -- what is refused


def test_a06_a_teacher_whose_prompt_cannot_be_proven_drops_the_turn(policy: LocalPolicy) -> None:
    turn = wishing_turn(policy, "t", "Hi", WORDS)
    other = replace(turn, prompt_token_ids=(*turn.prompt_token_ids[:-1], 7))
    refusal = ready(policy, other, plan=METHODS["opd"]).refused["t"]
    assert refusal.reason is DropReason.TOKEN_MISMATCH
    assert "template mismatch" in refusal.detail


def test_version_skew_beyond_the_limit_is_dropped_where_the_policy_goes_on(policy: LocalPolicy) -> None:
    turn = blamed(policy, source="feedback")
    assert ready(policy, turn, plan=METHODS["rl"], version=8).samples
    assert ready(policy, turn, plan=METHODS["rl"], version=9).refused["t"].reason is DropReason.STALE
    assert ready(policy, turn, plan=METHODS["combine"], version=9).samples


def test_replies_of_another_policy_are_dropped_as_stale(policy: LocalPolicy) -> None:
    turn = blamed(policy)
    values = tuple(x - 2.0 for x in turn.completion.sampling_logprobs)
    foreign = replace(turn, completion=replace(turn.completion, sampling_logprobs=values))
    refusal = ready(policy, foreign).refused["t"]
    assert refusal.reason is DropReason.STALE
    assert "probability ratio" in refusal.detail
    step_once(policy)
    wish = replace(wishing_turn(policy, "t", "Hi", WORDS), completion=foreign.completion)
    assert ready(policy, wish, plan=METHODS["sdpo"]).samples  # the teacher compares distributions


def test_a07_sampling_temperature_alone_makes_no_turn_stale(policy: LocalPolicy) -> None:
    turn = sampled_turn(policy, "t", "Hi", temperature=0.3, verdict={"hint": None})
    (sample,) = ready(policy, turn).samples
    assert sample.loss_temperature == 0.3


def test_an_engine_that_hides_its_logprob_mode_is_refused_where_it_matters(policy: LocalPolicy) -> None:
    turn = replace(sampled_turn(policy, "t", "Hi", temperature=0.5), logprob_mode=LogprobMode.UNKNOWN)
    assert ready(policy, turn).refused["t"].reason is DropReason.TOKEN_MISMATCH
    wish = replace(wishing_turn(policy, "t", "Hi", WORDS), logprob_mode=LogprobMode.UNKNOWN, temperature=0.5)
    assert ready(policy, wish, plan=METHODS["opd"]).samples  # a wish reads no log-probability of the engine


@pytest.mark.parametrize(
    "completion",
    [
        Completion(token_ids=(5, 6), sampling_logprobs=(-0.5,)),
        Completion(token_ids=(), sampling_logprobs=()),
        Completion(token_ids=(5, 10_000_000), sampling_logprobs=(-0.5, -0.5)),
    ],
)
def test_a03_streams_that_do_not_fit_are_dropped_not_padded(
    policy: LocalPolicy, completion: Completion
) -> None:
    turn = replace(blamed(policy), completion=completion)
    assert ready(policy, turn).refused["t"].reason is DropReason.TOKEN_MISMATCH


def test_a_wish_about_a_reply_without_tokens_or_of_another_vocabulary_is_dropped(policy: LocalPolicy) -> None:
    turn = wishing_turn(policy, "t", "Hi", WORDS)
    for ids, reason in (((), DropReason.NO_TOKENS), ((5, 10_000_000), DropReason.TOKEN_MISMATCH)):
        other = replace(turn, completion=replace(turn.completion, token_ids=ids))
        assert ready(policy, other, plan=METHODS["opd"]).refused["t"].reason is reason


def test_a_turn_longer_than_the_context_is_dropped(policy: LocalPolicy) -> None:
    turn = blamed(policy)
    long = replace(turn, prompt_token_ids=turn.prompt_token_ids * (policy.max_context // 4))
    assert ready(policy, long).refused["t"].reason is DropReason.TOO_LONG
    wish = wishing_turn(policy, "t", "Hi there " * 10, WORDS)
    policy.max_context = 40
    assert ready(policy, wish, plan=METHODS["opd"]).refused["t"].reason is DropReason.TOO_LONG


def test_each_turn_is_either_trained_or_refused(policy: LocalPolicy) -> None:
    turns = [
        wishing_turn(policy, "good", "Hi", WORDS),
        thanks(policy, "thanks"),
        replace(blamed(policy, "old"), adapter_version=-20),
        sampled_turn(policy, "silent", "Yes?", verdict={"value": 0, "hint": None}),
    ]
    prepared = ready(policy, *turns)
    assert {s.turn_id for s in prepared.samples} == {"good", "thanks"}
    assert set(prepared.refused) == {"old", "silent"}


# -- replies of the teacher, and weights


def test_a_reply_that_repeats_itself_is_known_as_such() -> None:
    assert not is_repetitive(range(100))
    assert is_repetitive([*range(20), *[7] * 20])
    assert is_repetitive([1, 2, 3, 4] * 10)
    assert not is_repetitive([7] * 8)  # too short to say


def test_every_token_of_a_version_counts_the_same(policy: LocalPolicy) -> None:
    turns = [blamed(policy, "short"), blamed(policy, "long")]
    short, long = ready(policy, *turns).samples
    short = replace(
        short, completion_ids=short.completion_ids[:3], sampling_logprobs=None, streams=None, weight=2.0
    )
    found = weighed([short, long])
    count = len(long.completion_ids)
    assert [one.weight for one in found] == pytest.approx([2.0 * 6 / (3 + count), 2 * count / (3 + count)])
    assert weighed([]) == []
