"""The OpenAI dialect as vLLM speaks it: request bodies to values, results to response bodies. Pure.

What the engine cannot do (`engine.Limits`) is refused with a 400 that says so. Fields it has never heard of are ignored, as vLLM does, because clients
send many that change nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.dialect.engine import Limits
from serving.dialect.toolcalls import ToolCall, ToolCallParser
from serving.dialect.values import FinishReason, Piece, SamplingDefaults, SamplingParams, TokenLogprob
from serving.dialect.vocabulary import Vocabulary
from store.errors import WireError

MOST_LOGPROBS = 20


class RequestError(WireError):
    """A request that cannot be served, in OpenAI's error form."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


def build_error(message: str, status: int, kind: str, param: str | None = None) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


# ---- requests


class _Body(BaseModel):
    # strict: "8" is no number here, as it is none for OpenAI; whole floats pass as floats.
    model_config = ConfigDict(extra="ignore", strict=True)


class StreamOptions(_Body):
    """Only with `stream`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _SamplingBody(_Body):
    """What chat and plain completions share."""

    model: str | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    logit_bias: dict[str, float] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    # What vLLM knows and no engine behind this can do.
    best_of: Any = None
    use_beam_search: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    response_format: Any = None

    def sampled_with(
        self, defaults: SamplingDefaults, room: int, *, wished: int | None, logprobs: bool, top_logprobs: int
    ) -> SamplingParams:
        """How to draw; `room` is how many tokens the context still takes, `wished` the request's own limit."""

        def value(given: float | None, default: float) -> float:
            return default if given is None else given

        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            max_tokens=room if wished is None else wished,
            min_tokens=self.min_tokens or 0,
            temperature=value(self.temperature, defaults.temperature),
            top_p=value(self.top_p, defaults.top_p),
            top_k=max(0, defaults.top_k if self.top_k is None else self.top_k),
            min_p=value(self.min_p, defaults.min_p),
            seed=self.seed,
            stop=tuple(stop for stop in stops if stop),
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            include_stop=bool(self.include_stop_str_in_output),
            ignore_eos=bool(self.ignore_eos),
            skip_special_tokens=self.skip_special_tokens is not False,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=value(self.repetition_penalty, defaults.repetition_penalty),
            logit_bias={int(key): bias for key, bias in (self.logit_bias or {}).items()},
            logprobs=logprobs,
            top_logprobs=top_logprobs,
        )


class ChatBody(_SamplingBody):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None


class CompletionBody(_SamplingBody):
    """The body of /v1/completions; a prompt is text or ids, or a list of either."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    suffix: str | None = None


class TokenizeBody(_Body):
    """The body of /tokenize: a `prompt`, or `messages` with what the template takes."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(_Body):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


class LoadAdapterBody(_Body):
    """The body of /v1/load_lora_adapter."""

    lora_name: Annotated[str, Field(min_length=1)]
    lora_path: Annotated[str, Field(min_length=1)]
    load_inplace: bool | None = None


class UnloadAdapterBody(_Body):
    """The body of /v1/unload_lora_adapter."""

    lora_name: Annotated[str, Field(min_length=1)]


BodyT = TypeVar("BodyT", bound=_Body)


def parse_body(kind: type[BodyT], raw: bytes, limits: Limits | None = None) -> BodyT:
    """Bytes of a request to its value; `limits` are needed for what is sampled.

    Raises: RequestError naming the first field that is wrong, or that the engine cannot do.
    """
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # Unions name their branches behind the field; the field is what the client knows.
        where = next((str(part) for part in first["loc"] if isinstance(part, str)), None)
        what = first["msg"] if where is None else f"{where}: {first['msg']}"
        raise RequestError(what, param=where) from None
    if isinstance(body, _SamplingBody):
        assert limits is not None
        _refuse_unsupported(body, limits)
    return body


#: What the fields say that an engine may lack where they change nothing.
_NEUTRAL: dict[str, Any] = {"repetition_penalty": 1.0, "logit_bias": {}}


