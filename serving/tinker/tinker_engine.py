"""Tinker as a sampling engine: prompts in, whole samples out, each delivered as one output chunk.

Tokens are reported as sampled. Stop strings are searched here, because not every server supports them: tokens after one are removed with their ids,
which equals sampling up to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.model_digests import digest_served_model
from serving.openai_server.engine import EngineLimits, GrammarError, Job
from serving.openai_server.schemas import merge_chunks
from serving.openai_server.token_text import TokenText
from serving.openai_server.values import LogprobsMode, OutputChunk, SamplingDefaults, SamplingParams
from serving.openai_server.vocabulary import Vocabulary
from serving.tinker.local_tokenizer import LocalTokenizer
from serving.tinker.server_features import ServerFeatures, detect_logprobs_mode
from serving.tinker.session import RequestRefused, TinkerSessionManager
from serving.tinker.version import read_version
from store.errors import AdapterError, ConfigError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from store.manifest import check_version
from store.settings import Settings

if TYPE_CHECKING:
    import tinker

log = logging.getLogger("patina.tinker")

_PROBE_TEXT, _PROBE_TOKENS = "Hello", 8
_SEED_RANGE = 1 << 31  # servers store seeds in 32 bits
_DEFAULT_CONTEXT = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerAdapter:
    """A served version: the checkpoint that it is sampled from."""

    name: str
    path: str
    sampler_path: str


class TinkerEngine:
    """One base model on a Tinker server, and its versions (`serving.openai_server.engine.SamplingEngine`)."""

    def __init__(
        self, settings: Settings, text: LocalTokenizer, *, on_config_error: Callable[[ConfigError], None]
    ) -> None:
        self._settings = settings
        self._tokenizer = text
        self._on_config_error = on_config_error
        self._features: ServerFeatures | None = None
        self._connection: TinkerSessionManager | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[Job[TinkerAdapter], asyncio.Task[None]] = {}
        self._serving_counts: dict[str, int] = {}
        self._stopping = False
        self._requests = self._prompt_tokens = self._completion_tokens = self._errors = 0
        self._last_error: str | None = None

    # ---- properties

    @property
    def vocabulary(self) -> Vocabulary:
        return self._tokenizer.vocabulary

    @property
    def defaults(self) -> SamplingDefaults:
        """No truncation by default: a truncated sample's log-probabilities are not those of the policy."""
        return SamplingDefaults()

    @property
    def max_model_len(self) -> int:
        known = [each for each in (self._tokenizer.context, self.connection.context) if each]
        longest = min(known, default=_DEFAULT_CONTEXT)
        return min(longest, self._settings.max_model_len) if self._settings.max_model_len else longest

    @property
    def logprobs_mode(self) -> LogprobsMode | None:
        return self.features.mode

    @property
    def limits(self) -> EngineLimits:
        return self.features.limits

    @property
    def features(self) -> ServerFeatures:
        """The server's features; before they are detected, only what the protocol guarantees."""
        return self._features or ServerFeatures(mode=None, prompt_logprobs=False, top_logprobs=False)

    @property
    def connection(self) -> TinkerSessionManager:
        """The session manager; available after `start`."""
        if self._connection is None:
            raise RuntimeError("the engine has not started")
        return self._connection

    @property
    def is_ready(self) -> bool:
        return self.connection.is_ready

    def unavailable_reason(self) -> str | None:
        return self.connection.unavailable_reason

    def version_info(self) -> Mapping[str, Any]:
        from importlib.metadata import version

        return {
            "version": version("tinker"),
            "engine": "Tinker SDK",
            "logprobs_mode": self.logprobs_mode or "unknown",
            "server": self.connection.address,
            "base_model": self.connection.base_model,
            "capabilities": {
                "tools": True,
                "constrained": False,
                "token_stream": False,
                "adapter_slots": self._settings.adapter_slots,
                "notes": list(self.features.notes),
            },
        }

    def stats(self) -> Mapping[str, Any]:
        connection = self.connection
        return {
            "running": sum(job.n for job in self._tasks),
            "waiting": 0,
            "requests": self._requests,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "errors": self._errors,
            "last_error": self._last_error,
            "server": {
                "address": connection.address,
                "base_model": connection.base_model,
                "trouble": connection.unavailable_reason,
                "sessions": connection.sessions_opened,
            },
        }

    # ---- lifecycle

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = TinkerSessionManager(
            self._settings, probe_features=self._probe_features, on_config_error=self._on_config_error
        )
        self._connection.start()

    def stop(self) -> None:
        self._stopping = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for job, task in list(self._tasks.items()):
            job.deliver(
                job.first_index, OutputChunk(text="", token_ids=(), logprobs=(), finish_reason="abort")
            )
            task.cancel()

    async def join(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.connection.stop()

    # ---- versions

    def compile_grammar(self, grammar: str) -> Any:
        raise GrammarError("Tinker's sampling API takes no grammar")

    def load(self, name: str, path: str) -> TinkerAdapter:
        check_version(Path(path), model=digest_served_model(self._settings.model_path))
        version = read_version(Path(path))
        base = self.connection.base_model
        if version.base_model != base:
            raise AdapterError(f"{path} is of another model: of {version.base_model}, not of {base}")
        assert self._loop is not None
        preparing = asyncio.run_coroutine_threadsafe(
            self.connection.prepare(version.sampler_path), self._loop
        )
        try:
            preparing.result()
        except RequestRefused as exc:
            raise AdapterError(f"{path}: {exc}") from exc
        self._serving_counts[version.sampler_path] = self._serving_counts.get(version.sampler_path, 0) + 1
        return TinkerAdapter(name=name, path=path, sampler_path=version.sampler_path)

    def unload(self, adapter: TinkerAdapter) -> None:
        self._serving_counts[adapter.sampler_path] -= 1
        if not self._serving_counts[adapter.sampler_path]:
            del self._serving_counts[adapter.sampler_path]
            self.connection.forget(adapter.sampler_path)

    # ---- samples

    def submit(self, job: Job[TinkerAdapter]) -> bool:
        if self._stopping:
            return False
        self._requests += 1
        task = asyncio.create_task(self._serve(job))
        self._tasks[job] = task
        task.add_done_callback(lambda _: self._tasks.pop(job, None))
        return True

    def cancel(self, job: Job[TinkerAdapter]) -> None:
        job.cancelled = True
        task = self._tasks.get(job)
        if task is not None:
            task.cancel()

    async def _serve(self, job: Job[TinkerAdapter]) -> None:
        try:
            chunks = await self._sample(job)
        except RequestRefused as exc:
            chunks = [self._failure(exc, 400)]
        except (UpstreamUnreachable, UpstreamTimeout) as exc:
            chunks = [self._failure(exc, 503)]
        except UpstreamError as exc:
            chunks = [self._failure(exc, 502)]
        except Exception as exc:
            # An unexpected error must not leave the client without a response. `stats` counts it.
            log.exception("a sample failed")
            chunks = [self._failure(exc, 500)]
        for index, chunk in enumerate(chunks, start=job.first_index):
            if not job.cancelled:
                job.deliver(index, chunk)

    def _failure(self, exc: Exception, status: int) -> OutputChunk:
        self._errors += 1
        self._last_error = f"{type(exc).__name__}: {exc}"
        return OutputChunk(
            text="", token_ids=(), logprobs=(), finish_reason="error", error=str(exc), status=status
        )

    async def _sample(self, job: Job[TinkerAdapter]) -> list[OutputChunk]:
        params = job.params
        forced = list(job.forced_ids)[: params.max_tokens]
        prompt = [*job.prompt_ids, *forced]
        response = await self._sample_once(
            "" if job.adapter is None else job.adapter.sampler_path,
            prompt,
            n=job.n,
            scores=bool(forced) or job.scores_prompt,
            top=params.top_logprobs,
            max_tokens=max(1, params.max_tokens - len(forced)),
            seed=None if params.seed is None else params.seed % _SEED_RANGE,
            stop=self._stops(params),
            temperature=params.temperature,
            top_k=params.top_k or -1,
            top_p=params.top_p,
        )
        prefix = _forced_prefix(forced, response.prompt_logprobs, len(prompt))
        chunks = [self._build_chunk(params, prefix, sequence) for sequence in response.sequences]
        if job.scores_prompt:
            scored = _forced_prefix(prompt[1:], response.prompt_logprobs, len(prompt))
            of_prompt = tuple(logprob for _, logprob in scored)[: len(job.prompt_ids) - 1]
            chunks = [replace(chunk, prompt_logprobs=of_prompt) for chunk in chunks]
        if len(chunks) != job.n:
            raise UpstreamError(
                f"the Tinker server at {self.connection.address} returned {len(chunks)} samples for {job.n}"
            )
        self._prompt_tokens += len(job.prompt_ids)
        self._completion_tokens += sum(len(chunk.token_ids) for chunk in chunks)
        return chunks

    def _stops(self, params: SamplingParams) -> list[int]:
        """Return the stop ids. An explicit list replaces the server's own; an empty list means that there are none."""
        ends = frozenset[int]() if params.ignore_eos else self._tokenizer.end_ids
        return sorted(ends | params.stop_token_ids)

    async def _sample_once(
        self, path: str, prompt: Sequence[int], *, n: int, scores: bool, top: int, **params: Any
    ) -> Any:
        from tinker import types

        text = types.ModelInput.from_ints(list(prompt))
        sampling = types.SamplingParams(**params)

        def ask(client: tinker.SamplingClient) -> Any:
            return client.sample(
                prompt=text,
                num_samples=n,
                sampling_params=sampling,
                include_prompt_logprobs=scores,
                topk_sample_logprobs=top,
            )

        return await self.connection.sample(path, ask)

    def _build_chunk(
        self, params: SamplingParams, prefix: Sequence[tuple[int, float]], sequence: Any
    ) -> OutputChunk:
        """Return a whole sequence as one chunk."""
        ids = [int(token) for token in sequence.tokens]
        logprobs = sequence.logprobs
        if logprobs is None or len(logprobs) != len(ids):
            raise UpstreamError(
                f"the Tinker server at {self.connection.address} returned a sample without log-probabilities"
            )
        tops = sequence.topk_logprobs if params.top_logprobs else None
        drawn: list[tuple[int, float, Sequence[tuple[int, float]]]] = [
            *((token, logprob, ()) for token, logprob in prefix),
            *(
                (token, float(logprob), [] if tops is None else tops[i] or ())
                for i, (token, logprob) in enumerate(zip(ids, logprobs, strict=True))
            ),
        ]
        del drawn[params.max_tokens :]  # with a prefix of full length, one token too many was sampled
        text = TokenText(params, self.vocabulary, self._tokenizer.end_ids)
        chunks: list[OutputChunk] = []
        for number, (token, logprob, top) in enumerate(drawn, start=1):
            is_last = number == len(drawn) and (
                sequence.stop_reason == "length" or number == params.max_tokens
            )
            chunks.append(text.take(token, logprob, top, is_last=is_last))
            if chunks[-1].finish_reason is not None:
                return merge_chunks(chunks)
        return merge_chunks([*chunks, text.end()])

    # ---- detection of features

    async def _probe_features(self) -> None:
        """Detect the features with a few tokens of the base model."""
        prompt = self.vocabulary.encode(_PROBE_TEXT, add_special_tokens=False)
        version_info: list[Sequence[float] | None] = []
        has_top = False
        for temperature in (2.0, 1.0):
            response = await self._sample_once(
                "", prompt, n=1, scores=False, top=1,
                max_tokens=_PROBE_TOKENS, seed=1, temperature=temperature, stop=[],
            )  # fmt: skip
            (sequence,) = response.sequences
            has_top = sequence.topk_logprobs is not None
            version_info += [
                sequence.logprobs,
                await self._score_tokens(prompt, [int(token) for token in sequence.tokens]),
            ]
        self._features = ServerFeatures(
            mode=detect_logprobs_mode(*version_info),
            prompt_logprobs=version_info[1] is not None,
            top_logprobs=has_top,
        )

    async def _score_tokens(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float] | None:
        """Return the log-probabilities of given tokens after a prompt; None where the server reports none."""
        whole = [*prompt, *tokens]
        try:
            response = await self._sample_once(
                "", whole, n=1, scores=True, top=0, max_tokens=1, temperature=1.0
            )
        except RequestRefused:
            return None
        found = response.prompt_logprobs
        if found is None or len(found) != len(whole) or any(value is None for value in found[1:]):
            return None
        return [float(value) for value in found[len(prompt) :]]


def _forced_prefix(
    forced: Sequence[int], prompt_logprobs: Sequence[float | None] | None, length: int
) -> list[tuple[int, float]]:
    """Return prescribed tokens with the model's log-probabilities: they were scored as the end of a prompt of `length` tokens."""
    found = prompt_logprobs or ()
    found = found[length - len(forced) :] if len(found) == length else ()
    values = [value for value in found if value is not None]
    if len(values) != len(forced):
        raise UpstreamError("the Tinker server returned no log-probabilities of a prompt")
    return list(zip(forced, (float(value) for value in values), strict=True))
