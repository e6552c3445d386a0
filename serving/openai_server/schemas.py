"""Request and response bodies of the OpenAI API with vLLM's extensions. Pure.

What the engine does not support (`engine.EngineLimits`) is refused with a 400. Unknown fields are ignored, as in vLLM, because clients send many
that have no effect.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serving.openai_server.engine import EngineLimits
from serving.openai_server.structured import build_grammar, json_schema_of
from serving.openai_server.toolcalls import ToolCall, ToolCallParser
from serving.openai_server.values import (
    FinishReason,
    OutputChunk,
    SamplingDefaults,
    SamplingParams,
    TokenLogprob,
)
from serving.openai_server.vocabulary import Vocabulary
from store.errors import WireError

MAX_TOP_LOGPROBS = 20


class RequestError(WireError):
    """A request that cannot be served; becomes an OpenAI error."""

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
    """Return the body of an error response."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


# ---- requests


class _Body(BaseModel):
    # strict: "8" is not a number, as in OpenAI's API; whole floats are accepted as floats.
    model_config = ConfigDict(extra="ignore", strict=True)


class StreamOptions(_Body):
    """Only with `stream`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _SamplingBody(_Body):
    """Fields that chat and plain completions share."""

    model: str | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
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
    # Accepted by vLLM; not supported by any engine here.
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

    def sampling_params(
        self,
        defaults: SamplingDefaults,
        max_tokens: int,
        *,
        logprobs: bool,
        top_logprobs: int,
    ) -> SamplingParams:
        """Return the sampling parameters."""

        def value(given: float | None, default: float) -> float:
            return default if given is None else given

        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            max_tokens=max_tokens,
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
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None


class CompletionBody(_SamplingBody):
    """The body of /v1/completions; a prompt is text or ids, or a list of either."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
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


def parse_body(kind: type[BodyT], raw: bytes, limits: EngineLimits | None = None) -> BodyT:
    """Parse a request body; `limits` are required for sampling requests.

    Raises: RequestError naming the first field that is invalid or not supported.
    """
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # Unions add the names of their branches after the field; the client knows the field.
        where = next((str(part) for part in first["loc"] if isinstance(part, str)), None)
        what = first["msg"] if where is None else f"{where}: {first['msg']}"
        raise RequestError(what, param=where) from None
    if isinstance(body, _SamplingBody):
        assert limits is not None
        _refuse_unsupported(body, limits)
    return body


#: Values with which an unsupported field has no effect.
_NEUTRAL_VALUES: dict[str, Any] = {"repetition_penalty": 1.0, "logit_bias": {}}


#: Fields that vLLM supports and no engine behind this server does.
_NEVER_SUPPORTED = (
    "use_beam_search",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def _unsupported(name: str, limits: EngineLimits) -> RequestError:
    return RequestError(f"{name} is not supported by {limits.name}", param=name)


def _refuse_unsupported(body: _SamplingBody, limits: EngineLimits) -> None:
    """Raise RequestError for the first field that is wrong or that the engine does not support."""
    _refuse_engine_fields(body, limits)
    for key in body.logit_bias or {}:
        if not key.isdecimal():
            raise RequestError(f"logit_bias: {key!r} is not a token id", param="logit_bias")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options can only be used with stream", param="stream_options")
    if isinstance(body, ChatBody):
        _check_chat(body)
    if isinstance(body, CompletionBody):
        _refuse_completion_fields(body, limits)


def _refuse_engine_fields(body: _SamplingBody, limits: EngineLimits) -> None:
    for name in _NEVER_SUPPORTED:
        if getattr(body, name) not in (None, False):
            raise _unsupported(name, limits)
    for name in sorted(limits.unsupported):
        value = getattr(body, name, None)
        if value in (None, False, 0, _NEUTRAL_VALUES.get(name)):
            continue
        if name == "min_tokens" and body.ignore_eos and not (body.stop or body.stop_token_ids):
            continue  # nothing can end the completion early
        raise _unsupported(name, limits)
    if body.best_of not in (None, body.n or 1):
        raise _unsupported("best_of", limits)
    try:
        schema = json_schema_of(body.response_format)
    except ValueError as error:
        raise RequestError(str(error), param="response_format") from error
    if schema is not None and not limits.is_constrained:
        raise RequestError(
            f"response_format is not supported by {limits.name}: it has no constrained decoding. "
            f"{limits.response_format_advice}",
            param="response_format",
        )


def _check_chat(body: ChatBody) -> None:
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    if not body.messages:
        raise RequestError("messages must not be empty", param="messages")
    if body.functions is not None or body.function_call is not None:
        _read_legacy_functions(body)
    for i, tool in enumerate(body.tools or ()):
        function = tool.get("function") if tool.get("type", "function") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"tools[{i}] must be a function with a name", param="tools")


