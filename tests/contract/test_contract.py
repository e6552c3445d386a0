"""The contract of every backend: the same tests for each. A backend declares what it does not support, and must refuse it with a clear error."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import orjson
import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from serving.protocol import BackendClient, Capabilities
from store.errors import AdapterError, AdapterMismatch, UpstreamUnreachable
from store.keys import KeyFile, Keyring
from store.manifest import (
    ADAPTER_WEIGHTS,
    MANIFEST,
    TINKER_FILE,
    Attestation,
    ModelDigests,
    build_manifest,
    content_hash,
    read_served,
)
from store.values import (
    AdapterState,
    AdapterVersion,
    LogprobMode,
    StepReport,
    Verdict,
    WishReading,
    WishScope,
    WishState,
)
from tests.contract.asking import QUESTION, Completion, ask, body_of, stream
from tests.contract.backends import POLICY, SLOTS, Backend
from tests.contract.through_gateway import Clients, clients_of
from tests.fixtures import PATINA_TINY
from tests.proxy.conftest import KEY
from tests.waiting import until
from trainer.attestation import FixedText
from trainer.policy import LocalPolicy

pytestmark = pytest.mark.slow

T = TypeVar("T")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def agree(one: Completion, other: Completion) -> None:
    """See that two greedy replies are of the same weights.

    Rows of different batches are rounded differently, so that two tokens which are as likely as each other may change places; then
    nothing behind that place can be compared. Other weights differ by far more.
    """
    for a, b, p, q in zip(one.ids, other.ids, one.logprobs, other.logprobs, strict=True):
        assert abs(p - q) < 2e-3
        if a != b:
            return


def begins_the_object(text: str) -> None:
    """See that text is {"ok": true} or {"ok": false}, or their beginning.

    The grammar of vLLM allows any white space between the tokens, and a tiny model may fill the rest of its reply with it.
    """
    begun = re.sub(r"\s+", "", text)
    assert begun.startswith("{")
    assert any(whole.startswith(begun) for whole in ('{"ok":true}', '{"ok":false}'))


# ---- chat


async def test_a_reply_has_text_reason_and_counts_that_add_up(engine: BackendClient) -> None:
    completion = await ask(engine, body_of())
    assert (completion.status, completion.message["role"]) == (200, "assistant")
    assert completion.text
    assert completion.finish in ("stop", "length")
    usage = completion.whole["usage"]
    assert usage["completion_tokens"] == len(completion.ids) == len(completion.logprobs)
    assert usage["prompt_tokens"] == len(completion.prompt_ids)


async def test_ids_are_those_of_the_template_and_of_the_text(
    engine: BackendClient, able: Capabilities
) -> None:
    assert able.token_ids
    tokenizer = AutoTokenizer.from_pretrained(PATINA_TINY)
    completion = await ask(engine, body_of())
    messages = [{"role": "user", "content": QUESTION}]
    assert completion.prompt_ids == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.decode(completion.ids, skip_special_tokens=True).strip() == completion.text.strip()


async def test_a_stream_says_the_same_token_by_token(engine: BackendClient, able: Capabilities) -> None:
    whole, streamed = await ask(engine, body_of()), await stream(engine, body_of())
    assert (streamed.text, streamed.ids, streamed.prompt_ids) == (whole.text, whole.ids, whole.prompt_ids)
    assert streamed.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert streamed.finish == whole.finish
    assert streamed.is_ended
    if able.token_stream:
        assert streamed.chunks > len(streamed.ids) // 4


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_of_the_distribution_that_is_declared(
    engine: BackendClient, able: Capabilities, temperature: float
) -> None:
    assert able.logprobs
    assert able.logprob_mode is not LogprobMode.UNKNOWN
    completion = await ask(engine, body_of(temperature=temperature, seed=5))
    model = AutoModelForCausalLM.from_pretrained(PATINA_TINY, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([completion.prompt_ids + completion.ids])).logits[
            0, len(completion.prompt_ids) - 1 : -1
        ]
    scale = 1.0 if able.logprob_mode is LogprobMode.RAW else temperature
    reference = torch.log_softmax(logits / scale, -1).gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
    assert completion.logprobs == pytest.approx(reference.tolist(), abs=1e-3)
    assert all(value <= 0 for value in completion.logprobs)


async def test_the_default_temperature_is_the_declared_one(engine: BackendClient, able: Capabilities) -> None:
    without = {key: value for key, value in body_of(seed=11).items() if key != "temperature"}
    default = await ask(engine, without)
    assert default.ids == (await ask(engine, body_of(seed=11, temperature=able.default_temperature))).ids


async def test_several_choices_a_seed_and_a_stop(engine: BackendClient) -> None:
    two = await ask(engine, body_of(n=2, temperature=1.0, seed=3))
    assert len(two.whole["choices"]) == 2
    assert all(len(c["token_ids"]) == len(c["logprobs"]["content"]) for c in two.whole["choices"])
    once, again = [await ask(engine, body_of(temperature=1.0, seed=4)) for _ in range(2)]
    assert once.ids == again.ids
    whole = await ask(engine, body_of())
    word = whole.text.split()[3]
    stopped = await ask(engine, body_of(stop=[word]))
    assert word not in stopped.text
    assert stopped.finish == "stop"


async def test_a_client_that_leaves_frees_its_place(engine: BackendClient, able: Capabilities) -> None:
    assert able  # asked for: only then the engine is known to count what runs
    # Eight at once: a tiny model says 1500 tokens between two looks at a busy engine.
    endless = body_of(max_tokens=1500, min_tokens=1500, ignore_eos=True, temperature=1.0, n=8)

    async def is_seen_running(streaming: asyncio.Task[Completion]) -> bool:
        while not streaming.done():
            if (await engine.activity())["running"]:
                return not streaming.done()
            await asyncio.sleep(0.02)
        assert streaming.result().status == 200
        return False

    for _ in range(5):
        streaming = asyncio.create_task(stream(engine, endless))
        if await is_seen_running(streaming):
            break
    else:
        raise AssertionError("five times it was over before it was seen to run")
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    for _ in range(1200):
        if not (await engine.activity())["running"]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it keeps generating without a client")


# ---- tools and schemas


async def test_optional_tools_are_taken_and_required_ones_called(
    engine: BackendClient, able: Capabilities
) -> None:
    asked = body_of("What is the weather in Paris?", tools=[WEATHER], max_tokens=80)
    optional = await ask(engine, {**asked, "tool_choice": "auto"})
    assert (optional.status == 200) is bool(able.tools)
    choice = {"type": "function", "function": {"name": "get_weather"}}
    named = await ask(engine, {**asked, "tool_choice": choice})
    assert named.status == 200
    (call,) = named.message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert isinstance(call["function"]["arguments"], str)
    if able.constrained:
        assert "city" in json.loads(call["function"]["arguments"])


async def test_a_schema_is_held_or_refused(engine: BackendClient, able: Capabilities) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    completion = await ask(engine, body_of(response_format=format, max_tokens=60))
    if able.constrained:
        begins_the_object(completion.text)
    else:
        assert completion.status == 400
        assert "response_format" in completion.error


# ---- several keys


def opposite_of(adapter: Path, folder: Path) -> Path:
    """Write an adapter that changes the model by the same amounts in the other direction."""
    shutil.copytree(adapter, folder, ignore=shutil.ignore_patterns(TINKER_FILE))
    tensors = safetensors.torch.load_file(folder / ADAPTER_WEIGHTS)
    changed = {name: -value if "lora_B" in name else value for name, value in tensors.items()}
    safetensors.torch.save_file(changed, folder / ADAPTER_WEIGHTS, {"format": "pt"})
    return folder


def publish_for(clients: Clients, policy: str, folder: Path) -> None:
    now = time.time()
    adapter = AdapterVersion(
        policy=policy, version=1, path=str(folder), content_hash=content_hash(read_served(folder)), parent_version=0,
        state=AdapterState.PUBLISHED, reason="", method="combine", metrics={}, created_at=now,
    )  # fmt: skip
    step = StepReport(
        step_id=policy, policy=policy, method="combine", started_at=now, finished_at=now, version=1, error=None, metrics={}
    )  # fmt: skip
    clients.gateway.in_record(lambda record: record.publish(adapter, [], step, worker="w"))


Said = tuple[str, list[str], list[float]]


def said_to(client: openai.OpenAI, question: str) -> Said:
    """Ask greedily; return the id of the turn, the reply's tokens and their log-probabilities."""
    response = client.chat.completions.with_raw_response.create(
        model=POLICY, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24, logprobs=True
    )  # fmt: skip
    reply = response.parse()
    assert reply.choices[0].logprobs is not None
    content = reply.choices[0].logprobs.content or []
    return response.headers["x-patina-turn"], [one.token for one in content], [one.logprob for one in content]


