"""The OpenAI chat format: what is asked of the backend for a request, and what of its reply the client gets. Sans-IO.

To record exact tokens the backend is asked for more than the client asked for (`Injection`), and exactly that is taken out of
the reply again. It is cut out of the bytes, never by writing the JSON anew: numbers, escapes, key order and white space stay as
the backend wrote them. Replies are assembled beside this from the same parsed values, and nothing is ever repaired: what does
not add up becomes a turn with a drop reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from store.errors import AlignmentError, WireError
from store.lifecycle import DropReason
from store.values import Completion, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A parsed chat request.

    Attributes:
        body: as the client sent it.
        messages: its messages, all of them JSON objects.
        temperature: None when the client leaves it to the backend.
    """

    body: Json
    messages: tuple[Json, ...]
    model: str | None
    stream: bool
    n: int
    temperature: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What was added to a request, and so must leave the reply again.

    Attributes:
        logprobs, token_ids, usage: asked for by us and not by the client.
        served_model: name the backend was given, when it is not the client's.
        client_model: name to be put back.
    """

    logprobs: bool = False
    token_ids: bool = False
    usage: bool = False
    served_model: str | None = None
    client_model: str | None = None

    @property
    def changes_reply(self) -> bool:
        return self.logprobs or self.token_ids or self.usage or self.served_model is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names under which a backend would refuse what was added."""
        names = (
            ("logprobs", self.logprobs),
            ("return_token_ids", self.token_ids),
            ("stream_options", self.usage),
        )
        return tuple(name for name, is_added in names if is_added)


