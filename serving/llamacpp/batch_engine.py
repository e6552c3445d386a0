"""Continuous batching over one context of llama.cpp, on one dedicated thread (`serving.openai_server.batch_loop`).

A step computes one token of every running reply and a bounded part of the prompts that are still to be read, so a long prompt stalls no stream for
more than one part. An adapter applies to a whole `decode`: replies with the same adapter are computed together, one group after the other; what is
cached keeps the adapter that it was computed with. The tokens of a reply stay cached when it ends, for a prompt that begins alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from serving.llamacpp.adapters import LlamaAdapter
from serving.llamacpp.kept_sequences import KeptSequences
from serving.llamacpp.library import LlamaContext, Logits, NoRoom
from serving.llamacpp.sampling import choose, edit_logits, most_likely, score
from serving.openai_server.batch_loop import BatchLoop
from serving.openai_server.engine import GrammarError, Job
from serving.openai_server.sequence import SampledSequence, grammar_failure
from serving.openai_server.vocabulary import Vocabulary

LlamaCppJob = Job[LlamaAdapter]

#: Prompt tokens of one step; while replies run, fewer: they wait for them.
PREFILL_TOKENS, PREFILL_TOKENS_BESIDE_REPLIES = 512, 128
#: The same where all positions' logits are needed, which are as large as the vocabulary each.
SCORED_TOKENS = 64
#: Ended replies whose tokens stay cached.
KEPT_SEQUENCES = 16


class _Sequence(SampledSequence[LlamaAdapter]):
    """One reply, and its place in the context. `followers` share its prompt and begin when it has been read."""

    __slots__ = ("done", "followers", "number")

    def __init__(self, job: LlamaCppJob, index: int, vocabulary: Vocabulary, end_ids: frozenset[int]) -> None:
        super().__init__(job, index, vocabulary, end_ids)
        self.number = -1  #: of the context's sequence; -1: none yet
        self.done = 0  #: ids that are cached
        self.followers: list[_Sequence] = []

    @property
    def pending(self) -> int:
        return len(self.ids) - self.done

    @property
    def is_scored(self) -> bool:
        """Whether the prompt's own log-probabilities are still to be computed."""
        return self.job.scores_prompt and not self.sampled


