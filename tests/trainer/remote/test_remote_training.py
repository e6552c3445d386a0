"""A trainer whose weights are on a worker: the same versions as those of a trainer on this machine, whatever becomes of the worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from store.calibration import Calibration, read_calibration
from store.errors import AdapterError, AdapterMismatch, UpstreamError, WireError
from store.lifecycle import Stage
from store.record import Record
from store.settings import Settings
from store.values import AdapterState, AdapterVersion, ScoredTurn, TuningData, Wish
from tests.making import make_wish
from tests.trainer.gates import ScriptedGate, quick_calibration
from tests.trainer.test_worker import Bench, settings_of
from tests.trainer.turns import sampled_turn, wishing_turn
from trainer.checkpoint import METRICS, TRAINER_STATE, store_version, version_bytes
from trainer.gate import GateVerdict
from trainer.policy import LocalPolicy
from trainer.protocol import Outcome, VersionJob
from trainer.remote.messages import TrainReply, TrainRequest, decode, encode
from trainer.remote.training_host import TrainingHost
from trainer.remote.version_trainer import RemoteVersionTrainer
from trainer.version_trainer import LocalVersionTrainer
from trainer.wish_review import Reviewed, WishReview

pytestmark = pytest.mark.slow

NAME = "patina-tiny"


class InProcess:
    """A connection to a worker in this process.

    Attributes:
        calls: whether each call brought files.
    """

    place = "the worker"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.calls: list[bool] = []
        self.is_away = False
        self.start()

    def start(self) -> None:
        """Start another worker, which knows nothing."""
        self._folder.mkdir(exist_ok=True)
        self.host = TrainingHost(self._folder)

    def call(self, request: str, files: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
        if self.is_away:
            raise UpstreamError("the worker cannot be reached")
        self.calls.append(bool(files))
        return self.host.call(request, files)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the gate objects to; random weights know no facts."""
    objections: list[str] = []
    monkeypatch.setattr("trainer.version_trainer.Gate", lambda *_, **__: Listening(objections))
    monkeypatch.setattr("trainer.version_trainer.calibrate", quick_calibration)
    monkeypatch.setattr(WishReview, "review", lambda _, wishes: reviewed(*wishes))
    return objections


def reviewed(*wishes: Wish) -> Reviewed:
    """Random weights follow no wish, whatever is asked of them."""
    return Reviewed(learnt=wishes, measures={one.wish_id: {"base": 0.0, "told": 1.0} for one in wishes})


class Listening(ScriptedGate):
    def __init__(self, objections: list[str]) -> None:
        super().__init__()
        self._objections = objections

    def examine(self, told: object = None) -> GateVerdict:
        return ScriptedGate(*self._objections).examine()


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path, gate: list[str]) -> Settings:
    return settings_of(tiny_model, tmp_path / "home")


@pytest.fixture
def link(tmp_path: Path) -> InProcess:
    return InProcess(tmp_path / "worker")


def batch(policy: LocalPolicy, *names: str, version: int = 0) -> list[ScoredTurn]:
    return [sampled_turn(policy, name, f"Question {name}?", adapter_version=version) for name in names]


def files_of(outcome: Outcome) -> dict[str, bytes]:
    """The version's bytes, without what depends on the clock."""
    assert outcome.written is not None
    found = version_bytes(outcome.written.path)
    return {name: body for name, body in found.items() if name.startswith("adapter") or name == TRAINER_STATE}


class Pair:
    """The same attempts here and on the worker."""

    def __init__(self, settings: Settings, link: InProcess, tmp_path: Path) -> None:
        self.here = LocalVersionTrainer(settings.model_copy(update={"home": tmp_path / "other"}))
        self.there = RemoteVersionTrainer(settings, link)
        self.settings = settings

    def attempt(self, number: int, *names: str) -> Outcome:
        """Make a version on both sides, and hold them against each other."""
        turns = batch(self.here.policy, *names, version=self.here.version)
        return self.of(VersionJob(number=number, turns=turns, recent=[-1]))

    def of(self, job: VersionJob) -> Outcome:
        here, there = self.here.attempt(job), self.there.attempt(job)
        assert files_of(here) == files_of(there)
        assert here.rejected == there.rejected
        assert here.refused == there.refused
        if not here.rejected:
            self.here.commit(job.number)
            self.there.commit(job.number)
        return there


@pytest.fixture
def pair(settings: Settings, link: InProcess, tmp_path: Path) -> Pair:
    return Pair(settings, link, tmp_path)


def test_versions_of_the_worker_are_those_of_this_machine_also_after_it_was_replaced(
    pair: Pair, link: InProcess
) -> None:
    pair.attempt(1, "a", "b")
    pair.attempt(2, "c", "d")
    assert not any(link.calls)  # no file travels to a worker that made the version
    link.start()
    pair.attempt(3, "e", "f")
    assert link.calls[-1] is True
    pair.attempt(4, "g", "h")
    assert link.calls[-1] is False