def parse_chat(raw: bytes) -> ChatRequest:
    """Read a chat request.

    Raises:
        WireError: not a JSON object with a list of messages; only the backend can say what is wrong with it.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        raise WireError(f"the request is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise WireError("the request is not a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise WireError("the request has no list of messages")
    model = body.get("model")
    n = body.get("n")
    temperature = body.get("temperature")
    return ChatRequest(
        body=body,
        messages=tuple(messages),
        model=model if isinstance(model, str) else None,
        stream=body.get("stream") is True,
        n=n if isinstance(n, int) and n > 0 else 1,
        temperature=float(temperature) if isinstance(temperature, int | float) else None,
    )


def build_request(
    chat: ChatRequest, *, fields: frozenset[str], served_model: str | None = None
) -> tuple[bytes, Injection]:
    """Return the body for the backend, and what was added to it.

    Args:
        fields: what the backend understands of "logprobs", "return_token_ids", "stream_options".
        served_model: name the backend knows the policy version by; None leaves the client's.

    Raises:
        WireError: it cannot be written anew (nested too deeply); it can only be passed on as it is.
    """
    body = chat.body
    added: Json = {}
    # `top_logprobs` without `logprobs` is the client's error, and the backend's to tell
    logprobs = "logprobs" in fields and body.get("logprobs") is not True and not body.get("top_logprobs")
    if logprobs:
        added["logprobs"] = True
    token_ids = "return_token_ids" in fields and body.get("return_token_ids") is not True
    if token_ids:
        added["return_token_ids"] = True
    options = body.get("stream_options")
    usage = (
        "stream_options" in fields
        and chat.stream
        and (options is None or isinstance(options, dict))
        and not (options or {}).get("include_usage")
    )
    if usage:
        added["stream_options"] = {**(options or {}), "include_usage": True}
    renamed = served_model is not None and served_model != chat.model
    if renamed:
        added["model"] = served_model
    injection = Injection(
        logprobs=logprobs,
        token_ids=token_ids,
        usage=usage,
        served_model=served_model if renamed else None,
        client_model=chat.model if renamed else None,
    )
    try:
        return orjson.dumps({**body, **added}), injection
    except orjson.JSONEncodeError as exc:
        raise WireError(f"the request cannot be written anew: {exc}") from exc


# ---------------------------------------------------------------- taking out again

_KEYS = re.compile(r'(?<!\\)"(logprobs|token_ids|prompt_token_ids|usage|model)"[ \t\r\n]*:[ \t\r\n]*')
_DECODER = json.JSONDecoder(strict=False)
_BLANK = " \t\r\n"


def strip_reply(raw: bytes, reply: Json, injection: Injection) -> bytes:
    """Return the bytes of one reply (or chunk) without what `Injection` added; ``reply`` is ``raw`` parsed.

    In JSON text an unescaped quote can only open or close a string, so ``"logprobs":`` is a key wherever it stands. Where a key
    occurs more often than where it is expected (an unknown field of the backend's that uses the same name), the value is edited
    instead and written anew.
    """
    wanted = _expected(reply, injection)
    if not any(wanted.values()):
        return raw
    text = raw.decode("latin-1")  # one character a byte: positions stay true, and JSON's own signs are ASCII
    found = [match for match in _KEYS.finditer(text) if wanted[match[1]]]
    counts: dict[str, int] = {}
    for match in found:
        counts[match[1]] = counts.get(match[1], 0) + 1
    if any(counts.get(name, 0) != number for name, number in wanted.items()):
        return orjson.dumps(_edited(reply, injection))
    pieces: list[str] = []
    position = 0
    for match in found:
        _, end = _DECODER.raw_decode(text, match.end())
        if match[1] == "logprobs":
            pieces += (text[position : match.end()], "null")
            position = end
        elif match[1] == "model":
            name = orjson.dumps(injection.client_model).decode("latin-1")
            pieces += (text[position : match.end()], name)
            position = end
        else:
            start, end = _with_comma(text, match.start(), end, position)
            pieces.append(text[position:start])
            position = end
    pieces.append(text[position:])
    return "".join(pieces).encode("latin-1")


def _expected(reply: Json, injection: Injection) -> dict[str, int]:
    """Return how often each key has to be taken out (or set back)."""
    choices = [c for c in reply.get("choices") or () if isinstance(c, dict)]
    return {
        # `null` already is what the client would have seen
        "logprobs": sum("logprobs" in c for c in choices)
        if injection.logprobs and any(c.get("logprobs") is not None for c in choices)
        else 0,
        "token_ids": sum("token_ids" in c for c in choices) if injection.token_ids else 0,
        "prompt_token_ids": int("prompt_token_ids" in reply) if injection.token_ids else 0,
        "usage": int("usage" in reply) if injection.usage else 0,
        "model": int(
            injection.served_model is not None
            and injection.client_model is not None
            and reply.get("model") == injection.served_model
        ),
    }


def _with_comma(text: str, start: int, end: int, floor: int) -> tuple[int, int]:
    """Widen the span of a member by the comma that goes with it; ``floor`` is where an earlier cut ended."""
    before = start - 1
    while before >= floor and text[before] in _BLANK:
        before -= 1
    if before >= floor and text[before] == ",":
        while before > floor and text[before - 1] in _BLANK:
            before -= 1
        return before, end
    after = end
    while after < len(text) and text[after] in _BLANK:
        after += 1
    if after < len(text) and text[after] == ",":
        after += 1
        while after < len(text) and text[after] in _BLANK:
            after += 1
        return start, after
    return start, end


def _edited(reply: Json, injection: Injection) -> Json:
    edited = dict(reply)
    if injection.token_ids:
        edited.pop("prompt_token_ids", None)
    if injection.usage:
        edited.pop("usage", None)
    if injection.client_model is not None and edited.get("model") == injection.served_model:
        edited["model"] = injection.client_model
    choices = []
    for choice in reply.get("choices") or ():
        if isinstance(choice, dict):
            choice = dict(choice)
            if injection.logprobs and "logprobs" in choice:
                choice["logprobs"] = None
            if injection.token_ids:
                choice.pop("token_ids", None)
        choices.append(choice)
    if "choices" in reply:
        edited["choices"] = choices
    return edited


def is_usage_only(chunk: Json) -> bool:
    """Whether a chunk is the one that `include_usage` adds at the end of a stream."""
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def refused_fields(body: bytes, injection: Injection) -> tuple[str, ...]:
    """Return which of the added fields a backend's error talks about."""
    text = body[:4000].decode("utf-8", "replace")
    return tuple(name for name in injection.fields if name in text)


def error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """Return an error in the shape OpenAI clients understand."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


# ---------------------------------------------------------------------- assembling


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """One reply, put together.

    Attributes:
        completions: by index; empty when the backend sent none.
        is_finished: every choice that was asked for has its finish reason.
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
    """Put one reply together, whole or in chunks. It never raises and never repairs: a part it cannot read is a `problem`."""

    def __init__(self, n: int = 1) -> None:
        self._n = n
        self._id: str | None = None
        self._choices: dict[int, _Choice] = {}
        self._prompt: tuple[int, ...] = ()
        self._usage: Json | None = None
        self._problem = ""
        self._error: str | None = None

    def take(self, payload: Any, *, part: str) -> None:
        """Take one parsed reply: ``part`` is "message" (whole reply) or "delta" (chunk)."""
        if not isinstance(payload, dict):
            self._complain("not a JSON object")
            return
        if payload.get("error") is not None and not payload.get("choices"):
            error = payload["error"]
            message = error.get("message") if isinstance(error, dict) else error
            self._error = str(message)[:500]
            return
        if isinstance(payload.get("id"), str):
            self._id = payload["id"]
        if isinstance(payload.get("usage"), dict):
            self._usage = payload["usage"]
        prompt = payload.get("prompt_token_ids")
        if prompt is not None:
            if _is_ids(prompt):
                self._prompt = tuple(prompt)
            else:
                self._complain("prompt_token_ids are not token ids")
        choices = payload.get("choices")
        if not isinstance(choices, list):
            self._complain("no list of choices")
            return
        for choice in choices:
            if isinstance(choice, dict):
                self._take_choice(choice, part)
            else:
                self._complain("a choice is not a JSON object")

    def complain(self, problem: str) -> None:
        """Note that a part of the reply could not be read at all."""
        self._complain(problem)

    def close(self) -> Assembled:
        completions = tuple(_completion(i, self._choices[i]) for i in sorted(self._choices))
        return Assembled(
            completion_id=self._id,
            completions=completions,
            prompt_token_ids=self._prompt,
            usage=self._usage,
            is_finished=len(completions) >= self._n and all(c.finish_reason is not None for c in completions),
            problem=self._problem,
            error=self._error,
        )

    def _complain(self, problem: str) -> None:
        self._problem = self._problem or problem

    def _take_choice(self, choice: Json, part: str) -> None:
        index = choice.get("index", 0)
        if not isinstance(index, int):
            self._complain("a choice has no index")
            return
        state = self._choices.setdefault(index, _Choice())
        said = choice.get(part)
        if isinstance(said, dict):
            self._take_said(state, said, part)
        elif said is not None:
            self._complain(f"a {part} is not a JSON object")
        token_ids = choice.get("token_ids")
        if token_ids is not None:
            if _is_ids(token_ids):
                state.token_ids += token_ids
            else:
                self._complain("token_ids are not token ids")
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            for entry in logprobs.get("content") or ():
                value = entry.get("logprob") if isinstance(entry, dict) else None
                if isinstance(value, int | float) and not isinstance(value, bool):
                    state.logprobs.append(float(value))
                else:
                    self._complain("a logprob is not a number")
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            state.finish_reason = reason

    def _take_said(self, state: _Choice, said: Json, part: str) -> None:
        content = said.get("content")
        if isinstance(content, str):
            state.text.append(content)
        elif isinstance(content, list):
            state.text += [
                p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)
            ]
        reasoning = said.get("reasoning_content")
        if not isinstance(reasoning, str):
            reasoning = said.get("reasoning")  # one field or the other, never both
        if isinstance(reasoning, str):
            state.reasoning.append(reasoning)
        if isinstance(said.get("refusal"), str):
            state.refusal.append(said["refusal"])
        calls = said.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._take_call(state, call, position, part)
        single = said.get("function_call")
        if isinstance(single, dict):
            self._take_call(state, {"function": single}, 0, part)

    def _take_call(self, state: _Choice, call: Json, position: int, part: str) -> None:
        index = call.get("index", position) if part == "delta" else position
        if not isinstance(index, int):
            self._complain("a tool call has no index")
            return
        whole = state.calls.setdefault(index, {"type": "function", "function": {"name": "", "arguments": ""}})
        if isinstance(call.get("id"), str):
            whole["id"] = call["id"]
        if isinstance(call.get("type"), str):
            whole["type"] = call["type"]
        function = call.get("function")
        if isinstance(function, dict):
            # the name comes once; engines that repeat it in every delta mean the same one
            if isinstance(function.get("name"), str) and not whole["function"]["name"]:
                whole["function"]["name"] = function["name"]
            if isinstance(function.get("arguments"), str):
                whole["function"]["arguments"] += function["arguments"]


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


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


def token_fault(
    completion: Completion, completions: Sequence[Completion], usage: Mapping[str, Any] | None
) -> tuple[DropReason, str] | None:
    """Return why a completion's tokens cannot be trained on, or None. Counts are held against usage over all choices."""
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
