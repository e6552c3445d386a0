"""The trainer on a Tinker server: versions, going back, going on after a restart, the gate, and what a server lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from serving.tinker.version import FILE, read_version
from store.calibration import read_calibration
from store.errors import AdapterError, ConfigError, UpstreamUnreachable
from store.lifecycle import DropReason
from store.values import AdapterState, AdapterVersion, LogprobMode, ScoredTurn, Wish, WishStatement
from tests.making import make_wish
from tests.tinker.checkpoints import Checkpoints
from tests.tinker.errors import Refused
from tests.tinker.running import TinkerServer
from tests.trainer.gates import ScriptedGate, quick_calibration
from tests.trainer.tinker.conftest import settings_of
from tests.trainer.turns import sampled_turn, wishing_turn
from trainer.checkpoint import verify_version
from trainer.gate import Gate
from trainer.policy import LocalPolicy
from trainer.protocol import Outcome, VersionJob, Weights
from trainer.tinker.policy import Saved
from trainer.tinker.version_trainer import TinkerVersionTrainer
from trainer.wish_review import Reviewed, WishReview

pytestmark = pytest.mark.slow

Open = Callable[..., TinkerVersionTrainer]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Version trainers with a scripted gate; random weights know no facts and follow no wish, whatever is asked of them."""
    monkeypatch.setattr("trainer.version_trainer.calibrate", quick_calibration)
    monkeypatch.setattr(WishReview, "review", lambda _, wishes: reviewed(*wishes))
    shops = []

    def open_one(server: TinkerServer, *rejected: str, **given: Any) -> TinkerVersionTrainer:
        usual = {"method": "rl", "anchors": 2, "learning_rate": 1e-3, "lora_rank": 4}
        trainer = TinkerVersionTrainer(settings_of(server, tmp_path / "home", **{**usual, **given}))
        trainer._gate = ScriptedGate(*rejected)  # type: ignore[assignment]  # same method
        shops.append(trainer)
        return trainer

    yield open_one
    for trainer in shops:
        trainer.close()


def complaints(trainer: TinkerVersionTrainer, *names: str) -> list[ScoredTurn]:
    return [
        sampled_turn(trainer.policy, name, f"Question {name}?", adapter_version=trainer.version)
        for name in names
    ]


def reviewed(*wishes: Wish) -> Reviewed:
    return Reviewed(learnt=wishes, measures={one.wish_id: {"base": 0.0, "told": 1.0} for one in wishes})


WISH = make_wish(7, "Answer in capital letters.")


def stated_in(turns: list[ScoredTurn]) -> Wish:
    """The wish, stated by these turns."""
    return replace(
        WISH,
        statements=tuple(WishStatement(turn_id=one.turn_id, text=WISH.text, created_at=0.0) for one in turns),
    )


def job_of(number: int, turns: list[ScoredTurn], **more: Any) -> VersionJob:
    return VersionJob(number=number, turns=turns, **more)


def published(outcome: Outcome, number: int) -> AdapterVersion:
    assert outcome.written is not None
    return AdapterVersion(
        policy="patina-tiny",
        version=number,
        path=str(outcome.written.path),
        content_hash=outcome.written.content_hash,
        parent_version=outcome.parent_version,
        state=AdapterState.PUBLISHED,
        reason="",
        method="rl",
        metrics={},
        created_at=0.0,
    )


def weights_of(server: TinkerServer, outcome: Outcome) -> dict[str, torch.Tensor]:
    assert outcome.written is not None
    path = read_version(outcome.written.path).state_path
    folder = server._state.joinpath(*path.removeprefix("tinker://").replace(":", "-").split("/"))
    found: dict[str, torch.Tensor] = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    return found


