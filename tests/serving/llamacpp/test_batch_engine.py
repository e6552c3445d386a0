"""The batch loop over llama.cpp against transformers' and peft's own outputs: what a request gets must not depend on its company."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.llamacpp.adapters import LlamaAdapter, load_adapter
from serving.llamacpp.batch_engine import (
    KEPT_SEQUENCES,
    PREFILL_TOKENS,
    SCORED_TOKENS,
    LlamaBatchEngine,
    LlamaCppJob,
)
from serving.llamacpp.library import LlamaContext
from serving.llamacpp.model import GgufModel
from serving.openai_server.grammar import GrammarCompiler
from serving.openai_server.structured import build_grammar
from serving.openai_server.values import OutputChunk, SamplingParams
from tests.serving.embedded.test_batch_engine import Call
from tests.serving.llamacpp.test_gguf_adapter import reference_model
from tests.tiny import make_tiny_adapter
from tests.waiting import until

PROMPTS = [list(range(20, 20 + length)) for length in (3, 40, 9, 17, 70, 5, 1)]
ROWS = 8


class RunningEngine:
    """A running engine whose results arrive on its own thread."""

    def __init__(self, model: GgufModel, *, cells: int = 2048, max_model_len: int = 1024) -> None:
        self.context = LlamaContext(
            model.weights,
            cells=cells,
            sequences=ROWS + KEPT_SEQUENCES,
            batch=PREFILL_TOKENS + ROWS,
            outputs=SCORED_TOKENS,
            threads=1,
        )
        self.engine = LlamaBatchEngine(
            self.context, model.vocabulary, model.end_ids, post=lambda deliver: deliver(),
            cells=cells, max_model_len=max_model_len, max_num_seqs=ROWS,
        )  # fmt: skip
        self.engine.start()

    def __enter__(self) -> RunningEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.engine.stop()
        self.engine.join()
        self.context.close()

    def ask(self, prompt: list[int], adapter: LlamaAdapter | None = None, **options: Any) -> Call:
        own = {
            name: options.pop(name)
            for name in ("n", "forced_ids", "grammar", "scores_prompt")
            if name in options
        }
        # Random models end their turns at odd places; most tests want a fixed number of tokens.
        options = {"max_tokens": 16, "temperature": 0.0, "logprobs": True, "ignore_eos": True} | options
        job = LlamaCppJob(
            prompt_ids=prompt,
            params=SamplingParams(**options),
            adapter=adapter,
            deliver=lambda index, chunk: call.take(index, chunk),
            **own,
        )
        call = Call(job=job)  # type: ignore[arg-type]
        assert self.engine.submit(job)
        return call


@pytest.fixture(scope="module")
def adapters(folder: Path, model: GgufModel, tmp_path_factory: pytest.TempPathFactory) -> list[LlamaAdapter]:
    made = tmp_path_factory.mktemp("adapters")
    return [
        load_adapter(f"v{i}", make_tiny_adapter(made / str(i), folder, seed=i, strength=3.0), model.weights)
        for i in (1, 2)
    ]


@pytest.fixture
def engine(model: GgufModel) -> Iterator[RunningEngine]:
    with RunningEngine(model) as running:
        yield running


def teacher_forced(folder: Path, adapter: LlamaAdapter | None, ids: list[int]) -> torch.Tensor:
    """Return the log-probabilities [T, V] that transformers and peft compute of a whole sequence."""
    with torch.no_grad():
        logits = reference_model(folder, Path(adapter.path) if adapter else None)(torch.tensor([ids])).logits[
            0
        ]
    return torch.log_softmax(logits.double(), -1)


def check(call: Call, folder: Path, *, index: int = 0) -> None:
    """See that a reply is greedy, and that its log-probabilities are those of its prompt, adapter and tokens."""
    prompt, ids = list(call.job.prompt_ids), call.ids(index)
    lines = teacher_forced(folder, call.job.adapter, prompt + ids)[len(prompt) - 1 : -1]  # type: ignore[arg-type]
    of_ids = lines.gather(1, torch.tensor(ids)[:, None])[:, 0]
    assert call.logprobs(index) == pytest.approx(of_ids.tolist(), abs=1e-3)
    if call.job.params.temperature == 0.0:
        assert (lines.max(-1).values - of_ids).max() < 1e-3


def test_a_mixed_batch_gives_everyone_what_they_get_alone(
    folder: Path, engine: RunningEngine, adapters: list[LlamaAdapter]
) -> None:
    choices = [None, *adapters]
    calls = [engine.ask(prompt, choices[i % 3]) for i, prompt in enumerate(PROMPTS * 2)]
    for call in calls:
        check(call.wait(), folder)
    assert len({tuple(call.ids()) for call in calls[:3]}) == 3


def test_several_samples_share_the_reading_of_their_prompt(folder: Path, engine: RunningEngine) -> None:
    call = engine.ask(PROMPTS[4], n=5, temperature=1.0, seed=3).wait()
    for index in range(5):
        check(call, folder, index=index)
    assert len({tuple(call.ids(index)) for index in range(5)}) == 5
    assert engine.engine.stats().prompt_tokens == len(PROMPTS[4])


def test_a_long_prompt_is_read_beside_a_running_stream(folder: Path, engine: RunningEngine) -> None:
    stream = engine.ask(PROMPTS[0], max_tokens=200)
    assert stream.begun.wait(30)
    long = engine.ask([5 + i % 400 for i in range(700)])
    check(long.wait(), folder)
    check(stream.wait(), folder)


def test_a_prompt_that_begins_as_an_earlier_turn_reads_only_what_is_new(
    folder: Path, engine: RunningEngine
) -> None:
    first = engine.ask(PROMPTS[4]).wait()
    until(lambda: engine.engine.stats().running == 0, "it has ended")
    before = engine.engine.stats().prompt_tokens
    longer = [*PROMPTS[4], *first.ids(), *range(300, 320)]
    second = engine.ask(longer).wait()
    check(second, folder)
    read = engine.engine.stats().prompt_tokens - before
    assert read == len(longer) - (len(PROMPTS[4]) + len(first.ids()) - 1)
    check(engine.ask([*PROMPTS[4], 7, 8, 9]).wait(), folder)  # another branch of it
    assert engine.engine.stats().cached_prompt_tokens >= 2 * len(PROMPTS[4])


def test_a_cached_beginning_is_used_only_under_the_adapter_that_computed_it(
    folder: Path, engine: RunningEngine, adapters: list[LlamaAdapter]
) -> None:
    for adapter in (None, *adapters, None, *adapters):
        check(engine.ask(PROMPTS[4], adapter).wait(), folder)


def test_sequences_that_are_put_back_for_lack_of_room_say_the_same(folder: Path, model: GgufModel) -> None:
    with RunningEngine(model, cells=256, max_model_len=256) as engine:
        calls = [engine.ask(PROMPTS[i], max_tokens=100) for i in range(5)]
        several = engine.ask(PROMPTS[1], n=3, temperature=1.0, seed=1, max_tokens=100)
        for call in calls:
            check(call.wait(), folder)
        several.wait()
        for index in range(3):
            check(several, folder, index=index)
        assert engine.engine.stats().preemptions


def test_a_prompt_is_scored_as_the_trainer_scores_it(
    folder: Path, engine: RunningEngine, adapters: list[LlamaAdapter]
) -> None:
    ids = [5 + 7 * i % 400 for i in range(2 * SCORED_TOKENS + 9)]
    others = [engine.ask(PROMPTS[1], adapter, max_tokens=60) for adapter in adapters]
    for adapter in (None, adapters[0]):
        for _ in range(2):  # the second time too: a cached prompt has no log-probabilities
            call = engine.ask(ids, adapter, max_tokens=1, scores_prompt=True).wait()
            lines = teacher_forced(folder, adapter, ids)[:-1]
            wanted = lines.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            assert call.last().prompt_logprobs == pytest.approx(wanted.tolist(), abs=1e-3)
    for call in others:
        check(call.wait(), folder)


def test_a_seed_gives_the_same_sample_in_any_company(
    engine: RunningEngine, adapters: list[LlamaAdapter]
) -> None:
    alone = engine.ask(PROMPTS[1], temperature=1.0, top_p=0.9, seed=11).wait()
    company = [engine.ask(prompt, adapters[0], temperature=1.0) for prompt in PROMPTS[:4]]
    again = engine.ask(PROMPTS[1], temperature=1.0, top_p=0.9, seed=11).wait()
    assert again.ids() == alone.ids()
    for call in company:
        call.wait()


def test_a_cancelled_job_leaves_and_the_others_do_not_notice(folder: Path, engine: RunningEngine) -> None:
    endless = [engine.ask(prompt, max_tokens=900, n=2) for prompt in PROMPTS[:3]]
    other = engine.ask(PROMPTS[3], max_tokens=60)
    assert endless[0].begun.wait(30)
    for call in endless:
        engine.engine.cancel(call.job)  # type: ignore[arg-type]
    check(other.wait(), folder)
    until(lambda: engine.engine.stats().running == 0, "all have left")
    assert not endless[0].ended.is_set()


def test_an_unloaded_adapter_serves_its_running_replies_to_their_end(
    folder: Path, model: GgufModel, engine: RunningEngine, tmp_path: Path
) -> None:
    adapter = load_adapter(
        "v9", make_tiny_adapter(tmp_path / "v9", folder, seed=9, strength=3.0), model.weights
    )
    freed: list[bool] = []
    free = adapter.free
    adapter.free = lambda: (free(), freed.append(True))  # type: ignore[method-assign, assignment, func-returns-value]
    call = engine.ask(PROMPTS[1], adapter, max_tokens=150)
    assert call.begun.wait(30)
    engine.engine.unload(adapter)
    check(call.wait(), folder)
    until(lambda: bool(freed), "its weights are freed")
    check(engine.ask(PROMPTS[1]).wait(), folder)


def test_an_idle_engine_does_not_spin_for_an_unloaded_adapter(
    folder: Path, model: GgufModel, engine: RunningEngine, tmp_path: Path
) -> None:
    adapter = load_adapter("v8", make_tiny_adapter(tmp_path / "v8", folder, seed=8), model.weights)
    engine.ask(PROMPTS[1], adapter).wait()
    engine.engine.unload(adapter)
    engine.ask(PROMPTS[1]).wait()
    until(lambda: engine.engine.stats().running == 0, "it rests")
    steps = engine.engine.stats().steps
    engine.ask(PROMPTS[0], max_tokens=1).wait()
    assert engine.engine.stats().steps <= steps + 3


def test_a_grammar_holds_every_sample(model: GgufModel, engine: RunningEngine) -> None:
    compiler = GrammarCompiler(model.vocabulary, model.end_ids)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    grammar = compiler.compile(build_grammar(schema, (), many_calls=False, tags_are_tokens=True))
    call = engine.ask(PROMPTS[0], n=4, temperature=1.5, seed=2, grammar=grammar, max_tokens=60).wait()
    assert {call.text(index) for index in range(4)} <= {'{"ok": true}', '{"ok": false}'}
    assert {call.last(index).finish_reason for index in range(4)} == {"stop"}


def test_forced_ids_come_first_with_the_log_probability_the_model_gives_them(
    folder: Path, engine: RunningEngine
) -> None:
    call = engine.ask(PROMPTS[2], forced_ids=(50, 60, 70), temperature=1.0, seed=1).wait()
    assert call.ids()[:3] == [50, 60, 70]
    check(call, folder)


def test_the_context_ends_a_turn_that_has_no_other_limit(engine: RunningEngine) -> None:
    call = engine.ask(PROMPTS[4], max_tokens=5000).wait()
    assert len(call.ids()) == 1024 - len(PROMPTS[4])
    assert call.last().finish_reason == "length"


def test_a_failed_step_fails_what_is_in_flight_and_the_next_request_is_served(
    folder: Path, engine: RunningEngine
) -> None:
    compute = engine.context.decode

    def fail(parts: Any) -> Any:
        engine.context.decode = compute  # type: ignore[method-assign]
        raise RuntimeError("out of memory")

    engine.context.decode = fail  # type: ignore[method-assign]
    call = engine.ask(PROMPTS[1], n=2).wait()
    assert {call.last(index).error for index in range(2)} == {"RuntimeError: out of memory"}
    check(engine.ask(PROMPTS[1]).wait(), folder)
    assert engine.engine.stats().step_errors == 1


def test_stopping_the_engine_tells_those_in_flight(model: GgufModel) -> None:
    with RunningEngine(model) as engine:
        calls = [engine.ask(prompt, max_tokens=900) for prompt in PROMPTS]
        assert calls[0].begun.wait(30)
    ends: list[OutputChunk] = [call.wait().last() for call in calls]
    assert {end.finish_reason for end in ends} == {"abort"}
    assert not engine.engine.submit(calls[0].job)  # type: ignore[arg-type]


def test_every_log_probability_is_finite_and_not_above_zero(engine: RunningEngine) -> None:
    call = engine.ask(PROMPTS[1], temperature=2.0, top_k=3, top_logprobs=5, seed=1).wait()
    entries = [entry for chunk in call.chunks[0] for entry in chunk.logprobs]
    assert all(math.isfinite(entry.logprob) and entry.logprob <= 0 for entry in entries)
    assert all(len(entry.top) == 5 for entry in entries)
    assert all(entry.top[0][1] >= entry.logprob for entry in entries)
