"""The values that packages exchange. Frozen, stdlib only: no I/O, no torch, no SQL.

Those that are made for every turn are not declared frozen: Python then takes three times as long to make one.

Shape letters, used in every docstring: P prompt tokens, C completion tokens, T = P + C, B batch, V vocabulary.
Log-probabilities are natural logs. Times are seconds since the epoch (UTC).
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from store.errors import AlignmentError
from store.lifecycle import DropReason, Stage

#: How verdicts become advantages and a directive term.
Method = Literal["rl", "opd", "combine", "sdpo"]
#: Tokens on which the directive term compares teacher and student.
OpdSupport = Literal["topk", "token"]
#: What is subtracted from a verdict.
Baseline = Literal["running", "none"]

#: One chat message or any other JSON object, exactly as it was on the wire.
Json = dict[str, Any]

#: Engines round: 1e-6 above zero is seen.
_ROUNDED_ZERO = 1e-4

#: Version 0 is the bare base model: no adapter.
BASE_VERSION = 0


class TurnKind(StrEnum):
    MAIN = "main"  #: the person (or their agent) talks to the policy
    SIDE = "side"  #: the client's housekeeping: titles, summaries, heartbeats; logged, never trained


class Relation(StrEnum):
    """How a turn stands to its parent (decided by `recorder.linking`)."""

    FIRST = "first"  #: no earlier turn is a prefix of this request
    NEXT = "next"  #: extends the newest turn of its branch
    BRANCH = "branch"  #: an earlier message was edited, or a prompt sampled again: extends an older turn
    RETRY = "retry"  #: a person asked the same again; a verdict once the newer reply is continued
    FRAMEWORK_RETRY = "framework_retry"  #: a program rejected the reply and asks again; no person's words
    TOOL_LOOP = (
        "tool_loop"  #: of a next state only: a person's words after the answer that a tool loop led to
    )
    COMPACTION = "compaction"  #: the history was replaced by a summary


class LogprobMode(StrEnum):
    """What distribution the engine's sampling logprobs are of."""

    RAW = "raw_logprobs"  #: log-softmax of the model's logits, before temperature and truncation
    PROCESSED = "processed_logprobs"  #: of the distribution the token was drawn from
    UNKNOWN = "unknown"


class ReplyOutcome(StrEnum):
    """How a reply ended. Only a whole one trains; a client of a translated API gets an error for the others."""

    WHOLE = "whole"  #: the model or a limit of the request ended it
    CUT = "cut"  #: it stopped without an end
    FAILED = "failed"  #: the backend ended it with an error


#: OpenAI's finish reason for each that says that a reply is whole, in lower case: backends, engines and gateways have names of their own.
_WHOLE_REASONS = {
    **{name: name for name in ("stop", "length", "tool_calls", "function_call", "content_filter")},
    **dict.fromkeys(
        ("eos", "eos_token", "end_turn", "stop_sequence", "stop_token", "complete", "completed", "end", "done", "repetition"), "stop"
    ),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "model_length", "max_length"), "length"),
    **dict.fromkeys(("tool_use", "tool_call"), "tool_calls"),
    **dict.fromkeys(("safety", "recitation", "refusal"), "content_filter"),
}  # fmt: skip
_FAILED_REASONS = frozenset(
    {"error", "abort", "aborted", "cancelled", "canceled", "failed", "failure", "timeout", "insufficient_system_resource", "network_error"}
    | {"server_error", "internal_error", "malformed_function_call", "interrupted", "overloaded", "rate_limit"}
)  # fmt: skip


def whole_reason(finish_reason: str | None) -> str | None:
    """Return OpenAI's name of a finish reason that says that the reply is whole; None for any other."""
    return _WHOLE_REASONS.get((finish_reason or "").strip().lower())


def outcome_of(finish_reason: str | None) -> ReplyOutcome:
    """Return how a reply with this finish reason ended. An unknown one does not say that the reply is whole."""
    if whole_reason(finish_reason) is not None:
        return ReplyOutcome.WHOLE
    return (
        ReplyOutcome.FAILED if (finish_reason or "").strip().lower() in _FAILED_REASONS else ReplyOutcome.CUT
    )


