"""The training worker on Modal (`deploy/modal_app.py`), reached by Modal's Python client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store.errors import AdapterError, ConfigError, UpstreamError
from store.settings import OLLAMA, Settings

#: Name of the deployed app and of its class.
APP, WORKER = "patina-trainer", "TrainingWorker"
_DEPLOY = "`modal deploy -m deploy.modal_app` in Patina's folder"


class ModalConnection:
    """Calls the worker of one policy. Modal starts a container where none runs, which takes the time to load the model.

    Raises:
        ConfigError: Modal's package or the app is missing, there are no credentials, or the model is a folder of this machine.
    """

    place = "Modal"

    def __init__(self, settings: Settings) -> None:
        if settings.model_name.startswith(OLLAMA) or Path(settings.model_name).expanduser().exists():
            raise ConfigError(
                f"--train-on modal cannot read {settings.model_name} on this machine: name a model of the hub"
            )
        try:
            import modal
        except ModuleNotFoundError:
            raise ConfigError("--train-on modal needs the extra: pip install 'patina[modal]'") from None
        self._errors: Any = modal.exception
        self._worker: Any = self._guarded(lambda: modal.Cls.from_name(APP, WORKER)(policy=settings.policy))

    def call(self, request: str, files: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
        """See `trainer.remote.version_trainer.Connection`."""
        text, made = self._guarded(lambda: self._worker.call.remote(request, dict(files)))
        return text, made

    def _guarded(self, work: Any) -> Any:
        """Run ``work``, with Modal's errors as ours."""
        errors = self._errors
        try:
            return work()
        except errors.AuthError as error:
            raise ConfigError(f"Modal refuses the credentials ({error}): run `modal setup`") from None
        except errors.NotFoundError as error:
            raise ConfigError(f"the app {APP} is not deployed on Modal ({error}): run {_DEPLOY}") from None
        except (errors.FunctionTimeoutError, errors.RemoteError, errors.SerializationError) as error:
            raise AdapterError(f"the training worker on Modal failed: {error}") from error
        except (errors.Error, OSError) as error:
            raise UpstreamError(f"Modal cannot be reached: {type(error).__name__}: {error}") from error