def test_a_version_is_a_folder_that_says_where_its_weights_are(server: TinkerServer, opened: Open) -> None:
    trainer = opened(server)
    outcome = trainer.attempt(job_of(1, complaints(trainer, "a", "b")))
    assert outcome.written is not None
    folder = outcome.written.path
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "model.sig", "patina", FILE]
    assert verify_version(folder, outcome.written.content_hash) == outcome.written.content_hash
    assert folder.name == f"patina-tiny@1.{outcome.written.content_hash[:12]}"
    version = read_version(folder)
    assert version.base_model == server.name
    assert "/weights/patina-tiny-1-" in version.state_path
    assert outcome.metrics["tinker"]["sampler_path"] == version.sampler_path
    assert outcome.metrics["optimizer_steps"] == 1
    (folder / FILE).write_text((folder / FILE).read_text().replace("sampler_weights", "other"))
    with pytest.raises(AdapterError, match="not what was published"):
        verify_version(folder, outcome.written.content_hash)


def test_a_restarted_trainer_goes_on_with_the_optimizer_where_the_last_one_stopped(
    server: TinkerServer, opened: Open
) -> None:
    """Two steps by one trainer give the same weights as one step each by two."""
    straight = opened(server)
    turns = complaints(straight, "a", "b")
    first = straight.attempt(job_of(1, turns))
    straight.commit(1)
    more = complaints(straight, "c", "d")
    second = straight.attempt(job_of(2, more, recent=[-1, -1]))
    other = opened(server)
    other.load(published(first, 1))
    again = other.attempt(job_of(2, more, recent=[-1, -1]))
    one, two = weights_of(server, second), weights_of(server, again)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-7)
    bare = opened(server)
    fresh = bare.attempt(job_of(1, more, recent=[-1, -1]))
    assert any(not torch.allclose(weights_of(server, fresh)[name], value) for name, value in one.items())


def test_a_rejected_version_leaves_the_policy_at_its_parent(server: TinkerServer, opened: Open) -> None:
    trainer = opened(server)
    turns = complaints(trainer, "a", "b")
    first = trainer.attempt(job_of(1, turns))
    trainer.commit(1)
    parent = trainer.policy.snapshot()
    more = complaints(trainer, "c", "d")
    trainer._gate = ScriptedGate("replies do not end")  # type: ignore[assignment]  # same method
    rejected = trainer.attempt(job_of(2, more))
    assert rejected.rejected == ("replies do not end",)
    assert rejected.written is not None
    assert trainer.policy.snapshot() == parent
    assert trainer.policy.learning_rate == pytest.approx(1e-3)
    trainer.policy.begin("look")
    held = trainer.policy.training()
    path = trainer.policy.link.wait([held.save_state("look")])[0].path
    folder = server._state.joinpath(*path.removeprefix("tinker://").replace(":", "-").split("/"))
    there = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    for name, value in weights_of(server, first).items():
        torch.testing.assert_close(there[name], value)


def test_any_version_can_be_gone_back_to_and_the_base_model_too(server: TinkerServer, opened: Open) -> None:
    trainer = opened(server)
    first = trainer.attempt(job_of(1, complaints(trainer, "a", "b")))
    trainer.commit(1)
    trainer.attempt(job_of(2, complaints(trainer, "c", "d")))
    trainer.commit(2)
    trainer.load(published(first, 1))
    assert trainer.version == 1
    assert first.written is not None
    assert trainer.policy.saved.sampler_path == read_version(first.written.path).sampler_path
    third = trainer.attempt(job_of(3, complaints(trainer, "e", "f")))
    assert third.parent_version == 1
    trainer.reset(trainer.name)
    assert (trainer.version, trainer.policy.saved) == (0, Saved())
    prompts, replies = [[9, 8, 7]], [[20, 21]]
    own, _ = trainer.policy.response_logprobs(prompts, replies)
    base, _ = trainer.policy.response_logprobs(prompts, replies, Weights.BASE)
    assert torch.equal(own, base)


