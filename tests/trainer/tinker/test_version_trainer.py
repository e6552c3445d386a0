"""The trainer on a Tinker server: versions, going back, going on after a restart, the gate, and what a server lacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from serving.tinker.version import FILE, read_version
from store.errors import AdapterError, ConfigError, UpstreamUnreachable
from store.lifecycle import DropReason
from store.values import AdapterState, AdapterVersion, LogprobMode, ScoredTurn
from tests.tinker.checkpoints import Checkpoints
from tests.tinker.errors import Refused
from tests.tinker.running import TinkerServer
from tests.trainer.gates import ScriptedGate
from tests.trainer.tinker.conftest import settings_of
from tests.trainer.turns import sampled_turn
from trainer.checkpoint import read_state, verify_version
from trainer.gate import Gate
from trainer.policy import LocalPolicy
from trainer.protocol import Outcome, Weights
from trainer.tinker.policy import Saved
from trainer.tinker.version_trainer import TinkerVersionTrainer

pytestmark = pytest.mark.slow

Open = Callable[..., TinkerVersionTrainer]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Version trainers with a scripted gate; random weights know no facts."""
    shops = []

    def open_one(server: TinkerServer, *rejected: str, **given: Any) -> TinkerVersionTrainer:
        usual = {"method": "rl", "anchors": 0, "learning_rate": 1e-3, "lora_rank": 4}
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
    outcome = trainer.attempt(complaints(trainer, "a", "b"), [], [], 1)
    assert outcome.written is not None
    folder = outcome.written.path
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "patina", FILE]
    assert verify_version(folder, outcome.written.content_hash) == outcome.written.content_hash
    assert folder.name == f"patina-tiny@1.{outcome.written.content_hash[:12]}"
    version = read_version(folder)
    assert version.base_model == server.name
    assert "/weights/patina-tiny-1-" in version.state_path
    assert outcome.metrics["tinker"]["sampler_path"] == version.sampler_path
    assert read_state(folder)["steps"] == 1
    (folder / FILE).write_text((folder / FILE).read_text().replace("sampler_weights", "other"))
    with pytest.raises(AdapterError, match="not what was published"):
        verify_version(folder, outcome.written.content_hash)


def test_a_restarted_trainer_goes_on_with_the_optimizer_where_the_last_one_stopped(
    server: TinkerServer, opened: Open
) -> None:
    """Two steps by one trainer give the same weights as one step each by two."""
    straight = opened(server)
    turns = complaints(straight, "a", "b")
    first = straight.attempt(turns, [], [], 1)
    straight.commit(1)
    more = complaints(straight, "c", "d")
    second = straight.attempt(more, [], [-1, -1], 2)
    other = opened(server)
    other.load(published(first, 1))
    again = other.attempt(more, [], [-1, -1], 2)
    one, two = weights_of(server, second), weights_of(server, again)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-7)
    bare = opened(server)
    fresh = bare.attempt(more, [], [-1, -1], 1)
    assert any(not torch.allclose(weights_of(server, fresh)[name], value) for name, value in one.items())


def test_a_rejected_version_leaves_the_policy_at_its_parent(server: TinkerServer, opened: Open) -> None:
    trainer = opened(server)
    turns = complaints(trainer, "a", "b")
    first = trainer.attempt(turns, [], [], 1)
    trainer.commit(1)
    parent = trainer.policy.snapshot()
    more = complaints(trainer, "c", "d")
    trainer._gate = ScriptedGate("replies do not end")  # type: ignore[assignment]  # same method
    rejected = trainer.attempt(more, [], [], 2)
    assert rejected.rejected == ("replies do not end",)
    assert rejected.written is not None
    assert trainer.policy.snapshot() == parent
    assert trainer.policy.learning_rate == pytest.approx(5e-4)
    trainer.policy.begin("look")
    held = trainer.policy.training()
    path = trainer.policy.link.wait([held.save_state("look")])[0].path
    folder = server._state.joinpath(*path.removeprefix("tinker://").replace(":", "-").split("/"))
    there = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    for name, value in weights_of(server, first).items():
        torch.testing.assert_close(there[name], value)


