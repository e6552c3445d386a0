"""Continuous batching: requests join and leave the running batch between token steps, on one dedicated thread.

The thread owns the model, the cache and every running sequence. Other threads use two interfaces: `submit` and `cancel` write to an inbox that is
read between steps, and results leave through `deliver`, once per step for all sequences.

A step reads the inbox, admits waiting requests while they fit, prefills one chunk of prompt for new ones, and samples one token for each sequence of
the batch. Long prompts are prefilled in chunks, so running streams never wait for more than one chunk.

A sequence's output does not depend on the rest of the batch: it has its own cache row, adapter and random numbers.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from serving.embedded.adapters import Adapter
from serving.embedded.kv_cache import BatchKvCache
from serving.embedded.model import Model
from serving.embedded.sampling import SamplingBatch, edit_logits, sample
from serving.openai_server.batch_loop import EngineStats
from serving.openai_server.engine import GrammarError, Job
from serving.openai_server.grammar import Grammar
from serving.openai_server.token_text import TokenText
from serving.openai_server.values import LogprobsMode, OutputChunk

log = logging.getLogger("patina.embedded")

# Prompt tokens of one forward; bounds how long running streams wait for a long prompt.
PREFILL_TOKENS = 512
# The same where all positions' logits are needed, which are as large as the vocabulary each.
SCORED_TOKENS = 64


EmbeddedJob = Job[Adapter]


class _Sequence:
    """One row of the batch, from prompt to finish."""

    __slots__ = (
        "adapter",
        "counts",
        "grammar",
        "ids",
        "index",
        "job",
        "params",
        "prompt_logprobs",
        "prompt_set",
        "prompt_tokens",
        "rng",
        "text",
    )

    def __init__(self, job: EmbeddedJob, number: int, model: Model) -> None:
        self.job = job
        self.index = job.first_index + number
        self.params = job.params
        self.adapter = job.adapter
        self.grammar: Grammar | None = None if job.grammar is None else job.grammar.copy()
        if self.grammar is not None:
            # The grammar decides where the reply may end.
            self.params = replace(job.params, min_tokens=0, ignore_eos=False)
        self.ids = list(job.prompt_ids)
        self.prompt_tokens = len(self.ids)
        self.prompt_logprobs: list[float] = []
        seed = job.params.seed
        # Each of n samples has its own random stream, so none depends on the length of the others.
        self.rng = random.Random(None if seed is None else f"{seed}/{number}")
        self.text = TokenText(self.params, model.vocabulary, model.end_ids)
        self.counts: Counter[int] = Counter()
        self.prompt_set = frozenset(self.ids) if job.params.repetition_penalty != 1.0 else frozenset[int]()

    @property
    def sampled(self) -> int:
        return len(self.ids) - self.prompt_tokens


@dataclass(slots=True)
class _PromptGroup:
    """Sequences that share one prompt (n > 1), or one that returns after preemption."""

    sequences: list[_Sequence]

    @property
    def ids(self) -> list[int]:
        return self.sequences[0].ids

    @property
    def adapter(self) -> Adapter | None:
        return self.sequences[0].adapter

    @property
    def is_scored(self) -> bool:
        """Whether the prompt's own log-probabilities are still to be computed."""
        return self.sequences[0].job.scores_prompt and not self.sequences[0].sampled


@dataclass(slots=True)
class _Prefill:
    """Prompt groups before they join the batch, with a cache of their own until their prompts are processed."""

    groups: list[_PromptGroup]
    cache: BatchKvCache = field(default_factory=BatchKvCache)
    done: int = 0


