"""The trainer with its weights on a remote training worker. The record, the playbook's words and every version stay on this machine.

Each attempt sends its batch (the turns with their prompts and replies, the past turns it repeats, the owner's edits) and gets the version's
files back, which are verified like a version that was made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from serving.model_digests import digest_served_model
from store import errors
from store.errors import AdapterError, PatinaError
from store.settings import Settings, training_settings
from store.values import BASE_VERSION, AdapterVersion, Json, ScoredTurn
from trainer.checkpoint import (
    read_state,
    remove_version,
    store_version,
    verify_version,
    version_bytes,
)
from trainer.policy_progress import PolicyProgress
from trainer.protocol import Edit, Outcome, WrittenVersion
from trainer.remote.messages import EFFORT, Attempt, TrainReply, TrainRequest, decode, encode
from trainer.step import StepPlan
from trainer.wish_state import WishState


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


class RemoteVersionTrainer(PolicyProgress):
    """The policy on a training worker, between steps.

    Args:
        pinned: as for `LocalVersionTrainer`.

    Raises:
        ConfigError: the worker cannot load the model, or cannot be reached as this is set up.
        UpstreamError: the worker does not answer.
        AdapterError: ``--resume-from-ckpt`` names no version of this model.
    """

    def __init__(self, settings: Settings, connection: Connection, *, pinned: Json | None = None) -> None:
        super().__init__(settings, StepPlan.of(settings), WishState())
        self._connection = connection
        self._settings_sent = training_settings(settings)
        self._effort: Json = {name: pinned[name] for name in EFFORT} if pinned is not None else {}
        self._from: WrittenVersion | None = None
        self._written: WrittenVersion | None = None
        self._notes: tuple[str, ...] = ()
        self.check()
        if settings.resume_from_ckpt:
            self._resume_from_checkpoint()

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"trains on {self._connection.place}: the turns of each batch leave this machine for it",
            *self._notes,
        )

    def check(self) -> None:
        """Raises: UpstreamError when the worker is away, ConfigError when it cannot train this model."""
        reply, _ = self._ask(
            TrainRequest(settings=self._settings_sent, policy=self.name, effort=self._effort)
        )
        self._effort, self._notes = reply.effort, reply.notes

    def state(self) -> Json:
        return {**super().state(), **self._effort}

    def attempt(
        self,
        turns: Sequence[ScoredTurn],
        replay: Sequence[ScoredTurn],
        recent: Sequence[int],
        number: int,
        remembered: Sequence[ScoredTurn] = (),
        edits: Sequence[Edit] = (),
    ) -> Outcome:
        """See `BaseVersionTrainer.attempt`.

        Raises:
            UpstreamError: the worker cannot be reached; the same attempt may be made again.
            AdapterError: the worker failed, or what it sent is not a version of this model.
        """
        begin = self._from
        self._enter("training worker")
        reply, files = self._ask(
            TrainRequest(
                settings=self._settings_sent,
                policy=self.name,
                version=self.version,
                content_hash=begin.content_hash if begin else "",
                manifest_hash=begin.manifest_hash if begin else "",
                state=self.state(),
                effort=self._effort,
                attempt=Attempt(
                    turns=tuple(turns),
                    replay=tuple(replay),
                    recent=tuple(recent),
                    number=number,
                    remembered=tuple(remembered),
                    edits=tuple(edits),
                ),
            )
        )
        outcome = reply.outcome
        if outcome is None:
            raise AdapterError("the training worker answered an attempt without an outcome")
        if outcome.written is None:
            return outcome
        written = self._store(outcome.written, files)
        if outcome.rejected:
            self._set_rate(float(reply.state["learning_rate"]))
            self._rejected_in_a_row = int(reply.state["rejected_in_a_row"])
        else:
            self._written = written
        return replace(outcome, written=written)

    def _store(self, made: WrittenVersion, files: Mapping[str, bytes]) -> WrittenVersion:
        """Write the files of a version to this machine and verify them."""
        folder = self._settings.adapters_folder_of(self.name)
        written = store_version(folder, made.path.name, files, made.content_hash)
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

    def _ask(self, request: TrainRequest) -> tuple[TrainReply, dict[str, bytes]]:
        """Send a request, with the files of the version to begin from where the worker needs them.

        Raises:
            PatinaError: what the worker reports, as the same class.
        """
        text = encode(request)
        reply, files = self._call(text, {})
        if reply.needs_files:
            if self._from is None:
                raise AdapterError("the training worker asked for the files of the base model")
            reply, files = self._call(text, version_bytes(self._from.path))
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
        assert self._written is not None  # `attempt` made it
        self._from, self._written = self._written, None
        self.version = number
        self._take_state(read_state(self._from.path))

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
        self._keep_progress()
        self._begin_from(folder, adapter.content_hash, adapter.manifest_hash)
        self._resume(adapter.policy, adapter.version)

    def reset(self, name: str) -> None:
        """Be the base model, with nothing learnt, as version 0 of the policy ``name``."""
        self._keep_progress()
        self._from = self._written = None
        self._take_state({})
        if self.name != name == self._settings.policy and self._settings.resume_from_ckpt:
            self._resume_from_checkpoint()
        self._resume(name, BASE_VERSION)

    def _resume_from_checkpoint(self) -> None:
        folder = Path(self._settings.resume_from_ckpt).expanduser()
        digest = verify_version(folder, model=digest_served_model(self._settings.model_path))
        self._begin_from(folder, digest, "")

    def _begin_from(self, folder: Path, content_hash: str, manifest_hash: str) -> None:
        self._written = None
        self._from = WrittenVersion(path=folder, content_hash=content_hash, manifest_hash=manifest_hash)
        self._take_state(read_state(folder))

    def remove(self, folder: Path) -> None:
        """Remove a version's files for good. Raises: AdapterError."""
        remove_version(folder)

    def close(self) -> None:
        """Let go of what is held elsewhere; the worker ends by itself when it is idle."""