def same_weights(one: Said, other: Said) -> bool:
    """Whether two greedy replies are of the same weights; see `agree`."""
    for a, b, p, q in zip(one[1], other[1], one[2], other[2], strict=False):
        if abs(p - q) >= 2e-3:
            return False
        if a != b:
            return True
    return len(one[1]) == len(other[1])


def test_two_keys_with_opposite_adapters_are_each_served_their_own_version(
    backend: Backend, adapters: list[Path], tmp_path: Path
) -> None:
    """Requests of both, and of a key without a version, in flight together."""
    opposite = opposite_of(adapters[0], tmp_path / "opposite")
    backend.publish([opposite])
    file = KeyFile(tmp_path / "keys.json")
    keys = {"ann": file.add("ann"), "bob": file.add("bob"), "cai": file.add("cai")}
    versions = {"ann": 1, "bob": 1, "cai": 0}
    questions = [
        "What is the capital of France?",
        "How many legs has a spider?",
        "Say hello.",
        "What is ice?",
    ]
    with clients_of(backend, tmp_path, Keyring(KEY, named=file)) as clients:
        publish_for(clients, f"{POLICY}.ann", adapters[0])
        publish_for(clients, f"{POLICY}.bob", opposite)
        asking = {name: clients.openai.with_options(api_key=key) for name, key in keys.items()}
        until(
            lambda: all(
                asking[name].models.retrieve(POLICY).to_dict()["metadata"]["version"] == version  # type: ignore[index]
                for name, version in versions.items()
            ),
            "each has its version",
        )
        alone = {(name, question): said_to(asking[name], question) for name in keys for question in questions}
        for question in questions:
            for name, other in (("ann", "bob"), ("ann", "cai"), ("bob", "cai")):
                assert not same_weights(alone[name, question], alone[other, question])
        with ThreadPoolExecutor(6) as pool:
            together = [
                (name, question, pool.submit(said_to, asking[name], question))
                for _ in range(3)
                for question in questions
                for name in keys
            ]
            replies = [(name, question, future.result()) for name, question, future in together]
        for name, question, reply in replies:
            assert same_weights(reply, alone[name, question]), (name, question)
        rows = {row["turn_id"]: row for row in clients.gateway.rows(len(alone) + len(replies))}
    assert len(rows) == len(alone) + len(replies)
    for name, _, reply in replies:
        row = rows[reply[0]]
        assert (row["policy"], row["adapter_version"]) == (f"{POLICY}.{name}", versions[name])


