"""The engine as clients see it: a real process on a real port, through the openai SDK and plain HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from serving.model_digests import digest_served_model
from serving.openai_server.tool_check import ToolCheck
from store.manifest import ADAPTER_WEIGHTS, MANIFEST, ModelDigests, build_manifest
from tests.tiny import make_tiny_parrot

ROOT = Path(__file__).parents[3]
HI: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@contextmanager
def running(model: str | Path, *flags: str, logs: str = "") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """An engine process and its address. At the end SIGTERM must end it with exit code 0 and nothing but one line that holds `logs` logged."""
    process = subprocess.Popen(
        [sys.executable, "-m", "serving.embedded", "--model", str(model), "--port", "0", *flags],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        try:
            yield address_of(process), process
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            lines = process.stderr.read().splitlines()
            assert len(lines) == bool(logs), lines
            assert all(logs in line for line in lines)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if " on http://" in line:
            return line.rsplit(" on ", 1)[1].strip()
    raise AssertionError(f"the engine ended with {process.wait()}")


@pytest.fixture(scope="module")
def base(tiny_model: Path) -> Iterator[str]:
    with running(tiny_model, "--served-model-name", "tiny", "--threads", "1") as (address, _):
        yield address


@pytest.fixture
async def http(base: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        yield client


@pytest.fixture
async def client(base: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def adapter(http: httpx.AsyncClient, tiny_adapters: tuple[Path, Path]) -> AsyncIterator[str]:
    name = "style@1"
    reply = await http.post(
        "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(tiny_adapters[0])}
    )
    assert (reply.status_code, reply.text) == (
        200,
        "Success: LoRA adapter 'style@1' added successfully.",
    )
    yield name
    await http.post("/v1/unload_lora_adapter", json={"lora_name": name})


async def stats(http: httpx.AsyncClient) -> dict[str, Any]:
    got: dict[str, Any] = (await http.get("/stats")).json()
    return got


async def idle(http: httpx.AsyncClient) -> dict[str, Any]:
    for _ in range(3000):
        got = await stats(http)
        if got["running"] == got["waiting"] == 0:
            return got
        await asyncio.sleep(0.02)
    raise AssertionError("the engine is still busy")


async def test_a_reply_and_a_stream_of_the_same_request_agree(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": HI,
        "max_tokens": 30,
        "temperature": 1.0,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": {"return_token_ids": True},
    }
    whole = await client.chat.completions.create(**options)
    stream = await client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    dumped = whole.model_dump()
    choice = dumped["choices"][0]
    parts = [chunk.model_dump() for chunk in chunks]
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert parts[0]["prompt_token_ids"] == dumped["prompt_token_ids"]
    assert all("prompt_token_ids" not in part for part in parts[1:])
    deltas = [part["choices"][0] for part in parts if part["choices"]]
    assert "".join(one["delta"]["content"] or "" for one in deltas) == choice["message"]["content"]
    ids = [token_id for one in deltas for token_id in one.get("token_ids", ())]
    assert ids == choice["token_ids"]
    entries = [entry for one in deltas if one["logprobs"] for entry in one["logprobs"]["content"]]
    reported = choice["logprobs"]["content"]
    assert len(entries) == len(reported) == len(ids)
    assert [entry["bytes"] for entry in entries] == [entry["bytes"] for entry in reported]
    assert [entry["logprob"] for entry in entries] == pytest.approx(
        [entry["logprob"] for entry in reported], abs=1e-5
    )
    assert deltas[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.model_dump() == whole.usage.model_dump()
    assert whole.usage.completion_tokens == len(ids)
    assert whole.usage.prompt_tokens == len(dumped["prompt_token_ids"])


async def test_what_was_not_asked_for_is_not_sent(client: openai.AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(model="tiny", messages=HI, max_tokens=3)
    assert reply.choices[0].logprobs is None
    assert "token_ids" not in reply.choices[0].model_dump()
    assert "prompt_token_ids" not in reply.model_dump()


async def test_n_choices_come_apart_by_index(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=12, n=2, seed=1, temperature=1.0
    )
    stream = await client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=12, n=2, seed=1, temperature=1.0, stream=True
    )
    texts = ["", ""]
    ends = []
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.index] if choice.finish_reason else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert sorted(ends) == [0, 1]


REPLY = 'I look 😀.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Größe"}}\n</tool_call>'


@pytest.fixture(scope="module")
def parrot(tiny_model: Path) -> Iterator[str]:
    folder = make_tiny_parrot(tiny_model.parent / "parrot", tiny_model, HI, REPLY, tools=WEATHER)
    with running(folder, "--served-model-name", "parrot", "--threads", "1") as (address, _):
        yield address


async def test_a_tool_call_comes_back_whole_and_as_deltas(parrot: str) -> None:
    options: dict[str, Any] = {
        "model": "parrot",
        "messages": HI,
        "tools": WEATHER,
        "temperature": 0,
        "extra_body": {"return_token_ids": True},
    }
    async with openai.AsyncOpenAI(base_url=f"{parrot}/v1", api_key="none", max_retries=0) as client:
        whole = (await client.chat.completions.create(**options)).choices[0]
        assert whole.finish_reason == "tool_calls"
        assert whole.message.content == "I look 😀."
        assert whole.message.tool_calls is not None
        (call,) = whole.message.tool_calls
        assert call.type == "function"
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == {"city": "Größe"}

        content, arguments = "", ""
        names, call_ids, ends = [], [], []
        token_ids: list[int] = []
        async for chunk in await client.chat.completions.create(**options, stream=True):
            choice = chunk.choices[0]
            content += choice.delta.content or ""
            token_ids += choice.model_dump().get("token_ids") or []
            ends += [choice.finish_reason] if choice.finish_reason else []
            for part in choice.delta.tool_calls or []:
                assert part.function is not None
                arguments += part.function.arguments or ""
                names += [part.function.name] if part.function.name else []
                call_ids += [part.id] if part.id else []
        assert (content, names, ends) == ("I look 😀.", ["get_weather"], ["tool_calls"])
        assert arguments == call.function.arguments
        assert len(call_ids) == 1
        assert token_ids == whole.model_dump()["token_ids"]

        # With tool_choice none the same words are content, whole.
        plain = await client.chat.completions.create(**options, tool_choice="none")
        assert plain.choices[0].message.content == REPLY
        assert plain.choices[0].finish_reason == "stop"


@pytest.fixture(scope="module")
def deaf(tiny_model: Path) -> Path:
    """A model whose template prints roles and content only."""
    folder = tiny_model.parent / "deaf"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return folder


def test_tools_that_a_template_ignores_are_said_to_be_unread_and_forced_calls_are_made(
    deaf: Path, tmp_path: Path
) -> None:
    checks = tmp_path / "checks.json"
    flags = ("--threads", "1", "--tool-check-file", str(checks))
    body = {"messages": HI, "max_tokens": 60, "return_token_ids": True}
    called = {
        "id": "1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
    }
    past = [*HI, {"role": "assistant", "content": None, "tool_calls": [called]}, {"role": "tool", "tool_call_id": "1", "content": "4"}]  # fmt: skip
    with (
        running(deaf, *flags, logs="tools: its chat template shows none") as (address, _),
        httpx.Client(base_url=address, timeout=60) as client,
    ):

        def ask(**more: Any) -> httpx.Response:
            answer = client.post("/v1/chat/completions", json={**body, **more})
            assert answer.status_code == 200, answer.text
            return answer

        capabilities = client.get("/version").json()["capabilities"]
        assert capabilities["tools"] is None
        assert capabilities["template"] == {"tools": False, "history": False, "system": True}
        plain, offered = ask(), ask(tools=WEATHER)
        assert offered.json()["prompt_token_ids"] == plain.json()["prompt_token_ids"]
        assert offered.headers["x-patina-tools"] == "unread"
        assert "x-patina-tools" not in plain.headers
        streamed = ask(tools=WEATHER, stream=True)
        assert streamed.headers["x-patina-tools"] == "unread"
        assert "x-patina-tools" not in ask(tools=WEATHER, tool_choice="none").headers
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice, finish in (("required", "tool_calls"), (named, "stop")):
            forced = ask(tools=WEATHER, tool_choice=choice, max_tokens=200)
            (call,) = forced.json()["choices"][0]["message"]["tool_calls"]
            assert list(json.loads(call["function"]["arguments"])) in (["city"], [])
            assert forced.json()["choices"][0]["finish_reason"] == finish
            assert len(forced.json()["prompt_token_ids"]) > len(plain.json()["prompt_token_ids"])
            assert "x-patina-tools" not in forced.headers
        shown = client.post("/detokenize", json={"tokens": ask(messages=past).json()["prompt_token_ids"]})
        assert "<tool_call>" in shown.json()["prompt"]
        assert "user\n<tool_response>\n4\n</tool_response>" in shown.json()["prompt"]
        for _ in range(600):
            stats = client.get("/stats").json()
            if checks.exists() and "0 of 2" in stats["tools"]:
                break
            time.sleep(0.1)
        assert stats["unread_tools"] == 2
        assert "0 of 2 checks: optional tools are left out" in stats["tools"]
        assert client.get("/version").json()["capabilities"]["tools"] is False


def test_tools_are_shown_to_a_model_that_was_seen_to_call_them(deaf: Path, tmp_path: Path) -> None:
    checks = tmp_path / "checks.json"
    check = ToolCheck(checks, lambda: digest_served_model(str(deaf)).base_model)
    checks.write_text(json.dumps({check._key(): {"passed": 6, "cases": 6}}))
    with (
        running(deaf, "--threads", "1", "--tool-check-file", str(checks)) as (address, _),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        for _ in range(600):
            if client.get("/version").json()["capabilities"]["tools"]:
                break
            time.sleep(0.1)
        body = {"messages": HI, "max_tokens": 5, "return_token_ids": True, "tools": WEATHER}
        answer = client.post("/v1/chat/completions", json=body)
        assert "x-patina-tools" not in answer.headers
        shown = client.post("/detokenize", json={"tokens": answer.json()["prompt_token_ids"]}).json()[
            "prompt"
        ]
        assert '"name": "get_weather"' in shown
        assert "You can call functions." in shown


class Person(BaseModel):
    """What is asked for."""

    model_config = ConfigDict(extra="forbid")
    age: Annotated[int, Field(ge=0, le=99)]
    mood: Literal["good", "bad"]


async def test_parse_gives_objects_also_from_streams_and_several_samples(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HI, "response_format": Person, "max_tokens": 100}
    reply = await client.chat.completions.parse(**options, n=3, seed=1)
    assert all(isinstance(choice.message.parsed, Person) for choice in reply.choices)
    assert {choice.finish_reason for choice in reply.choices} == {"stop"}
    async with client.chat.completions.stream(**options) as stream:
        final = await stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)
    completion: Any = {
        "type": "json_schema",
        "json_schema": {"name": "p", "schema": Person.model_json_schema()},
    }
    text = await client.completions.create(
        model="tiny", prompt="A person:", max_tokens=100, extra_body={"response_format": completion}
    )
    assert Person.model_validate_json(text.choices[0].text)


async def test_tools_of_parse_and_functions_are_called_with_valid_arguments(
    client: openai.AsyncOpenAI,
) -> None:
    tool: Any = openai.pydantic_function_tool(Person, name="note")
    options: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 200}
    reply = await client.chat.completions.parse(
        **options, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = reply.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Person)
    older: dict[str, Any] = {
        **options,
        "functions": [{"name": "note", "parameters": Person.model_json_schema()}],
        "function_call": {"name": "note"},
    }
    whole = (await client.chat.completions.create(**older)).choices[0]
    assert (whole.finish_reason, whole.message.tool_calls) == ("stop", None)
    assert whole.message.function_call is not None
    assert Person.model_validate_json(whole.message.function_call.arguments)
    parts = [
        chunk.choices[0].delta.function_call
        async for chunk in await client.chat.completions.create(**older, stream=True)
    ]
    assert "".join(part.arguments or "" for part in parts if part)
    history = [
        *HI,
        {"role": "assistant", "content": None, "function_call": whole.message.function_call.model_dump()},
        {"role": "function", "name": "note", "content": "noted"},
    ]
    assert (await client.chat.completions.create(**{**options, "messages": history})).choices


async def test_a_schema_that_cannot_be_enforced_is_a_400_with_the_reason(client: openai.AsyncOpenAI) -> None:
    wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"const": 1}}}}
    with pytest.raises(openai.BadRequestError, match="Unimplemented keys") as caught:
        await client.chat.completions.create(model="tiny", messages=HI, response_format=wrong)
    assert caught.value.param == "response_format"
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "strin"}}}]
    with pytest.raises(openai.BadRequestError, match="Invalid type"):
        await client.chat.completions.create(model="tiny", messages=HI, tools=tools, tool_choice="required")


async def test_a_stop_string_trims_the_text_but_not_the_ids(http: httpx.AsyncClient) -> None:
    body = {
        "model": "tiny",
        "messages": HI,
        "max_tokens": 40,
        "temperature": 1,
        "seed": 3,
        "return_token_ids": True,
    }
    free = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
    stop = free["message"]["content"][8:11]
    cut = (await http.post("/v1/chat/completions", json={**body, "stop": stop})).json()["choices"][0]
    assert cut["message"]["content"] == free["message"]["content"].split(stop)[0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert cut["token_ids"] == free["token_ids"][: len(cut["token_ids"])]
    text = (await http.post("/detokenize", json={"tokens": cut["token_ids"]})).json()["prompt"]
    assert stop in text


async def test_plain_completions_take_text_and_ids_and_lists(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    ids = (await http.post("/tokenize", json={"prompt": "The capital"})).json()["tokens"]
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 0, "logprobs": 1}
    one = await client.completions.create(prompt="The capital", **options)
    other = await client.completions.create(prompt=ids, **options)
    many = await client.completions.create(prompt=["The capital", "What is"], n=2, **options)
    assert one.choices[0].text == other.choices[0].text == many.choices[0].text == many.choices[1].text
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert one.choices[0].logprobs is not None
    assert len(one.choices[0].logprobs.token_logprobs or []) == 8
    stream = await client.completions.create(prompt="The capital", stream=True, **options)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == one.choices[0].text


async def test_adapters_are_models_of_their_own(client: openai.AsyncOpenAI, adapter: str) -> None:
    cards = {card.id: card.model_dump() for card in (await client.models.list()).data}
    assert cards["tiny"]["parent"] is None
    assert cards[adapter]["parent"] == "tiny"
    assert Path(cards[adapter]["root"]).name == "one"
    assert cards[adapter]["logprobs_mode"] == "raw_logprobs"
    assert (await client.models.retrieve(adapter)).id == adapter
    texts = [
        (await client.chat.completions.create(model=name, messages=HI, max_tokens=20, temperature=0))
        .choices[0]
        .message.content
        for name in ("tiny", adapter, "tiny")
    ]
    assert texts[0] == texts[2] != texts[1]


async def test_unloading_stops_new_requests_at_once_and_spares_running_streams(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, adapter: str
) -> None:
    options: dict[str, Any] = {
        "model": adapter,
        "messages": HI,
        "max_tokens": 300,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    wanted = (await client.chat.completions.create(**options)).choices[0].message.content
    stream = await client.chat.completions.create(**options, stream=True)
    text = (await anext(aiter(stream))).choices[0].delta.content or ""
    assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": adapter})).status_code == 200
    with pytest.raises(openai.NotFoundError, match=f"the model {adapter} does not exist"):
        await client.chat.completions.create(**options)
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
    assert text == wanted


async def test_adapters_that_cannot_be_loaded_say_why_and_the_engine_goes_on(
    http: httpx.AsyncClient, client: openai.AsyncOpenAI, adapter: str, tiny_adapters: tuple[Path, Path]
) -> None:
    async def load(name: str, path: object, **more: object) -> tuple[int, str]:
        body = {"lora_name": name, "lora_path": str(path), **more}
        reply = await http.post("/v1/load_lora_adapter", json=body)
        return reply.status_code, reply.json()["error"]["message"]

    assert await load("x", "/nowhere") == (
        400,
        "there is no adapter folder /nowhere",
    )
    assert (await load(adapter, tiny_adapters[1]))[1] == f"the name {adapter} is in use"
    assert (await load("tiny", tiny_adapters[1]))[1] == "the name tiny is in use"
    assert "load_inplace is not supported" in (await load("x", tiny_adapters[1], load_inplace=True))[1]
    reply = await http.post("/v1/unload_lora_adapter", json={"lora_name": "x"})
    assert reply.status_code == 404
    assert (await client.chat.completions.create(model="tiny", messages=HI, max_tokens=2)).choices


async def test_an_adapter_that_is_not_what_its_manifest_says_is_refused(
    http: httpx.AsyncClient, tiny_model: Path, tiny_adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    async def load(name: str, model: ModelDigests) -> tuple[int, str]:
        folder = tmp_path / name
        shutil.copytree(tiny_adapters[1], folder)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        (folder / MANIFEST).write_bytes(build_manifest(files, name=name, model=model))
        if name == "changed":
            body = bytearray(files[ADAPTER_WEIGHTS])
            body[-400:] = bytes(400)
            (folder / ADAPTER_WEIGHTS).write_bytes(body)
        reply = await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
        await http.post("/v1/unload_lora_adapter", json={"lora_name": name})
        return reply.status_code, reply.text

    here = digest_served_model(str(tiny_model))
    assert (await load("intact", here))[0] == 200
    status, text = await load("changed", here)
    assert (status, "adapter_model.safetensors changed" in text) == (400, True)
    status, text = await load("other", replace(here, tokenizer="0" * 64))
    assert (status, "trained for another tokenizer" in text) == (400, True)


async def test_errors_have_openais_form(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="unknown", messages=HI)
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        await client.chat.completions.create(model="tiny", messages=HI, temperature=-3)
    assert caught.value.body == {
        "message": "temperature: Input should be greater than or equal to 0",
        "type": "BadRequestError",
        "param": "temperature",
        "code": 400,
    }
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
        await client.chat.completions.create(model="tiny", messages=HI, max_tokens=5000)
    long: Any = [{"role": "user", "content": "many words " * 4000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
        await client.chat.completions.create(model="tiny", messages=long, stream=True)
    with pytest.raises(openai.BadRequestError, match="but the prompt has 3000 tokens"):
        await client.completions.create(model="tiny", prompt=[20] * 3000)
    with pytest.raises(openai.BadRequestError, match="--max-num-seqs 16"):
        await client.chat.completions.create(model="tiny", messages=HI, n=17)
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(openai.BadRequestError, match="reads text only"):
        await client.chat.completions.create(model="tiny", messages=image)
    missing = await http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NotFoundError")
    assert (await http.get("/v1/chat/completions")).status_code == 405


async def test_tokenize_and_detokenize_are_inverse_and_know_the_template(http: httpx.AsyncClient) -> None:
    text = "Größe 😀"
    tokens = (await http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 2048
    assert (await http.post("/detokenize", json={"tokens": tokens["tokens"]})).json() == {"prompt": text}
    rendered = (await http.post("/tokenize", json={"messages": HI})).json()["tokens"]
    body = {"model": "tiny", "messages": HI, "max_tokens": 1, "return_token_ids": True}
    reply = (await http.post("/v1/chat/completions", json=body)).json()
    assert reply["prompt_token_ids"] == rendered
    assert (await http.post("/tokenize", json={})).status_code == 400
    assert (await http.post("/detokenize", json={"tokens": [10**6]})).status_code == 400


async def test_health_and_version_answer(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).status_code == 200
    version = (await http.get("/version")).json()
    assert version["logprobs_mode"] == "raw_logprobs"
    assert version["engine"] == "patina-embedded"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_leaves_frees_its_place_at_once(
    streaming: bool, http: httpx.AsyncClient, base: str
) -> None:
    before = (await idle(http))["completion_tokens"]
    body = {
        "model": "tiny",
        "messages": HI,
        "max_tokens": 1900,
        "ignore_eos": True,
        "stream": streaming,
    }
    async with httpx.AsyncClient(base_url=base) as leaving:
        request = asyncio.create_task(leaving.post("/v1/chat/completions", json=body, timeout=60))
        for _ in range(6000):
            if (await stats(http))["running"]:
                break
            await asyncio.sleep(0.01)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert (await idle(http))["completion_tokens"] - before < 1900


async def test_many_clients_and_adapters_at_once_get_what_they_get_alone(
    client: openai.AsyncOpenAI, adapter: str
) -> None:
    async def ask(i: int) -> str | None:
        messages: Any = [{"role": "user", "content": "word " * (i + 1)}]
        model = adapter if i % 2 else "tiny"
        reply = await client.chat.completions.create(
            model=model, messages=messages, max_tokens=10 + i, temperature=1.0, seed=i
        )
        return reply.choices[0].message.content

    alone = [await ask(i) for i in range(20)]
    together = await asyncio.gather(*(ask(i) for i in range(20)))
    assert together == alone


async def test_a_load_beside_running_streams_changes_nothing_for_them(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, adapter: str, tiny_adapters: tuple[Path, Path]
) -> None:
    options: dict[str, Any] = {
        "messages": HI,
        "max_tokens": 200,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    names = ["tiny", adapter]
    wanted = [
        (await client.chat.completions.create(model=name, **options)).choices[0].message.content
        for name in names
    ]
    running = [asyncio.create_task(client.chat.completions.create(model=name, **options)) for name in names]
    for i in range(5):
        body = {"lora_name": f"other@{i}", "lora_path": str(tiny_adapters[1])}
        assert (await http.post("/v1/load_lora_adapter", json=body)).status_code == 200
        await client.chat.completions.create(model=f"other@{i}", messages=HI, max_tokens=3)
        assert (await http.post("/v1/unload_lora_adapter", json=body)).status_code == 200
    assert [(await task).choices[0].message.content for task in running] == wanted


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serving.embedded", *arguments],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_with_a_key_file_the_engine_serves_its_holder_only_and_never_redirects(
    tiny_model: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    with running(tiny_model, "--api-key-file", str(key), "--threads", "1") as (address, process):
        assert "secret" not in Path(f"/proc/{process.pid}/cmdline").read_text()
        holder = {"authorization": "Bearer secret"}
        for path in ("/health", "/v1/models", "/stats"):
            assert httpx.get(f"{address}{path}").status_code == 401
            assert httpx.get(f"{address}{path}", headers=holder).status_code == 200
        reply = httpx.post(f"{address}/v1/chat/completions/", json={"messages": HI}, headers=holder)
        assert (reply.status_code, reply.headers.get("location")) == (404, None)
    key.write_text("")
    command = [
        sys.executable,
        "-m",
        "serving.embedded",
        "--model",
        str(tiny_model),
        "--api-key-file",
        str(key),
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, f"the key file {key} is empty" in found.stderr) == (2, True)


def test_help_does_not_load_torch() -> None:
    code = "import sys; import serving.embedded.__main__ as m; m.build_parser().format_help(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_model_that_is_missing_or_broken_ends_the_start_with_one_sentence(
    tiny_model: Path, tmp_path: Path
) -> None:
    missing = run("--model", str(tmp_path / "none"), "--port", "0")
    assert missing.returncode == 2
    assert missing.stderr == f"serving.embedded: there is no model folder {tmp_path / 'none'}\n"
    empty = run("--model", str(tmp_path), "--port", "0")
    assert (empty.returncode, empty.stderr.count("\n")) == (2, 1)
    assert "no config.json" in empty.stderr
    for file in tiny_model.iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[: len(data) // 2] if "safetensors" in file.name else data)
    torn = run("--model", str(tmp_path), "--port", "0")
    assert torn.returncode == 2
    assert torn.stderr.startswith(f"serving.embedded: the model folder {tmp_path} cannot be loaded: ")
    assert torn.stderr.count("\n") == 1


def test_a_port_in_use_ends_the_start_with_one_sentence(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        got = run("--model", str(tiny_model), "--port", str(port))
    assert got.returncode == 2
    assert (
        got.stderr
        == f"serving.embedded: cannot listen on 127.0.0.1:{port} (Address already in use): stop what runs there, or give another --port\n"
    )


def test_sigterm_in_the_middle_of_a_stream_tells_the_client_and_ends_cleanly(tiny_model: Path) -> None:
    body = {"messages": HI, "max_tokens": 2000, "stream": True, "ignore_eos": True}
    # Twenty contexts full of tokens, one at a time: they cannot be through when the grace is over.
    more = {**body, "prompt": ["hi"] * 20}
    with (
        running(tiny_model, "--threads", "1", "--max-num-seqs", "1") as (address, process),
        httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as first,
        httpx.stream("POST", f"{address}/v1/completions", json=more, timeout=60) as queued,
    ):
        lines = first.iter_lines()
        assert next(lines).startswith("data: ")
        process.send_signal(signal.SIGTERM)
        assert list(lines)[-2:] == ["data: [DONE]", ""]
        version_info = [line for line in queued.iter_lines() if line]
        assert "the engine is stopping" in version_info[-2]
        assert version_info[-1] == "data: [DONE]"


async def test_a_prompt_is_scored_as_the_same_tokens_are_when_they_are_sampled(
    http: httpx.AsyncClient,
) -> None:
    """With `echo`, whole and streamed; the prompt is longer than one chunk of a scored prefill."""
    body: dict[str, Any] = {
        "model": "tiny", "prompt": "The capital of France", "max_tokens": 80, "temperature": 0, "logprobs": 0,
        "return_token_ids": True, "ignore_eos": True, "return_tokens_as_token_ids": True,
    }  # fmt: skip
    sampled = (await http.post("/v1/completions", json=body)).json()["choices"][0]
    ids = sampled["prompt_token_ids"] + sampled["token_ids"]
    asked = {**body, "prompt": ids, "max_tokens": 1, "echo": True}
    echoed = (await http.post("/v1/completions", json=asked)).json()["choices"][0]
    columns = echoed["logprobs"]
    assert columns["tokens"][: len(ids)] == [f"token_id:{token}" for token in ids]
    assert columns["token_logprobs"][0] is None
    assert len(columns["token_logprobs"]) == len(columns["text_offset"]) == len(ids) + 1
    of_reply = columns["token_logprobs"][len(ids) - 80 : len(ids)]
    assert of_reply == pytest.approx(sampled["logprobs"]["token_logprobs"], abs=1e-3)
    assert echoed["text"].startswith("The capital of France")
    events = (await http.post("/v1/completions", json={**asked, "stream": True})).text
    first = json.loads(events.split("data: ", 2)[1])["choices"][0]["logprobs"]
    assert first["tokens"][: len(ids)] == columns["tokens"][: len(ids)]
    assert first["token_logprobs"][1 : len(ids)] == pytest.approx(
        columns["token_logprobs"][1 : len(ids)], abs=1e-5
    )
    two = (await http.post("/v1/completions", json={**asked, "n": 2})).json()["choices"]
    assert [choice["logprobs"]["token_logprobs"][1:5] for choice in two] == [
        columns["token_logprobs"][1:5]
    ] * 2


def test_the_models_own_limit_counts_where_a_request_sets_none(tiny_model: Path, tmp_path: Path) -> None:
    """A small model may repeat itself to the end of its context, and its makers may say where to stop."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    config = folder / "generation_config.json"
    own = {"temperature": 0.3, "do_sample": True, "max_new_tokens": 5}
    config.write_text(json.dumps({**json.loads(config.read_text(encoding="utf-8")), **own}), encoding="utf-8")
    with (
        running(folder, "--served-model-name", "tiny", "--threads", "1") as (address, _),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        for limit, count in (({}, 5), ({"max_tokens": 9}, 9), ({"max_completion_tokens": 7}, 7)):
            more: dict[str, Any] = {**limit, "extra_body": {"ignore_eos": True}}
            reply = client.chat.completions.create(model="tiny", messages=HI, **more)
            assert reply.usage is not None
            assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (count, "length")
        facts = httpx.get(f"{address}/version").json()["sampling_defaults"]
        assert (facts["temperature"], facts["max_new_tokens"]) == (0.3, 5)
