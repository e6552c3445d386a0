"""Continuous batching: requests join and leave the running batch between token steps, on one dedicated thread (`serving.openai_server.batch_loop`).

The thread owns the model, the cache and every running sequence.

A step reads the inbox, admits waiting requests while they fit, prefills one chunk of prompt for new ones, and samples one token for each sequence of
the batch. Long prompts are prefilled in chunks, so running streams never wait for more than one chunk.

A sequence's output does not depend on the rest of the batch: it has its own cache row, adapter and random numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from serving.embedded.adapters import Adapter
from serving.embedded.kv_cache import BatchKvCache
from serving.embedded.model import Model
from serving.embedded.sampling import SamplingBatch, edit_logits, sample
from serving.openai_server.batch_loop import BatchLoop
from serving.openai_server.engine import GrammarError, Job
from serving.openai_server.sequence import SampledSequence, grammar_failure

# Prompt tokens of one forward; bounds how long running streams wait for a long prompt.
PREFILL_TOKENS = 512
# The same where all positions' logits are needed, which are as large as the vocabulary each.
SCORED_TOKENS = 64


EmbeddedJob = Job[Adapter]


_Sequence = SampledSequence[Adapter]


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


class BatchEngine(BatchLoop[Adapter]):
    """Serves one model to many requests. `post` passes a callable to the thread that reads the results."""

    def __init__(
        self,
        model: Model,
        *,
        post: Callable[[Callable[[], None]], None],
        max_num_seqs: int = 16,
        max_loras: int = 8,
        cache_bytes: int = 4 << 30,
    ) -> None:
        super().__init__(post)
        self.model = model
        self._max_num_seqs = max_num_seqs
        self._max_loras = max_loras
        self._cache_bytes = cache_bytes
        self._waiting: deque[_PromptGroup] = deque()
        self._prefill: _Prefill | None = None
        self._running: list[_Sequence] = []
        self._cache = BatchKvCache()
        self._batch: SamplingBatch | None = None

    def _count(self) -> tuple[int, int]:
        incoming = sum(len(one.sequences) for one in self._prefill.groups) if self._prefill else 0
        waiting = tuple(self._waiting)
        return len(self._running), incoming + sum(len(one.sequences) for one in waiting)

    # ---- the engine's thread from here on

    @torch.inference_mode()
    def _run(self) -> None:
        super()._run()

    def _has_work(self) -> bool:
        return bool(self._waiting or self._prefill or self._running)

    def _take_in(self, job: EmbeddedJob) -> None:
        sequences = [_Sequence(job, i, self.model.vocabulary, self.model.end_ids) for i in range(job.n)]
        self._waiting.append(_PromptGroup(sequences))

    def _rest(self) -> None:
        """Free memory that is kept only for speed."""
        self.model.loras.retain_only([])
        if self._cache.bytes_for(self._cache.rows, self._cache.capacity) > self._cache_bytes // 4:
            self._cache.clear()

    def _step(self) -> None:
        self._admit()
        if self._prefill is not None:
            self._prefill_chunk(self._prefill)
        if self._running:
            self._decode()

    def _remove_cancelled(self) -> None:
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
        forced = {row: one.forced_id for row, one in enumerate(rows) if one.forced_id is not None}
        uniforms = [0.0] * len(rows) if batch.all_greedy else [one.rng.random() for one in rows]
        sampled_tokens = sample(raw, edited, batch, uniforms, forced)
        self._completion_tokens += len(rows)
        finished = []
        for row, one in enumerate(rows):
            top = (
                sampled_tokens.top[row][: one.params.top_logprobs]
                if sampled_tokens.top and one.params.top_logprobs
                else []
            )
            if row in failed:
                chunk = grammar_failure(failed[row])
            else:
                token_id, logprob = sampled_tokens.ids[row], sampled_tokens.logprobs[row]
                chunk = one.add(token_id, logprob, top, max_model_len=self.model.max_model_len)
            self._outbox.append((one.job, one.index, chunk))
            if chunk.finish_reason is not None:
                finished.append(first + row)
        for row in reversed(finished):
            self._remove_row(row)

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

    def _clear(self) -> list[tuple[EmbeddedJob, int]]:
        groups = [*self._waiting, *(self._prefill.groups if self._prefill else [])]
        dropped = [*self._running, *(one for group in groups for one in group.sequences)]
        self._running.clear()
        self._waiting.clear()
        self._prefill = None
        self._batch = None
        self._cache.clear()
        self.model.loras.retain_only([])
        return [(one.job, one.index) for one in dropped]