# ---- translated APIs


@pytest.fixture
def clients(backend: Backend, tmp_path: Path) -> Iterator[Clients]:
    """A gateway for one test: it unloads versions that its own record does not name, and so those of other tests."""
    with clients_of(backend, tmp_path) as made:
        yield made


def exact(row: dict[str, Any]) -> list[int]:
    """Return the recorded ids, which have one log-probability each."""
    assert len(row["completion_token_ids"]) == len(row["sampling_logprobs"]) > 0
    assert row["drop_reason"] in (None, "side_turn")  # a forced form alone is one
    found: list[int] = row["completion_token_ids"]
    return found


def asked_at(backend: Backend, work: Callable[[BackendClient], Awaitable[T]]) -> T:
    """Return what a client of the backend gets, in a loop of its own: the official SDKs block."""

    async def run() -> T:
        engine = backend.engine()
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def test_every_api_is_recorded_with_the_same_tokens(backend: Backend, clients: Clients) -> None:
    chat = asked_at(backend, lambda engine: ask(engine, body_of(max_tokens=200)))
    greedy: dict[str, Any] = {"temperature": 0}
    response = clients.openai.responses.create(model=POLICY, input=QUESTION, max_output_tokens=200, **greedy)
    assert response.output_text == chat.text
    with clients.openai.responses.stream(
        model=POLICY, input=QUESTION, max_output_tokens=200, **greedy
    ) as events:
        for _ in events:
            pass
        streamed = events.get_final_response()
    assert streamed.output_text == chat.text
    asked: Any = {"model": POLICY, "max_tokens": 200, "messages": [{"role": "user", "content": QUESTION}]}
    message = clients.claude.messages.create(**asked, extra_body=greedy)
    assert message.content[0].to_dict()["text"] == chat.text
    with clients.claude.messages.stream(**asked, extra_body=greedy) as stream:
        first = next(iter(stream))
        final = stream.get_final_message()
    assert first.type == "message_start"
    assert first.message.usage.input_tokens == len(chat.prompt_ids) == message.usage.input_tokens
    for one in (response, streamed, message, final):
        assert exact(clients.turn(one.id)) == chat.ids
    assert clients.claude.messages.count_tokens(model=POLICY, messages=asked["messages"]).input_tokens == len(
        chat.prompt_ids
    )