def _read_legacy_functions(body: ChatBody) -> None:
    """Read `functions` and `function_call`, which `tools` and `tool_choice` replaced."""
    if body.tools is not None:
        raise RequestError("send either tools or functions, the older form", param="functions")
    functions, choice = body.functions, body.function_call
    if not isinstance(functions, list) or not functions:
        raise RequestError("functions must be a list of functions", param="functions")
    body.tools = [{"type": "function", "function": function} for function in functions]
    body.tool_choice = {"type": "function", "function": choice} if isinstance(choice, dict) else choice


def _refuse_completion_fields(body: CompletionBody, limits: EngineLimits) -> None:
    if body.logprobs and "top_logprobs" in limits.unsupported:
        raise RequestError(
            f"logprobs above 0 are not supported by {limits.name}: it reports only the sampled tokens' own",
            param="logprobs",
        )
    if body.echo and body.logprobs is not None and "prompt_logprobs" in limits.unsupported:
        raise _unsupported("echo with logprobs", limits)
    if body.suffix:
        raise _unsupported("suffix", limits)


def check_token_ids(body: _SamplingBody, vocabulary: Vocabulary) -> None:
    """Refuse token ids that do not exist: an id outside the logits would fail the step for every request."""
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


def check_context_length(prompt_tokens: int, requested_tokens: int | None, max_model_len: int) -> int:
    """Return how many tokens the reply may have: what was requested, or what fits after the prompt where that is less, as vLLM does.

    Raises RequestError if there is no room after the prompt, or more is requested than any reply can have.
    """
    if prompt_tokens == 0:
        raise RequestError("the prompt is empty")
    remaining_tokens = max_model_len - prompt_tokens
    if remaining_tokens < 1 or (requested_tokens is not None and requested_tokens > max_model_len):
        asked = "" if requested_tokens is None else f" and {requested_tokens} tokens were requested"
        raise RequestError(
            f"this model's maximum context length is {max_model_len} tokens, but the prompt has {prompt_tokens} tokens{asked}; "
            "shorten the messages or the completion",
            param="messages" if remaining_tokens < 1 else "max_tokens",
        )
    return remaining_tokens if requested_tokens is None else min(requested_tokens, remaining_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm:
    """The form that a request prescribes for its reply.

    Attributes:
        parses_calls: tool calls are looked for in the text.
        grammar: holds the reply to a schema or a call; "": free text. Only of an engine with `EngineLimits.is_constrained`.
        forced: prescribed beginning, for an engine without grammars.
        forces_call: the reply is one call. is_named: of a given function.
    """

    parses_calls: bool = False
    forces_call: bool = False
    is_named: bool = False
    grammar: str = ""
    forced: str = ""


def output_form(body: _SamplingBody, limits: EngineLimits, *, tags_are_tokens: bool) -> OutputForm:
    """Interpret `response_format`, `tools` and `tool_choice`. Raises: RequestError.

    Without a grammar, a required or named call is opened by a prescribed prefix, which the model continues. The prefix ends where a model would
    end a token (no space after the colon); otherwise the model would continue inside a token that it never saw split there.
    """
    schema = json_schema_of(body.response_format)
    tools: list[dict[str, Any]] = []
    choice: Any = None
    if isinstance(body, ChatBody):
        choice, tools = body.tool_choice, [tool["function"] for tool in body.tools or ()]
        if choice not in (None, "auto", "none"):
            return _forced_call(body, choice, tools, limits, tags_are_tokens=tags_are_tokens)
    parses = bool(tools) and choice != "none"
    if schema is None:
        return OutputForm(parses_calls=parses)
    grammar = build_grammar(
        schema,
        tools if parses else (),
        many_calls=_many_calls(body),
        tags_are_tokens=tags_are_tokens,
        most_characters=_most_characters(body, limits, [schema]),
    )
    return OutputForm(parses_calls=parses, grammar=grammar)


def _forced_call(
    body: ChatBody, choice: Any, tools: list[dict[str, Any]], limits: EngineLimits, *, tags_are_tokens: bool
) -> OutputForm:
    if not tools:
        raise RequestError("tool_choice needs tools", param="tool_choice")
    name = None
    if choice != "required":
        function = choice.get("function") if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        tools = [tool for tool in tools if tool["name"] == name]
        if not tools:
            raise RequestError(
                "tool_choice must be none, auto, required, or one of the tools", param="tool_choice"
            )
    if limits.is_constrained:
        grammar = build_grammar(
            None,
            tools,
            many_calls=False,
            tags_are_tokens=tags_are_tokens,
            most_characters=_most_characters(body, limits, tools),
        )
        return OutputForm(parses_calls=True, grammar=grammar, forces_call=True, is_named=name is not None)
    if "forced_call" in limits.unsupported:
        raise RequestError(
            f"a required tool call is not supported by {limits.name}; leave tool_choice at auto",
            param="tool_choice",
        )
    forced = "<tool_call>" if name is None else f'<tool_call>\n{{"name": "{name}", "arguments":'
    return OutputForm(parses_calls=True, forced=forced, forces_call=True, is_named=name is not None)


#: Bounds of a string for a model that may not find its end, and tokens of a reply that its strings leave to the rest.
_STRING_BOUNDS, _OTHER_TOKENS, _CHARACTERS_A_TOKEN = (16, 24, 40, 60, 100, 160, 250, 400), 40, 1.5


def _most_characters(body: _SamplingBody, limits: EngineLimits, schemas: Sequence[Any]) -> int:
    """Return how long a string may be that a schema leaves open, so that the reply ends within its tokens; 0: no bound."""
    if not limits.bounds_values:
        return 0
    most = (body.max_completion_tokens if isinstance(body, ChatBody) else None) or body.max_tokens
    if most is None:
        return _STRING_BOUNDS[-1]
    strings = max(1, json.dumps(schemas).count('"type": "string"') // len(schemas))
    room = _CHARACTERS_A_TOKEN * (most - _OTHER_TOKENS) / strings
    return max(_STRING_BOUNDS[0], *(bound for bound in _STRING_BOUNDS if bound <= room), 0)


def _many_calls(body: _SamplingBody) -> bool:
    return isinstance(body, ChatBody) and body.parallel_tool_calls is not False and not body.functions


# ---- responses


def build_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return the token counts of a request; n completions of one prompt count the prompt once."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def build_chat_logprobs(
    entries: Sequence[TokenLogprob], vocabulary: Vocabulary, *, as_token_ids: bool
) -> dict[str, Any]:
    """Return the logprobs object of chat: one entry for each sampled id, the end of turn included."""

    def token(token_id: int) -> str:
        return f"token_id:{token_id}" if as_token_ids else vocabulary.text(token_id)

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
    entries: Sequence[TokenLogprob], vocabulary: Vocabulary, offset: int, *, as_token_ids: bool
) -> tuple[dict[str, Any], int]:
    """Return the column-wise logprobs object of plain completions, and the next text offset."""

    def token(token_id: int) -> str:
        return f"token_id:{token_id}" if as_token_ids else vocabulary.text(token_id)

    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(vocabulary.text(entry.token_id))
    columns = {
        "text_offset": offsets,
        "token_logprobs": [None if math.isnan(entry.logprob) else entry.logprob for entry in entries],
        "tokens": [token(entry.token_id) for entry in entries],
        "top_logprobs": [
            {token(token_id): logprob for token_id, logprob in entry.top} or None for entry in entries
        ],
    }
    return columns, offset


