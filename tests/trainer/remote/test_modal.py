"""The Modal app and its connection, with Modal's real package; its functions run in this process, because there is no account here."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import modal
import pytest

from store.errors import AdapterError, ConfigError, PatinaError, UpstreamError
from store.settings import read_settings
from tests.fixtures import PATINA_TINY
from tests.trainer.gates import ScriptedGate, quick_calibration
from tests.trainer.test_worker import settings_of
from tests.trainer.turns import sampled_turn
from trainer.device import ExclusiveDevice
from trainer.protocol import VersionJob
from trainer.remote.modal_connection import APP, WORKER, ModalConnection
from trainer.remote.version_trainer import RemoteVersionTrainer
from trainer.version_trainer import LocalVersionTrainer
from trainer.worker import make_version_trainer

pytestmark = pytest.mark.slow


HUB_MODEL = "org/model"


@pytest.fixture(scope="module")
def modal_app() -> ModuleType:
    return importlib.import_module("deploy.modal_app")


@pytest.fixture
def deployed(modal_app: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Modal's client find the app, and run its methods in this process."""

    class Here:
        def __init__(self, **parameters: str) -> None:
            worker = modal_app.TrainingWorker(**parameters)
            self.call = self
            self.remote = worker.call.local

    def find(app: str, name: str) -> Any:
        assert (app, name) == (modal_app.app.name, "TrainingWorker")
        return Here

    monkeypatch.setattr(modal.Cls, "from_name", find)


def test_the_real_package_accepts_the_app(modal_app: ModuleType) -> None:
    assert modal_app.app.name == APP
    assert isinstance(getattr(modal_app, WORKER), modal.Cls)


@pytest.mark.filterwarnings("ignore:The TrainingWorker.call function is executing locally:UserWarning")
def test_a_version_is_made_by_the_app(
    deployed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.version_trainer.calibrate", quick_calibration)
    monkeypatch.setattr("trainer.version_trainer.Gate", lambda *_, **__: ScriptedGate())
    downloaded = tmp_path / "cache" / "models" / "org--model-0123456789ab"
    shutil.copytree(PATINA_TINY, downloaded)
    monkeypatch.setenv("PATINA_CACHE", str(tmp_path / "cache"))
    settings = read_settings(
        {
            "home": tmp_path,
            "model_name": HUB_MODEL,
            "model_folder": str(downloaded),
            "method": "rl",
            "train_on": "modal",
            "w_rl": 1.0,
            "anchors": 1,
        }
    )
    trainer = make_version_trainer(settings, ExclusiveDevice())
    assert isinstance(trainer, RemoteVersionTrainer)
    assert trainer.notes[0].startswith("trains on Modal")
    policy = LocalVersionTrainer(settings).policy
    outcome = trainer.attempt(VersionJob(number=1, turns=[sampled_turn(policy, "a", "What is the sea?")]))
    assert outcome.written is not None
    assert outcome.written.path.is_relative_to(settings.adapters_folder)


@pytest.mark.parametrize(
    ("error", "ours", "words"),
    [
        (modal.exception.AuthError("token"), ConfigError, "run `modal setup`"),
        (modal.exception.NotFoundError("app"), ConfigError, "modal deploy"),
        (modal.exception.FunctionTimeoutError("3600 s"), AdapterError, "failed"),
        (modal.exception.ConnectionError("refused"), UpstreamError, "cannot be reached"),
        (modal.exception.ServiceError("503"), UpstreamError, "cannot be reached"),
        (OSError("no route"), UpstreamError, "cannot be reached"),
    ],
)
def test_errors_of_modal_say_what_to_do(
    error: Exception, ours: type[PatinaError], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: str) -> None:
        raise error

    monkeypatch.setattr(modal.Cls, "from_name", fail)
    with pytest.raises(ours, match=words):
        ModalConnection(read_settings({"home": tmp_path, "model_name": HUB_MODEL, "train_on": "modal"}))


def test_a_model_in_a_folder_of_this_machine_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a model of the hub"):
        ModalConnection(settings_of(tiny_model, tmp_path, train_on="modal"))


@pytest.mark.parametrize(
    "more",
    [
        {"backend": "tinker"},
        {"upstream": "http://127.0.0.1:9/v1"},
        {"backend": "vllm", "colocate": "sleep"},
    ],
)
def test_what_cannot_train_on_modal_is_refused(more: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--train-on modal"):
        read_settings({"home": tmp_path, "train_on": "modal", **more})