@dataclass(slots=True, kw_only=True)
class Completion:
    """One sampled choice, as the engine reported it.

    Attributes:
        tool_calls: OpenAI shape, arguments as the string that was sent.
        token_ids: [C] ids the sampler emitted, end-of-turn token included.
        sampling_logprobs: [C] their natural logs under the version that sampled.
        finish_reason: None when the stream ended early.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[Json, ...] = ()
    token_ids: tuple[int, ...] = ()
    sampling_logprobs: tuple[float, ...] = ()
    finish_reason: str | None = None

    def require_aligned(self) -> None:
        """Raises: AlignmentError when ids and logprobs differ in length or a logprob is not a finite number <= 0."""
        if len(self.token_ids) != len(self.sampling_logprobs):
            raise AlignmentError(
                f"{len(self.token_ids)} token ids but {len(self.sampling_logprobs)} logprobs"
            )
        values = self.sampling_logprobs
        if values and (not all(map(math.isfinite, values)) or max(values) > _ROUNDED_ZERO):
            odd = next(v for v in values if not math.isfinite(v) or v > _ROUNDED_ZERO)
            raise AlignmentError(f"{odd} is not a log-probability")


#: Evidence for a turn's kind: (code, weight), strongest first; positive weights are for a side turn.
KindEvidence = tuple[tuple[str, float], ...]


@dataclass(slots=True, kw_only=True)
class KindCorrection:
    """A turn's final kind, where what followed it outweighs the first one."""

    turn_id: str
    kind: TurnKind
    reason: str
    evidence: KindEvidence
    drop_reason: DropReason | None  #: why it does not train although it is a main turn
    at: float


@dataclass(slots=True, kw_only=True)
class LinkCorrection:
    """Where a turn belongs, where what followed it shows another place than its first one."""

    turn_id: str
    session_id: str
    parent_turn_id: str | None
    turn_index: int
    relation: Relation
    link_reason: str
    at: float