def test_wishes_in_a_prompt_are_read_and_counted_as_they_are_and_then_gone(clients: Clients) -> None:
    def asked(**headers: str) -> tuple[int, str | None, list[Any], Any]:
        reply = clients.openai.chat.completions.with_raw_response.create(
            model=POLICY,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=8,
            temperature=0,
            extra_headers=headers,
        )
        usage = reply.parse().usage
        assert usage is not None
        details = usage.prompt_tokens_details
        row = clients.gateway.rows(1)[-1]
        (turn,) = clients.gateway.in_record(lambda record: record.answered_turns([row["turn_id"]]))
        added = None if details is None else (details.model_extra or {}).get("wish_tokens")
        return usage.prompt_tokens, reply.headers.get("x-patina-wishes"), list(turn.messages), added

    plain, header, messages, added = asked()
    assert (header, added) == (None, None)
    turn_id = clients.gateway.rows(1)[-1]["turn_id"]
    wish = WishReading(text="Short, please.\nNo lists.", scope=WishScope.LASTING)
    verdict = Verdict(turn_id=turn_id, value=-1, wish=wish, source="test", created_at=time.time())
    clients.gateway.in_record(lambda record: record.add_verdict(verdict))
    state = clients.gateway.proxy._wishes
    until(lambda: state._texts.get(POLICY) and state._texts[POLICY].tokens, "the wish is counted")
    with_wish, header, same, added = asked()
    assert (header, added, same) == ("1", with_wish - plain, messages)
    assert with_wish > plain
    assert asked(**{"x-patina-wishes": "off"}) == (plain, None, messages, None)
    (stated,) = clients.gateway.in_record(lambda record: record.wishes())
    clients.gateway.in_record(lambda record: record.change_wish(stated.wish_id, state=WishState.WITHDRAWN))
    until(lambda: not state._texts, "the wish is gone")
    assert asked() == (plain, None, messages, None)


