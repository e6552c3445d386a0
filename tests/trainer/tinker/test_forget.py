"""`run.py forget` with a Tinker server: the tainted checkpoints go, and the receipt names those that stay."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cli import forget as cli_forget
from cli.arguments import build_parser
from migrations import upgrade
from serving.tinker.version import TinkerVersion, read_version
from store.record import Record
from store.settings import Settings
from tests.store.queries.test_forget import fill, train
from tests.tinker.checkpoints import Checkpoints
from tests.tinker.errors import Refused
from tests.tinker.running import TinkerServer
from tests.trainer.gates import ScriptedGate, quick_calibration
from tests.trainer.tinker.conftest import settings_of
from tests.trainer.turns import sampled_turn
from trainer.protocol import VersionJob
from trainer.tinker.version_trainer import TinkerVersionTrainer

pytestmark = pytest.mark.long_run  # starts a trainer process


@pytest.fixture
def settings(server: TinkerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("trainer.version_trainer.calibrate", quick_calibration)
    given = {"method": "rl", "anchors": 0, "learning_rate": 1e-3, "lora_rank": 4}
    made = settings_of(server, tmp_path / "home", **given)
    made.home.mkdir()
    upgrade(made.database_url)
    made.dump(made.home / "settings.json")
    return made


def publish_one(settings: Settings) -> TinkerVersion:
    """Train a version on the server, and record that the turn "three" taught it."""
    trainer = TinkerVersionTrainer(settings)
    trainer._gate = ScriptedGate()  # type: ignore[assignment]  # same method
    turns = [sampled_turn(trainer.policy, name, f"Question {name}?") for name in ("a", "b")]
    written = trainer.attempt(VersionJob(number=1, turns=turns)).written
    trainer.close()
    assert written is not None

    async def record_it() -> None:
        record = await Record.open(settings.database_url)
        await fill(record)
        await train(record, 1, "three", path=str(written.path))
        await record.close()

    asyncio.run(record_it())
    return read_version(written.path)


def forget(settings: Settings) -> int:
    return cli_forget.forget(settings, build_parser().parse_args(["forget", "three", "--json"]))


def test_the_checkpoints_of_a_tainted_version_are_deleted_on_the_server(
    server: TinkerServer, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    version = publish_one(settings)
    checkpoints = Checkpoints(server._state)
    for path in (version.sampler_path, version.state_path):
        checkpoints.info(path)
    assert forget(settings) == 0
    receipt = json.loads(capsys.readouterr().out)
    assert receipt["complete"]
    assert receipt["tainted"] == {"patina-tiny": [1]}
    for path in (version.sampler_path, version.state_path):
        with pytest.raises(Refused):
            checkpoints.info(path)
    assert not Path(receipt["folders"][0]).exists()


def test_the_receipt_names_checkpoints_that_stay_because_the_server_is_away(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    version = publish_one(settings)
    away = settings.model_copy(update={"tinker_base_url": "http://127.0.0.1:9"})
    assert forget(away) == 1
    receipt = json.loads(capsys.readouterr().out)
    stays = [one for one in receipt["remaining"] if "stays on the server" in one]
    assert [one.split()[0] for one in stays] == [version.sampler_path, version.state_path]
    assert not receipt["complete"]