def test_after_a_rejected_attempt_the_next_one_begins_where_it_did(pair: Pair, gate: list[str]) -> None:
    pair.attempt(1, "a", "b")
    gate.append("replies do not end")
    assert pair.attempt(2, "c", "d").rejected
    gate.clear()
    pair.attempt(3, "c", "d")


def test_a_version_that_was_not_published_is_not_built_upon(pair: Pair) -> None:
    turns = batch(pair.here.policy, "a", "b")
    for trainer in (pair.here, pair.there):
        trainer.attempt(VersionJob(number=1, turns=turns))
        trainer.revert()
    pair.attempt(1, "c", "d")


def test_a_rollback_and_a_reset_are_followed(pair: Pair) -> None:
    first = pair.attempt(1, "a", "b")
    pair.attempt(2, "c", "d")
    pair.there.load(as_version(first, 1))
    pair.here.load(as_version(first, 1))
    pair.attempt(3, "e", "f")
    for trainer in (pair.here, pair.there):
        trainer.reset(NAME)
    pair.attempt(4, "g", "h")


def as_version(outcome: Outcome, number: int) -> AdapterVersion:
    assert outcome.written is not None
    return AdapterVersion(
        policy=NAME,
        version=number,
        path=str(outcome.written.path),
        content_hash=outcome.written.content_hash,
        manifest_hash=outcome.written.manifest_hash,
        parent_version=0,
        state=AdapterState.PUBLISHED,
        reason="",
        method="rl",
        metrics={},
        created_at=1_000.0,
    )