def _refuse_unsupported(body: _SamplingBody, limits: Limits) -> None:
    for name in (
        "use_beam_search",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    ):
        if getattr(body, name) not in (None, False):
            raise RequestError(f"{name} is not supported by {limits.name}", param=name)
    for name in sorted(limits.lacks):
        value = getattr(body, name, None)
        if value in (None, False, 0, _NEUTRAL.get(name)):
            continue
        if name == "min_tokens" and body.ignore_eos and not (body.stop or body.stop_token_ids):
            continue  # nothing can end it early
        raise RequestError(f"{name} is not supported by {limits.name}", param=name)
    if body.best_of not in (None, body.n or 1):
        raise RequestError(f"best_of is not supported by {limits.name}", param="best_of")
    wanted = body.response_format
    if wanted is not None and not (isinstance(wanted, dict) and wanted.get("type") == "text"):
        raise RequestError(
            f"response_format is not supported by {limits.name}: it has no constrained decoding. {limits.advice}",
            param="response_format",
        )
    for key in body.logit_bias or {}:
        if not key.isdecimal():
            raise RequestError(f"logit_bias: {key!r} is not a token id", param="logit_bias")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options can only be used with stream", param="stream_options")
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        if body.functions or body.function_call not in (None, "none"):
            raise RequestError("functions is the old form; send tools", param="functions")
        if not body.messages:
            raise RequestError("messages must not be empty", param="messages")
    if isinstance(body, CompletionBody):
        if body.logprobs and "top_logprobs" in limits.lacks:
            raise RequestError(
                f"logprobs above 0 are not supported by {limits.name}: it tells those of the drawn tokens only",
                param="logprobs",
            )
        if body.echo:
            raise RequestError(f"echo is not supported by {limits.name}", param="echo")
        if body.suffix:
            raise RequestError(f"suffix is not supported by {limits.name}", param="suffix")


def check_token_ids(body: _SamplingBody, vocabulary: Vocabulary) -> None:
    """Ids in a request must exist: an id outside the logits would end the step for everybody."""
    given = [*(body.stop_token_ids or ()), *(int(key) for key in body.logit_bias or {})]
    if isinstance(body, CompletionBody) and isinstance(body.prompt, list):
        for part in body.prompt:
            if isinstance(part, int):
                given.append(part)
            elif isinstance(part, list):
                given.extend(part)
    for token_id in given:
        if not 0 <= token_id < vocabulary.size:
            raise RequestError(f"token id {token_id} is outside the vocabulary (0 to {vocabulary.size - 1})")


def check_context(prompt_tokens: int, wished: int | None, max_model_len: int) -> int:
    """How many tokens may follow the prompt. Raises RequestError if the request does not fit into the context."""
    if prompt_tokens == 0:
        raise RequestError("the prompt is empty")
    room = max_model_len - prompt_tokens
    if room < 1 or (wished is not None and wished > room):
        asked = "" if wished is None else f" and {wished} tokens were asked for"
        raise RequestError(
            f"this model's maximum context length is {max_model_len} tokens, but the prompt has {prompt_tokens} tokens{asked}; "
            "shorten the messages or the completion",
            param="messages" if room < 1 else "max_tokens",
        )
    return room


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What a request's `tools` and `tool_choice` come to: whether to look for calls, and the words the reply must begin with."""

    parse: bool
    forced: str = ""


def tool_use(body: ChatBody, limits: Limits) -> ToolUse:
    """Read `tool_choice`. A required or named call is opened for the model; from there on it writes by itself.

    The opening ends where a model would end a token (no space behind the colon), or the model finds itself in the middle of a word
    it has never seen cut there.
    """
    choice = body.tool_choice
    if choice in (None, "auto"):
        return ToolUse(parse=bool(body.tools))
    if choice == "none":
        return ToolUse(parse=False)
    if not body.tools:
        raise RequestError("tool_choice needs tools", param="tool_choice")
    if "forced_call" in limits.lacks:
        raise RequestError(
            f"a required tool call is not supported by {limits.name}; leave tool_choice at auto",
            param="tool_choice",
        )
    if choice == "required":
        return ToolUse(parse=True, forced="<tool_call>")
    name = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    names = [tool.get("function", {}).get("name") for tool in body.tools]
    if not isinstance(name, str) or name not in names:
        raise RequestError(
            "tool_choice must be none, auto, required, or one of the tools", param="tool_choice"
        )
    return ToolUse(parse=True, forced=f'<tool_call>\n{{"name": "{name}", "arguments":')


# ---- responses


def build_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Token counts of a request; n completions of one prompt count it once."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def build_chat_logprobs(
    entries: Sequence[TokenLogprob], vocabulary: Vocabulary, *, as_ids: bool
) -> dict[str, Any]:
    """OpenAI's logprobs of chat: one entry for each sampled id, the end of turn included."""

    def token(token_id: int) -> str:
        return f"token_id:{token_id}" if as_ids else vocabulary.text(token_id)

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token(token_id),
            "logprob": logprob,
            "bytes": list(vocabulary.bytes(token_id)),
        }

    return {
        "content": [
            {
                **one(entry.token_id, entry.logprob),
                "top_logprobs": [one(token_id, logprob) for token_id, logprob in entry.top],
            }
            for entry in entries
        ]
    }