class LlamaBatchEngine(BatchLoop[LlamaAdapter]):
    """Serves one model to many requests.

    Args:
        cells: tokens that the context holds; at least `max_model_len`.
        caches_prefixes: tokens of ended replies are kept; the model can remove a sequence's last tokens.
    """

    def __init__(
        self,
        context: LlamaContext,
        vocabulary: Vocabulary,
        end_ids: frozenset[int],
        *,
        post: Callable[[Callable[[], None]], None],
        cells: int,
        max_model_len: int,
        max_num_seqs: int,
        caches_prefixes: bool = True,
    ) -> None:
        super().__init__(post)
        self._context = context
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._cells = cells
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._numbers = max_num_seqs + KEPT_SEQUENCES
        # Cached tokens take part in the search for cells and in each attention's mask: half the context is enough.
        self._prefixes = KeptSequences(self._numbers, cells // 2 if caches_prefixes else 0)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._unloaded: list[LlamaAdapter] = []
        self._applied: LlamaAdapter | None = None  #: to the next computation

    def unload(self, adapter: LlamaAdapter) -> None:
        """Free an adapter once no sequence uses it. Callable from any thread."""
        self.call(lambda: self._unloaded.append(adapter))

    def _count(self) -> tuple[int, int]:
        running, waiting = tuple(self._running), tuple(self._waiting)
        return sum(1 + len(one.followers) for one in running), sum(1 + len(one.followers) for one in waiting)

    # ---- the engine's thread from here on

    def _has_work(self) -> bool:
        return bool(self._waiting or self._running or self._unloaded)

    def _take_in(self, job: LlamaCppJob) -> None:
        first, *others = [_Sequence(job, i, self._vocabulary, self._end_ids) for i in range(job.n)]
        first.followers = others
        self._waiting.append(first)

    def _remove_cancelled(self) -> None:
        for one in [one for one in self._running if one.job.cancelled]:
            self._remove(one)
        self._waiting = deque(one for one in self._waiting if not one.job.cancelled)

    def _clear(self) -> list[tuple[LlamaCppJob, int]]:
        dropped = [
            (one.job, one.index)
            for first in (*self._running, *self._waiting)
            for one in (first, *first.followers)
        ]
        self._running.clear()
        self._waiting.clear()
        self._prefixes.clear(self._numbers)
        self._context.clear()
        return dropped

    def _step(self) -> None:
        self._free_unloaded()
        self._admit()
        replying = any(not one.is_scored and one.pending == 1 for one in self._running)
        room = PREFILL_TOKENS_BESIDE_REPLIES if replying else PREFILL_TOKENS
        scored = [one for one in self._running if one.is_scored]
        groups: dict[LlamaAdapter | None, list[_Sequence]] = {}
        for one in self._running:
            if not one.is_scored:
                groups.setdefault(one.adapter, []).append(one)
        # The group whose adapter is applied already comes first: each change costs a new plan of the computation, milliseconds.
        for group in sorted(groups.values(), key=lambda rows: rows[0].adapter is not self._applied):
            room -= self._decode(group, room)
        if scored and scored[0] in self._running:
            self._score(scored[0])

    def _free_unloaded(self) -> None:
        in_use = {one.adapter for one in (*self._running, *self._waiting)}
        for adapter in self._unloaded:
            if adapter not in in_use:
                self._forget(self._prefixes.drop(adapter))
                self._apply(None)
                adapter.free()
        # Those that are in use are looked at again when a sequence ends.
        self._unloaded = [adapter for adapter in self._unloaded if adapter in in_use]

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._context.cut(number, 0)
            self._prefixes.give_back(number)

    # ---- admission

    def _admit(self) -> None:
        """Admit requests in order; the first that does not fit blocks the queue, so that none starves."""
        while self._waiting:
            first = self._waiting[0]
            rows = sum(1 + len(one.followers) for one in self._running)
            tokens = sum(len(one.ids) + len(one.followers) for one in self._running)
            size = 1 + len(first.followers)
            if self._running and (
                rows + size > self._max_num_seqs or tokens + len(first.ids) + size > self._cells
            ):
                return
            self._running.append(self._waiting.popleft())
            self._place(first)

    def _place(self, one: _Sequence) -> None:
        """Give a sequence a number of the context, and the cached beginning of its prompt."""
        kept, length = (None, 0) if one.is_scored else self._prefixes.find(one.adapter, one.ids)
        if kept is not None and length == len(kept.ids):
            one.number = self._prefixes.take_over(kept)
        else:
            if kept is not None:
                self._prefixes.touch(kept)  # not the one that is given up for a number
            one.number = self._number()
            if kept is not None:
                self._context.copy(kept.number, one.number, length)
        one.done = length
        self._cached_tokens += length

    def _number(self) -> int:
        number = self._prefixes.take()
        if number is None:
            evicted = self._prefixes.evict()
            assert evicted is not None, "there are more numbers than running sequences"
            self._context.cut(evicted, 0)
            return evicted
        return number

    # ---- one step

    def _decode(self, group: list[_Sequence], room: int) -> int:
        """Compute a group's next tokens, and up to `room` tokens of its prompts; returns how many."""
        parts: list[tuple[_Sequence, int]] = []
        read = 0
        for one in group:
            if one.number < 0:
                continue  # preempted by another group of this step
            count = min(one.pending, max(0, room - read) if one.pending > 1 else 1)
            if one.pending > 1:
                read += count
            if count:
                parts.append((one, count))
        if not parts:
            return 0
        self._apply(group[0].adapter)
        logits = self._compute(parts, wants_all=False)
        if logits is None:
            return 0  # something was preempted; the next step repeats this one without it
        self._prompt_tokens += read
        for row, (one, count) in enumerate(parts):
            one.done += count
            if not one.pending:
                self._sample_all(one, logits[row])
        return read

    def _apply(self, adapter: LlamaAdapter | None) -> None:
        self._context.use_adapter(None if adapter is None else adapter.pointer)
        self._applied = adapter

    def _compute(self, parts: list[tuple[_Sequence, int]], *, wants_all: bool) -> Logits | None:
        """Return the logits; None if there was no room and a sequence went back to the queue."""
        batch = [
            (one.number, one.done, one.ids[one.done : one.done + count], wants_all) for one, count in parts
        ]
        while True:
            try:
                return self._context.decode(batch)
            except NoRoom:
                evicted = self._prefixes.evict()
                if evicted is not None:
                    self._forget([evicted])
                    continue
            if len(self._running) == 1:
                raise RuntimeError("the context has no room for a single sequence")
            self._preempt(self._running[-1])
            return None

    def _preempt(self, one: _Sequence) -> None:
        """Put the sequence that was admitted last back to the head of the queue, with its sampled tokens."""
        followers, one.followers = one.followers, []
        self._remove(one)
        one.number, one.done, one.followers = -1, 0, followers
        one.prompt_logprobs.clear()
        self._waiting.appendleft(one)
        self._preemptions += 1

    def _score(self, one: _Sequence) -> None:
        """Read a part of a prompt and note the log-probabilities of its next tokens."""
        count = min(one.pending, SCORED_TOKENS)
        self._apply(one.adapter)
        logits = self._compute([(one, count)], wants_all=True)
        if logits is None:
            return
        targets = one.ids[one.done + 1 : one.done + 1 + count]
        values = [score(line, target) for line, target in zip(logits, targets, strict=False)]
        for sequence in (one, *one.followers):
            sequence.prompt_logprobs += values
        one.done += count
        self._prompt_tokens += count
        if not one.pending:
            self._sample_all(one, logits[-1])

    def _sample_all(self, one: _Sequence, raw: Any) -> None:
        """Sample the next token of a sequence, and the first of those that share its prompt."""
        followers, one.followers = one.followers, []
        for other in followers:
            other.number, other.done = self._number(), one.done
            self._context.copy(one.number, other.number, one.done)
            self._running.append(other)
        for sequence in (one, *followers):
            self._sample(sequence, raw)

    def _sample(self, one: _Sequence, raw: Any) -> None:
        edited, params = raw, one.params
        top = most_likely(raw, params.top_logprobs) if params.top_logprobs else []
        try:
            if params.edits_logits or one.grammar is not None:
                edited = raw.copy()
            if params.edits_logits:
                ends = params.stop_token_ids | self._end_ids
                edit_logits(edited, params, one.prompt_set, one.counts, ends)
            if one.grammar is not None:
                edited[one.grammar.banned()] = -float("inf")
            token_id = one.forced_id
            if token_id is None:
                token_id = choose(edited, params, one.rng.random())
            chunk = one.add(token_id, score(raw, token_id), top, max_model_len=self._max_model_len)
        except GrammarError as error:
            chunk = grammar_failure(str(error))
        self._completion_tokens += 1
        self._outbox.append((one.job, one.index, chunk))
        if chunk.finish_reason is not None:
            self._remove(one, keeps=chunk.finish_reason != "error")

    def _remove(self, one: _Sequence, *, keeps: bool = True) -> None:
        """Remove a sequence from the batch; its tokens stay cached where that is allowed."""
        self._running.remove(one)
        if keeps:
            self._forget(self._prefixes.keep(one.number, one.adapter, one.ids[: one.done]))
        else:
            self._forget([one.number])