@dataclass(slots=True, kw_only=True)
class NewTurn:
    """What the recorder hands to the record for each exchange. Written in one transaction, then immutable.

    Attributes:
        messages: the request's messages exactly as sent; stored once each, content-addressed.
        request: the other fields of the request body (tools, sampling parameters, ...), without ``messages``.
        link_reason: code of how it was linked (`recorder.linking.LinkReason`).
        kind_reason: code of why it is main or side (`wire.classify.MEANINGS`).
        prompt_token_ids: [P] what the engine says it was given; empty when it did not say.
        request_key: canonical hash of the whole request history (same prompt again -> retry).
        reply_key: canonical hash of history + reply; the next request of this branch contains it as a prefix.
        evidence: the evidence for ``kind`` (`wire.classify`).
        drop_reason: None for a turn that may train; else why not.
        corrections, link_corrections: what this request shows about the kind and the place of earlier turns.
        next_state: what this turn's request says about its parent, see `NextState`.
        earlier_next_states: what it says about turns before the parent: replies that were asked again, turns of a tool loop.
    """

    turn_id: str
    completion_id: str | None  #: the engine's `chatcmpl-…` id, which clients see
    session_id: str
    parent_turn_id: str | None
    turn_index: int
    kind: TurnKind
    relation: Relation
    link_reason: str
    kind_reason: str
    link_confidence: float
    policy: str
    key_name: str
    adapter_version: int
    client: str
    user: str | None
    created_at: float
    finished_at: float
    status_code: int
    streamed: bool
    messages: tuple[Json, ...]
    request: Json
    completion: Completion
    prompt_token_ids: tuple[int, ...]
    temperature: float
    logprob_mode: LogprobMode
    usage: Json | None
    request_key: str
    reply_key: str | None
    evidence: KindEvidence = ()
    drop_reason: DropReason | None = None
    main_drop_reason: DropReason | None = (
        None  #: of a side turn: why it would not train as a main turn either
    )
    drop_detail: str = ""
    next_state: NextState | None = None
    earlier_next_states: tuple[NextState, ...] = ()
    corrections: tuple[KindCorrection, ...] = ()
    link_corrections: tuple[LinkCorrection, ...] = ()
    api: Json | None = None  #: of a client that does not speak chat: `RecordedTurn.api`
    wish_text: str = ""  #: what the gateway added to ``messages`` for the sampler (`wire.wish_text`)
    wish_place: str = ""
    drawn: str = (
        ""  #: name of the conversation where a canary release drew who serves it (`store.canary_arms`)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """What a turn was asked and what it replied, read back for a client.

    Attributes:
        request: the chat request without its messages.
        api: the API that its client spoke, where that was not chat (`wire.api_translation.ApiRequest.detail`).
    """

    turn_id: str
    created_at: float
    finished_at: float
    status_code: int
    messages: tuple[Json, ...]
    request: Json
    text: str
    reasoning: str
    tool_calls: tuple[Json, ...]
    finish_reason: str | None
    usage: Json | None
    api: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCompletion:
    """A chat completion, read back for a client.

    Attributes:
        completion_id: the id that its client saw.
        choices: of one request, one turn each.
    """

    completion_id: str
    policy: str
    adapter_version: int
    metadata: Json
    choices: tuple[RecordedTurn, ...]

    @property
    def turn(self) -> RecordedTurn:
        return self.choices[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuery:
    """Which completions a client lists.

    Attributes:
        model: a model name of the request, a policy, or a version `policy@N`; None: any.
        metadata: pairs that they have.
        after: id of the completion before the page.
        is_oldest_first: the order.
        with_unstored: also those of requests with ``store: false``.
    """

    model: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    after: str | None = None
    limit: int = 20
    is_oldest_first: bool = False
    with_unstored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedItem:
    """An item that a client added to a conversation, as it was sent; ``at`` is Unix time (seconds)."""

    item_id: str
    at: float
    item: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation that a client created by name. Its items are the added ones and those of its turns, without the deleted ones.

    Attributes:
        added: in the order in which they came.
        deleted: ids of items of its turns.
    """

    conversation_id: str
    metadata: Json
    created_at: float
    added: tuple[AddedItem, ...] = ()
    deleted: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class NextState:
    """What followed a turn: the feedback, before anybody has read it as such.

    Attributes:
        turn_id: the turn that is answered by this.
        by_turn_id: the turn whose request carried it.
        role: who spoke: "user", "tool", or "validator" or "framework" (programs in the user's place); for a retry "user".
        text: the person's words (or the tools' output), without what the client added, as far as that is known.
        messages: everything that followed, as sent.
        relation: relation of ``by_turn_id`` to ``turn_id``: next, branch (edited away), retry, framework_retry, tool_loop, ...
    """

    turn_id: str
    by_turn_id: str
    role: str
    text: str
    messages: tuple[Json, ...]
    relation: Relation
    created_at: float


@dataclass(slots=True, kw_only=True)
class Tip:
    """A stored turn as the linker sees it."""

    turn_id: str
    session_id: str
    turn_index: int
    kind: TurnKind
    parent_turn_id: str | None
    key: str  #: the request_key or reply_key that was found
    is_newest: bool  #: no later main turn extends it
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A stored turn as the recorder reads it back when it starts.

    Attributes:
        client: name of the client that sent it.
        messages: leading system messages, and the end of what came after them.
        is_whole: that end is all of it.
    """

    turn_id: str
    session_id: str
    parent_turn_id: str | None
    turn_index: int
    kind: TurnKind
    relation: Relation
    link_reason: str
    kind_reason: str
    key_name: str
    client: str
    user: str | None
    created_at: float
    finished_at: float
    request_key: str
    reply_key: str | None
    messages: tuple[Json, ...]
    is_whole: bool
    request: Json
    completion: Completion
    evidence: KindEvidence = ()
    main_drop_reason: DropReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Explicit feedback for one turn, by a client that knows Patina.

    Attributes:
        score: in [-1, 1]; None when only text was given.
        idempotency_key: the same key twice is the same feedback.
    """

    feedback_id: str
    turn_id: str
    score: float | None
    text: str
    idempotency_key: str
    created_at: float


def may_hold_hint(text: str, score: float | None) -> bool:
    """Whether explicit feedback may say what to do differently: it has a text, and its score is no praise."""
    return bool(text.strip()) and (score is None or score <= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """The user's own text after a reply, bounded in length.

    Attributes:
        is_question: the text opens a new topic, so that it is no hint for the reply.
    """

    text: str
    is_question: bool = False


class WishScope(StrEnum):
    """How long what a message asks for is to hold."""

    LASTING = "lasting"  #: from now on
    ONCE = "once"  #: for what is asked next ("just this once")
    ANSWER = "answer"  #: for the reply that it follows ("make this one shorter")
    WITHDRAWAL = "withdrawal"  #: an earlier wish is to end ("you can use emoji again")


@dataclass(frozen=True, slots=True, kw_only=True)
class WishReading:
    """What a message asks of replies.

    Attributes:
        text: the words of the message that state it, verbatim.
    """

    text: str
    scope: WishScope


#: `Verdict.source` where no scorer had an opinion.
NO_SOURCE = "none"


#: `Verdict.source` of explicit feedback.
EXPLICIT_SOURCE = "feedback"
#: Beginnings of `Verdict.source` of verdicts that are about the whole reply: thumbs and scores, reward functions, failed tool calls.
EXPLICIT_SOURCES = (EXPLICIT_SOURCE, "custom:", "rule:tool_error")
#: `Verdict.source` of a turn that shares in the verdict on the answer of its tool loop.
LOOP_SOURCE = "rule:tool_loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A scorer's verdict on a turn.

    Attributes:
        value: -1, 0 or +1; None means it abstained.
        hint: hindsight text that would have helped, or None.
        hint_is_reaction: the hint is the person's own words (raw follow-up), not a judge's phrasing.
        wish: what the user's text asks of replies, in the user's own words; None when it asks nothing of them.
        follow_up: the user's text after the reply; None when only tools or nothing followed.
        source: the scorer or rule ("rule:thanks", "judge:openai/gpt-…", "feedback", "custom:mod:fn").
        confidence: in [0, 1]; the share of votes, or a rule's own estimate.
        share: of the verdict's weight in training, in (0, 1]; less than 1 where the words were about another turn of the same tool loop.
        detail: votes, opinions, rejected hints with their reasons.
    """

    turn_id: str
    value: int | None
    hint: str | None = None
    hint_is_reaction: bool = True
    wish: WishReading | None = None
    follow_up: FollowUp | None = None
    source: str
    confidence: float = 1.0
    share: float = 1.0
    detail: Json = field(default_factory=dict)
    created_at: float

    def __post_init__(self) -> None:
        if self.value not in (-1, 0, 1, None):
            raise ValueError(f"a verdict is -1, 0, +1 or None, not {self.value!r}")

    @property
    def states_wish(self) -> bool:
        """Whether it states a lasting wish."""
        return self.wish is not None and self.wish.scope is WishScope.LASTING


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredTurn:
    """A turn that waits for a verdict, with all that followed it."""

    turn_id: str
    session_id: str
    policy: str
    key_name: str
    messages: tuple[Json, ...]
    request: Json
    completion: Completion
    next_states: tuple[NextState, ...]  #: oldest first; several when the person branched
    feedback: tuple[Feedback, ...]
    created_at: float

    @property
    def prefill(self) -> str:
        """The beginning of the reply, where the request gave it (`continue_final_message`); "" elsewhere."""
        last = self.messages[-1] if self.messages else {}
        content = last.get("content")
        is_given = self.request.get("continue_final_message") and last.get("role") == "assistant"
        return content if is_given and isinstance(content, str) else ""

    @property
    def reply_text(self) -> str:
        """The reply as a person reads it."""
        return self.prefill + self.completion.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTurn:
    """A claimed turn as the trainer takes it: exact tokens, verdict, hint.

    Attributes:
        prompt_token_ids: [P] ids the policy was given.
        verdict: the newest one; ``verdict_id`` is its number in the record, 0 where it has none.
        wish_text, wish_place: the wishes that the sampler read besides ``messages``, and where (`wire.wish_text.add_wishes`); "": none.
    """

    turn_id: str
    session_id: str
    turn_index: int
    policy: str
    key_name: str
    adapter_version: int
    messages: tuple[Json, ...]
    request: Json
    completion: Completion
    prompt_token_ids: tuple[int, ...]
    temperature: float
    logprob_mode: LogprobMode
    verdict: Verdict
    next_text: str
    created_at: float
    verdict_id: int = 0
    wish_text: str = ""
    wish_place: str = ""


class _StoredState(StrEnum):
    """A state in the record. One that no program wrote is read as ``DAMAGED``, which allows nothing."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls("damaged")


class AdapterState(_StoredState):
    PUBLISHED = "published"  #: passed the gate; may be (or may have been) live
    REJECTED = "rejected"  #: failed the gate; kept for `versions` to show why
    PRUNED = "pruned"  #: its files were removed by the retention policy
    FORGOTTEN = "forgotten"  #: it was trained on what a person asked to forget; its files were removed
    REFUSED = "refused"  #: not what the trainer made, by its files or by its log-probabilities: never serves
    DAMAGED = "damaged"  #: the row names no state


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterVersion:
    """Immutable LoRA weights ``policy@version``; version 0 has none and no row.

    Attributes:
        path: folder that peft and vLLM load as it is (or a `tinker://` path).
        content_hash: of the weight file's bytes.
        manifest_hash: of its `manifest.json` (`store.manifest`); "": made before there were manifests.
        parent_version: the version the step started from.
        metrics: what the step and the gate measured.
    """

    policy: str
    version: int
    path: str
    content_hash: str
    parent_version: int
    state: AdapterState
    reason: str
    method: str
    metrics: Json
    created_at: float
    manifest_hash: str = ""

    @property
    def name(self) -> str:
        return adapter_name(self.policy, self.version)


def gateway_name(worker: int) -> str:
    """Return the process name of a gateway, counted from 1: proxy, proxy-2, ..."""
    return "proxy" if worker == 1 else f"proxy-{worker}"


def adapter_name(policy: str, version: int) -> str:
    """Return the immutable name the backend serves a version under."""
    return f"{policy}@{version}"


def numbers_of(metrics: Json) -> Json:
    """Return the numbers among what a version measured: its texts are what people wrote, and stay with their owner."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasMove:
    """``policy`` pointed to ``version`` from ``moved_at`` on; the newest row is what is live."""

    policy: str
    version: int
    moved_at: float
    actor: str  #: "trainer", "rollback", ...


class ReleaseStage(_StoredState):
    """Where a canary release stands."""

    RUNNING = "running"  #: the version serves a share of the new conversations
    KEPT = "kept"  #: it went live
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"  #: another version went live, or a person moved the alias
    DAMAGED = "damaged"  #: the row names no stage


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRelease:
    """A version that passed the gate and serves a share of the new conversations before all of them.

    Attributes:
        baseline_version: what is live when it begins, and stays live after a rollback.
        share: of the new conversations.
        numbers: what the newest comparison counted (`trainer.canary_release`).
    """

    policy: str
    version: int
    baseline_version: int
    share: float
    stage: ReleaseStage
    started_at: float
    stage_since: float
    reason: str
    numbers: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnConversation:
    """A conversation that chance gave to one of two versions, when its time is over.

    Attributes:
        is_on_trial: it was given to the version on trial, whichever served it in fact.
        complaints: whether each judged turn has one, oldest first; an empty reply counts as one.
    """

    key_name: str
    is_on_trial: bool
    complaints: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewReply:
    """A past question as two versions answer it.

    Attributes:
        turn_id: of the question.
        change: share of the words that differ, in [0, 1].
    """

    turn_id: str
    live: str
    new: str
    change: float


class StepRole(StrEnum):
    """What a step used a turn for."""

    BATCH = "batch"  #: claimed for it, whether it taught something or not
    SERVED = "served"  #: its reply was served with wishes and accepted
    STATED = "stated"  #: it states a wish that the version learns
    RECENT = "recent"  #: its verdict's value is in the window of the baseline
    FILE = "file"  #: no turn: an uploaded file of examples


TuningMethod = Literal["supervised", "dpo"]


class TuningStatus(StrEnum):
    """What OpenAI's API calls the status of a fine-tuning job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFile:
    """An uploaded file of examples.

    Attributes:
        size: in bytes.
        content: its text; "" in lists.
    """

    file_id: str
    key_name: str
    filename: str
    size: int
    method: TuningMethod
    content: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningJob:
    """A fine-tuning job: a version is to learn the examples of a file.

    Attributes:
        beta: of DPO.
        detail: what its client sent and only sees again: suffix and metadata.
        attempts: that began.
        version: that it made, rejected or not.
        error: why it failed.
    """

    job_id: str
    key_name: str
    policy: str
    file_id: str
    method: TuningMethod
    epochs: int
    beta: float
    status: TuningStatus
    detail: Json
    created_at: float
    attempts: int = 0
    version: int | None = None
    error: str = ""
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningData:
    """The examples of a job, for the trainer; ``content`` as uploaded."""

    job_id: str
    file_id: str
    method: TuningMethod
    epochs: int
    beta: float
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentVerdict:
    """A verdict in the baseline's window."""

    turn_id: str
    verdict_id: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Everything that a step was computed from.

    Attributes:
        turns: by role, in order: (turn id, id of the verdict that counted).
        settings: the settings of training, by name.
    """

    turns: Mapping[StepRole, tuple[tuple[str, int], ...]]
    settings: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One optimizer step (or the attempt), for `status` and `why`.

    Attributes:
        inputs: None where they are not known or were not asked for.
    """

    step_id: str
    policy: str
    method: str
    started_at: float
    finished_at: float | None
    version: int | None
    error: str | None
    metrics: Json
    inputs: StepInputs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a person asks to forget: a turn, a session, what a key sent, or all that holds a text.

    Attributes:
        turn: its id, the end of it, its completion id, or "last".
        session: its id or the end of it.
        match: a text, whatever its case; with ``key_name``: under that key alone.
        since: only turns from then on.
        before: the conversations under ``key_name`` whose newest turn is older. Nothing that repeats them is searched for.
        turns, reactions: ids of turns, and of turns whose reactions go, that were forgotten before in another copy of the record. Nothing that repeats them
            is searched for.
    """

    turn: str | None = None
    session: str | None = None
    key_name: str | None = None
    match: str | None = None
    since: float | None = None
    before: float | None = None
    turns: tuple[str, ...] = ()
    reactions: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return what is selected, without the words."""
        parts = [
            f"turn {self.turn}" if self.turn is not None else "",
            f"session {self.session}" if self.session is not None else "",
            f"key {self.key_name}" if self.key_name is not None else "",
            "a text" if self.match is not None else "",
            f"no turn since {time.strftime('%Y-%m-%d', time.gmtime(self.before))}"
            if self.before is not None
            else "",
            "what was forgotten before" if self.turns or self.reactions else "",
        ]
        return " and ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """Everything that goes with what a person asks to forget; see `store.queries.closure`.

    Attributes:
        selection: with the whole ids of what it names.
        with_replies: ``replies`` are removed as well.
        tainted: versions by policy.
        live, clean: of the policies whose live version is tainted: that version, and the one that goes live instead.
        lines: the words, to search for.
        keys: names of the API keys whose turns are selected.
        files: ids of uploaded training files.
        items: (conversation, item) of what clients put into conversations; "": the whole conversation.
        not_searched: short lines of the selected turns that are not searched for elsewhere: many people write them.
    """

    selection: Selection
    selected: tuple[str, ...]
    continuations: tuple[str, ...]
    quotes: tuple[str, ...]
    replies: tuple[str, ...]
    with_replies: bool
    reactions: tuple[str, ...]
    tainted: Mapping[str, tuple[int, ...]]
    live: Mapping[str, int]
    clean: Mapping[str, int]
    lines: tuple[str, ...]
    keys: frozenset[str]
    items: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    not_searched: int = 0

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns that are removed."""
        kept = () if self.with_replies else self.replies
        every = (*self.selected, *self.continuations, *self.quotes, *self.replies)
        return tuple(dict.fromkeys(one for one in every if one not in kept))

    def to_json(self) -> Json:
        """Return what it holds, without the words."""
        return {
            "selected": list(self.selected),
            "continuations": list(self.continuations),
            "quotes": list(self.quotes),
            "replies": list(self.replies),
            "replies_removed": self.with_replies,
            "reactions": list(self.reactions),
            "tainted": {policy: list(versions) for policy, versions in self.tainted.items()},
            "clean": dict(self.clean),
            "items": [list(one) for one in self.items],
            "files": list(self.files),
            "not_searched": self.not_searched,
        }


class ForgetStage(StrEnum):
    """How far a forget has come. Each stage may be left and taken up again at any point."""

    ASKED = "asked"
    DELETED = "deleted"  #: its rows are gone, the clean versions are live
    UNLEARNT = "unlearnt"  #: the folders of tainted versions are gone
    CLEANED = "cleaned"  #: no other file holds the words
    DONE = "done"  #: the database's file was written anew, and the receipt is there


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetJob:
    """Something that a person asked to forget.

    Attributes:
        job_id: of its receipt as well.
        key_name: of the key that asked on the page or by an API; "": it was asked for at the command line.
        asked: what, without the words.
        detail: what is needed to go on; once done, what `store.queries.forget_jobs.finish` leaves.
        waits: for what; "": for nothing.
        deleted_at: Unix time of the deletion of its rows.
    """

    job_id: str
    key_name: str
    asked: str
    stage: ForgetStage
    detail: Json
    waits: str
    asked_at: float
    deleted_at: float | None

    @property
    def sentence(self) -> str:
        """For the owner: how far it is, and for what it waits."""
        waits = f", waits for {self.waits}" if self.waits else ""
        return f"{self.asked}: {self.stage.value}{waits}"

    @property
    def state(self) -> str:
        """In a word: "running", "forgotten", "incomplete"."""
        if self.stage is not ForgetStage.DONE:
            return "running"
        return "forgotten" if self.detail.get("complete", True) else "incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What a forget removed from the record.

    Attributes:
        turns, messages: keyed digests of removed turns (by id) and of removed messages.
        removed: addresses of the removed messages.
    """

    closure: Closure
    turns: Mapping[str, str]
    messages: tuple[str, ...]
    removed: tuple[str, ...]
    nodes: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    process: str
    pid: int
    state: str
    detail: Json
    at: float


class GpuRole(StrEnum):
    """The two processes that share a GPU."""

    TRAINER = "trainer"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLease:
    """What one side of a shared GPU states to the other; each side writes its own row.

    Attributes:
        lease: trainer: the lease that it requests or holds; engine: the lease that it granted; None: none.
        should_yield: the engine asks the trainer to release the GPU.
        at: Unix time of the last write (seconds).
    """

    role: GpuRole
    pid: int
    lease: str | None
    should_yield: bool = False
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFate:
    """One turn's place in life, as `trajectories`, `why` and the tests read it."""

    turn_id: str
    stage: Stage
    drop_reason: DropReason | None
    trained_in_version: int | None
    detail: str = ""  #: why it was dropped, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnProgress:
    """How far a turn has come on its way into the live version.

    Attributes:
        policy: the one that it trains.
        is_live: a version that it trained, or one made from that, is live.
    """

    fate: TurnFate
    policy: str
    is_live: bool


class WishState(_StoredState):
    """Where a wish acts."""

    PROMPT = "prompt"  #: the gateway adds it to the prompts of its policy
    RETIRED = "retired"  #: the weights follow it alone
    WITHDRAWN = "withdrawn"  #: nowhere: the person or the owner took it back
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class WishStatement:
    """One turn whose reaction states a wish.

    Attributes:
        text: the person's words.
    """

    turn_id: str
    text: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A lasting preference of the people behind a policy.

    Attributes:
        text: the wording in use: the words of a statement, or the owner's.
        edited: the wording is the owner's.
        measures: what the trainer measured of it.
        statements: the turns that state it, the oldest first.
        changed_at: when it was last stated, edited, or got its state.
    """

    wish_id: int
    policy: str
    state: WishState
    text: str
    edited: bool
    measures: Json
    statements: tuple[WishStatement, ...]
    created_at: float
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WishesSeen:
    """What shows whether any wish changed: their number, the newest one's id, and the newest change."""

    count: int
    newest: int
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedComplaint:
    """A complaint that taught nothing.

    Attributes:
        text: the person's words.
        hint: the hint that a scorer made of them; None when they do not say what to do differently.
        detail: why it was dropped, in words; "" when only the code is known.
        dropped_at: when it was dropped.
    """

    turn_id: str
    text: str
    hint: str | None
    drop_reason: DropReason
    detail: str
    dropped_at: float


def new_feedback_id() -> str:
    return f"feedback_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTurn:
    """A turn with the value of its newest verdict."""

    turn_id: str
    value: int
    created_at: float  #: of the verdict
    adapter_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRow:
    """A session as a list shows it: the counts are of its turns within the page that was read.

    Attributes:
        is_opted_out: its client asked not to train on any of them, as the chat panel does for its second answer.
        last_message: the last message of its newest request; None: the record does not hold it.
        first_at, last_at: when the first and the last of these turns were received.
    """

    session_id: str
    client: str
    key_name: str
    turns: int
    is_side: bool
    complaints: int
    praised: int
    trained: int
    is_opted_out: bool
    last_message: Json | None
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedTurn:
    """A turn that will not train, with its reason."""

    turn_id: str
    client: str
    created_at: float
    last_message: Json | None
    completion: str
    drop_reason: str
    detail: str
    dropped_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tips:
    """Stored turns found by their canonical keys, newest first."""

    replies: Mapping[str, tuple[Tip, ...]]  #: by reply_key: a history that ends after their reply
    requests: Mapping[str, tuple[Tip, ...]]  #: by request_key: the very same prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTraffic:
    """What one client sent within the window that `store.queries.person.client_traffic` reads.

    Attributes:
        main: turns of the person. Of these linked: continue or repeat a recorded turn; followed: a person's words followed them;
            trained: are in a version.
        side_reasons: codes of the side turns (`turns.kind_reason`), with their counts.
        drop_reasons: reasons of the main turns that were dropped, with their counts.
        last_side_turn, last_main_turn: the newest of each, to explain; None: there is none.
        last_seen_at: when its newest request came.
    """

    client: str
    main: int
    side: int
    linked: int
    followed: int
    trained: int
    side_reasons: Mapping[str, int]
    drop_reasons: Mapping[DropReason, int]
    last_side_turn: str | None
    last_main_turn: str | None
    last_seen_at: float

    @property
    def turns(self) -> int:
        return self.main + self.side

    @property
    def shares(self) -> tuple[float, float, float]:
        """Return the share of main turns among all, and of linked and of continued ones among the main turns."""
        main = max(1, self.main)
        return self.main / max(1, self.turns), self.linked / main, self.followed / main


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStatus:
    """What `status` shows: a GROUP BY of the life of turns, and who does what now."""

    turns: int
    kinds: Mapping[str, int]
    stages: Mapping[str, int]
    drop_reasons: Mapping[str, int]
    live: Mapping[str, int]
    versions: Mapping[str, int]  #: adapter versions by state
    last_step: StepReport | None
    last_error: str | None
    training: str  #: "running" or "paused"
    heartbeats: tuple[Heartbeat, ...]
    paused: tuple[str, ...] = ()  #: policies that are paused one by one
    forgetting: tuple[str, ...] = ()  #: one sentence for each forget that is not done

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the gateways do now.

    Attributes:
        in_flight: requests in flight.
        newest_main_at: when the newest main request came (Unix time, seconds), as far as the newest turns show it.
        asked_at: when a person last asked to train now; 0.0: never.
    """

    in_flight: int
    newest_main_at: float
    asked_at: float

    def quiet_s(self, now: float) -> float:
        """Return the seconds since the last main request; 0 while a request is in flight."""
        return 0.0 if self.in_flight else max(0.0, now - self.newest_main_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningMetrics:
    """What `/metrics` reads of learning.

    Attributes:
        verdicts: their number by (value, source); value None: the scorer abstained.
        newest: the newest version of each policy, published or not.
        feedback_to_live_s: by policy: seconds from the newest feedback in the live version until it went live; NaN: a row of them is damaged.
        releases: the number of canary releases by stage.
    """

    verdicts: Mapping[tuple[int | None, str], int]
    newest: tuple[AdapterVersion, ...]
    feedback_to_live_s: Mapping[str, float]
    releases: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenVerdict:
    """A verdict with its turn's ids, for a span and `store.record_lines`."""

    verdict_id: int
    turn_id: str
    completion_id: str | None
    session_id: str
    value: int | None
    source: str
    hint: str
    wish: str | None
    confidence: float
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Scored turns that no step has claimed yet."""

    scored: int
    ready: int  #: of these, with something to teach
    oldest_since: float | None  #: when the first of them was scored
    complaints: int = 0  #: of these, those that are negative or have a hint
    complaint_since: float | None = None  #: when the first complaint was scored
    newest_complaint: float | None = None