def test_the_sdks_types_accept_every_reply(clients: Clients) -> None:
    """The SDKs validate in strict mode; a value of another type than the field's would also be a warning of the dump.

    Left out where the SDK's type does not hold what OpenAI itself sends: chunks of streamed completions (a null finish reason) and the
    messages of stored completions (the role "user").
    """
    client, claude = clients.openai, clients.claude
    user: Any = [{"role": "user", "content": QUESTION}]
    chat: Any = {"model": POLICY, "messages": user, "max_tokens": 8, "logprobs": True, "top_logprobs": 2}
    message: Any = {"model": POLICY, "messages": user, "max_tokens": 8}
    usage: Any = {"include_usage": True}
    completed = client.chat.completions.create(**chat, metadata={"a": "b"})
    response = client.responses.create(
        model=POLICY, input=user, max_output_tokens=16, include=["message.output_text.logprobs"]
    )
    clients.gateway.rows(2)  # stored completions are read from the record
    replies: list[Any] = [
        completed,
        *client.chat.completions.create(**chat, stream=True, stream_options=usage),
        client.completions.create(model=POLICY, prompt="The capital", max_tokens=8, logprobs=1),
        response,
        *client.responses.create(model=POLICY, input=user, max_output_tokens=16, stream=True),
        client.responses.retrieve(response.id),
        *client.responses.input_items.list(response.id),
        *client.models.list(),
        client.chat.completions.retrieve(completed.id),
        *client.fine_tuning.jobs.list(),
        claude.messages.create(**message),
        *claude.messages.create(**message, stream=True),
        claude.messages.count_tokens(model=POLICY, messages=user),
    ]
    for reply in replies:
        assert reply.model_dump(mode="json", warnings="error")


def test_a_score_has_the_log_probabilities_that_were_sampled_with(backend: Backend, clients: Clients) -> None:
    chat = asked_at(backend, lambda engine: ask(engine, body_of(max_tokens=24)))
    asked = {"model": POLICY, "messages": body_of()["messages"], "completion": chat.text}
    scored = clients.openai.post("/score", body=asked, cast_to=httpx.Response).json()
    count = len(scored["tokens"])
    assert count >= max(1, len(chat.ids) - 1)  # the end of the turn is no text
    assert scored["prompt_tokens"] == len(chat.prompt_ids)
    assert scored["logprobs"] == pytest.approx(chat.logprobs[:count], abs=2e-2)


def test_a_response_goes_on_and_a_message_is_prefilled(clients: Clients) -> None:
    first = clients.openai.responses.create(model=POLICY, input=QUESTION, max_output_tokens=24)
    second = clients.openai.responses.create(
        model=POLICY, input="Shorter, please.", previous_response_id=first.id, max_output_tokens=24
    )
    assert clients.turn(second.id)["parent_turn_id"] == clients.turn(first.id)["turn_id"]
    begun: Any = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "The capital of"}]
    message = clients.claude.messages.create(model=POLICY, max_tokens=24, messages=begun)
    row = clients.turn(message.id)
    assert exact(row)
    assert row["messages"][-1] == begun[-1]


