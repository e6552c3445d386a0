"""The trainer with its weights on a remote training worker. The record and every version stay on this machine.

Each attempt sends its job (turns with their prompts and replies, wishes) and gets the version's files back, which are verified like a
version that was made here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from serving.model_digests import digest_served_model
from store import errors
from store.calibration import read_calibration, write_calibration
from store.errors import AdapterError, PatinaError
from store.settings import Settings, training_settings
from store.values import BASE_VERSION, AdapterVersion, ScoredTurn
from trainer.checkpoint import remove_version, store_version, verify_version, version_bytes
from trainer.plan import StepPlan
from trainer.protocol import AttemptPhase, Outcome, Preview, VersionJob, WrittenVersion
from trainer.remote.messages import TrainReply, TrainRequest, decode, encode


class Connection(Protocol):
    """How a training worker is reached."""

    @property
    def place(self) -> str:
        """Where the worker is, in a few words."""
        ...

    def call(self, request: str, files: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
        """See `TrainingHost.call`.

        Raises:
            UpstreamError: the worker cannot be reached now.
            ConfigError: it cannot be reached as this is set up.
            AdapterError: it failed.
        """
        ...


class RemoteVersionTrainer:
    """The policy on a training worker, between steps.

    Attributes:
        name, version: of what is live.
        phase: what the attempt under way does now; read from another thread.

    Raises:
        ConfigError: the worker cannot load the model, or cannot be reached as this is set up.
        UpstreamError: the worker does not answer.
        AdapterError: ``--resume-from-ckpt`` names no version of this model.
    """

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._begins_at_base = StepPlan.of(settings).begins_at_base
        self.name, self.version = settings.policy, BASE_VERSION
        self.phase = AttemptPhase()
        self.on_review: Callable[[Outcome], None] = lambda found: None
        self._calibration = read_calibration(settings.home)
        self._from = self._checkpoint()
        self._written: WrittenVersion | None = None
        self.check()

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"trains on {self._connection.place}: the turns of each batch leave this machine for it",
            *self._worker.notes,
        )

    def check(self) -> None:
        """Raises: UpstreamError when the worker is away, ConfigError when it cannot train this model."""
        self._worker, _ = self._ask(None)

    def attempt(self, job: VersionJob) -> Outcome:
        """See `BaseVersionTrainer.attempt`.

        Raises:
            UpstreamError: the worker cannot be reached; the same attempt may be made again.
            AdapterError: the worker failed, or what it sent is not a version of this model.
        """
        self.phase = AttemptPhase("training worker", time.time())
        self._worker, files = self._ask(job)
        outcome = self._worker.outcome
        if outcome is None:
            raise AdapterError("the training worker answered an attempt without an outcome")
        if outcome.written is None:
            return outcome
        written = self._store(outcome.written, files)
        self._written = None if outcome.rejected else written
        return replace(outcome, written=written)

    def preview(self, job: VersionJob, past: Sequence[ScoredTurn], live: Path | None) -> Preview | None:
        """See `trainer.protocol.VersionTrainer.preview`; the weights are on the worker."""
        return None

    def _store(self, made: WrittenVersion, files: Mapping[str, bytes]) -> WrittenVersion:
        """Write the files of a version to this machine and verify them."""
        folder = self._settings.adapters_folder_of(self.name)
        written = store_version(folder, made.path.name, files, made.content_hash, self._settings.home)
        try:
            verify_version(
                written.path,
                made.content_hash,
                manifest_hash=made.manifest_hash,
                model=digest_served_model(self._settings.model_path),
            )
        except AdapterError:
            remove_version(written.path)
            raise
        return written

    def _ask(self, job: VersionJob | None) -> tuple[TrainReply, dict[str, bytes]]:
        """Send a request, with the files of what to begin from where the worker needs them.

        Raises:
            PatinaError: what the worker reports, as the same class.
        """
        begin = self._from
        text = encode(
            TrainRequest(
                settings=training_settings(self._settings),
                policy=self.name,
                version=self.version,
                content_hash=begin.content_hash if begin else "",
                manifest_hash=begin.manifest_hash if begin else "",
                calibration=self._calibration,
                job=job,
            )
        )
        reply, files = self._call(text, {})
        if reply.needs_files:
            if begin is None:
                raise AdapterError("the training worker asked for the files of the base model")
            reply, files = self._call(text, version_bytes(begin.path))
        if reply.calibration is not None and reply.calibration != self._calibration:
            self._calibration = reply.calibration
            write_calibration(self._settings.home, reply.calibration)  # the gateway reads it
        return reply, files

    def _call(self, text: str, files: Mapping[str, bytes]) -> tuple[TrainReply, dict[str, bytes]]:
        answer, made = self._connection.call(text, files)
        reply = decode(TrainReply, answer)
        if reply.error is not None:
            kind = getattr(errors, reply.error[0], AdapterError)
            known = isinstance(kind, type) and issubclass(kind, PatinaError)
            raise (kind if known else AdapterError)(f"{self._connection.place}: {reply.error[1]}")
        return reply, made

    def commit(self, number: int) -> None:
        """The attempt was published as this version."""
        if not self._begins_at_base:
            self._from = self._written
        self._written = None
        self.version = number

    def revert(self) -> None:
        """Let the next attempt begin where this one did; the worker sees it by the version that is named to it."""
        self._written = None

    def load(self, adapter: AdapterVersion) -> None:
        """Be a published version.

        Raises:
            AdapterError: its folder is missing, torn, or not what was published.
        """
        folder = Path(adapter.path)
        verify_version(
            folder,
            adapter.content_hash,
            manifest_hash=adapter.manifest_hash,
            model=digest_served_model(self._settings.model_path),
        )
        self._written = None
        if not self._begins_at_base:
            self._from = WrittenVersion(
                path=folder, content_hash=adapter.content_hash, manifest_hash=adapter.manifest_hash
            )
        self.name, self.version = adapter.policy, adapter.version

    def reset(self, name: str) -> None:
        """Be the base model, with nothing learnt, as version 0 of the policy ``name``."""
        self._written = None
        if not self._begins_at_base:
            is_back = self.name != name == self._settings.policy
            self._from = self._checkpoint() if is_back else None
        self.name, self.version = name, BASE_VERSION

    def _checkpoint(self) -> WrittenVersion | None:
        """What ``--resume-from-ckpt`` names."""
        if not self._settings.resume_from_ckpt:
            return None
        folder = Path(self._settings.resume_from_ckpt).expanduser()
        digest = verify_version(folder, model=digest_served_model(self._settings.model_path))
        return WrittenVersion(path=folder, content_hash=digest, manifest_hash="")

    def remove(self, folder: Path) -> None:
        """Remove a version's files for good. Raises: AdapterError."""
        remove_version(folder)

    def close(self) -> None:
        """Let go of what is held elsewhere; the worker ends by itself when it is idle."""