def test_any_version_can_be_gone_back_to_and_the_base_model_too(server: TinkerServer, opened: Open) -> None:
    trainer = opened(server)
    first = trainer.attempt(complaints(trainer, "a", "b"), [], [], 1)
    trainer.commit(1)
    trainer.attempt(complaints(trainer, "c", "d"), [], [], 2)
    trainer.commit(2)
    trainer.load(published(first, 1))
    assert trainer.version == 1
    assert first.written is not None
    assert trainer.policy.saved.sampler_path == read_version(first.written.path).sampler_path
    third = trainer.attempt(complaints(trainer, "e", "f"), [], [], 3)
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
    outcome = trainer.attempt(complaints(trainer, "a", "b"), [], [], 1)
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
    outcome = trainer.attempt(turns, [], [], 1)
    assert outcome.refused == {}
    assert outcome.metrics["staleness_mean"] == pytest.approx(1.0, abs=1e-4)
    gone = replace(turns[0], adapter_version=-1)
    refusal = trainer.attempt([gone, turns[1]], [], [], 2).refused["warm"]
    assert refusal.reason is DropReason.STALE
    assert "not there any more" in refusal.detail


def test_what_cannot_be_had_is_refused_at_start_in_one_sentence(
    poor_server: TinkerServer, server: TinkerServer, opened: Open
) -> None:
    with pytest.raises(ConfigError, match="--method sdpo compares whole distributions"):
        opened(poor_server, method="sdpo")
    with pytest.raises(ConfigError, match="--teacher ema"):
        opened(server, teacher="ema")
    with pytest.raises(ConfigError, match="no model other/model to teach"):
        opened(server, teacher_model_name="other/model")


def test_what_a_person_should_know_is_in_the_notes(
    poor_server: TinkerServer, server: TinkerServer, opened: Open
) -> None:
    assert opened(server, method="sdpo").notes == (
        "the directive term is on the policy's 20 likeliest tokens",
    )
    measured = opened(poor_server, method="combine").notes
    assert "on the sampled tokens only" in measured[0]
    assert "estimates on single tokens" in measured[1]


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
    server: TinkerServer, opened: Open, tiny_model: Path
) -> None:
    trainer = opened(server, top_k=400)
    here = LocalPolicy(
        str(tiny_model), rank=4, seed=3, beta1=0.9, update_clip=0.0, device="cpu", learning_rate=1e-4
    )
    mine = Gate(here, str(tiny_model), max_tokens=6).base()
    theirs = Gate(trainer.policy, str(tiny_model), max_tokens=6).base()
    assert theirs.counts == mine.counts
    assert (theirs.length, theirs.plain_length) == (mine.length, mine.plain_length)
    assert (theirs.facts, theirs.tools, theirs.obeyed) == (mine.facts, mine.tools, mine.obeyed)
    assert theirs.entropy == pytest.approx(mine.entropy, rel=0.02)  # the rest is one bin
    assert theirs.kl == 0.0
    measured = Gate(trainer.policy, str(tiny_model), max_tokens=6).probe.measure(Weights.STUDENT)
    assert measured.kl == pytest.approx(0.0, abs=1e-6)


def test_weights_that_are_no_numbers_never_pass(server: TinkerServer, opened: Open, tiny_model: Path) -> None:
    trainer = opened(server)
    parent = trainer.policy.snapshot()
    trainer._gate = Gate(trainer.policy, str(tiny_model), max_tokens=4)
    trainer._rate = 1e30  # the server makes this step, and has no numbers afterwards
    outcome = trainer.attempt(complaints(trainer, "a", "b"), [], [], 1)
    assert outcome.rejected == ("a weight is not a finite number",)
    assert outcome.metrics["kl_step"] is None  # the record has no NaN
    assert trainer.policy.snapshot() == parent
    assert trainer.attempt(complaints(trainer, "c"), [], [], 2).metrics["kl_step"] >= 0