def test_forms_and_tools_of_the_other_apis_are_held_or_refused(backend: Backend, clients: Clients) -> None:
    able = asked_at(backend, lambda engine: engine.capabilities())
    schema: Any = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    text: Any = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    if not able.constrained:
        with pytest.raises(openai.BadRequestError, match="response_format"):
            clients.openai.responses.create(model=POLICY, input=QUESTION, text=text)
        return
    response = clients.openai.responses.create(model=POLICY, input=QUESTION, text=text, max_output_tokens=60)
    begins_the_object(response.output_text)
    exact(clients.turn(response.id))
    function: Any = {**WEATHER["function"], "type": "function", "strict": False}  # type: ignore[dict-item]
    response = clients.openai.responses.create(
        model=POLICY,
        input=QUESTION,
        tools=[function],
        tool_choice={"type": "function", "name": "get_weather"},
        max_output_tokens=200,
        temperature=0,  # sampled, one call in 150 names a property that goes on until the bound
    )
    calls = [item for item in response.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["get_weather"]
    tool: Any = {"name": "get_weather", "input_schema": schema}
    message = clients.claude.messages.create(
        model=POLICY,
        max_tokens=200,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[tool],
        tool_choice={"type": "tool", "name": "get_weather"},
        extra_body={"temperature": 0},
    )
    by_chat: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_tokens": 200,
    }
    chat = asked_at(backend, lambda engine: ask(engine, body_of(**by_chat)))
    (block,) = [block for block in message.content if block.type == "tool_use"]
    assert block.name == "get_weather"
    assert exact(clients.turn(message.id)) == chat.ids
    if backend.kind == "embedded":
        assert set(block.input) == {"ok"}


# ---- what is wrong


async def test_an_unknown_model_is_a_404_that_names_it(engine: BackendClient) -> None:
    completion = await ask(engine, body_of(model=f"{POLICY}@99"))
    assert completion.status == 404
    assert f"{POLICY}@99" in completion.error


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": "patina-tiny"}', b'{"messages": "hello"}'])
async def test_a_wrong_request_is_refused_and_does_no_harm(engine: BackendClient, body: bytes) -> None:
    completion = await ask(engine, body)
    assert 400 <= completion.status < 500
    assert completion.error
    assert (await ask(engine, body_of())).status == 200


async def test_a_prompt_beyond_the_context_is_refused(engine: BackendClient, able: Capabilities) -> None:
    completion = await ask(engine, body_of("word " * (able.max_model_len or 5000)))
    assert completion.status == 400
    assert completion.error


# ---- adapters


async def test_an_adapter_is_loaded_listed_and_unloaded_while_it_runs(
    engine: BackendClient, able: Capabilities, adapters: list[Path]
) -> None:
    assert able.adapters
    name = f"{POLICY}@101"
    await engine.load_adapter(name, str(adapters[0]))
    await engine.load_adapter(name, str(adapters[0]))  # after a restart of ours: harmless
    found = {model.name: model.parent for model in await engine.models()}
    assert found[name] == POLICY
    assert found[POLICY] is None
    base, tuned = await ask(engine, body_of()), await ask(engine, body_of(model=name))
    assert tuned.ids != base.ids
    assert tuned.whole["model"] == name
    await engine.unload_adapter(name)
    await engine.unload_adapter(name)
    assert (await ask(engine, body_of(model=name))).status == 404


async def test_the_trainer_reads_the_very_log_probabilities_that_were_sampled_with(
    engine: BackendClient, able: Capabilities, adapters: list[Path]
) -> None:
    """Same tokens, same weights: float32 on both sides, no more than 1e-3 apart on any token."""
    name = f"{POLICY}@103"
    policy = LocalPolicy(str(PATINA_TINY), device="cpu", rank=16, learning_rate=1e-4)
    policy.load_version(adapters[1])
    await engine.load_adapter(name, str(adapters[1]))
    completion = [
        await ask(engine, body_of(text, model=name, temperature=temperature, seed=7, max_tokens=48))
        for text in (QUESTION, "Tell me about the sea.")
        for temperature in (1.0, 0.7)
    ]
    await engine.unload_adapter(name)
    scale = [1.0] * 4 if able.logprob_mode is LogprobMode.RAW else [1.0, 0.7] * 2
    read, mask = policy.response_logprobs(
        [s.prompt_ids for s in completion], [s.ids for s in completion], temperature=scale
    )
    for row, one in enumerate(completion):
        assert one.logprobs == pytest.approx(read[row][mask[row]].tolist(), abs=1e-3)