def test_a_request_that_is_repeated_is_answered_without_a_second_attempt(
    settings: Settings, link: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may break after the worker's work and before its reply."""
    counted: list[int] = []
    whole = LocalVersionTrainer.attempt

    def count(self: LocalVersionTrainer, *arguments: object) -> Outcome:
        counted.append(1)
        return whole(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalVersionTrainer, "attempt", count)
    trainer = RemoteVersionTrainer(settings, link)
    turns = batch(LocalVersionTrainer(settings).policy, "a", "b")
    first = trainer.attempt(VersionJob(number=1, turns=turns))
    again = trainer.attempt(VersionJob(number=1, turns=turns))
    assert first.written == again.written
    assert len(counted) == 1
    trainer.commit(1)
    assert trainer.attempt(
        VersionJob(number=2, turns=batch(LocalVersionTrainer(settings).policy, "c", "d"))
    ).written


def test_what_the_worker_reports_is_raised_here_as_the_same_error(
    settings: Settings, link: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = RemoteVersionTrainer(settings, link)
    turns = batch(LocalVersionTrainer(settings).policy, "a", "b")

    def fail(*_: object) -> Outcome:
        raise AdapterMismatch("another model")

    with monkeypatch.context() as patched:
        patched.setattr(LocalVersionTrainer, "attempt", fail)
        with pytest.raises(AdapterMismatch, match=r"the worker: another model"):
            trainer.attempt(VersionJob(number=1, turns=turns))

    def break_down(*_: object) -> Outcome:
        raise ZeroDivisionError("by zero")

    with monkeypatch.context() as patched:
        patched.setattr(LocalVersionTrainer, "attempt", break_down)
        with pytest.raises(AdapterError, match=r"ZeroDivisionError: by zero"):
            trainer.attempt(VersionJob(number=1, turns=turns))
    assert trainer.attempt(VersionJob(number=1, turns=turns)).written


@pytest.mark.parametrize("name", ["adapter_model.safetensors", METRICS, TRAINER_STATE])
def test_files_that_changed_on_the_way_are_refused_and_removed(
    settings: Settings, link: InProcess, name: str
) -> None:
    trainer = RemoteVersionTrainer(settings, link)
    call = link.call

    def change(request: str, files: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
        text, made = call(request, files)
        return text, {key: body + b" " if key == name else body for key, body in made.items()}

    link.call = change  # type: ignore[method-assign]
    with pytest.raises(AdapterError):
        trainer.attempt(VersionJob(number=1, turns=batch(LocalVersionTrainer(settings).policy, "a", "b")))
    assert not list(settings.adapters_folder_of(NAME).glob("*@*"))


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_no_file_is_written_outside_of_the_version(tmp_path: Path, name: str) -> None:
    with pytest.raises(AdapterError, match="no name of a version's file"):
        store_version(tmp_path / "adapters", "policy@1.abc", {name: b""}, "")
    with pytest.raises(AdapterError, match="no name of a version's file"):
        store_version(tmp_path / "adapters", name, {}, "")
    assert not (tmp_path / "outside").exists()


def test_another_format_is_refused_with_what_to_do(settings: Settings, link: InProcess) -> None:
    asked = TrainRequest(format=99, settings={}, policy=NAME)
    reply = decode(TrainReply, link.call(encode(asked), {})[0])
    assert reply.error is not None
    assert reply.error[0] == "ConfigError"
    assert "deploy the app again" in reply.error[1]
    broken = decode(TrainReply, link.call("{", {})[0])
    assert broken.error is not None
    assert broken.error[0] == "WireError"


def test_messages_survive_the_way(settings: Settings, link: InProcess) -> None:
    (turn,) = batch(LocalVersionTrainer(settings).policy, "a")
    odd = replace(turn, next_text="half a pair \ud83d, \u2028, NUL \x00")
    request = TrainRequest(
        settings={"method": "rl"},
        policy=NAME,
        calibration=Calibration(model="digest", obeyed={"behind": [0.5, 1.0]}, anchors=[("Why?", [3])]),
        job=VersionJob(
            number=3,
            turns=[odd],
            served=[turn],
            recent=[-1, 1],
            wishes=[WISH],
            files=[FILE],
            live=[{"wish_id": 7}],
        ),
    )
    assert decode(TrainRequest, encode(request)) == request
    with pytest.raises(WireError):
        decode(TrainRequest, json.dumps({"settings": 3}))


# -- versions that begin at the base model


WISH = make_wish(7, "Answer in capital letters.")
FILE = TuningData(
    job_id="ftjob-1", file_id="file-1", method="dpo", epochs=2, beta=0.1, content='{"half": "\\ud83d"}\n'
)


def wish_job(policy: LocalPolicy, number: int, *names: str) -> VersionJob:
    turns = [wishing_turn(policy, name, f"Question {name}?", WISH.text) for name in names]
    return VersionJob(number=number, turns=turns, wishes=[WISH])


@pytest.fixture
def wish_pair(settings: Settings, link: InProcess, tmp_path: Path) -> Pair:
    learning = settings.learning.model_copy(update={"samples": 3})
    return Pair(settings.model_copy(update={"method": "combine", "learning": learning}), link, tmp_path)


def test_versions_with_wishes_are_those_of_this_machine_and_no_file_travels_to_the_worker(
    wish_pair: Pair, link: InProcess
) -> None:
    job = wish_job(wish_pair.here.policy, 1, "a", "b")
    first = wish_pair.of(job)
    assert first.metrics["samples"]["wish"] == 3
    assert [row["wish_id"] for row in first.metrics["wishes"]] == [7]
    assert first.measures[7]["version"] == 1
    wish_pair.of(wish_job(wish_pair.here.policy, 2, "c"))
    link.start()
    again = wish_pair.of(replace(job, number=3))
    assert files_of(again)["adapter_model.safetensors"] == files_of(first)["adapter_model.safetensors"]
    assert not any(link.calls)


def test_each_version_begins_at_the_checkpoint_that_is_named(
    wish_pair: Pair, link: InProcess, tmp_path: Path
) -> None:
    checkpoint = wish_pair.of(wish_job(wish_pair.here.policy, 1, "x", "y"))
    assert checkpoint.written is not None
    resumed = wish_pair.settings.model_copy(update={"resume_from_ckpt": str(checkpoint.written.path)})
    pair = Pair(resumed, link, tmp_path)
    assert link.calls[-1] is True
    job = wish_job(pair.here.policy, 1, "a", "b")
    first = pair.of(job)
    second = pair.of(replace(job, number=2))
    weights = [files_of(one)["adapter_model.safetensors"] for one in (checkpoint, first, second)]
    assert weights[0] != weights[1] == weights[2]


def test_the_calibration_is_measured_once_and_kept_where_the_gateway_reads_it(
    settings: Settings, link: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def calibrate(policy: LocalPolicy, model: str, *rest: object, anchors: int, seed: int) -> Calibration:
        measured.append(model)
        found = quick_calibration(policy, model, *rest, anchors=anchors, seed=seed)
        return replace(found, placement="system", gate={})

    monkeypatch.setattr("trainer.version_trainer.calibrate", calibrate)
    RemoteVersionTrainer(settings, link)
    known = read_calibration(settings.home)
    assert known is not None
    assert known.placement == "system"
    fresh = InProcess(tmp_path / "fresh")
    RemoteVersionTrainer(settings, fresh)
    assert fresh.host._trainer is not None
    assert fresh.host._trainer.calibration == known
    assert len(measured) == 1


async def test_the_worker_process_publishes_versions_of_a_remote_trainer(
    record: Record, settings: Settings, link: InProcess
) -> None:
    bench = Bench(record, settings)
    trainer = RemoteVersionTrainer(settings, link)
    bench.worker._trainer = trainer
    try:
        await bench.add("a", "b")
        assert await bench.worker.work_once()
        assert await bench.stages("a", "b") == [Stage.TRAINED, Stage.TRAINED]
        assert (await record.aliases())[NAME].version == 1
        link.is_away = True
        await bench.add("c", "d")
        with pytest.raises(UpstreamError):
            await bench.worker.work_once()
        assert await bench.stages("c", "d") == [Stage.SCORED, Stage.SCORED]
        link.is_away = False
        link.start()
        assert await bench.worker.work_once()
        assert (await record.aliases())[NAME].version == 2
        await record.rollback(NAME, 1, actor="test")
        await bench.add("e", "f")
        assert await bench.worker.work_once()
        versions = {one.version: one.parent_version for one in await record.adapters(NAME)}
        assert versions == {1: 0, 2: 1, 3: 1}
        assert await record.verify() == []
        assert any("leave this machine" in note for note in trainer.notes)
    finally:
        bench.worker._thread.shutdown()
