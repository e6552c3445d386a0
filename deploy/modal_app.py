"""The training worker as a Modal app: `modal deploy -m deploy.modal_app`, then `run.py --train-on modal`.

Environment, when it is deployed:
    PATINA_MODAL_GPU      GPU of the worker; default L40S
    PATINA_MODAL_SECRET   name of a Modal secret with HF_TOKEN, for models that need one

The app has no web endpoint: only the Modal account that deployed it can call the worker. Weights of the base model stay in a volume; the
turns of a batch are in the container's memory while it trains, and nowhere else.
"""

import os
from pathlib import Path

import modal  # it reads annotations as types: none of them may be a string

from store.settings import REPOSITORY
from trainer.remote.modal_connection import APP

_MODELS = "/models"
_PACKAGES = ("serving", "store", "trainer", "wire")
#: Seconds: an attempt at a version; how long an idle worker keeps its weights.
_LONGEST_ATTEMPT_S, _IDLE_S = 3600, 300

app = modal.App(APP)
image = (
    modal.Image.debian_slim(python_version="3.11")
    .env({"HF_HOME": _MODELS, "PATINA_CACHE": _MODELS})
    .add_local_file(str(REPOSITORY / "pyproject.toml"), "/source/pyproject.toml", copy=True)
    .add_local_file(str(REPOSITORY / "requirements.lock"), "/source/requirements.lock", copy=True)
    .add_local_dir(str(REPOSITORY / "scripts"), "/source/scripts", copy=True, ignore=["**/__pycache__/**"])
    .run_commands("python /source/scripts/install.py")
    .add_local_python_source(*_PACKAGES, ignore=["**/__pycache__/**"])
)
secret = os.environ.get("PATINA_MODAL_SECRET", "")


@app.cls(
    image=image,
    gpu=os.environ.get("PATINA_MODAL_GPU", "L40S"),
    volumes={_MODELS: modal.Volume.from_name("patina-models", create_if_missing=True)},
    secrets=[modal.Secret.from_name(secret)] if secret else [],
    timeout=_LONGEST_ATTEMPT_S,
    scaledown_window=_IDLE_S,
    max_containers=1,
)
class TrainingWorker:
    """Trains one policy; Modal keeps one container for each value of ``policy``."""

    policy: str = modal.parameter()

    @modal.enter()
    def open(self) -> None:
        from trainer.remote.training_host import TrainingHost

        home = Path("/tmp/patina")
        home.mkdir(mode=0o700, exist_ok=True)
        self._host = TrainingHost(home)

    @modal.method()
    def call(self, request: str, files: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
        """See `TrainingHost.call`."""
        return self._host.call(request, files)
