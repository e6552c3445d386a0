"""The batch loop against transformers' and peft's own outputs: what a request gets must not depend on its company."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.embedded.adapters import Adapter, read_adapter
from serving.embedded.batch_engine import PREFILL_TOKENS, BatchEngine, EmbeddedJob
from serving.embedded.model import Model, load_model
from serving.openai_server.values import OutputChunk, SamplingParams
from tests.tiny import make_tiny_model

PROMPTS = [list(range(20, 20 + length)) for length in (3, 40, 9, 17, 70, 5, 1)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(str(tiny_model), device="cpu")


@pytest.fixture(scope="module")
def adapters(model: Model, tiny_adapters: tuple[Path, Path]) -> tuple[Adapter, Adapter]:
    one, two = tiny_adapters
    modules = model.loras.modules
    return read_adapter("one", one, modules, max_rank=64), read_adapter("two", two, modules, max_rank=64)


@dataclass(eq=False, kw_only=True)
class Call:
    """A submitted job and what came of it, by index."""

    job: EmbeddedJob
    chunks: dict[int, list[OutputChunk]] = field(default_factory=dict)
    begun: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def take(self, index: int, chunk: OutputChunk) -> None:
        self.chunks.setdefault(index, []).append(chunk)
        self.begun.set()
        if sum(chunks[-1].finish_reason is not None for chunks in self.chunks.values()) == self.job.n:
            self.ended.set()

    def wait(self) -> Call:
        assert self.ended.wait(60), "the engine did not answer"
        return self

    def ids(self, index: int = 0) -> list[int]:
        return [token_id for chunk in self.chunks[index] for token_id in chunk.token_ids]

    def logprobs(self, index: int = 0) -> list[float]:
        return [entry.logprob for chunk in self.chunks[index] for entry in chunk.logprobs]

    def text(self, index: int = 0) -> str:
        return "".join(chunk.text for chunk in self.chunks[index])

    def last(self, index: int = 0) -> OutputChunk:
        return self.chunks[index][-1]


class RunningEngine:
    """A running engine whose results arrive on its own thread."""

    def __init__(self, model: Model, **options: Any) -> None:
        self.engine = BatchEngine(model, post=lambda deliver: deliver(), **options)
        self.engine.start()

    def __enter__(self) -> RunningEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.engine.stop()
        self.engine.join()

    def ask(
        self,
        prompt: list[int],
        adapter: Adapter | None = None,
        *,
        n: int = 1,
        forced: tuple[int, ...] = (),
        grammar: Any = None,
        **options: Any,
    ) -> Call:
        # Random models end their turns at odd places; most tests want a fixed number of tokens.
        options = {
            "max_tokens": 24,
            "temperature": 0.0,
            "logprobs": True,
            "top_logprobs": 0,
            "ignore_eos": True,
        } | options
        job = EmbeddedJob(
            prompt_ids=prompt,
            params=SamplingParams(**options),
            adapter=adapter,
            deliver=lambda index, chunk: call.take(index, chunk),
            n=n,
            forced_ids=forced,
            grammar=grammar,
        )
        call = Call(job=job)
        assert self.engine.submit(job)
        return call


@torch.no_grad()
def greedy_by_transformers(
    model: Model, adapter: Adapter | None, prompt: list[int], tokens: int
) -> tuple[list[int], list[float]]:
    """The slow way: a full forward for each token, no cache, no batch. Needs an engine at rest."""
    model.loras.activate([adapter])
    ids, logprobs = list(prompt), []
    for _ in range(tokens):
        line = model.network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        best = int(line.argmax())
        logprobs.append(float(line.log_softmax(-1)[best]))
        ids.append(best)
    return ids[len(prompt) :], logprobs


def test_a_mixed_batch_gives_everyone_what_they_get_alone(
    model: Model, adapters: tuple[Adapter, Adapter]
) -> None:
    owners = [None, adapters[0], adapters[1], adapters[0], None, adapters[1], None]
    wanted = [
        greedy_by_transformers(model, owner, prompt, 24)
        for owner, prompt in zip(owners, PROMPTS, strict=True)
    ]
    assert len({tuple(ids) for ids, _ in wanted}) == len(wanted), "the outputs must differ to mean something"
    with RunningEngine(model) as running:
        alone = [running.ask(prompt, owner).wait() for owner, prompt in zip(owners, PROMPTS, strict=True)]
        together = [running.ask(prompt, owner) for owner, prompt in zip(owners, PROMPTS, strict=True)]
        for call in together:
            call.wait()
        # Joining in the middle and leaving early: different lengths, more of them than places.
        ragged = [
            running.ask(prompt, owner, max_tokens=5 + 3 * i)
            for i, (owner, prompt) in enumerate(list(zip(owners, PROMPTS, strict=True)) * 3)
        ]
        for call in ragged:
            call.wait()
    for (ids, logprobs), one, other in zip(wanted, alone, together, strict=True):
        assert one.ids() == other.ids() == ids
        assert one.logprobs() == pytest.approx(logprobs, abs=1e-4)
        assert other.logprobs() == pytest.approx(logprobs, abs=1e-4)
    for i, call in enumerate(ragged):
        ids, logprobs = wanted[i % len(wanted)]
        length = 5 + 3 * i
        assert call.ids()[:24] == ids[:length]
        assert len(call.ids()) == len(call.logprobs()) == length
        assert call.logprobs()[:24] == pytest.approx(logprobs[:length], abs=1e-4)


def test_more_requests_than_places_wait_their_turn(model: Model) -> None:
    with RunningEngine(model, max_num_seqs=2) as running:
        calls = [running.ask(prompt, max_tokens=6) for prompt in PROMPTS]
        got = [call.wait().ids() for call in calls]
    assert got == [greedy_by_transformers(model, None, prompt, 6)[0] for prompt in PROMPTS]


def test_more_adapters_than_places_wait_their_turn(model: Model, adapters: tuple[Adapter, Adapter]) -> None:
    owners = [adapters[0], adapters[1], None, adapters[0]]
    with RunningEngine(model, max_loras=1) as running:
        calls = [running.ask(PROMPTS[2], owner, max_tokens=6) for owner in owners]
        got = [call.wait().ids() for call in calls]
    assert got == [greedy_by_transformers(model, owner, PROMPTS[2], 6)[0] for owner in owners]


def test_a_prompt_longer_than_a_chunk_is_taken_in_beside_a_running_stream(model: Model) -> None:
    long = [20 + i % 300 for i in range(2 * PREFILL_TOKENS + 77)]
    with RunningEngine(model) as running:
        stream = running.ask(PROMPTS[1], max_tokens=200)
        assert stream.begun.wait(60)
        call = running.ask(long, max_tokens=4).wait()
        stream.wait()
    assert call.ids() == greedy_by_transformers(model, None, long, 4)[0]
    assert stream.ids() == greedy_by_transformers(model, None, PROMPTS[1], 200)[0]


def test_a_sequence_that_is_put_back_for_lack_of_memory_says_the_same(model: Model) -> None:
    with RunningEngine(model) as running:
        wanted = [running.ask(prompt, max_tokens=120, seed=3, temperature=1.0).wait() for prompt in PROMPTS]
        per_token = running.engine._cache.bytes_per_token
    with RunningEngine(model, cache_bytes=per_token * 4 * 128) as running:
        calls = [running.ask(prompt, max_tokens=120, seed=3, temperature=1.0) for prompt in PROMPTS]
        for call, expected in zip(calls, wanted, strict=True):
            assert call.wait().ids() == expected.ids()
            assert call.logprobs() == pytest.approx(expected.logprobs(), abs=1e-4)
            assert call.text() == expected.text()
        assert running.engine.stats().preemptions > 0


def test_a_seed_gives_the_same_sample_in_any_company(model: Model, adapters: tuple[Adapter, Adapter]) -> None:
    with RunningEngine(model) as running:
        alone = running.ask(PROMPTS[2], temperature=1.0, seed=7, n=3).wait()
        noise = [running.ask(prompt, adapters[0], temperature=1.3, top_p=0.9) for prompt in PROMPTS]
        again = running.ask(PROMPTS[2], temperature=1.0, seed=7, n=3).wait()
        other = running.ask(PROMPTS[2], temperature=1.0, seed=8).wait()
        for call in noise:
            call.wait()
    for index in range(3):
        assert alone.ids(index) == again.ids(index)
        assert alone.logprobs(index) == pytest.approx(again.logprobs(index), abs=1e-4)
    assert len({tuple(alone.ids(index)) for index in range(3)}) == 3
    assert other.ids() != alone.ids()


def test_raw_logprobs_are_the_models_own_at_any_temperature(model: Model) -> None:
    with RunningEngine(model) as running:
        call = running.ask(PROMPTS[3], temperature=0.7, top_p=0.8, seed=1, top_logprobs=3).wait()
    ids = PROMPTS[3] + call.ids()
    model.loras.activate([None])
    with torch.no_grad():
        table = model.network(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    table = table.log_softmax(-1)[len(PROMPTS[3]) - 1 : -1]
    assert call.logprobs() == pytest.approx(
        table.gather(-1, torch.tensor(call.ids())[:, None]).squeeze(-1).tolist(), abs=1e-4
    )
    for chunk, line in zip(call.chunks[0], table, strict=True):
        best = line.topk(3)
        assert [token_id for token_id, _ in chunk.logprobs[0].top] == best.indices.tolist()
        assert [value for _, value in chunk.logprobs[0].top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_logprobs_are_finite_whatever_is_cut_off(model: Model) -> None:
    with RunningEngine(model) as running:
        call = running.ask(PROMPTS[0], temperature=0.9, top_k=2, top_logprobs=5, max_tokens=40).wait()
    for chunk in call.chunks[0]:
        (entry,) = chunk.logprobs
        assert math.isfinite(entry.logprob)
        assert all(math.isfinite(value) for _, value in entry.top)
        assert len(entry.top) == 5


def test_the_text_is_the_decoding_of_the_ids(model: Model) -> None:
    with RunningEngine(model) as running:
        calls = [running.ask(prompt, temperature=1.0, max_tokens=200) for prompt in PROMPTS]
        for call in calls:
            call.wait()
    for call in calls:
        assert call.text() == model.vocabulary.decode(call.ids(), skip_special_tokens=True)


def test_the_end_of_turn_is_among_the_ids_and_has_a_logprob(model: Model) -> None:
    (end,) = model.end_ids
    with RunningEngine(model) as running:
        call = running.ask(PROMPTS[0], ignore_eos=False, logit_bias={end: 100.0}, min_tokens=3).wait()
    assert call.ids()[-1] == end
    assert len(call.ids()) == len(call.logprobs()) == 4
    assert call.last().finish_reason == "stop"
    assert call.text() == model.vocabulary.decode(call.ids()[:-1])


def test_a_stop_string_trims_the_text_and_not_the_ids(model: Model) -> None:
    with RunningEngine(model) as running:
        free = running.ask(PROMPTS[1], temperature=1.0, seed=5, max_tokens=60).wait()
        text = free.text()
        stop = text[10:14]
        call = running.ask(PROMPTS[1], temperature=1.0, seed=5, max_tokens=60, stop=(stop,)).wait()
    assert call.text() == text[: text.index(stop)]
    assert call.last().finish_reason == "stop"
    assert call.last().stop_reason == stop
    assert call.ids() == free.ids()[: len(call.ids())]
    decoded = model.vocabulary.decode(call.ids(), skip_special_tokens=True)
    assert stop in decoded
    assert stop not in model.vocabulary.decode(call.ids()[:-1], skip_special_tokens=True)


def test_stop_token_ids_end_the_turn(model: Model) -> None:
    with RunningEngine(model) as running:
        free = running.ask(PROMPTS[1]).wait()
        at = next(i for i, one in enumerate(free.ids()) if one not in free.ids()[:i] and i > 0)
        call = running.ask(PROMPTS[1], stop_token_ids=frozenset({free.ids()[at]})).wait()
    assert call.ids() == free.ids()[: at + 1]
    assert call.last().stop_reason == free.ids()[at]
    assert call.text() == model.vocabulary.decode(call.ids()[:-1])


def test_forced_ids_come_first_with_the_logprob_the_model_gives_them(model: Model) -> None:
    with RunningEngine(model) as running:
        call = running.ask(PROMPTS[1], forced=(50, 60), max_tokens=5).wait()
        rest = running.ask([*PROMPTS[1], 50, 60], max_tokens=3).wait()
    assert call.ids() == [50, 60, *rest.ids()]
    assert all(value < -1.0 for value in call.logprobs()[:2])


def test_the_context_ends_a_turn_that_has_no_other_limit(model: Model) -> None:
    prompt = [20 + i % 300 for i in range(model.max_model_len - 5)]
    with RunningEngine(model) as running:
        call = running.ask(prompt, max_tokens=1000).wait()
    assert len(call.ids()) == 5
    assert call.last().finish_reason == "length"


def test_a_cancelled_job_leaves_the_batch_and_the_others_do_not_notice(model: Model) -> None:
    wanted = greedy_by_transformers(model, None, PROMPTS[1], 24)[0]
    with RunningEngine(model, max_num_seqs=1) as running:
        leaver = running.ask(PROMPTS[4], max_tokens=1900)
        waiting = running.ask(PROMPTS[3])
        stayer = running.ask(PROMPTS[1])
        assert leaver.begun.wait(60)
        running.engine.cancel(leaver.job)
        running.engine.cancel(waiting.job)
        assert stayer.wait().ids() == wanted
        assert len(leaver.ids()) < 1900
        assert not waiting.chunks
        assert (running.engine.stats().running, running.engine.stats().waiting) == (0, 0)


def test_an_adapter_lives_as_long_as_its_last_stream(model: Model, tiny_adapters: tuple[Path, Path]) -> None:
    adapter = read_adapter("short-lived", tiny_adapters[0], model.loras.modules, max_rank=64)
    wanted = greedy_by_transformers(model, adapter, PROMPTS[1], 24)[0]
    memory = weakref.ref(adapter)
    with RunningEngine(model) as running:
        call = running.ask(PROMPTS[1], adapter)
        companion = running.ask(PROMPTS[2], None, max_tokens=400)
        del adapter
        assert call.wait().ids() == wanted
        companion.wait()
        del call
        gc.collect()
        assert memory() is None


def test_logits_that_are_not_finite_fail_only_their_request(tmp_path: Path) -> None:
    model = load_model(str(make_tiny_model(tmp_path / "model", seed=3)), device="cpu")
    poison = 77
    with torch.no_grad():
        model.network.get_input_embeddings().weight[poison] = float("nan")
        model.network.lm_head.weight = torch.nn.Parameter(
            torch.nan_to_num(model.network.lm_head.weight), requires_grad=False
        )
    with RunningEngine(model) as running:
        good = running.ask([20, 21, 22], max_tokens=50)
        bad = running.ask([20, poison, 22]).wait()
        assert bad.last().finish_reason == "error"
        assert "not finite" in str(bad.last().error)
        assert bad.ids() == []
        assert len(good.wait().ids()) == 50
        assert all(math.isfinite(value) for value in good.logprobs())
        # Its row was left behind full of NaN; the next tenant must not see it.
        again = running.ask([20, 21, 22], max_tokens=50).wait()
        assert again.ids() == good.ids()


def test_a_failed_step_fails_all_requests_in_flight_and_the_next_request_is_served(model: Model) -> None:
    with RunningEngine(model) as running:
        # An id beyond the embedding is what the wire refuses; here it stands for any failure inside a step.
        broken = running.ask([model.vocabulary.size + 5]).wait()
        assert broken.last().finish_reason == "error"
        assert running.ask(PROMPTS[0], max_tokens=3).wait().last().finish_reason == "length"
        stats = running.engine.stats()
        assert stats.step_errors == 1
        assert stats.last_error is not None


def test_stopping_the_engine_tells_those_in_flight(model: Model) -> None:
    running = RunningEngine(model)
    call = running.ask(PROMPTS[0], max_tokens=2000)
    assert call.begun.wait(60)
    running.engine.stop()
    assert call.wait().last().finish_reason == "abort"
    running.engine.join()
    assert not running.engine.submit(call.job)