def attested_folder(source: Path, folder: Path, name: str, attestation: Attestation | None) -> str:
    """Return a copy of an adapter with a manifest that carries the trainer's log-probabilities."""
    shutil.copytree(source, folder)
    files = {file: (folder / file).read_bytes() for file in os.listdir(folder)}
    manifest = build_manifest(files, name=name, model=ModelDigests(), attestation=attestation)
    (folder / MANIFEST).write_bytes(manifest)
    return str(folder)


async def test_a_loaded_version_is_attested_and_other_weights_are_refused(
    engine: BackendClient, adapters: list[Path], tmp_path: Path
) -> None:
    policy = LocalPolicy(str(PATINA_TINY), device="cpu", rank=16, learning_rate=1e-4)
    text, expected = FixedText(policy), []
    for published in (adapters[1], adapters[2]):
        policy.load_version(published)
        expected.append(text.attest(policy.snapshot(), f"{POLICY}@104"))
    for number, attestation in zip((105, 106), expected, strict=True):
        name = f"{POLICY}@{number}"
        folder = attested_folder(adapters[1], tmp_path / str(number), name, attestation)
        if number == 105:
            outcome = await engine.load_adapter(name, folder)
            assert float(outcome.split("attested: log-probabilities differ by ")[1].split()[0]) < 1e-3
            await engine.unload_adapter(name)
        else:
            with pytest.raises(AdapterMismatch, match="other weights than the trainer published"):
                await engine.load_adapter(name, folder)
            assert name not in {model.name for model in await engine.models()}


async def test_versions_are_attested_while_clients_stream(
    engine: BackendClient, adapters: list[Path], tmp_path: Path
) -> None:
    policy = LocalPolicy(str(PATINA_TINY), device="cpu", rank=16, learning_rate=1e-4)
    policy.load_version(adapters[1])
    attestation = FixedText(policy).attest(policy.snapshot(), f"{POLICY}@106")
    loaded = asyncio.Event()
    seen: list[Completion] = []

    async def stream_requests(client: int) -> None:
        while not loaded.is_set():
            seen.append(await stream(engine, body_of(max_tokens=24, user=str(client))))

    async with asyncio.TaskGroup() as group:
        for client in range(4):
            group.create_task(stream_requests(client))
        for number in (107, 108, 109):
            name = f"{POLICY}@{number}"
            folder = attested_folder(adapters[1], tmp_path / str(number), name, attestation)
            outcome = await engine.load_adapter(name, folder)
            assert float(outcome.split("attested: log-probabilities differ by ")[1].split()[0]) < 1e-3
            await engine.unload_adapter(name)
        loaded.set()
    assert {(each.status, each.is_ended) for each in seen} == {(200, True)}


async def test_a_name_keeps_its_weights(engine: BackendClient, adapters: list[Path]) -> None:
    name = f"{POLICY}@102"
    await engine.load_adapter(name, str(adapters[0]))
    before = await ask(engine, body_of(model=name))
    again = orjson.dumps({"lora_name": name, "lora_path": str(adapters[1])})
    assert (await ask(engine, again, "/v1/load_lora_adapter")).status == 400
    assert (await ask(engine, body_of(model=name))).ids == before.ids
    await engine.unload_adapter(name)