def build_completion_logprobs(
    entries: Sequence[TokenLogprob], vocabulary: Vocabulary, offset: int, *, as_ids: bool
) -> tuple[dict[str, Any], int]:
    """The older, column-wise form, and the text offset after it."""

    def token(token_id: int) -> str:
        return f"token_id:{token_id}" if as_ids else vocabulary.text(token_id)

    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(vocabulary.text(entry.token_id))
    columns = {
        "text_offset": offsets,
        "token_logprobs": [entry.logprob for entry in entries],
        "tokens": [token(entry.token_id) for entry in entries],
        "top_logprobs": [
            {token(token_id): logprob for token_id, logprob in entry.top} or None for entry in entries
        ],
    }
    return columns, offset


def _call_object(call: ToolCall, call_id: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _new_call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


@dataclass(slots=True, kw_only=True)
class ChatChoice:
    """One choice of a chat completion while it grows: pieces in, stream chunks out, the whole message at the end.

    `head` is what every chunk begins with (id, object, created, model).
    """

    index: int
    vocabulary: Vocabulary
    head: Mapping[str, Any]
    parser: ToolCallParser | None
    wants_logprobs: bool
    wants_ids: bool
    as_ids: bool
    one_call: bool = False
    content: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, piece: Piece) -> list[dict[str, Any]]:
        """Add a piece; give the deltas it brings, in order. Empty deltas are left out."""
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        parts: list[str | ToolCall] = [piece.text] if piece.text else []
        if self.parser is not None:
            parts = self.parser.feed(piece.text)
            if piece.finish_reason is not None:
                parts += self.parser.flush()
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, str):
                self.content.append(part)
                deltas.append({"content": part})
            elif not (self.one_call and self.calls):
                number = len(self.calls)
                call = _call_object(part, _new_call_id())
                self.calls.append(call)
                opened = {**call, "function": {"name": part.name, "arguments": ""}}
                deltas.append({"tool_calls": [{"index": number, **opened}]})
                deltas.append({"tool_calls": [{"index": number, "function": {"arguments": part.arguments}}]})
        if piece.finish_reason is not None:
            self.finish_reason = finish_of(piece.finish_reason, bool(self.calls))
            self.stop_reason = piece.stop_reason
        return deltas

    def first_chunk(self, prompt_ids: Sequence[int]) -> dict[str, Any]:
        """The chunk that opens the choice; it carries the prompt's ids if they were asked for."""
        chunk = self._chunk({"role": "assistant", "content": ""}, last=False)
        if self.wants_ids:
            chunk["prompt_token_ids"] = list(prompt_ids)
        return chunk

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """The stream chunks of a piece: ids and logprobs ride on the first of them, the finish on the last."""
        deltas = self.take(piece)
        ended = piece.finish_reason is not None
        if not deltas:
            if not ended and not (self.wants_ids or self.wants_logprobs):
                return []
            deltas = [{} if ended or self.calls else {"content": ""}]
        result = [self._chunk(delta, last=ended and i == len(deltas) - 1) for i, delta in enumerate(deltas)]
        first = result[0]["choices"][0]
        if self.wants_logprobs and piece.logprobs:
            first["logprobs"] = build_chat_logprobs(piece.logprobs, self.vocabulary, as_ids=self.as_ids)
        if self.wants_ids:
            first["token_ids"] = list(piece.token_ids)
        return result

    def _chunk(self, delta: dict[str, Any], *, last: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": self.index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": self.finish_reason if last else None,
        }
        if last:
            choice["stop_reason"] = self.stop_reason
        return {**self.head, "choices": [choice]}

    def whole(self) -> dict[str, Any]:
        """The choice of a reply that is not streamed."""
        content = "".join(self.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls and not content else content,
            "refusal": None,
        }
        if self.calls:
            message["tool_calls"] = self.calls
        choice: dict[str, Any] = {
            "index": self.index,
            "message": message,
            "logprobs": build_chat_logprobs(self.logprobs, self.vocabulary, as_ids=self.as_ids)
            if self.wants_logprobs
            else None,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
        }
        if self.wants_ids:
            choice["token_ids"] = self.token_ids
        return choice


def finish_of(
    reason: FinishReason, called: bool
) -> Literal["stop", "length", "tool_calls", "abort", "error"]:
    """OpenAI's word for the end: a turn that ended by itself and called a tool ends with `tool_calls`."""
    return "tool_calls" if called and reason == "stop" else reason


def merge_pieces(pieces: Sequence[Piece]) -> Piece:
    """Several steps of one sequence as one, for a reader that was slower than the engine."""
    if len(pieces) == 1:
        return pieces[0]
    last = pieces[-1]
    return Piece(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token_id for piece in pieces for token_id in piece.token_ids),
        logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        error=last.error,
        status=last.status,
    )


def build_model_card(
    name: str, *, root: str, parent: str | None, created: int, max_model_len: int, logprobs_mode: str
) -> dict[str, Any]:
    """One entry of /v1/models; an adapter's parent is the base model it belongs to."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "patina",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "logprobs_mode": logprobs_mode,
    }
