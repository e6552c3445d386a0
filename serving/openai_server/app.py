"""The HTTP layer: requests in, the engine's output out. It is independent of the engine.

Everything here runs on one event loop. Adapter names exist only here: a request resolves its adapter when it arrives, so unloading a name stops
new requests at once and never affects a running one.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from serving.openai_server.chat_template import TemplateSupport, named_tools, template_support
from serving.openai_server.engine import GrammarError, Job, LoadedAdapter, SamplingEngine
from serving.openai_server.guard import KeyGuard
from serving.openai_server.prompts import render_chat
from serving.openai_server.schemas import (
    ChatBody,
    ChatChoice,
    CompletionBody,
    DetokenizeBody,
    LoadAdapterBody,
    OutputForm,
    RequestError,
    TokenizeBody,
    UnloadAdapterBody,
    build_completion_logprobs,
    build_error,
    build_model_card,
    build_usage,
    check_context_length,
    check_token_ids,
    echoed_entries,
    merge_chunks,
    output_form,
    parse_body,
)
from serving.openai_server.structured import json_schema_of
from serving.openai_server.tool_check import MAX_TOKENS, STOPS, CallCase, ToolCheck
from serving.openai_server.toolcalls import ToolCallParser
from serving.openai_server.values import OutputChunk, SamplingParams, TokenLogprob
from serving.openai_server.vocabulary import Vocabulary
from store.errors import AdapterError, UpstreamError

log = logging.getLogger("patina.serving")

#: While requests run, the tool check looks so often whether they have ended.
_IDLE_LOOK_S = 1.0
# Rendering and encoding a prompt of this many bytes takes about a millisecond; longer ones run in a thread.
_INLINE_BYTES = 16_384


class _Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def _error_response(error: RequestError) -> Response:
    return _Json(build_error(str(error), error.status, error.kind, error.param), status_code=error.status)


def _shutdown_error() -> RequestError:
    return RequestError("the engine is stopping", status=503, kind="ServiceUnavailableError")


def _engine_error(chunk: OutputChunk) -> RequestError:
    """Map the engine's error for the client: the client's (4xx), an upstream's (502, 503), or the engine's (500)."""
    if chunk.status < 500:
        return RequestError(str(chunk.error), status=chunk.status)
    kind = {502: "BadGatewayError", 503: "ServiceUnavailableError"}.get(chunk.status, "InternalServerError")
    return RequestError(f"the engine failed: {chunk.error}", status=chunk.status, kind=kind)


class ResultStream:
    """The output of one request, on the event loop. A slow reader gets several steps merged."""

    def __init__(self, count: int) -> None:
        self._arrived: dict[int, list[OutputChunk]] = {}
        self._event = asyncio.Event()
        self._unfinished = count
        self._is_stopped = False

    def put(self, index: int, chunk: OutputChunk) -> None:
        self._arrived.setdefault(index, []).append(chunk)
        self._event.set()

    def stop(self) -> None:
        """End the iteration: the client disconnected."""
        self._is_stopped = True
        self._event.set()

    async def __aiter__(self) -> AsyncIterator[tuple[int, OutputChunk]]:
        while self._unfinished and not self._is_stopped:
            await self._event.wait()
            self._event.clear()
            arrived, self._arrived = self._arrived, {}
            for index, chunks in arrived.items():
                chunk = merge_chunks(chunks)
                if chunk.finish_reason == "error":
                    raise _engine_error(chunk)
                if chunk.finish_reason == "abort":
                    raise _shutdown_error()
                if chunk.finish_reason is not None:
                    self._unfinished -= 1
                yield index, chunk


class OpenAIServer:
    """One model, its adapters by name, and the routes.

    Args:
        served_names: names of the base model; replies contain the first.
        root: source of the base model, for the list of models.
        api_key: expected of every request; "": none (`KeyGuard`).
        tool_check: whether the model calls tools that its template does not show.
    """

    def __init__(
        self,
        engine: SamplingEngine[Any],
        *,
        served_names: Sequence[str],
        root: str,
        api_key: str = "",
        tool_check: ToolCheck | None = None,
    ) -> None:
        self.engine = engine
        self._tool_check = tool_check or ToolCheck()
        self._unread_tools = 0
        self.served_names = tuple(served_names)
        self.root = root
        self.adapters: dict[str, tuple[LoadedAdapter, int]] = {}
        self._loading: set[str] = set()
        self._started = int(time.time())
        self._loop: asyncio.AbstractEventLoop | None = None
        routes = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/version", self._version),
                Route("/stats", self._stats),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._retrieve_model),
                Route("/v1/load_lora_adapter", self._load_adapter, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload_adapter, methods=["POST"]),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
                Route("/v1/chat/completions", _AsgiEndpoint(self._chat), methods=["POST"]),
                Route("/v1/completions", _AsgiEndpoint(self._completions), methods=["POST"]),
            ],
            lifespan=self._lifespan,
            exception_handlers={RequestError: _on_request_error, HTTPException: _on_http_error},
        )
        # A redirect would give the client this port's address.
        routes.router.redirect_slashes = False
        self.app = KeyGuard(routes, api_key)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        loop = self._loop = asyncio.get_running_loop()

        def post(deliver: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(deliver)

        self.engine.start(post)
        if self.engine.is_ready and not self._template.tools:
            self._tool_check.recall()
        yield
        self._tool_check.cancel()
        self.engine.stop()
        await self.engine.join()

    def drain(self, grace_s: float) -> None:
        """Stop the engine after `grace_s` seconds, in which streams may finish. Callable from a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.call_later, grace_s, self.engine.stop)

    # ---- small routes

    async def _health(self, request: Request) -> Response:
        unavailable_reason = self.engine.unavailable_reason()
        if unavailable_reason is not None:
            raise RequestError(unavailable_reason, status=503, kind="ServiceUnavailableError")
        return Response(status_code=200)

    async def _version(self, request: Request) -> Response:
        self._require_ready()
        info = dict(self.engine.version_info())
        declared = dict(info.get("capabilities") or {})
        missing = self._template.missing()
        if missing:
            note = f"the model's chat template shows no {', no '.join(missing)}"
            declared["notes"] = [*declared.get("notes", ()), f"{note}; Patina writes them as text"]
        if not self._template.tools:
            declared["tools"] = self._tool_check.is_passed if self._tool_check.is_done else None
        info["capabilities"] = {**declared, "template": asdict(self._template)}
        return _Json({**info, "sampling_defaults": asdict(self.engine.defaults)})

    async def _stats(self, request: Request) -> Response:
        tools = (
            {}
            if self._template.tools
            else {"unread_tools": self._unread_tools, "tools": self._tool_check.sentence()}
        )
        return _Json({**self.engine.stats(), **tools, "adapters": sorted(self.adapters)})

    @property
    def _template(self) -> TemplateSupport:
        return template_support(self.engine.vocabulary.tokenizer)

    def _model_card(self, name: str) -> dict[str, Any]:
        found = self.adapters.get(name)
        adapter, created = (None, self._started) if found is None else found
        return build_model_card(
            name,
            root=adapter.path if adapter else self.root,
            parent=self.served_names[0] if adapter else None,
            created=created,
            max_model_len=self.engine.max_model_len,
            logprobs_mode=self.engine.logprobs_mode or "unknown",
        )

    def _require_ready(self) -> None:
        if not self.engine.is_ready:
            unavailable_reason = self.engine.unavailable_reason() or "the engine is starting"
            raise RequestError(unavailable_reason, status=503, kind="ServiceUnavailableError")

    async def _models(self, request: Request) -> Response:
        self._require_ready()
        names = [*self.served_names, *self.adapters]
        return _Json({"object": "list", "data": [self._model_card(name) for name in names]})

    async def _retrieve_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._find_adapter(name)
        return _Json(self._model_card(name))

    def _find_adapter(self, name: str | None) -> LoadedAdapter | None:
        if name is None or name in self.served_names:
            return None
        if name not in self.adapters:
            raise RequestError(
                f"the model {name} does not exist", status=404, kind="NotFoundError", param="model"
            )
        return self.adapters[name][0]

    async def _load_adapter(self, request: Request) -> Response:
        self._require_ready()
        body = parse_body(LoadAdapterBody, await _read_body(request))
        name = body.lora_name
        if body.load_inplace:
            raise RequestError(
                "load_inplace is not supported: an adapter name keeps its weights; load the new ones under a new name",
                param="load_inplace",
            )
        if name in self.adapters or name in self._loading or name in self.served_names:
            raise RequestError(f"the name {name} is in use", param="lora_name")
        self._loading.add(name)
        try:
            adapter = await asyncio.to_thread(self.engine.load, name, body.lora_path)
        except AdapterError as error:
            raise RequestError(str(error), param="lora_path") from error
        except UpstreamError as error:
            raise RequestError(str(error), status=503, kind="ServiceUnavailableError") from error
        finally:
            self._loading.discard(name)
        self.adapters[name] = (adapter, int(time.time()))
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload_adapter(self, request: Request) -> Response:
        body = parse_body(UnloadAdapterBody, await _read_body(request))
        if body.lora_name not in self.adapters:
            raise RequestError(
                f"the LoRA adapter {body.lora_name} is not loaded",
                status=404,
                kind="NotFoundError",
                param="lora_name",
            )
        # Running sequences hold a reference to the adapter; its memory is freed with the last of them.
        adapter, _ = self.adapters.pop(body.lora_name)
        self.engine.unload(adapter)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def _tokenize(self, request: Request) -> Response:
        body = parse_body(TokenizeBody, await _read_body(request))
        self._find_adapter(body.model)
        vocabulary = self.engine.vocabulary
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("send either prompt or messages")
        if body.messages is not None:
            ids = self._render(body, body.messages)
        else:
            ids = vocabulary.encode(
                body.prompt or "", add_special_tokens=body.add_special_tokens is not False
            )
        return _Json(
            {
                "count": len(ids),
                "max_model_len": self.engine.max_model_len,
                "tokens": ids,
                "token_strs": [vocabulary.text(one) for one in ids] if body.return_token_strs else None,
            }
        )

    async def _detokenize(self, request: Request) -> Response:
        body = parse_body(DetokenizeBody, await _read_body(request))
        self._find_adapter(body.model)
        for token_id in body.tokens:
            if token_id >= self.engine.vocabulary.size:
                raise RequestError(f"token id {token_id} is outside the vocabulary", param="tokens")
        return _Json({"prompt": self.engine.vocabulary.decode(body.tokens)})

    # ---- completions

    def _render(self, body: ChatBody | TokenizeBody, messages: list[dict[str, Any]]) -> list[int]:
        return render_chat(
            self.engine.vocabulary,
            messages,
            tools=self._read_tools(body),
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=bool(body.continue_final_message),
            template_arguments=body.chat_template_kwargs,
        )

    def _read_tools(self, body: ChatBody | TokenizeBody) -> list[dict[str, Any]] | None:
        """Return the tools that the prompt shows.

        A template that knows tools shows them all. Patina's own tool prompt shows those of which one must be called, and those that may be where
        the model was seen to call: elsewhere they would only fill the prompt.
        """
        if not body.tools or self._template.tools:
            return body.tools
        choice = body.tool_choice if isinstance(body, ChatBody) else None
        is_forced = choice not in (None, "auto", "none")
        if is_forced:
            return [dict(tool) for tool in named_tools(body.tools, choice)]
        return body.tools if choice != "none" and self._tool_check.is_passed else None

    async def _ask_case(self, case: CallCase) -> str:
        """Return the model's greedy reply to a case of the tool check, once no request runs."""
        # Engines announce no end of a request.
        while any(self.engine.stats().get(state) for state in ("running", "waiting")):  # noqa: ASYNC110
            await asyncio.sleep(_IDLE_LOOK_S)
        vocabulary = self.engine.vocabulary
        ids = render_chat(vocabulary, [{"role": "user", "content": case.question}], tools=case.tools)
        results = ResultStream(1)
        params = SamplingParams(
            max_tokens=MAX_TOKENS, temperature=0.0, stop=STOPS, include_stop=True, keep_tool_tags=True
        )
        job: Job[Any] = Job(prompt_ids=ids, params=params, adapter=None, deliver=results.put)
        if not self.engine.submit(job):
            raise _shutdown_error()
        return "".join([output.text async for _, output in results])

    def _prompt(self, body: ChatBody) -> tuple[list[int], int]:
        """Return the ids of the prompt and how many tokens the reply may have.

        Raises RequestError if the conversation exceeds the context.
        """
        ids = self._render(body, body.messages)
        most = check_context_length(
            len(ids), body.max_completion_tokens or body.max_tokens, self.engine.max_model_len
        )
        if body.max_completion_tokens is None and body.max_tokens is None:
            most = min(most, self.engine.defaults.max_new_tokens or most)
        return ids, most

    async def _output_form(self, body: ChatBody | CompletionBody) -> tuple[OutputForm, Any]:
        """Return the form of the reply, and its compiled grammar or None."""
        form = output_form(body, self.engine.limits, tags_are_tokens=self.engine.vocabulary.has_tool_tags)
        if not form.grammar:
            return form, None
        try:
            return form, await asyncio.to_thread(self.engine.compile_grammar, form.grammar)
        except GrammarError as error:
            field = "response_format" if json_schema_of(body.response_format) is not None else "tools"
            raise RequestError(f"{field}: the schema cannot be enforced: {error}", param=field) from error

    def _check_sequence_count(self, max_sequences: int) -> None:
        limits = self.engine.limits
        if max_sequences > limits.max_sequences:
            option = (
                f" ({limits.option} {limits.max_sequences})"
                if limits.option
                else f" ({limits.max_sequences})"
            )
            raise RequestError(
                f"{max_sequences} completions in one request are more than this server runs at once{option}",
                param="n",
            )

    def _head(self, reply_id: str, kind: str, model: str | None) -> dict[str, Any]:
        """Return the fields that begin every reply and every chunk."""
        return {
            "id": reply_id,
            "object": kind,
            "created": int(time.time()),
            "model": model or self.served_names[0],
        }

    async def _chat(self, raw: bytes, response: _ResponseWriter) -> None:
        self._require_ready()
        body = parse_body(ChatBody, raw, self.engine.limits)
        adapter = self._find_adapter(body.model)
        vocabulary = self.engine.vocabulary
        check_token_ids(body, vocabulary)
        n = body.n or 1
        self._check_sequence_count(n)
        form, grammar = await self._output_form(body)
        is_unread = bool(body.tools) and body.tool_choice != "none" and self._read_tools(body) is None
        if is_unread:
            self._unread_tools += 1
            response.headers.append((b"x-patina-tools", b"unread"))
        prompt_ids, most = (
            self._prompt(body) if len(raw) <= _INLINE_BYTES else await asyncio.to_thread(self._prompt, body)
        )
        forced = vocabulary.encode(form.forced, add_special_tokens=False) if form.forced else []
        params = body.sampling_params(
            self.engine.defaults,
            most,
            logprobs=bool(body.logprobs),
            top_logprobs=body.top_logprobs or 0,
        )
        results = ResultStream(n)
        job: Job[Any] = Job(
            prompt_ids=prompt_ids,
            params=replace(params, keep_tool_tags=form.parses_calls),
            adapter=adapter,
            deliver=results.put,
            n=n,
            forced_ids=forced,
            grammar=grammar,
        )
        head = self._head(f"chatcmpl-{uuid.uuid4().hex}", "chat.completion", body.model)
        if body.stream:
            head["object"] = "chat.completion.chunk"
        choices = [_choice(index, body, form, vocabulary, head) for index in range(n)]

        def usage() -> dict[str, Any]:
            return build_usage(len(prompt_ids), sum(len(choice.token_ids) for choice in choices))

        if body.tools and not self._template.tools:
            response.at_end = partial(self._tool_check.start, self._ask_case)
        if not body.stream:
            async with response(self.engine, [job], results):
                async for index, output in results:
                    choices[index].take(output)
                if response.client_left:
                    return
            whole = [choice.whole() for choice in choices]
            reply: dict[str, Any] = {**head, "choices": whole, "usage": usage()}
            if body.return_token_ids:
                reply["prompt_token_ids"] = prompt_ids
            await response.reply(reply)
            return
        options = body.stream_options
        continuous = options is not None and bool(options.continuous_usage_stats)
        async with response(self.engine, [job], results):
            for choice in choices:
                await response.event(choice.first_chunk(prompt_ids))
            async for index, output in results:
                for chunk in choices[index].chunks(output):
                    await response.event({**chunk, "usage": usage()} if continuous else chunk)
            if response.client_left:
                return
            if options is not None and options.include_usage:
                await response.event({**head, "choices": [], "usage": usage()})
        await response.end()

    async def _completions(self, raw: bytes, response: _ResponseWriter) -> None:
        self._require_ready()
        body = parse_body(CompletionBody, raw, self.engine.limits)
        adapter = self._find_adapter(body.model)
        vocabulary = self.engine.vocabulary
        check_token_ids(body, vocabulary)
        prompts = _prompts(body, vocabulary.encode)
        n = body.n or 1
        self._check_sequence_count(n)
        _, grammar = await self._output_form(body)
        results = ResultStream(n * len(prompts))
        jobs: list[Job[Any]] = []
        for number, prompt_ids in enumerate(prompts):
            # The OpenAI default of 16 tokens; only chat fills the context.
            requested_tokens = 16 if body.max_tokens is None else body.max_tokens
            params: SamplingParams = body.sampling_params(
                self.engine.defaults,
                check_context_length(len(prompt_ids), requested_tokens, self.engine.max_model_len),
                logprobs=body.logprobs is not None,
                top_logprobs=body.logprobs or 0,
            )
            jobs.append(
                Job(
                    prompt_ids=prompt_ids,
                    params=params,
                    adapter=adapter,
                    deliver=results.put,
                    n=n,
                    first_index=number * n,
                    scores_prompt=bool(body.echo) and body.logprobs is not None,
                    grammar=grammar,
                )
            )
        head = self._head(f"cmpl-{uuid.uuid4().hex}", "text_completion", body.model)
        whole: list[list[OutputChunk]] = [[] for _ in range(n * len(prompts))]
        offsets = [0] * len(whole)

        def choice_of(index: int, chunk: OutputChunk, *, opening: bool) -> dict[str, Any]:
            prompt_ids, echoes = prompts[index // n], bool(body.echo) and opening
            echoed = echoed_entries(prompt_ids, chunk.prompt_logprobs) if echoes else []
            logprobs, offsets[index] = _completion_logprobs(
                body, [*echoed, *chunk.logprobs], vocabulary, offsets[index]
            )
            choice: dict[str, Any] = {
                "index": index,
                "text": (vocabulary.decode(prompt_ids) if echoes else "") + chunk.text,
                "logprobs": logprobs,
                "finish_reason": chunk.finish_reason,
                "stop_reason": chunk.stop_reason,
            }
            if body.return_token_ids:
                choice["token_ids"] = list(chunk.token_ids)
                choice["prompt_token_ids"] = list(prompt_ids) if opening else None
            return choice

        def usage() -> dict[str, Any]:
            sampled = sum(len(chunk.token_ids) for chunks in whole for chunk in chunks)
            return build_usage(sum(len(prompt) for prompt in prompts), sampled)

        async with response(self.engine, jobs, results):
            async for index, output in results:
                whole[index].append(output)
                if body.stream:
                    opening = len(whole[index]) == 1
                    await response.event({**head, "choices": [choice_of(index, output, opening=opening)]})
            if response.client_left:
                return
        if body.stream:
            if body.stream_options is not None and body.stream_options.include_usage:
                await response.event({**head, "choices": [], "usage": usage()})
            await response.end()
            return
        done = [choice_of(i, merge_chunks(chunks), opening=True) for i, chunks in enumerate(whole)]
        await response.reply({**head, "choices": done, "usage": usage()})


def _choice(
    index: int, body: ChatBody, form: OutputForm, vocabulary: Vocabulary, head: Mapping[str, Any]
) -> ChatChoice:
    return ChatChoice(
        index=index,
        vocabulary=vocabulary,
        head=head,
        parser=ToolCallParser() if form.parses_calls else None,
        wants_logprobs=bool(body.logprobs),
        wants_ids=bool(body.return_token_ids),
        as_token_ids=bool(body.return_tokens_as_token_ids),
        one_call=form.forces_call or body.parallel_tool_calls is False or bool(body.functions),
        is_legacy=bool(body.functions),
        forces_call=form.forces_call,
        is_named=form.is_named,
    )


def _completion_logprobs(
    body: CompletionBody, entries: Sequence[TokenLogprob], vocabulary: Vocabulary, offset: int
) -> tuple[dict[str, Any] | None, int]:
    """Return the logprobs object of a choice, None where none was asked for, and the next text offset."""
    if body.logprobs is None:
        return None, offset
    as_token_ids = bool(body.return_tokens_as_token_ids)
    return build_completion_logprobs(entries, vocabulary, offset, as_token_ids=as_token_ids)


def _prompts(body: CompletionBody, encode: Callable[..., list[int]]) -> list[list[int]]:
    special = body.add_special_tokens is not False
    given: Sequence[str | int | list[int]] = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not given:
        raise RequestError("the prompt is empty", param="prompt")
    ids = [one for one in given if isinstance(one, int)]
    if ids:
        return [ids]
    prompts = []
    for one in given:
        if isinstance(one, str):
            prompts.append(encode(one, add_special_tokens=special))
        elif isinstance(one, list):
            prompts.append(one)
    return prompts


class _ResponseWriter:
    """Sends one response, JSON or an event stream, and watches for the client's disconnect.

    Plain ASGI, because the watch must run beside the work, and a client that disconnects must free its rows of the batch at once.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._engine: SamplingEngine[Any] | None = None
        self._jobs: Sequence[Job[Any]] = ()
        self._results: ResultStream | None = None
        self._watch: asyncio.Task[None] | None = None
        self.headers: list[tuple[bytes, bytes]] = []  #: of the response, besides its type
        self.at_end: Callable[[], None] = lambda: None  #: called when the work has ended
        self.streaming = False
        self.client_left = False

    def __call__(
        self, engine: SamplingEngine[Any], jobs: Sequence[Job[Any]], results: ResultStream
    ) -> _ResponseWriter:
        self._engine, self._jobs, self._results = engine, jobs, results
        return self

    async def __aenter__(self) -> _ResponseWriter:
        assert self._engine is not None
        unavailable_reason = self._engine.unavailable_reason()
        if unavailable_reason is not None:
            raise RequestError(unavailable_reason, status=503, kind="ServiceUnavailableError")
        for job in self._jobs:
            if not self._engine.submit(job):
                raise _shutdown_error()
        self._watch = asyncio.create_task(self._watch_for_disconnect())
        return self

    async def __aexit__(self, *exception: object) -> None:
        # After a normal end this cancels only finished jobs, which has no effect.
        self._cancel_jobs()
        if self._watch is not None:
            self._watch.cancel()
        self.at_end()

    def _cancel_jobs(self) -> None:
        assert self._engine is not None
        for job in self._jobs:
            self._engine.cancel(job)

    async def _watch_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_left = True
        self._cancel_jobs()
        assert self._results is not None
        self._results.stop()

    async def reply(self, body: dict[str, Any]) -> None:
        """Send the whole reply."""
        data = orjson.dumps(body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
            *self.headers,
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data})

    async def event(self, body: dict[str, Any]) -> None:
        """Send one chunk of a stream, the head before the first."""
        await self._write(b"data: " + orjson.dumps(body) + b"\n\n")

    async def end(self) -> None:
        """Close the stream."""
        await self._write(b"data: [DONE]\n\n")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: RequestError) -> None:
        """Send an error inside a stream, whose status was sent already."""
        body = build_error(str(error), error.status, error.kind, error.param)
        await self._write(b"data: " + orjson.dumps(body) + b"\n\n")
        await self.end()

    async def _write(self, data: bytes) -> None:
        if not self.streaming:
            self.streaming = True
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                *self.headers,
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


class _AsgiEndpoint:
    """An ASGI endpoint from a handler that takes the body's bytes and a `_ResponseWriter`."""

    def __init__(self, handler: Callable[[bytes, _ResponseWriter], Awaitable[None]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = _ResponseWriter(receive, send)
        try:
            await self._handler(await _read_body(Request(scope, receive)), run)
        except RequestError as error:
            if run.streaming:
                await run.fail(error)
            else:
                await _error_response(error)(scope, receive, send)


async def _read_body(request: Request) -> bytes:
    """Return the body without a byte order mark. Raises: RequestError: it is compressed."""
    encoding = request.headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        raise RequestError(
            f"the content encoding '{encoding[:40]}' is not supported: send the body as it is",
            status=415,
            kind="UnsupportedMediaTypeError",
        )
    return (await request.body()).removeprefix(codecs.BOM_UTF8)


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "NotFoundError", 405: "MethodNotAllowedError"}.get(error.status_code, "BadRequestError")
    body = build_error(f"{request.method} {request.url.path}: {error.detail}", error.status_code, kind)
    return _Json(body, status_code=error.status_code, headers=error.headers)