async def test_a_bad_adapter_is_refused_with_a_reason_and_streams_continue(
    engine: BackendClient, adapters: list[Path], tiny_adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    torn = Path(shutil.copytree(adapters[0], tmp_path / "torn"))
    for file in sorted(torn.iterdir()):  # noqa: ASYNC240
        file.write_bytes(file.read_bytes()[: min(1000, file.stat().st_size // 2)])
    of_another_model = tiny_adapters[0]
    for i, folder in enumerate((tmp_path / "nowhere", torn, of_another_model)):
        with pytest.raises(AdapterError, match=f"cannot load {POLICY}@{110 + i}"):
            await engine.load_adapter(f"{POLICY}@{110 + i}", str(folder))
    assert {model.name for model in await engine.models()} == {POLICY}
    assert (await ask(engine, body_of())).status == 200


async def test_a_swap_under_load_fails_nothing_and_each_stream_is_of_one_version(
    engine: BackendClient, adapters: list[Path]
) -> None:
    """16 clients keep streaming while ten versions come and go, as the alias moves them: load, route, unload at the last lease."""
    idle: dict[int, asyncio.Event] = {}
    leases: dict[int, int] = {}
    live = 200
    completion: list[tuple[int, Completion]] = []
    done = asyncio.Event()

    def name(version: int) -> str:
        return f"{POLICY}@{version}"

    async def stream_requests(client: int) -> None:
        while not done.is_set():
            version = live
            leases[version] += 1
            completion.append(
                (version, await stream(engine, body_of(model=name(version), max_tokens=12, user=str(client))))
            )
            leases[version] -= 1
            if not leases[version] and version != live:
                idle[version].set()

    leases[200], idle[200] = 0, asyncio.Event()
    await engine.load_adapter(name(200), str(adapters[0]))
    async with asyncio.TaskGroup() as group:
        for client in range(16):
            group.create_task(stream_requests(client))
        for version in range(201, 211):
            leases[version], idle[version] = 0, asyncio.Event()
            await engine.load_adapter(name(version), str(adapters[version % len(adapters)]))
            old, live = live, version
            await idle[old].wait()  # at least one stream of each version has ended by then
            await engine.unload_adapter(name(old))
        done.set()
    await engine.unload_adapter(name(live))
    assert {each.status for _, each in completion} == {200}
    assert all(each.is_ended for _, each in completion)
    assert {version for version, _ in completion} == set(range(200, 211))
    # what each stream completion is what an engine says that never served another version under load
    for i, folder in enumerate(adapters):
        await engine.load_adapter(name(300 + i), str(folder))
        alone = await ask(engine, body_of(model=name(300 + i), max_tokens=12))
        await engine.unload_adapter(name(300 + i))
        of_it = [
            each
            for version, each in completion
            if version % len(adapters) == i or (version == 200 and i == 0)
        ]
        assert of_it
        for each in of_it:
            agree(each, alone)


async def test_more_versions_in_flight_than_one_are_all_right(
    engine: BackendClient, adapters: list[Path]
) -> None:
    names = [f"{POLICY}@{400 + i}" for i in range(SLOTS)]
    for one, folder in zip(names, adapters, strict=True):
        await engine.load_adapter(one, str(folder))
    alone = [await ask(engine, body_of(model=one)) for one in (POLICY, *names)]
    together = await asyncio.gather(*(stream(engine, body_of(model=one)) for one in (POLICY, *names)))
    for one in names:
        await engine.unload_adapter(one)
    for single, mixed in zip(alone, together, strict=True):
        agree(single, mixed)
    assert len({tuple(each.ids) for each in alone}) == SLOTS + 1


# ---- life and death; last, because the engine is another one afterwards


async def test_a_killed_engine_is_reported_and_its_successor_returns_the_same(
    backend: Backend, engine: BackendClient, adapters: list[Path]
) -> None:
    name = f"{POLICY}@500"
    await engine.load_adapter(name, str(adapters[2]))
    before = [await ask(engine, body_of(model=one)) for one in (POLICY, name)]
    assert await engine.is_healthy()
    await asyncio.to_thread(backend.kill)
    assert not await engine.is_healthy()
    with pytest.raises(UpstreamUnreachable):
        await ask(engine, body_of())
    with pytest.raises(UpstreamUnreachable):
        await engine.models()
    await asyncio.to_thread(backend.start)
    assert [model.name for model in await engine.models()] == [POLICY]  # its adapters are gone
    again: list[Any] = [await ask(engine, body_of())]
    await engine.load_adapter(name, str(adapters[2]))
    again.append(await ask(engine, body_of(model=name)))
    assert [each.ids for each in again] == [each.ids for each in before]
    assert (await engine.capabilities()).adapters
