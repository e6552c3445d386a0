"""Versions computed again: the same bytes as those of a record that never had what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from migrations import upgrade
from store.errors import ConfigError
from store.lifecycle import Stage
from store.record import Record
from store.settings import Settings, read_settings
from store.values import AdapterState, AdapterVersion, Json, ScoredTurn, Selection
from tests.fixtures import PATINA_TINY
from tests.trainer.gates import close_the_gate, open_the_gate
from tests.trainer.test_worker import Bench
from tests.trainer.turns import as_recorded, sampled_turn
from trainer.policy import LocalPolicy
from trainer.replay_versions import ReplayJob, VersionReplay
from trainer.version_trainer import LocalVersionTrainer

POLICY = "patina-tiny"
FILES = ("adapter_model.safetensors", "patina/trainer_state.safetensors")


def settings_of(model: Path, home: Path) -> Settings:
    return read_settings(
        {
            "home": home,
            "model_name": str(model),
            "served_model_name": POLICY,
            "batch_size": 1,
            "lora_rank": 4,
            "learning_rate": 1e-3,
            "anchors": 1,
            "replay": 2,
            "w_rl": 1.0,
            "threads": 1,
            "method": "rl",  # on random weights a hint has nothing to say
        }
    )


async def train(settings: Settings, turns: Sequence[ScoredTurn], *batches: str) -> Record:
    """Make a home whose versions were trained on these batches: a letter is a turn."""
    settings.home.mkdir()
    upgrade(settings.database_url)
    record = await Record.open(settings.database_url)
    bench = Bench(record, settings)
    open_the_gate(bench.trainer)  # random weights know no facts
    by_id = {turn.turn_id: turn for turn in turns}
    for batch in batches:
        for turn_id in batch:
            await record.write_turns(as_recorded(by_id[turn_id]))
            await record.add_verdict(by_id[turn_id].verdict)
        bench.worker._settings = settings.model_copy(update={"batch_size": len(batch)})
        assert await bench.worker.work_once()
    bench.worker._thread.shutdown()
    return record


def opened(settings: Settings, state: Json) -> LocalVersionTrainer:
    trainer = LocalVersionTrainer(settings, pinned=state)
    open_the_gate(trainer)
    return trainer


def refusing(settings: Settings, state: Json) -> LocalVersionTrainer:
    trainer = LocalVersionTrainer(settings, pinned=state)
    close_the_gate(trainer)
    return trainer


async def live_files(record: Record) -> tuple[AdapterVersion, list[bytes]]:
    version = (await record.aliases())[POLICY].version
    adapter = await record.adapter(POLICY, version)
    assert adapter is not None
    return adapter, [(Path(adapter.path) / name).read_bytes() for name in FILES]


@pytest.fixture
def turns(tiny_model: Path) -> list[ScoredTurn]:
    policy = LocalPolicy(str(tiny_model), rank=4, learning_rate=1e-3)
    return [
        sampled_turn(policy, name, f"Question {name}?", verdict={"value": value, "hint": None})
        for name, value in zip("abcdef", (-1, 1, -1, -1, 1, -1), strict=True)
    ]


@pytest.mark.long_run
async def test_the_replayed_adapter_is_that_of_a_home_that_never_saw_the_turn(
    tiny_model: Path, tmp_path: Path, turns: list[ScoredTurn]
) -> None:
    torch.set_num_threads(1)
    settings = settings_of(tiny_model, tmp_path / "home")
    record = await train(settings, turns, "ab", "cd", "ef")
    other = await train(settings_of(tiny_model, tmp_path / "other"), turns, "ab", "d", "ef")
    done = await record.forget(Selection(turn="c"), with_replies=False, key=b"k")
    assert (await record.aliases())[POLICY].version == 1
    assert done.closure.tainted == {POLICY: (2, 3)}
    job = ReplayJob(policy=POLICY, start=1, end=3, takes_turns=True, publish=True)
    report = await VersionReplay(record, settings, job, make_trainer=opened).run()
    assert (report.versions, report.live) == ([(2, 4), (3, 5)], 5)
    adapter, replayed = await live_files(record)
    never, expected = await live_files(other)
    assert replayed == expected
    assert (adapter.content_hash, adapter.parent_version) == (never.content_hash, 4)
    fates = await record.fates(["a", "d", "e", "f"])
    assert [fates[one].trained_in_version for one in "adef"] == [1, 4, 5, 5]
    assert await record.verify() == []
    await record.close()
    await other.close()


@pytest.mark.long_run
async def test_a_replay_without_a_change_gives_the_recorded_bytes_beside_the_live_version(
    tiny_model: Path, tmp_path: Path, turns: list[ScoredTurn]
) -> None:
    torch.set_num_threads(1)
    settings = settings_of(tiny_model, tmp_path / "home")
    record = await train(settings, turns, "ab", "cd")
    _, recorded = await live_files(record)
    job = ReplayJob(policy=POLICY, start=0, end=2)
    report = await VersionReplay(record, settings, job, make_trainer=opened).run()
    assert (report.versions, report.live) == ([(1, 3), (2, 4)], None)
    assert (await record.aliases())[POLICY].version == 2
    branch = await record.adapter(POLICY, 4)
    assert branch is not None
    assert branch.state is AdapterState.PUBLISHED
    assert [(Path(branch.path) / name).read_bytes() for name in FILES] == recorded
    fates = await record.fates(["a", "c"])
    assert [fates[one].trained_in_version for one in "ac"] == [1, 2]
    changed = ReplayJob(
        policy=POLICY, start=1, end=2, changes={"learning": {"update_clip": 0.01}}, publish=True,
        without=frozenset("d"),
    )  # fmt: skip
    again = await VersionReplay(record, settings, changed, make_trainer=opened).run()
    assert (again.versions, again.live) == ([(2, 5)], 5)
    assert (await record.adapter(POLICY, 5)).content_hash != branch.content_hash  # type: ignore[union-attr]
    missing = VersionReplay(record, settings, ReplayJob(policy=POLICY, start=0, end=9), make_trainer=opened)
    with pytest.raises(ConfigError, match="has no version 9"):
        await missing.run()
    await record.close()


@pytest.mark.long_run
async def test_versions_that_asked_below_other_system_prompts_are_replayed_to_the_byte(
    tmp_path: Path,
) -> None:
    """With the hints, anchors and contexts of `--method combine` on the test model."""
    torch.set_num_threads(1)
    more = {"method": "combine", "w_rl": 0.0, "served_model_name": POLICY}
    settings = settings_of(PATINA_TINY, tmp_path / "home").model_copy(update=more)
    policy = LocalPolicy(str(PATINA_TINY), rank=4, learning_rate=1e-3)
    wish: Json = {"value": -1, "hint": "In Spanish, please.", "wishes": ("spanish",)}
    turns = [
        sampled_turn(policy, name, f"What is {number} plus 3?", verdict=wish)
        for number, name in enumerate("abcd")
    ]
    record = await train(settings, turns, "ab", "cd")
    other = await train(
        settings_of(PATINA_TINY, tmp_path / "other").model_copy(update=more), turns, "ab", "d"
    )
    second = await record.adapter(POLICY, 2)
    assert second is not None
    assert second.metrics["contexts"] > 0
    await record.forget(Selection(turn="c"), with_replies=False, key=b"k")
    job = ReplayJob(policy=POLICY, start=1, end=2, takes_turns=True, publish=True)
    report = await VersionReplay(record, settings, job, make_trainer=opened).run()
    assert report.versions == [(2, 3)]
    assert (await live_files(record))[1] == (await live_files(other))[1]
    await record.close()
    await other.close()


@pytest.mark.long_run
async def test_what_the_gate_refuses_in_a_replay_waits_to_be_trained(
    tiny_model: Path, tmp_path: Path, turns: list[ScoredTurn]
) -> None:
    settings = settings_of(tiny_model, tmp_path / "home")
    record = await train(settings, turns, "ab", "cd")
    await record.forget(Selection(turn="c"), with_replies=False, key=b"k")
    job = ReplayJob(policy=POLICY, start=1, end=2, takes_turns=True, publish=True)
    report = await VersionReplay(record, settings, job, make_trainer=refusing).run()
    assert (report.versions, report.rejected, report.live) == ([], [(2, 3)], None)
    assert (await record.fates(["d"]))["d"].stage is Stage.SCORED
    assert (await record.aliases())[POLICY].version == 1
    await record.close()
