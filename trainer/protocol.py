"""What the rooms of the trainer need of a policy, wherever its weights are: in this process, or on a training server.

Who decides what a turn teaches (`trainer.step.prepare`), keeps the policy where it was (`trainer.anchors`) or judges a version
(`trainer.gate`) knows nothing beyond `Policy`. Who hands out the work (`trainer.worker`) knows nothing beyond `VersionTrainer`.

Shapes: P prompt tokens, C completion tokens, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from store.lifecycle import DropReason
from store.values import AdapterVersion, Json, PreviewReply, ScoredTurn, TuningData, Wish

if TYPE_CHECKING:  # the trainer at rest loads no torch
    from torch import Tensor


class Weights(StrEnum):
    """Whose weights answer."""

    STUDENT = "student"  #: base + the adapter being trained
    BASE = "base"  #: no adapter
    TEACHER = "teacher"  #: another model with the same vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A sampled completion.

    Attributes:
        token_ids: [C], end-of-turn token included when there is one.
        logprobs: [C] at temperature 1, whatever temperature it was drawn at.
        finished: the model ended its turn within the allowance.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeacherScore:
    """What a teacher says along one response, as far as it is known. Natural logs, at the sample's temperature.

    Attributes:
        logprobs: q [C], of the response's tokens.
        support_ids: [C, K] int64, the teacher's likeliest tokens; None: only the response's tokens are known.
        support_logprobs: [C, K] the teacher's; None with them.
    """

    logprobs: Tensor
    support_ids: Tensor | None = None
    support_logprobs: Tensor | None = None

    def is_complete(self, count: int) -> bool:
        """Whether it has a number for each of so many tokens, and for each token of the support (-inf: an unused slot)."""
        if self.logprobs.shape != (count,) or not bool(self.logprobs.isfinite().all()):
            return False
        support = self.support_logprobs
        return support is None or (len(support) == count and not bool(support.isnan().any()))


class Policy(Protocol):
    """A base model with one adapter that is being trained. One thread only.

    `trainer.policy.LocalPolicy` is one; the docstrings there hold for all.
    """

    @property
    def max_context(self) -> int: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def sampling_temperature(self) -> float:
        """What the makers of the model sample at; 1 where they do not say."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template: Any,
    ) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, markup: bool = False) -> str: ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seed: int = 0,
        weights: Weights = Weights.STUDENT,
    ) -> list[Reply]: ...

    def response_logprobs(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights = Weights.STUDENT,
        *,
        temperature: float | Sequence[float] = 1.0,
    ) -> tuple[Tensor, Tensor]: ...

    def trained_logprobs(self, token_ids: Sequence[int]) -> list[float]: ...

    def teacher_scores(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights,
        *,
        temperature: Sequence[float],
        top_k: int,
    ) -> list[TeacherScore]: ...

    def is_finite(self) -> bool: ...

    def snapshot(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...

    def as_it_was(self, state: Mapping[str, Any]) -> AbstractContextManager[None]: ...

    @property
    def learning_rate(self) -> float: ...

    @learning_rate.setter
    def learning_rate(self, value: float) -> None: ...

    def version_files(self, name: str = "") -> dict[str, bytes]: ...

    def load_version(self, folder: Path) -> None: ...

    def reset(self, seed: int = 0) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionJob:
    """What a version is computed from.

    Attributes:
        number: of the version.
        turns: the batch.
        served: accepted replies of the past that were served with wishes in their prompt, the newest first.
        recent: values of earlier verdicts, oldest first.
        wishes: the active ones, oldest first.
        passes: times the plan's passes over the samples; see `trainer.due.next_passes`.
        files: uploaded examples, of the oldest job first.
        live: what the metrics of the live version say of its wishes; see `trainer.wish_review.wish_rows`.
    """

    number: int
    turns: Sequence[ScoredTurn]
    served: Sequence[ScoredTurn] = ()
    recent: Sequence[int] = ()
    wishes: Sequence[Wish] = ()
    passes: int = 1
    files: Sequence[TuningData] = ()
    live: Sequence[Json] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRefusal:
    """Why a turn does not train."""

    reason: DropReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenVersion:
    """A version on disk. ``content_hash`` is the hex SHA-256 of what an engine loads, ``manifest_hash`` of `manifest.json`."""

    path: Path
    content_hash: str
    manifest_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Wishes that are one: ``others`` become a part of ``into``, all by wish_id, and ``text`` is the wording to use."""

    into: int
    others: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an attempt came to.

    Attributes:
        written: the version on disk, published or rejected; None when no turn had anything to teach.
        rejected: what the gate says against it; empty: it may be published.
        reason: in one sentence, what the version was made of.
        used: ids of the turns that its samples are of.
        merged: wishes that do the same to the model.
        measures: what was measured of each wish, by wish_id.
    """

    refused: Mapping[str, TurnRefusal]
    parent_version: int
    written: WrittenVersion | None = None
    rejected: tuple[str, ...] = ()
    reason: str = ""
    metrics: Json = field(default_factory=dict)
    used: tuple[str, ...] = ()
    merged: tuple[Merge, ...] = ()
    measures: Mapping[int, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a preview found.

    Attributes:
        rejected: sentences against the version; empty: it may be tried.
        numbers: means and differences, without any words.
        replies: the most changed ones.
    """

    rejected: tuple[str, ...] = ()
    numbers: Json = field(default_factory=dict)
    replies: tuple[PreviewReply, ...] = ()


class AttemptPhase(NamedTuple):
    """What an attempt does now, and since when (`time.time`); name "": there is no attempt."""

    name: str = ""
    since: float = 0.0


class VersionTrainer(Protocol):
    """One policy at a time between steps, as the worker knows it; `trainer.version_trainer` says what each does."""

    #: Called by an attempt, on its thread, with the wishes to merge, before it trains; a training elsewhere does not call it.
    on_review: Callable[[Outcome], None]

    @property
    def name(self) -> str:
        """The policy whose version this is."""
        ...

    @property
    def version(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about how this trains, in sentences; shown in `status`."""
        ...

    @property
    def phase(self) -> AttemptPhase:
        """What the attempt under way does now; read from another thread."""
        ...

    def check(self) -> None:
        """Raise UpstreamError when an attempt would fail whatever the turns are: a training server is away."""
        ...

    def attempt(self, job: VersionJob) -> Outcome: ...

    def preview(self, job: VersionJob, past: Sequence[ScoredTurn], live: Path | None) -> Preview | None:
        """Compare the version just made with the live one on past turns; None: the weights are not here, or there is too little to ask.

        Args:
            past: the newest first.
            live: folder of the live version; None: the base model.
        """
        ...

    def commit(self, number: int) -> None: ...

    def revert(self) -> None: ...

    def load(self, adapter: AdapterVersion) -> None: ...

    def reset(self, name: str) -> None: ...

    def remove(self, folder: Path) -> None:
        """Remove a version's files for good, wherever they are. Raises: AdapterError."""
        ...

    def close(self) -> None:
        """Let go of what is held elsewhere."""
        ...