def test_a_version_of_another_model_or_without_a_state_is_refused(
    server: TinkerServer, opened: Open, tmp_path: Path
) -> None:
    trainer = opened(server)
    good = {"sampler_path": "tinker://a/sampler_weights/x", "state_path": "tinker://a/weights/x"}
    for broken, sentence in (
        ({"base_model": "other/model"}, "is of other/model"),
        ({"base_model": server.name, "state_path": ""}, "no state_path"),
    ):
        folder = tmp_path / sentence.replace("/", "-")
        folder.mkdir()
        (folder / FILE).write_text(json.dumps({**good, **broken}))
        with pytest.raises(AdapterError, match=sentence):
            trainer.policy.load_version(folder)


def test_pruned_versions_are_deleted_on_the_server_and_a_refusal_is_only_reported(
    server: TinkerServer, opened: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = opened(server)
    outcome = trainer.attempt(job_of(1, complaints(trainer, "a", "b")))
    assert outcome.written is not None
    checkpoints = Checkpoints(server._state)
    version = read_version(outcome.written.path)
    copy = outcome.written.path.with_name("copy@1.x")
    copy.mkdir()
    (copy / FILE).write_bytes((outcome.written.path / FILE).read_bytes())
    checkpoints.info(version.sampler_path)
    trainer.remove(outcome.written.path)
    assert not outcome.written.path.exists()
    for path in (version.sampler_path, version.state_path):
        with pytest.raises(Refused):
            checkpoints.info(path)
    capfd.readouterr()
    trainer.remove(copy)
    assert not copy.exists()
    assert "was not deleted on the server" in capfd.readouterr().err


def test_log_probabilities_of_another_temperature_are_asked_for_anew(
    poor_server: TinkerServer, opened: Open
) -> None:
    """This server reports them after temperature; no prompt is scored at one."""
    trainer = opened(poor_server)
    turns = [
        sampled_turn(trainer.policy, "warm", "Hi there", temperature=0.7, logprob_mode=LogprobMode.PROCESSED),
        sampled_turn(trainer.policy, "plain", "Hi you"),
    ]
    wrong = tuple(value / 2 for value in turns[0].completion.sampling_logprobs)
    turns[0] = replace(turns[0], completion=replace(turns[0].completion, sampling_logprobs=wrong))
    outcome = trainer.attempt(job_of(1, turns))
    assert outcome.refused == {}
    assert outcome.metrics["staleness_mean"] == pytest.approx(1.0, abs=1e-4)
    gone = replace(turns[0], adapter_version=-1)
    refusal = trainer.attempt(job_of(2, [gone, turns[1]])).refused["warm"]
    assert refusal.reason is DropReason.STALE
    assert "not there any more" in refusal.detail


def test_what_cannot_be_had_is_refused_at_start_in_one_sentence(
    poor_server: TinkerServer, server: TinkerServer, opened: Open
) -> None:
    with pytest.raises(ConfigError, match="--method sdpo compares whole distributions"):
        opened(poor_server, method="sdpo")
    with pytest.raises(ConfigError, match="no model other/model to teach"):
        opened(server, teacher_model_name="other/model")


def test_what_a_person_should_know_is_in_the_notes(
    poor_server: TinkerServer, server: TinkerServer, opened: Open
) -> None:
    assert opened(server, method="sdpo").notes == (
        "the directive term is on the teacher's 32 likeliest tokens",
    )
    (note,) = opened(poor_server, method="combine").notes
    assert "on the sampled tokens only" in note
    divided = opened(poor_server, method="combine", tinker_gradients="means").notes
    assert divided[1] == "the server's losses are means, which is made up for"


def test_a_server_that_is_away_is_reported_before_any_turn_is_claimed(
    tiny_model: Path, tmp_path: Path, opened: Open
) -> None:
    gone = TinkerServer(tiny_model, tmp_path).start()
    trainer = opened(gone)
    trainer.check()
    gone.kill()
    with pytest.raises(UpstreamUnreachable, match="no Tinker server answers at"):
        trainer.check()


# -- the gate


def test_the_gate_measures_through_sampling_clients_what_it_measures_here(
    server: TinkerServer, opened: Open, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.gate.MAX_TOKENS", 6)
    trainer = opened(server)
    here = LocalPolicy(str(tiny_model), rank=4, seed=3, device="cpu", learning_rate=1e-4)
    mine, theirs = (Gate(one, str(tiny_model)) for one in (here, trainer.policy))
    assert theirs.base().counts["facts"] > 0
    assert theirs.base() == mine.base()
    assert theirs.examine() == mine.examine()


def test_weights_that_are_no_numbers_never_pass(
    server: TinkerServer, opened: Open, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.gate.MAX_TOKENS", 4)
    trainer = opened(server)
    parent = trainer.policy.snapshot()
    trainer._gate = Gate(trainer.policy, str(tiny_model))
    trainer.policy.learning_rate = 1e30  # the server makes this step, and has no numbers afterwards
    outcome = trainer.attempt(job_of(1, complaints(trainer, "a", "b")))
    assert outcome.rejected == ("a weight is not a finite number",)
    assert outcome.metrics["optimizer_steps"] == 1
    assert trainer.policy.snapshot() == parent
    trainer.policy.learning_rate = 1e-3
    trainer._gate = ScriptedGate()  # type: ignore[assignment]  # same method
    again = trainer.attempt(job_of(2, complaints(trainer, "c")))
    assert not again.rejected
    assert math.isfinite(again.metrics["loss_after"])


# -- wishes


def wish_job(trainer: TinkerVersionTrainer, number: int, *names: str) -> VersionJob:
    turns = [wishing_turn(trainer.policy, name, f"Question {name}?", WISH.text) for name in names]
    return job_of(number, turns, wishes=(stated_in(turns),))


def test_a_version_learns_wishes_from_the_base_model_whatever_came_before(
    server: TinkerServer, opened: Open
) -> None:
    given = {"method": "combine", "samples": 3, "passes": 1}
    trainer = opened(server, **given)
    job = wish_job(trainer, 1, "a", "b")
    alone = trainer.attempt(job)
    kinds = {"wish": 3, "anchor": 2, "verdict": 0, "example": 0}
    assert alone.metrics["samples"] == kinds  # two of the turns, one of the teacher
    assert (alone.refused, alone.used, alone.parent_version) == ({}, ("a", "b"), 0)
    (row,) = alone.metrics["wishes"]
    assert (row["wish_id"], row["base"], row["told"]) == (7, 0.0, 1.0)
    assert 0.0 <= row["weights"] <= 1.0
    assert row["replies"] > 0
    trainer.commit(1)
    trainer.attempt(wish_job(trainer, 2, "c"))
    trainer.commit(2)
    again = trainer.attempt(replace(job, number=3))
    one, two = weights_of(server, alone), weights_of(server, again)
    assert any(value.abs().sum() > 0 for name, value in one.items() if "lora_B" in name)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-7)
    restarted = opened(server, **given)
    restarted.load(published(again, 3))
    assert restarted.policy.saved == Saved()  # the live weights are not gone on from
    third = restarted.attempt(replace(job, number=4))
    for name, value in one.items():
        torch.testing.assert_close(weights_of(server, third)[name], value, rtol=1e-5, atol=1e-7)


def test_served_replies_of_any_temperature_teach_wishes(server: TinkerServer, opened: Open) -> None:
    trainer = opened(server, method="opd", samples=1, passes=1)
    warm = [
        replace(turn, temperature=0.7, logprob_mode=LogprobMode.PROCESSED)
        for turn in wish_job(trainer, 1, "warm").turns
    ]
    outcome = trainer.attempt(job_of(1, warm, wishes=(stated_in(warm),)))
    assert (outcome.refused, outcome.used) == ({}, ("warm",))


def test_a_calibration_is_of_the_servers_model(server: TinkerServer, opened: Open) -> None:
    trainer = opened(server)
    model = trainer.calibration.model
    assert model.endswith(f" {server.name}")
    known = read_calibration(trainer._settings.home, model)
    assert known is not None
    assert known.anchors == trainer.calibration.anchors
    assert len(known.anchors) == 2
    assert read_calibration(trainer._settings.home, model.removesuffix(server.name) + "other") is None
