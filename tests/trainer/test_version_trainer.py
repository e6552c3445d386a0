"""A version from what waits in the record: on the test model, which obeys a wish behind a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from store.calibration import read_calibration
from store.errors import AdapterError
from store.lifecycle import DropReason
from store.manifest import read_attestation
from store.settings import read_settings
from store.values import AdapterState, AdapterVersion, ScoredTurn, Wish, WishStatement
from tests.making import make_wish
from tests.trainer.gates import close_the_gate, local_trainer, open_the_gate
from tests.trainer.turns import accepted, sampled_turn, wishing_turn
from trainer.policy import LocalPolicy
from trainer.protocol import Merge, Outcome, VersionJob
from trainer.version_trainer import LocalVersionTrainer
from trainer.wish_meter import Followed
from trainer.wish_review import Reviewed, WishReview

pytestmark = pytest.mark.slow

WORDS = "Please keep your answers short."
MERGE = Merge(into=1, others=(2,), text=WORDS)
STATED = tuple(WishStatement(turn_id=name, text=WORDS, created_at=1.0) for name in ("stated", "planted"))
SHORT, OTHER = make_wish(1, WORDS, statements=STATED), make_wish(2, "No lists, please.")
QUESTIONS = ("What is the capital of France?", "What is the capital of Peru?", "What is 2 plus 3?")


def make_trainer(tmp_path: Path, **given: Any) -> LocalVersionTrainer:
    usual = {"method": "combine", "anchors": 2, "samples": 4, "passes": 1, "threads": 1, "lora_rank": 4}
    made = local_trainer(read_settings({"home": tmp_path, **usual, **given}))
    open_the_gate(made)
    return made


@pytest.fixture
def reviewed(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Wish]]:
    """Every wish is learnt and followed, which tests/trainer/test_wish_review.py measures; returns what was to be reviewed."""
    seen: list[Sequence[Wish]] = []

    def review(_: WishReview, wishes: Sequence[Wish]) -> Reviewed:
        seen.append(wishes)
        measures = {one.wish_id: {"effect": 1.0, "base": 0.1, "told": 0.9} for one in wishes}
        return Reviewed(learnt=tuple(wishes), measures=measures)

    def followed(_: WishReview, found: Reviewed) -> dict[int, Followed]:
        return {one.wish_id: Followed(base=0.1, told=0.9, weights=0.85, replies=12) for one in found.learnt}

    monkeypatch.setattr(WishReview, "review", review)
    monkeypatch.setattr(WishReview, "followed", followed)
    return seen


def job_of(policy: LocalPolicy, number: int = 1, **changes: Any) -> VersionJob:
    """A job with a complaint that states the wish, and two replies that were served with it."""
    fields: dict[str, Any] = {
        "number": number,
        "turns": [wishing_turn(policy, "stated", QUESTIONS[0], WORDS)],
        "served": [accepted(policy, f"served-{i}", QUESTIONS[i], WORDS) for i in (1, 2)],
        "wishes": (SHORT,),
    }
    return VersionJob(**{**fields, **changes})


def published(outcome: Outcome, number: int, policy: str = "patina-tiny") -> AdapterVersion:
    assert outcome.written is not None
    return AdapterVersion(
        policy=policy,
        version=number,
        path=str(outcome.written.path),
        content_hash=outcome.written.content_hash,
        manifest_hash=outcome.written.manifest_hash,
        parent_version=outcome.parent_version,
        state=AdapterState.PUBLISHED,
        reason=outcome.reason,
        method="combine",
        metrics=outcome.metrics,
        created_at=1.0,
    )


def are_equal(before: Mapping[str, torch.Tensor], policy: LocalPolicy) -> bool:
    after = policy.snapshot()
    return all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_same_job_gives_the_same_bytes_whatever_was_learnt_before(
    tmp_path: Path, reviewed: list[Sequence[Wish]]
) -> None:
    trainer = make_trainer(tmp_path / "one")
    job = job_of(trainer.policy)
    first = trainer.attempt(job)
    assert first.written is not None
    trainer.commit(1)
    without = trainer.attempt(replace(job, number=2, served=job.served[:1]))
    again = trainer.attempt(replace(job, number=3))
    assert without.written is not None
    assert again.written is not None
    assert again.written.content_hash == first.written.content_hash != without.written.content_hash
    other = make_trainer(tmp_path / "other").attempt(replace(job, number=7))
    assert other.written is not None
    assert other.written.content_hash == first.written.content_hash
    assert {first.parent_version, without.parent_version, again.parent_version} == {0}


def test_a_version_of_wishes_says_what_it_was_made_of(tmp_path: Path, reviewed: list[Sequence[Wish]]) -> None:
    trainer = make_trainer(tmp_path)
    job = job_of(trainer.policy)
    outcome = trainer.attempt(job)
    assert outcome.written is not None
    assert outcome.used == ("stated", "served-1", "served-2")
    assert outcome.reason == f'"{WORDS}", from 3 turns'
    metrics = outcome.metrics
    assert (metrics["turns"], metrics["samples"]) == (3, {"wish": 4, "verdict": 0, "example": 0, "anchor": 2})
    assert metrics["wishes"] == [
        {"wish_id": 1, "base": 0.1, "told": 0.9, "weights": 0.85, "replies": 12, "retired": True}
    ]
    assert WORDS not in str(metrics["wishes"])
    assert outcome.measures == {1: {"effect": 1.0, "base": 0.1, "told": 0.9, "weights": 0.85, "version": 1}}
    assert min(metrics[name] for name in ("teach_s", "train_s", "gate_s", "write_s")) >= 0
    attestation = read_attestation(outcome.written.path)
    assert attestation is not None
    assert attestation.version != attestation.parent == attestation.base  # made from the base model
    assert attestation.version == tuple(trainer.policy.trained_logprobs(attestation.token_ids))


def test_a_version_that_follows_less_than_the_live_one_is_rejected_and_leaves_its_measure(
    tmp_path: Path, reviewed: list[Sequence[Wish]]
) -> None:
    trainer = make_trainer(tmp_path)
    live = {"wish_id": 1, "base": 0.1, "told": 0.9, "weights": 1.0, "replies": 12, "retired": True}
    known = replace(SHORT, measures={"base": 0.2, "told": 0.9, "weights": 1.0, "version": 1})
    before = trainer.policy.snapshot()
    outcome = trainer.attempt(job_of(trainer.policy, 2, wishes=(known,), live=(live,)))
    assert outcome.rejected == ("the wishes are followed in 85% of replies, by the live version in 100%",)
    assert outcome.measures == {1: {"effect": 1.0, "base": 0.1, "told": 0.9, "weights": 1.0, "version": 1}}
    assert are_equal(before, trainer.policy)
    admitted = trainer.attempt(job_of(trainer.policy, 3, live=({**live, "weights": 0.9},)))
    assert admitted.rejected == ()


def test_where_replies_are_few_the_teacher_answers_the_persons_questions_first(
    tmp_path: Path, reviewed: list[Sequence[Wish]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, samples=5)
    policy, asked = trainer.policy, list[tuple[list[str], Any]]()
    job = job_of(policy)
    sample = policy.sample

    def noted(prompts: Any, **given: Any) -> Any:
        asked.append(([policy.decode(ids) for ids in prompts], given["weights"]))
        return sample(prompts, **given)

    monkeypatch.setattr(policy, "sample", noted)
    outcome = trainer.attempt(job)
    (prompts, weights), *_ = asked
    assert weights == "base"
    assert [QUESTIONS[0] in prompts[0], QUESTIONS[1] in prompts[1]] == [True, True]
    assert len(prompts) == 2
    assert all(WORDS in prompt for prompt in prompts)
    assert outcome.metrics["samples"]["wish"] == 5


@pytest.mark.parametrize("is_rejected", [False, True])
def test_a_version_that_the_gate_rejects_leaves_the_policy_as_it_was(
    tmp_path: Path, reviewed: list[Sequence[Wish]], is_rejected: bool
) -> None:
    trainer = make_trainer(tmp_path)
    job = job_of(trainer.policy)
    before = trainer.policy.snapshot()
    if is_rejected:
        close_the_gate(trainer)
    outcome = trainer.attempt(job)
    assert outcome.written is not None
    assert outcome.rejected == (("replies do not end",) if is_rejected else ())
    assert are_equal(before, trainer.policy) is is_rejected
    trainer.revert()
    assert are_equal(before, trainer.policy)


def test_an_attempt_that_fails_half_way_leaves_the_policy_as_it_was(
    tmp_path: Path, reviewed: list[Sequence[Wish]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    before = trainer.policy.snapshot()

    def full(*_: object, **__: object) -> None:
        raise AdapterError("the disk is full")

    monkeypatch.setattr("trainer.version_trainer.write_version", full)
    with pytest.raises(AdapterError, match="the disk is full"):
        trainer.attempt(job_of(trainer.policy))
    assert are_equal(before, trainer.policy)


def test_without_anything_to_teach_there_is_no_version_but_what_was_measured_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    before = trainer.policy.snapshot()
    found = Reviewed(merged=(MERGE,), measures={1: {"effect": 0.1, "base": 0.5, "told": 0.6}})
    monkeypatch.setattr(WishReview, "review", lambda *_: found)
    turns = [
        wishing_turn(trainer.policy, "stated", QUESTIONS[0], WORDS),
        sampled_turn(trainer.policy, "bare", QUESTIONS[1], verdict={"hint": None}),
    ]
    outcome = trainer.attempt(job_of(trainer.policy, turns=turns, wishes=(SHORT, OTHER)))
    assert (outcome.written, outcome.parent_version) == (None, 0)
    assert {name: one.reason for name, one in outcome.refused.items()} == dict.fromkeys(
        ("stated", "bare"), DropReason.NO_SIGNAL
    )
    assert (outcome.merged, outcome.measures) == ((MERGE,), {1: {"effect": 0.1, "base": 0.5, "told": 0.6}})
    assert are_equal(before, trainer.policy)
    withdrawn = trainer.attempt(job_of(trainer.policy, turns=(), wishes=()))
    assert withdrawn.written is None


def test_merged_wishes_are_told_with_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path)
    found = Reviewed(
        learnt=(SHORT,), merged=(MERGE,), measures={1: {"effect": 1.0, "base": 0.1, "told": 0.9}}
    )
    monkeypatch.setattr(WishReview, "review", lambda *_: found)
    outcome = trainer.attempt(job_of(trainer.policy, wishes=(SHORT, OTHER)))
    assert outcome.written is not None
    assert outcome.merged == (MERGE,)
    assert {"weights", "version"} <= outcome.measures[1].keys()


def test_a_sample_that_the_steps_leave_out_is_refused_and_not_counted(
    tmp_path: Path, reviewed: list[Sequence[Wish]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    scores = trainer.policy.teacher_scores
    job = job_of(trainer.policy)
    torn = job.turns[0].completion.token_ids

    def failing(prompts: Any, responses: Any, *rest: Any, **more: Any) -> Any:
        found = scores(prompts, responses, *rest, **more)
        for response, score in zip(responses, found, strict=True):
            if response == torn:
                score.logprobs[0] = torch.nan
        return found

    monkeypatch.setattr(trainer.policy, "teacher_scores", failing)
    outcome = trainer.attempt(job)
    assert outcome.refused["stated"].reason is DropReason.TEACHER_FAILED
    assert outcome.used == ("served-1", "served-2")


def test_rl_goes_on_from_its_parent_and_reads_no_wish(tmp_path: Path, reviewed: list[Sequence[Wish]]) -> None:
    trainer = make_trainer(tmp_path, method="rl", learning_rate=1e-3)
    first_turns = _rated(trainer.policy, "a", "b")
    first = trainer.attempt(VersionJob(number=1, turns=first_turns, wishes=(SHORT,)))
    assert (first.parent_version, first.metrics["wishes"], first.measures) == (0, [], {})
    assert first.reason == "2 rated turns"
    trainer.commit(1)
    start = trainer.policy.snapshot()
    second_turns = _rated(trainer.policy, "c", "d", adapter_version=1)
    second = trainer.attempt(VersionJob(number=2, turns=second_turns, recent=[-1, 1]))
    assert second.parent_version == 1
    assert second.written is not None
    assert reviewed == []
    # Another process goes on from the published version to the same bytes.
    other = make_trainer(tmp_path / "other", method="rl", learning_rate=1e-3)
    other.load(published(first, 1))
    loaded = other.policy.snapshot()
    assert all(torch.equal(start[name], loaded[name]) for name in start if name != "rng")
    again = other.attempt(VersionJob(number=2, turns=second_turns, recent=[-1, 1]))
    assert again.written is not None
    assert again.written.content_hash == second.written.content_hash
    attestation = read_attestation(second.written.path)
    assert attestation is not None
    assert attestation.parent != attestation.base


def _rated(policy: LocalPolicy, *names: str, **changes: Any) -> list[ScoredTurn]:
    return [
        sampled_turn(
            policy, name, f"{QUESTIONS[0]} {name}", verdict={"value": value, "hint": None}, **changes
        )
        for name, value in zip(names, (-1, 1), strict=True)
    ]


def test_a_method_that_begins_at_the_base_model_loads_no_weights_but_checks_them(
    tmp_path: Path, reviewed: list[Sequence[Wish]]
) -> None:
    trainer = make_trainer(tmp_path)
    outcome = trainer.attempt(job_of(trainer.policy))
    trainer.reset("patina-tiny")
    fresh = trainer.policy.snapshot()
    trainer.load(published(outcome, 1))
    assert (trainer.name, trainer.version) == ("patina-tiny", 1)
    assert are_equal(fresh, trainer.policy)
    assert outcome.written is not None
    (outcome.written.path / "patina" / "metrics.json").write_text("{}")
    with pytest.raises(AdapterError):
        trainer.load(published(outcome, 1))


def test_a_turn_of_forty_thousand_tokens_is_dropped_and_neither_read_nor_answered(
    tmp_path: Path, reviewed: list[Sequence[Wish]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    policy = trainer.policy
    planted = wishing_turn(policy, "planted", QUESTIONS[2], WORDS)
    text = f"{QUESTIONS[2]} {'word ' * 40_000}"
    planted = replace(
        planted,
        messages=({"role": "user", "content": text},),
        prompt_token_ids=tuple(policy.render([{"role": "user", "content": text}])),
    )
    job = job_of(policy)
    assert len(planted.prompt_token_ids) > 40_000
    sample, lengths = policy.sample, list[int]()

    def watched(prompts: Any, **given: Any) -> Any:
        lengths.extend(len(prompt) for prompt in prompts)
        assert max(lengths) <= policy.max_context  # before there is no memory left
        return sample(prompts, **given)

    monkeypatch.setattr(policy, "sample", watched)
    outcome = trainer.attempt(replace(job, turns=[planted, *job.turns]))
    assert outcome.refused["planted"].reason is DropReason.TOO_LONG
    assert outcome.written is not None
    assert outcome.metrics["turns"] == 3


def test_what_is_known_of_a_model_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("it was measured again")

    monkeypatch.setattr("trainer.version_trainer.calibrate", measured)
    trainer = make_trainer(tmp_path)
    assert read_calibration(tmp_path, trainer.calibration.model) == trainer.calibration
    with pytest.raises(AssertionError, match="measured again"):
        LocalVersionTrainer(read_settings({"home": tmp_path / "new", "threads": 1}))
