"""Assembly of a reply, whole or streamed, into completions with their tokens. Sans-IO.

Nothing is repaired: a part that cannot be read becomes a problem of the reply, and the turn gets a drop reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from store.errors import AlignmentError
from store.lifecycle import DropReason
from store.values import Completion, Json, ReplyOutcome
from wire.chat_reply import ChatReplyReader, Text, choice_index
from wire.chat_request import MAX_DEPTH, is_nested_deeper
from wire.chunk_template import ChunkTemplate
from wire.lenient_json import without_halves
from wire.redaction import redact_secrets
from wire.reply_strip import read_chunk, read_reply


@dataclass(slots=True)
class _Tokens:
    """The token streams of one choice."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AssembledReply:
    """One assembled reply.

    Attributes:
        completions: by index; empty when the backend sent none.
        is_finished: its outcome is whole: every requested choice ended by the model or by a limit of the request.
        problem: why a part could not be read, or "".
        error: why it failed (the backend's own error, or a finish reason that says so), or None.
    """

    completion_id: str | None
    completions: tuple[Completion, ...]
    prompt_token_ids: tuple[int, ...]
    usage: Json | None
    is_finished: bool
    problem: str
    error: str | None


class Assembler:
    """Assembles one reply, whole or from chunks. It never raises and never repairs: an unreadable part is a `problem`.

    Args:
        keeps_logprobs: `logprobs` gets the entries of the first choice's text, as the backend sent them. No template may be attached.
    """

    def __init__(self, n: int = 1, *, keeps_logprobs: bool = False) -> None:
        self._keeps_logprobs = keeps_logprobs
        self.logprobs: list[Json] = []
        self._reader = ChatReplyReader(n)
        self._tokens: dict[int, _Tokens] = {}
        self._prompt: tuple[int, ...] = ()
        self._templates: list[ChunkTemplate] = []
        self.has_given_up = False

    def give_up(self, problem: str) -> None:
        """Forget the reply and ignore the rest of it: it will not be recorded with its text."""
        self._reader = ChatReplyReader(self._reader.n, problem=problem)
        self._tokens, self._templates, self._prompt, self.logprobs = {}, [], (), []
        self.has_given_up = True

    def attach_template(self, template: ChunkTemplate) -> None:
        """Add what a template consumes from now on to this reply."""
        self._drain_templates()
        self._templates = [known for known in self._templates if known.index != template.index]
        self._templates.append(template)

    def _drain_templates(self) -> None:
        for template in self._templates:
            if template.has_pending:
                text, logprobs, ids = template.drain()
                if template.completion_id is not None:
                    self._reader.completion_id = template.completion_id
                channel = "text" if template.channel == "content" else "reasoning"
                self._reader.choices[template.index].add(channel, text)
                tokens = self._tokens[template.index]
                tokens.logprobs += logprobs
                tokens.ids += ids

    def read(self, raw: bytes, *, part: str, event: bytes = b"") -> Any:
        """Parse and consume a reply ("message") or the data of an ``event`` ("delta"); returns it, None where it cannot be parsed."""
        payload, problem = read_reply(raw) if part == "message" else read_chunk(raw, event)
        self.add_problem(problem)
        if payload is not None:
            self.consume(payload, part=part)
        return payload

    def consume(self, payload: Any, *, part: str) -> None:
        """Consume one parsed reply: ``part`` is "message" (whole reply) or "delta" (chunk)."""
        if self.has_given_up:
            return
        if self._templates:
            self._drain_templates()
        parts = self._reader.feed(payload, part=part)
        if self._keeps_logprobs:
            self.logprobs += [entry for one in parts if isinstance(one, Text) for entry in one.logprobs]
        if not isinstance(payload, dict):
            return
        prompt = payload.get("prompt_token_ids")
        if is_token_id_list(prompt):
            self._prompt = tuple(prompt)
        elif prompt is not None:
            self.add_problem("prompt_token_ids are not token ids")
        choices = payload.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and (index := choice_index(choice)) is not None:
                self._consume_tokens(self._tokens.setdefault(index, _Tokens()), choice)

    def add_problem(self, problem: str) -> None:
        """Note that a part of the reply could not be read; "" is no problem."""
        self._reader.problem = self._reader.problem or problem

    def close(self) -> AssembledReply:
        self._drain_templates()
        reader = self._reader
        reader.finish()
        usage = reader.usage
        if usage is not None and is_nested_deeper(usage, MAX_DEPTH):
            self.add_problem("usage is nested too deeply to be recorded")
            usage = None
        completions = []
        for index in sorted(reader.choices):
            tokens = self._tokens.get(index, _Tokens())
            streams = {"token_ids": tuple(tokens.ids), "sampling_logprobs": tuple(tokens.logprobs)}
            completions.append(reader.choices[index].completion(index, **streams))
        failure = reader.failure if reader.outcome is ReplyOutcome.FAILED else None
        return AssembledReply(
            completion_id=reader.completion_id,
            completions=tuple(completions),
            prompt_token_ids=self._prompt,
            usage=without_halves(usage),
            is_finished=reader.outcome is ReplyOutcome.WHOLE,
            problem=reader.problem,
            error=None if failure is None else redact_secrets(str(failure.get("message") or failure)[:500]),
        )

    def _consume_tokens(self, state: _Tokens, choice: Json) -> None:
        token_ids = choice.get("token_ids")
        if is_token_id_list(token_ids):
            state.ids += token_ids
        elif token_ids is not None:
            self.add_problem("token_ids are not token ids")
        logprobs = choice.get("logprobs")
        entries = (logprobs.get("content") or []) if isinstance(logprobs, dict) else []
        if not isinstance(entries, list):
            self.add_problem("logprobs are not a list")
            return
        try:
            values = [entry["logprob"] for entry in entries]
        except (TypeError, KeyError, IndexError):
            values = []
        if values and set(map(type, values)) == {float}:  # the usual case
            state.logprobs += values
            return
        for entry in entries:
            value = entry.get("logprob") if isinstance(entry, dict) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                state.logprobs.append(float(value))
            else:
                self.add_problem("a logprob is not a number")


def is_token_id_list(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and (not value or (set(map(type, value)) == {int} and min(value) >= 0))


def token_drop_reason(
    completion: Completion, completions: Sequence[Completion], usage: Mapping[str, Any] | None
) -> tuple[DropReason, str] | None:
    """Return why a completion's tokens cannot be trained on, or None. The token count over all choices must match usage."""
    if not completion.token_ids or not completion.sampling_logprobs:
        missing = "token ids" if not completion.token_ids else "logprobs"
        return DropReason.NO_TOKENS, f"the backend sent no {missing}"
    try:
        completion.require_aligned()
    except AlignmentError as exc:
        return DropReason.TOKEN_MISMATCH, str(exc)
    counted = usage.get("completion_tokens") if usage is not None else None
    if isinstance(counted, int):
        total = sum(len(c.token_ids) for c in completions)
        if total != counted:
            return DropReason.TOKEN_MISMATCH, f"{total} token ids but usage counts {counted}"
    return None
