"""Tinker as the dialect knows it: prompts in, whole samples out, each handed on as one piece.

What the sampler drew is what is reported. A stop string is looked for here, because not every server knows them: what was drawn behind
it is left out, ids and all, which is what drawing up to it would have given.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.dialect.engine import Job, Limits
from serving.dialect.text import TokenText
from serving.dialect.values import LogprobsMode, Piece, SamplingDefaults, SamplingParams
from serving.dialect.vocabulary import Vocabulary
from serving.dialect.wire import merge_pieces
from serving.tinker.abilities import Abilities, mode_of
from serving.tinker.connection import Connection, Refused
from serving.tinker.version import read_version
from serving.tinker.vocabulary import TextSide
from store.errors import AdapterError, ConfigError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from store.settings import Settings

if TYPE_CHECKING:
    import tinker

log = logging.getLogger("patina.tinker")

_TRIAL_TEXT, _TRIAL_TOKENS = "Hello", 8
_SEEDS = 1 << 31  # servers keep them in 32 bits
_PLAIN_CONTEXT = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerAdapter:
    """A version that is served: the checkpoint it is sampled from."""

    name: str
    path: str
    sampler_path: str


class TinkerHost:
    """One base model on a Tinker server, and versions of it (`serving.dialect.engine.Engine`)."""

    def __init__(self, settings: Settings, text: TextSide, *, fatal: Callable[[ConfigError], None]) -> None:
        self._settings = settings
        self._text = text
        self._fatal = fatal
        self._found: Abilities | None = None
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[Job[TinkerAdapter], asyncio.Task[None]] = {}
        self._served: dict[str, int] = {}
        self._stopping = False
        self._requests = self._prompt_tokens = self._completion_tokens = self._errors = 0
        self._last_error: str | None = None

    # ---- what it is

    @property
    def vocabulary(self) -> Vocabulary:
        return self._text.vocabulary

    @property
    def defaults(self) -> SamplingDefaults:
        """Plain: a truncated sample's log-probabilities are not those of the policy, so nothing is truncated unasked."""
        return SamplingDefaults()

    @property
    def max_model_len(self) -> int:
        known = [each for each in (self._text.context, self.connection.context) if each]
        longest = min(known, default=_PLAIN_CONTEXT)
        return min(longest, self._settings.max_model_len) if self._settings.max_model_len else longest

    @property
    def logprobs_mode(self) -> LogprobsMode | None:
        return self.abilities.mode

    @property
    def limits(self) -> Limits:
        return self.abilities.limits

    @property
    def abilities(self) -> Abilities:
        """What the server can do; before it was asked, nothing that is not in the protocol."""
        return self._found or Abilities(mode=None, prompt_logprobs=False, top_logprobs=False)

    @property
    def connection(self) -> Connection:
        """The line to the server; there is none before `start`."""
        if self._connection is None:
            raise RuntimeError("the engine has not started")
        return self._connection

    @property
    def is_known(self) -> bool:
        return self.connection.is_known

    def trouble(self) -> str | None:
        return self.connection.trouble

    def told(self) -> Mapping[str, Any]:
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
                "notes": list(self.abilities.notes),
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
                "trouble": connection.trouble,
                "sessions": connection.lives,
            },
        }

    # ---- its life

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(self._settings, look=self._look, fatal=self._fatal)
        self._connection.start()

    def stop(self) -> None:
        self._stopping = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for job, task in list(self._tasks.items()):
            job.deliver(job.first_index, Piece(text="", token_ids=(), logprobs=(), finish_reason="abort"))
            task.cancel()

    async def join(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.connection.stop()

    # ---- versions

    def load(self, name: str, path: str) -> TinkerAdapter:
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
        except Refused as exc:
            raise AdapterError(f"{path}: {exc}") from exc
        self._served[version.sampler_path] = self._served.get(version.sampler_path, 0) + 1
        return TinkerAdapter(name=name, path=path, sampler_path=version.sampler_path)

    def unload(self, adapter: TinkerAdapter) -> None:
        self._served[adapter.sampler_path] -= 1
        if not self._served[adapter.sampler_path]:
            del self._served[adapter.sampler_path]
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
            pieces = await self._sample(job)
        except Refused as exc:
            pieces = [self._failure(exc, 400)]
        except (UpstreamUnreachable, UpstreamTimeout) as exc:
            pieces = [self._failure(exc, 503)]
        except UpstreamError as exc:
            pieces = [self._failure(exc, 502)]
        except Exception as exc:
            # What nobody thought of must not leave the client without an answer. `stats` counts it.
            log.exception("a sample failed")
            pieces = [self._failure(exc, 500)]
        for index, piece in enumerate(pieces, start=job.first_index):
            if not job.cancelled:
                job.deliver(index, piece)

    def _failure(self, exc: Exception, status: int) -> Piece:
        self._errors += 1
        self._last_error = f"{type(exc).__name__}: {exc}"
        return Piece(text="", token_ids=(), logprobs=(), finish_reason="error", error=str(exc), status=status)

    async def _sample(self, job: Job[TinkerAdapter]) -> list[Piece]:
        params = job.params
        forced = list(job.forced_ids)[: params.max_tokens]
        prompt = [*job.prompt_ids, *forced]
        response = await self._ask(
            "" if job.adapter is None else job.adapter.sampler_path,
            prompt,
            n=job.n,
            scores=bool(forced),
            top=params.top_logprobs,
            max_tokens=max(1, params.max_tokens - len(forced)),
            seed=None if params.seed is None else params.seed % _SEEDS,
            stop=self._stops(params),
            temperature=params.temperature,
            top_k=params.top_k or -1,
            top_p=params.top_p,
        )
        opening = _opening(forced, response.prompt_logprobs, len(prompt)) if forced else []
        pieces = [self._piece(params, opening, sequence) for sequence in response.sequences]
        if len(pieces) != job.n:
            raise UpstreamError(
                f"the Tinker server at {self.connection.address} gave {len(pieces)} samples for {job.n}"
            )
        self._prompt_tokens += len(job.prompt_ids)
        self._completion_tokens += sum(len(piece.token_ids) for piece in pieces)
        return pieces

    def _stops(self, params: SamplingParams) -> list[int]:
        """An explicit list takes the place of the server's own idea of an end; an empty one means that there is none."""
        ends = frozenset[int]() if params.ignore_eos else self._text.end_ids
        return sorted(ends | params.stop_token_ids)

    async def _ask(
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

    def _piece(self, params: SamplingParams, opening: Sequence[tuple[int, float]], sequence: Any) -> Piece:
        """A whole sequence as one piece."""
        ids = [int(token) for token in sequence.tokens]
        logprobs = sequence.logprobs
        if logprobs is None or len(logprobs) != len(ids):
            raise UpstreamError(
                f"the Tinker server at {self.connection.address} told no log-probabilities of a sample"
            )
        tops = sequence.topk_logprobs if params.top_logprobs else None
        drawn: list[tuple[int, float, Sequence[tuple[int, float]]]] = [
            *((token, logprob, ()) for token, logprob in opening),
            *(
                (token, float(logprob), [] if tops is None else tops[i] or ())
                for i, (token, logprob) in enumerate(zip(ids, logprobs, strict=True))
            ),
        ]
        del drawn[params.max_tokens :]  # where the opening alone is as long, one token too many was drawn
        text = TokenText(params, self.vocabulary, self._text.end_ids)
        pieces: list[Piece] = []
        for number, (token, logprob, top) in enumerate(drawn, start=1):
            is_last = number == len(drawn) and (
                sequence.stop_reason == "length" or number == params.max_tokens
            )
            pieces.append(text.take(token, logprob, top, is_last=is_last))
            if pieces[-1].finish_reason is not None:
                return merge_pieces(pieces)
        return merge_pieces([*pieces, text.end()])

    # ---- what the server can do

    async def _look(self) -> None:
        """Try it with a few tokens of the base model."""
        prompt = self.vocabulary.encode(_TRIAL_TEXT, add_special_tokens=False)
        told: list[Sequence[float] | None] = []
        has_top = False
        for temperature in (2.0, 1.0):
            response = await self._ask(
                "", prompt, n=1, scores=False, top=1,
                max_tokens=_TRIAL_TOKENS, seed=1, temperature=temperature, stop=[],
            )  # fmt: skip
            (sequence,) = response.sequences
            has_top = sequence.topk_logprobs is not None
            told += [sequence.logprobs, await self._read(prompt, [int(token) for token in sequence.tokens])]
        self._found = Abilities(
            mode=mode_of(*told), prompt_logprobs=told[1] is not None, top_logprobs=has_top
        )

    async def _read(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float] | None:
        """The log-probabilities of tokens behind a prompt, read and not drawn; None where the server tells none."""
        whole = [*prompt, *tokens]
        try:
            response = await self._ask("", whole, n=1, scores=True, top=0, max_tokens=1, temperature=1.0)
        except Refused:
            return None
        found = response.prompt_logprobs
        if found is None or len(found) != len(whole) or any(value is None for value in found[1:]):
            return None
        return [float(value) for value in found[len(prompt) :]]


def _opening(
    forced: Sequence[int], prompt_logprobs: Sequence[float | None] | None, length: int
) -> list[tuple[int, float]]:
    """Prescribed tokens with the model's log-probabilities: they were read as the end of a prompt of `length` tokens."""
    found = (
        [] if prompt_logprobs is None or len(prompt_logprobs) != length else prompt_logprobs[-len(forced) :]
    )
    values = [value for value in found if value is not None]
    if len(values) != len(forced):
        raise UpstreamError("the Tinker server told no log-probabilities of a prompt")
    return list(zip(forced, (float(value) for value in values), strict=True))