def echoed_entries(prompt_ids: Sequence[int], logprobs: Sequence[float]) -> list[TokenLogprob]:
    """Return a prompt's tokens as entries of the logprobs object; the first has no log-probability. [] where the prompt was not scored."""
    if len(logprobs) != len(prompt_ids) - 1:
        return []
    pairs = zip(prompt_ids, (math.nan, *logprobs), strict=True)
    return [TokenLogprob(token_id=token_id, logprob=logprob, top=()) for token_id, logprob in pairs]


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
    """One choice of a chat completion while it grows: engine output in, stream chunks out, the whole message at the end.

    `head` holds the fields that begin every chunk (id, object, created, model). `is_legacy`: a call has the form of `function_call`.
    `forces_call`: the reply is a call, also where its arguments are cut off. `is_named`: of a given function, after which OpenAI's finish reason
    is `stop`.
    """

    index: int
    vocabulary: Vocabulary
    head: Mapping[str, Any]
    parser: ToolCallParser | None
    wants_logprobs: bool
    wants_ids: bool
    as_token_ids: bool
    one_call: bool = False
    is_legacy: bool = False
    forces_call: bool = False
    is_named: bool = False
    content: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, output: OutputChunk) -> list[dict[str, Any]]:
        """Add engine output and return its deltas, in order. Empty deltas are left out."""
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        parts: list[str | ToolCall] = [output.text] if output.text else []
        if self.parser is not None:
            parts = self.parser.feed(output.text)
            if output.finish_reason is not None:
                parts += self.parser.flush(takes_part=self.forces_call)
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, str):
                self.content.append(part)
                deltas.append({"content": part})
            elif not (self.one_call and self.calls):
                number = len(self.calls)
                call = _call_object(part, _new_call_id())
                self.calls.append(call)
                if self.is_legacy:
                    deltas.append({"function_call": call["function"]})
                    continue
                opened = {**call, "function": {"name": part.name, "arguments": ""}}
                deltas.append({"tool_calls": [{"index": number, **opened}]})
                deltas.append({"tool_calls": [{"index": number, "function": {"arguments": part.arguments}}]})
        if output.finish_reason is not None:
            self.finish_reason = openai_finish_reason(
                output.finish_reason, bool(self.calls) and not self.is_named, is_legacy=self.is_legacy
            )
            self.stop_reason = output.stop_reason
        return deltas

    def first_chunk(self, prompt_ids: Sequence[int]) -> dict[str, Any]:
        """Return the first chunk of the choice; it carries the prompt ids on request."""
        chunk = self._chunk({"role": "assistant", "content": ""}, last=False)
        if self.wants_ids:
            chunk["prompt_token_ids"] = list(prompt_ids)
        return chunk

    def chunks(self, output: OutputChunk) -> list[dict[str, Any]]:
        """Return the stream chunks of an output: ids and logprobs on the first, the finish reason on the last."""
        deltas = self.take(output)
        ended = output.finish_reason is not None
        if not deltas:
            if not ended and not (self.wants_ids or self.wants_logprobs):
                return []
            deltas = [{} if ended or self.calls else {"content": ""}]
        result = [self._chunk(delta, last=ended and i == len(deltas) - 1) for i, delta in enumerate(deltas)]
        first = result[0]["choices"][0]
        if self.wants_logprobs and output.logprobs:
            first["logprobs"] = build_chat_logprobs(
                output.logprobs, self.vocabulary, as_token_ids=self.as_token_ids
            )
        if self.wants_ids:
            first["token_ids"] = list(output.token_ids)
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
        """Return the choice of a reply that is not streamed."""
        content = "".join(self.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.calls and not content else content,
            "refusal": None,
        }
        if self.calls and self.is_legacy:
            message["function_call"] = self.calls[0]["function"]
        elif self.calls:
            message["tool_calls"] = self.calls
        choice: dict[str, Any] = {
            "index": self.index,
            "message": message,
            "logprobs": build_chat_logprobs(self.logprobs, self.vocabulary, as_token_ids=self.as_token_ids)
            if self.wants_logprobs
            else None,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
        }
        if self.wants_ids:
            choice["token_ids"] = self.token_ids
        return choice


def openai_finish_reason(
    reason: FinishReason, called: bool, *, is_legacy: bool = False
) -> Literal["stop", "length", "tool_calls", "function_call", "abort", "error"]:
    """Return OpenAI's finish reason: a completion that ended by itself and called a tool of its own choice ends with `tool_calls`."""
    if called and reason == "stop":
        return "function_call" if is_legacy else "tool_calls"
    return reason


def merge_chunks(chunks: Sequence[OutputChunk]) -> OutputChunk:
    """Merge several steps of one sequence, for a reader that was slower than the engine."""
    if len(chunks) == 1:
        return chunks[0]
    last = chunks[-1]
    return OutputChunk(
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
        logprobs=tuple(entry for chunk in chunks for entry in chunk.logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        error=last.error,
        status=last.status,
        prompt_logprobs=chunks[0].prompt_logprobs,
    )


def build_model_card(
    name: str, *, root: str, parent: str | None, created: int, max_model_len: int, logprobs_mode: str
) -> dict[str, Any]:
    """Return one entry of /v1/models; an adapter's parent is its base model."""
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
