"""Assembly of a reply, whole or streamed, into completions with their tokens. Sans-IO.

Nothing is repaired: a part that cannot be read becomes a problem of the reply, and the turn gets a drop reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from store.errors import AlignmentError
from store.lifecycle import DropReason
from store.values import Completion, Json
from wire.chat_request import MAX_DEPTH, is_nested_deeper
from wire.chunk_template import ChunkTemplate
from wire.redaction import redact_secrets


class _Choice:
    __slots__ = ("calls", "finish_reason", "logprobs", "problem", "reasoning", "refusal", "text", "token_ids")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: str | None = None
        self.problem = ""


@dataclass(slots=True, kw_only=True)
class AssembledReply:
    """One assembled reply.

    Attributes:
        completions: by index; empty when the backend sent none.
        is_finished: every requested choice has its finish reason.
        problem: why a part could not be read, or "".
        error: the backend's own error inside a stream, or None.
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
        self._n = n
        self._keeps_logprobs = keeps_logprobs
        self.logprobs: list[Json] = []
        self._id: str | None = None
        self._choices: dict[int, _Choice] = {}
        self._prompt: tuple[int, ...] = ()
        self._usage: Json | None = None
        self._problem = ""
        self._error: str | None = None
        self._templates: list[ChunkTemplate] = []
        self.has_given_up = False

    def give_up(self, problem: str) -> None:
        """Forget the reply and ignore the rest of it: it will not be recorded with its text."""
        self._choices, self._templates, self._prompt, self.logprobs = {}, [], (), []
        self._problem = ""
        self._add_problem(problem)
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
                    self._id = template.completion_id
                state = self._choices[template.index]
                (state.text if template.channel == "content" else state.reasoning).append(text)
                state.logprobs += logprobs
                state.token_ids += ids

    def consume(self, payload: Any, *, part: str) -> None:
        """Consume one parsed reply: ``part`` is "message" (whole reply) or "delta" (chunk)."""
        if self.has_given_up:
            return
        if self._templates:
            self._drain_templates()
        if not isinstance(payload, dict):
            self._add_problem("not a JSON object")
            return
        if payload.get("error") is not None and not payload.get("choices"):
            error = payload["error"]
            message = error.get("message") if isinstance(error, dict) else error
            self._error = redact_secrets(str(message)[:500])
            return
        if isinstance(payload.get("id"), str):
            self._id = payload["id"]
        if isinstance(payload.get("usage"), dict):
            self._usage = payload["usage"]
        prompt = payload.get("prompt_token_ids")
        if prompt is not None:
            if is_token_id_list(prompt):
                self._prompt = tuple(prompt)
            else:
                self._add_problem("prompt_token_ids are not token ids")
        choices = payload.get("choices")
        if not isinstance(choices, list):
            self._add_problem("no list of choices")
            return
        for choice in choices:
            if isinstance(choice, dict):
                self._consume_choice(choice, part)
            else:
                self._add_problem("a choice is not a JSON object")

    def add_problem(self, problem: str) -> None:
        """Note that a part of the reply could not be read."""
        self._add_problem(problem)

    def close(self) -> AssembledReply:
        self._drain_templates()
        if self._usage is not None and is_nested_deeper(self._usage, MAX_DEPTH):
            self._add_problem("usage is nested too deeply to be recorded")
            self._usage = None
        completions = tuple(_completion(i, self._choices[i]) for i in sorted(self._choices))
        return AssembledReply(
            completion_id=self._id,
            completions=completions,
            prompt_token_ids=self._prompt,
            usage=self._usage,
            is_finished=len(completions) >= self._n and all(c.finish_reason is not None for c in completions),
            problem=self._problem,
            error=self._error,
        )

    def _add_problem(self, problem: str) -> None:
        self._problem = self._problem or problem

    def _consume_choice(self, choice: Json, part: str) -> None:
        index = choice.get("index", 0)
        if not isinstance(index, int):
            self._add_problem("a choice has no index")
            return
        state = self._choices.setdefault(index, _Choice())
        message = choice.get(part)
        if isinstance(message, dict):
            self._consume_message(state, message, part)
        elif message is not None:
            self._add_problem(f"a {part} is not a JSON object")
        token_ids = choice.get("token_ids")
        if token_ids is not None:
            if is_token_id_list(token_ids):
                state.token_ids += token_ids
            else:
                self._add_problem("token_ids are not token ids")
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            entries = logprobs.get("content") or []
            self._consume_logprobs(state, entries)
            if (
                self._keeps_logprobs
                and index == 0
                and isinstance(message, dict)
                and message.get("content")
                and isinstance(entries, list)
            ):
                self.logprobs += entries
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            state.finish_reason = reason

    def _consume_logprobs(self, state: _Choice, entries: Any) -> None:
        if not isinstance(entries, list):
            self._add_problem("logprobs are not a list")
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
                self._add_problem("a logprob is not a number")

    def _consume_message(self, state: _Choice, message: Json, part: str) -> None:
        content = message.get("content")
        if isinstance(content, str):
            state.text.append(content)
        elif isinstance(content, list):
            state.text += [
                p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)
            ]
        reasoning = message.get("reasoning_content")
        if not isinstance(reasoning, str):
            reasoning = message.get("reasoning")  # a backend sends one field or the other, never both
        if isinstance(reasoning, str):
            state.reasoning.append(reasoning)
        if isinstance(message.get("refusal"), str):
            state.refusal.append(message["refusal"])
        calls = message.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._consume_tool_call(state, call, position, part)
        single = message.get("function_call")
        if isinstance(single, dict):
            self._consume_tool_call(state, {"function": single}, 0, part)

    def _consume_tool_call(self, state: _Choice, call: Json, position: int, part: str) -> None:
        index = call.get("index", position) if part == "delta" else position
        if not isinstance(index, int):
            self._add_problem("a tool call has no index")
            return
        whole = state.calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
        if isinstance(call.get("id"), str):
            whole["id"] = call["id"]
        if isinstance(call.get("type"), str):
            whole["type"] = call["type"]
        function = call.get("function")
        if isinstance(function, dict):
            # The name comes once; engines that repeat it in every delta mean the same one.
            if isinstance(function.get("name"), str) and not whole["function"]["name"]:
                whole["function"]["name"] = function["name"]
            if isinstance(function.get("arguments"), str):
                whole["function"]["arguments"] += function["arguments"]


def is_token_id_list(value: Any) -> bool:
    return isinstance(value, list) and (not value or (set(map(type, value)) == {int} and min(value) >= 0))


def _completion(index: int, state: _Choice) -> Completion:
    return Completion(
        index=index,
        text="".join(state.text) or "".join(state.refusal),
        reasoning="".join(state.reasoning),
        tool_calls=tuple(state.calls[i] for i in sorted(state.calls)),
        token_ids=tuple(state.token_ids),
        sampling_logprobs=tuple(state.logprobs),
        finish_reason=state.finish_reason,
    )


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