class BatchEngine:
    """Serves one model to many requests. `post` passes a callable to the thread that reads the results."""

    def __init__(
        self,
        model: Model,
        *,
        post: Callable[[Callable[[], None]], None],
        max_num_seqs: int = 16,
        max_loras: int = 8,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        cache_bytes: int = 4 << 30,
    ) -> None:
        self.model = model
        self.logprobs_mode = logprobs_mode
        self._post = post
        self._max_num_seqs = max_num_seqs
        self._max_loras = max_loras
        self._cache_bytes = cache_bytes
        self._inbox: deque[_PromptGroup] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._any_cancelled = False
        self._waiting: deque[_PromptGroup] = deque()
        self._prefill: _Prefill | None = None
        self._running: list[_Sequence] = []
        self._cache = BatchKvCache()
        self._batch: SamplingBatch | None = None
        self._outbox: list[tuple[EmbeddedJob, int, OutputChunk]] = []
        self._steps = self._prompt_tokens = self._completion_tokens = self._preemptions = self._errors = 0
        self._last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- for other threads

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its current step; what is unfinished is delivered as aborted."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self) -> None:
        """Wait for the thread to end after `stop`."""
        self._thread.join()

    def submit(self, job: EmbeddedJob) -> bool:
        """Queue a job; False if the engine is stopping. Its prompt must be shorter than the context, n at most max_num_seqs."""
        group = _PromptGroup([_Sequence(job, i, self.model) for i in range(job.n)])
        with self._wake:
            if self._stopping:
                return False
            self._inbox.append(group)
            self._wake.notify()
        return True

    def cancel(self, job: EmbeddedJob) -> None:
        """Drop a job before its next step. Nothing more is delivered for it."""
        job.cancelled = True
        self._any_cancelled = True

    def stats(self) -> EngineStats:
        """Return a snapshot, exact to a step."""
        incoming = sum(len(one.sequences) for one in self._prefill.groups) if self._prefill else 0
        return EngineStats(
            running=len(self._running),
            waiting=sum(len(one.sequences) for one in (*self._inbox, *self._waiting)) + incoming,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=0,
            completion_tokens=self._completion_tokens,
            preemptions=self._preemptions,
            step_errors=self._errors,
            last_error=self._last_error,
        )

    # ---- the engine's thread from here on

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._wake:
                if not (self._inbox or self._waiting or self._prefill or self._running or self._stopping):
                    self._release_idle_memory()
                    self._wake.wait()
                if self._stopping:
                    break
            try:
                self._step()
            except Exception as error:
                # A failing step (out of memory, a kernel that refuses a shape) must not end the service: all requests in flight get an
                # error, the cache is cleared, and the next request finds a working engine. `stats` counts it.
                log.exception("a step failed")
                self._errors += 1
                self._last_error = f"{type(error).__name__}: {error}"
                self._drop_all(
                    OutputChunk(
                        text="", token_ids=(), logprobs=(), finish_reason="error", error=self._last_error
                    )
                )
            self._flush()
        self._drop_all(OutputChunk(text="", token_ids=(), logprobs=(), finish_reason="abort"))
        self._flush()

    def _release_idle_memory(self) -> None:
        """Free memory that is kept only for speed."""
        self.model.loras.retain_only([])
        if self._cache.bytes_for(self._cache.rows, self._cache.capacity) > self._cache_bytes // 4:
            self._cache.clear()

    def _step(self) -> None:
        self._read_inbox()
        self._drop_cancelled()
        self._admit()
        if self._prefill is not None:
            self._prefill_chunk(self._prefill)
        if self._running:
            self._decode()
        self._steps += 1

    def _read_inbox(self) -> None:
        while self._inbox:
            self._waiting.append(self._inbox.popleft())

    def _drop_cancelled(self) -> None:
        if not self._any_cancelled:
            return
        self._any_cancelled = False
        for i in range(len(self._running) - 1, -1, -1):
            if self._running[i].job.cancelled:
                self._remove_row(i)
        self._waiting = deque(one for one in self._waiting if not one.sequences[0].job.cancelled)
        # A group in the middle of its prefill stays until the prefill is complete and is dropped before it joins the batch, unless all
        # groups of the prefill are cancelled.
        if self._prefill and all(one.sequences[0].job.cancelled for one in self._prefill.groups):
            self._prefill = None

    def _admit(self) -> None:
        """Admit requests in order; the first that does not fit blocks the queue, so that none starves."""
        if self._prefill is not None or not self._waiting:
            return
        rows = len(self._running)
        adapters = {one.adapter for one in self._running} - {None}
        longest = max((len(one.ids) for one in self._running), default=0)
        taken: list[_PromptGroup] = []
        widest = 0
        while self._waiting:
            group = self._waiting[0]
            rows += len(group.sequences)
            longest = max(longest, len(group.ids) + 1)
            widest = max(widest, len(group.ids))
            adapters |= {group.adapter} - {None}
            if rows > self._max_num_seqs or len(adapters) > self._max_loras:
                break
            if (self._running or taken) and not self._fits(rows, longest):
                break
            if taken and (widest * (len(taken) + 1) > PREFILL_TOKENS or group.is_scored):
                break
            taken.append(self._waiting.popleft())
            if group.is_scored:
                break  # it is prefilled alone
        if taken:
            self._prefill = _Prefill(taken)

    def _fits(self, rows: int, length: int) -> bool:
        return self._cache.bytes_for(rows, length) <= self._cache_bytes

    def _prefill_chunk(self, prefill: _Prefill) -> None:
        rows = [one.ids for one in prefill.groups]
        longest = max(len(row) for row in rows)
        is_scored = prefill.groups[0].is_scored
        most = SCORED_TOKENS if is_scored else PREFILL_TOKENS
        length = min(longest - prefill.done, most) if len(rows) == 1 else longest
        chunk = [row[prefill.done : prefill.done + length] for row in rows]
        padded = [part + [part[-1]] * (length - len(part)) for part in chunk]
        if is_scored:
            logits = self._score_chunk(prefill, chunk[0])
        else:
            logits = self.model.forward(
                prefill.cache,
                padded,
                [prefill.done] * len(rows),
                [one.adapter for one in prefill.groups],
                [len(part) - 1 for part in chunk],
            )
        prefill.done += length
        self._prompt_tokens += sum(len(part) for part in chunk)
        if prefill.done < longest:
            return
        new_sequences: list[_Sequence] = []
        sources: list[int] = []
        for source, group in enumerate(prefill.groups):
            if group.sequences[0].job.cancelled:
                continue
            for sequence in group.sequences:
                new_sequences.append(sequence)
                sources.append(source)
        if not new_sequences:
            self._prefill = None
            return
        first = len(self._running)
        all_sequences = [*self._running, *new_sequences]
        self._cache.reserve(len(all_sequences), max(len(one.ids) for one in all_sequences))
        for row, (sequence, source) in enumerate(zip(new_sequences, sources, strict=True), start=first):
            self._cache.copy_row(prefill.cache, source, row, len(sequence.ids))
        self._prefill = None
        self._running = all_sequences
        self._batch = None
        self._sample_rows(logits[torch.tensor(sources, device=logits.device)], first)

    def _score_chunk(self, prefill: _Prefill, chunk: list[int]) -> torch.Tensor:
        """Prefill a chunk of one prompt and note the log-probabilities of its next tokens; returns the last position's logits [1, V]."""
        (group,) = prefill.groups
        logits = self.model.forward_all(prefill.cache, chunk, prefill.done, group.adapter)
        targets = group.ids[prefill.done + 1 : prefill.done + 1 + len(chunk)]
        values = torch.log_softmax(logits[: len(targets)], dim=-1)
        found = values.gather(1, torch.tensor(targets, dtype=torch.long, device=values.device)[:, None])
        for sequence in group.sequences:
            sequence.prompt_logprobs += found[:, 0].tolist()
        return logits[-1:]

    def _decode(self) -> None:
        longest = max(len(one.ids) for one in self._running)
        while len(self._running) > 1 and not self._fits(len(self._running), longest):
            # The last admitted sequence returns to the head of the queue, with its sampled tokens, and is admitted again when there is room.
            sequence = self._running[-1]
            self._remove_row(len(self._running) - 1)
            self._waiting.appendleft(_PromptGroup([sequence]))
            self._preemptions += 1
            longest = max(len(one.ids) for one in self._running)
        logits = self.model.forward(
            self._cache,
            [[one.ids[-1]] for one in self._running],
            [len(one.ids) - 1 for one in self._running],
            [one.adapter for one in self._running],
            [0] * len(self._running),
        )
        self._sample_rows(logits, 0)

    def _sample_rows(self, raw: torch.Tensor, first: int) -> None:
        """Sample one token for the running rows from `first` on, deliver it, and remove finished rows."""
        rows = self._running[first:]
        if first == 0:
            if self._batch is None:
                self._batch = SamplingBatch([one.params for one in rows], raw.shape[-1], raw.device)
            batch = self._batch
        else:
            batch = SamplingBatch([one.params for one in rows], raw.shape[-1], raw.device)
        edited = raw
        if any(one.params.edits_logits for one in rows):
            edited = raw.clone()
            for row, one in enumerate(rows):
                if one.params.edits_logits:
                    ends = one.params.stop_token_ids | self.model.end_ids
                    edit_logits(edited, row, one.params, one.prompt_set, one.counts, ends)
        failed: dict[int, str] = {}
        for row, one in enumerate(rows):
            if one.grammar is not None:
                edited = raw.clone() if edited is raw else edited
                try:
                    edited[row][torch.from_numpy(one.grammar.banned()).to(edited.device)] = -torch.inf
                except GrammarError as error:
                    failed[row] = str(error)
        forced = {
            row: one.job.forced_ids[one.sampled]
            for row, one in enumerate(rows)
            if one.sampled < len(one.job.forced_ids)
        }
        uniforms = [0.0] * len(rows) if batch.all_greedy else [one.rng.random() for one in rows]
        sampled_tokens = sample(raw, edited, batch, uniforms, forced, self.logprobs_mode)
        self._completion_tokens += len(rows)
        finished = []
        for row, one in enumerate(rows):
            top = (
                sampled_tokens.top[row][: one.params.top_logprobs]
                if sampled_tokens.top and one.params.top_logprobs
                else []
            )
            if row in failed:
                chunk = _grammar_failure(failed[row])
            else:
                chunk = self._build_chunk(one, sampled_tokens.ids[row], sampled_tokens.logprobs[row], top)
            self._outbox.append((one.job, one.index, chunk))
            if chunk.finish_reason is not None:
                finished.append(first + row)
        for row in reversed(finished):
            self._remove_row(row)

    def _build_chunk(
        self, one: _Sequence, token_id: int, logprob: float, top: list[tuple[int, float]]
    ) -> OutputChunk:
        one.ids.append(token_id)
        if one.params.edits_logits:
            one.counts[token_id] += 1
        is_last = one.sampled >= one.params.max_tokens or len(one.ids) >= self.model.max_model_len
        chunk = one.text.take(token_id, logprob, top, is_last=is_last)
        if one.grammar is not None and chunk.finish_reason is None:
            try:
                one.grammar.accept(token_id)
            except GrammarError as error:
                return _grammar_failure(str(error))
        if one.sampled == 1 and one.prompt_logprobs:
            chunk = replace(chunk, prompt_logprobs=tuple(one.prompt_logprobs))
        return chunk

    def _remove_row(self, row: int) -> None:
        """Remove a sequence from the batch; the last row moves into its place."""
        last = self._running.pop()
        if row < len(self._running):
            # The newest id's keys and values are not cached yet, but copying one position too many is harmless.
            self._cache.move_row(len(self._running), row, len(last.ids))
            self._running[row] = last
        self._batch = None
        incoming = [one.adapter for one in self._prefill.groups] if self._prefill else []
        self.model.loras.retain_only([*incoming, *(one.adapter for one in self._running)])

    def _drop_all(self, chunk: OutputChunk) -> None:
        self._read_inbox()
        groups = [*self._waiting, *(self._prefill.groups if self._prefill else [])]
        all_sequences = [*self._running, *(one for group in groups for one in group.sequences)]
        self._outbox += [(one.job, one.index, chunk) for one in all_sequences]
        self._running.clear()
        self._waiting.clear()
        self._prefill = None
        self._batch = None
        self._cache.clear()
        self.model.loras.retain_only([])

    def _flush(self) -> None:
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, []

        def deliver() -> None:
            for job, index, chunk in outbox:
                if not job.cancelled:
                    job.deliver(index, chunk)

        self._post(deliver)


def _grammar_failure(reason: str) -> OutputChunk:
    return OutputChunk(
        text="",
        token_ids=(),
        logprobs=(),
        finish_reason="error",
        error=f"the schema cannot be enforced: {reason}",
        status=400,
    )
