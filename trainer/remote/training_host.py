"""The training worker on another machine: answers requests with the local trainer of that machine.

It keeps no state that it could not be given again. The weights of the newest attempt stay in memory, so that the next one begins without its
files having to travel; a worker that has other weights asks for them.
"""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from serving.models.source import with_model
from store.calibration import write_calibration
from store.errors import AdapterError, ConfigError, PatinaError
from store.settings import read_settings
from store.values import BASE_VERSION, AdapterState, AdapterVersion, Json
from trainer.checkpoint import remove_version, store_version, version_bytes
from trainer.protocol import Outcome
from trainer.remote.messages import FORMAT, TrainReply, TrainRequest, decode, encode, request_id
from trainer.version_trainer import LocalVersionTrainer


class TrainingHost:
    """One policy's weights on this machine. One call at a time.

    Args:
        home: a folder of its own, for versions on their way.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._trainer: LocalVersionTrainer | None = None
        self._made_for: tuple[Json, str] = ({}, "")
        self._hash = (
            ""  # content hash of the version that the trainer is at, where its method goes on from it
        )
        self._attempted: tuple[int, str] | None = (
            None  # number and content hash of the attempt that nothing was heard of
        )
        self._last: tuple[str, str, dict[str, bytes]] | None = None

    def call(self, request: str, files: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
        """Answer one request; a request that is repeated gets the same reply, without a second attempt.

        Args:
            request: an encoded `TrainRequest`.
            files: of the version to begin from; empty unless an earlier reply needed them.

        Returns:
            An encoded `TrainReply`, and the files of the version that the attempt made.
        """
        key = request_id(request)
        if self._last is not None and self._last[0] == key:
            return self._last[1], self._last[2]
        try:
            asked = decode(TrainRequest, request)
            if asked.format != FORMAT:
                raise ConfigError(
                    f"the training worker speaks format {FORMAT}, this Patina {asked.format}: deploy the app again"
                )
            reply, made = self._answer(asked, files)
        except PatinaError as error:
            return encode(TrainReply(error=(type(error).__name__, str(error)))), {}
        except Exception as error:  # whatever a step can raise must reach the trainer at home  # noqa: BLE001
            traceback.print_exc()
            self._trainer = None
            return encode(TrainReply(error=(AdapterError.__name__, f"{type(error).__name__}: {error}"))), {}
        text = encode(reply)
        if asked.job is not None and not reply.needs_files:
            self._last = (key, text, made)
        return text, made

    def _answer(self, asked: TrainRequest, files: Mapping[str, bytes]) -> tuple[TrainReply, dict[str, bytes]]:
        # What a method that begins at the base model begins from instead, `--resume-from-ckpt` at home
        checkpoint = "" if asked.settings["method"] == "rl" else asked.content_hash
        trainer = self._trainer
        if trainer is None or self._made_for != (asked.settings, checkpoint):
            if checkpoint and not files:
                return TrainReply(needs_files=True), {}
            trainer = self._make(asked, checkpoint, files)
        if asked.job is None:
            return _described(trainer), {}
        if asked.settings["method"] != "rl":
            trainer.name = asked.policy
        elif not self._begin_from(trainer, asked, files):
            return TrainReply(needs_files=True), {}
        outcome = trainer.attempt(asked.job)
        made = self._take_files(outcome)
        if outcome.written is not None and not outcome.rejected:
            self._attempted = (asked.job.number, outcome.written.content_hash)
        return replace(_described(trainer), outcome=outcome), made

    def _make(self, asked: TrainRequest, checkpoint: str, files: Mapping[str, bytes]) -> LocalVersionTrainer:
        """The trainer for these settings."""
        self._trainer, self._hash, self._attempted, self._last = None, "", None, None
        folder = self._home / "checkpoint"
        if checkpoint:
            shutil.rmtree(folder, ignore_errors=True)
            store_version(self._home, folder.name, files, checkpoint)
        if asked.calibration is not None:
            write_calibration(self._home, asked.calibration)
        given = {name: value for name, value in asked.settings.items() if value is not None}
        own = {"home": self._home, "threads": 0, "resume_from_ckpt": str(folder) if checkpoint else ""}
        settings, _ = with_model(read_settings({**given, **own}))
        self._trainer = LocalVersionTrainer(settings)
        self._made_for = (asked.settings, checkpoint)
        return self._trainer

    def _begin_from(
        self, trainer: LocalVersionTrainer, asked: TrainRequest, files: Mapping[str, bytes]
    ) -> bool:
        """Be the version to go on from; returns False where its files are needed for that."""
        wanted = (asked.policy, asked.version, asked.content_hash)
        attempted, self._attempted = self._attempted, None
        if attempted is not None and wanted == (trainer.name, *attempted):
            trainer.commit(asked.version)
            self._hash = asked.content_hash
        elif attempted is not None:
            trainer.revert()
        if (trainer.name, trainer.version, self._hash) == wanted:
            return True
        if not asked.content_hash:
            trainer.reset(asked.policy)
        elif files:
            self._load(trainer, asked, files)
        else:
            return False
        self._hash = asked.content_hash
        return True

    def _load(self, trainer: LocalVersionTrainer, asked: TrainRequest, files: Mapping[str, bytes]) -> None:
        with tempfile.TemporaryDirectory(dir=self._home) as folder:
            written = store_version(Path(folder), "version", files, asked.content_hash)
            trainer.load(
                AdapterVersion(
                    policy=asked.policy,
                    version=asked.version,
                    path=str(written.path),
                    content_hash=asked.content_hash,
                    manifest_hash=asked.manifest_hash,
                    parent_version=BASE_VERSION,
                    state=AdapterState.PUBLISHED,
                    reason="",
                    method=str(asked.settings["method"]),
                    metrics={},
                    created_at=0.0,
                )
            )

    def _take_files(self, outcome: Outcome) -> dict[str, bytes]:
        """Return the files of what the attempt made; nothing stays on this machine's disk."""
        if outcome.written is None:
            return {}
        made = version_bytes(outcome.written.path)
        remove_version(outcome.written.path)
        return made

    def close(self) -> None:
        """Remove what is left on the disk."""
        shutil.rmtree(self._home, ignore_errors=True)


def _described(trainer: LocalVersionTrainer) -> TrainReply:
    return TrainReply(notes=trainer.notes, calibration=trainer.calibration)
