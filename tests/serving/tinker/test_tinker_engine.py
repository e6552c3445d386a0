"""The Tinker backend as the proxy sees it: real processes, a real Tinker server behind, and what happens when that goes away."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from transformers import AutoTokenizer

from serving.tinker.version import FILE, TinkerVersion, write_version
from store.manifest import MANIFEST, ModelDigests, build_manifest
from store.settings import REPOSITORY, child_environment, read_settings
from tests.tinker.running import SkyrlServer, TinkerServer

pytestmark = pytest.mark.slow

POLICY = "tiny"
HI: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
    }
]
ENDLESS: dict[str, Any] = {"ignore_eos": True, "min_tokens": 1500, "max_tokens": 1500}


@contextmanager
def serving(
    server: TinkerServer | SkyrlServer, folder: Path, *, ready_s: float = 120.0, **more: Any
) -> Iterator[str]:
    """The backend's process; yields its address once it is well."""
    process = start(server, folder, **more)
    address = address_of(process)
    try:
        end = time.monotonic() + ready_s
        while time.monotonic() < end:
            assert process.poll() is None
            if is_well(address):
                break
            time.sleep(0.1)
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()


def start(server: TinkerServer | SkyrlServer, folder: Path, **more: Any) -> subprocess.Popen[str]:
    given = {"model_name": server.name, "tinker_base_url": server.url, "served_model_name": POLICY, **more}
    path = folder / "settings.json"
    read_settings(given).dump(path)
    return subprocess.Popen(
        [sys.executable, "-m", "serving.tinker", "--settings", str(path), "--port", "0"],
        cwd=REPOSITORY,
        env=child_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
        stderr=subprocess.PIPE,
        text=True,
    )


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if " on http://" in line:
            return line.rsplit(" on ", 1)[1].strip()
    raise AssertionError(f"it ended with {process.wait()}")


def is_well(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5):
            return True
    except OSError:
        return False


def publish(server: TinkerServer, adapter: Path, folder: Path) -> Path:
    """A version's folder for an adapter that the server has."""
    folder.mkdir()
    path = server.take_in(adapter, folder.name)
    write_version(folder, TinkerVersion(sampler_path=path, base_model=server.name))
    return folder


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    made = TinkerServer(tiny_model, tmp_path_factory.mktemp("tinker"), more=["--token-s", "0.002"])
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def base(server: TinkerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(server, tmp_path_factory.mktemp("serving")) as address:
        yield address


@pytest.fixture
async def http(base: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=base, timeout=120) as client:
        yield client


@pytest.fixture
async def client(base: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        yield client


async def say(http: httpx.AsyncClient, **more: Any) -> httpx.Response:
    body = {
        "messages": HI,
        "max_tokens": 16,
        "temperature": 0,
        "logprobs": True,
        "return_token_ids": True,
        **more,
    }
    return await http.post("/v1/chat/completions", json=body)


async def ids(http: httpx.AsyncClient, **more: Any) -> list[int]:
    reply = await say(http, **more)
    assert reply.status_code == 200, reply.text
    found: list[int] = reply.json()["choices"][0]["token_ids"]
    return found


async def stats(http: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get("/stats")).json()
    return found


# ---- the dialect


async def test_a_stream_is_the_whole_reply_in_one_piece_and_that_is_declared(
    http: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    version_info = (await http.get("/version")).json()
    assert version_info["capabilities"]["token_stream"] is False
    assert version_info["engine"] == "Tinker SDK"
    whole = await client.chat.completions.create(model=POLICY, messages=HI, max_tokens=16, temperature=0)
    streamed = await client.chat.completions.create(
        model=POLICY, messages=HI, max_tokens=16, temperature=0, stream=True
    )
    chunks = [chunk.choices[0].delta.content async for chunk in streamed if chunk.choices]
    assert [chunk for chunk in chunks if chunk] == [whole.choices[0].message.content]


async def test_text_after_a_stop_string_is_neither_returned_nor_reported(
    http: httpx.AsyncClient, tiny_model: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    whole = await ids(http, temperature=1.0, seed=3, max_tokens=40)
    stop = tokenizer.decode(whole[4:6])
    reply = (await say(http, temperature=1.0, seed=3, max_tokens=40, stop=[stop])).json()["choices"][0]
    drawn = reply["token_ids"]
    assert drawn == whole[: len(drawn)]
    assert len(drawn) < len(whole)
    assert stop in tokenizer.decode(drawn)
    assert stop not in tokenizer.decode(drawn[:-1])
    assert stop not in reply["message"]["content"]
    assert (reply["finish_reason"], reply["stop_reason"]) == ("stop", stop)
    assert len(reply["logprobs"]["content"]) == len(drawn)


async def test_completions_prompts_of_ids_and_several_choices(http: httpx.AsyncClient) -> None:
    body = {
        "prompt": [[5, 6, 7], [8, 9]],
        "n": 2,
        "max_tokens": 4,
        "seed": 1,
        "logprobs": 2,
        "return_token_ids": True,
    }
    reply = (await http.post("/v1/completions", json=body)).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in reply["choices"]] == [[5, 6, 7]] * 2 + [[8, 9]] * 2
    assert all(len(each) == 2 for each in reply["choices"][0]["logprobs"]["top_logprobs"])
    assert reply["usage"]["prompt_tokens"] == 5


async def test_a_required_call_is_opened_and_its_opening_has_the_models_own_probabilities(
    http: httpx.AsyncClient, tiny_model: Path
) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    reply = await say(http, tools=WEATHER, tool_choice=named, max_tokens=30)
    choice = reply.json()["choices"][0]
    prefix = AutoTokenizer.from_pretrained(tiny_model).encode(
        '<tool_call>\n{"name": "get_weather", "arguments":'
    )
    assert choice["token_ids"][: len(prefix)] == prefix
    prompt = [*reply.json()["prompt_token_ids"], *choice["token_ids"]]
    # the same tokens drawn greedily again and again have the same probabilities as those that were read
    scored = await http.post(
        "/v1/completions",
        json={
            "prompt": prompt[:-1],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 0,
            "return_token_ids": True,
        },
    )
    again = scored.json()["choices"][0]
    assert again["token_ids"] == [prompt[-1]]
    last = choice["logprobs"]["content"][-1]["logprob"]
    assert again["logprobs"]["token_logprobs"][0] == pytest.approx(last, abs=1e-4)
    short = await say(http, tools=WEATHER, tool_choice=named, max_tokens=3)
    assert short.json()["choices"][0]["token_ids"] == prefix[:3]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 0.5),
        ("logit_bias", {"5": 1.0}),
        ("min_p", 0.1),
        ("min_tokens", 5),
        ("response_format", {"type": "json_object"}),
        ("n", 500),
    ],
)
async def test_what_tinker_cannot_do_is_refused_and_named(
    http: httpx.AsyncClient, field: str, value: Any
) -> None:
    reply = await say(http, **{field: value})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == field
    assert field == "n" or "this Tinker server" in error["message"]


async def test_what_changes_nothing_is_taken(http: httpx.AsyncClient) -> None:
    neutral = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "min_p": 0,
    }
    assert await ids(http, **neutral) == await ids(http)


# ---- versions


async def test_a_version_that_the_server_has_not_is_refused_and_the_session_stays(
    http: httpx.AsyncClient, server: TinkerServer, tmp_path: Path
) -> None:
    before = (await stats(http))["server"]["sessions"]
    gone = TinkerVersion(sampler_path="tinker://unknown:train:0/sampler_weights/v1", base_model=server.name)
    write_version(tmp_path, gone)
    reply = await http.post("/v1/load_lora_adapter", json={"lora_name": "tiny@1", "lora_path": str(tmp_path)})
    assert reply.status_code == 400
    assert gone.sampler_path in reply.json()["error"]["message"]
    write_version(tmp_path, TinkerVersion(sampler_path=gone.sampler_path, base_model="org/Other"))
    reply = await http.post("/v1/load_lora_adapter", json={"lora_name": "tiny@1", "lora_path": str(tmp_path)})
    assert "of another model" in reply.json()["error"]["message"]
    files = {FILE: (tmp_path / FILE).read_bytes()}
    manifest = build_manifest(files, name="tiny@1", model=ModelDigests(tokenizer="0" * 64))
    (tmp_path / MANIFEST).write_bytes(manifest)
    reply = await http.post("/v1/load_lora_adapter", json={"lora_name": "tiny@1", "lora_path": str(tmp_path)})
    assert "trained for another tokenizer" in reply.json()["error"]["message"]
    write_version(tmp_path, gone)
    reply = await http.post("/v1/load_lora_adapter", json={"lora_name": "tiny@1", "lora_path": str(tmp_path)})
    assert "tinker.json changed" in reply.json()["error"]["message"]
    assert (await stats(http))["server"]["sessions"] == before


# ---- life and death


async def test_a_session_that_the_server_forgot_is_made_anew_unseen(
    http: httpx.AsyncClient, server: TinkerServer, tiny_adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = publish(server, tiny_adapters[0], tmp_path / "v7")
    assert (
        await http.post("/v1/load_lora_adapter", json={"lora_name": "tiny@7", "lora_path": str(folder)})
    ).is_success
    before = [await ids(http, model=name) for name in (POLICY, "tiny@7")]
    sessions = (await stats(http))["server"]["sessions"]
    async with httpx.AsyncClient(base_url=f"{server.url}/api/v1") as tinker:
        for session in (await tinker.get("/sessions")).json()["sessions"]:
            await tinker.post(f"/sessions/{session}/finish")
    assert [await ids(http, model=name) for name in ("tiny@7", POLICY)] == before[::-1]
    assert (await stats(http))["server"]["sessions"] == sessions + 1
    assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "tiny@7"})).is_success


async def test_a_killed_server_is_reported_and_its_successor_serves_the_stored_versions(
    tiny_model: Path, tiny_adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    server = TinkerServer(tiny_model, tmp_path, more=["--token-s", "0.01"]).start()
    folder = publish(server, tiny_adapters[1], tmp_path / "v2")
    try:
        with serving(server, tmp_path) as address:
            async with httpx.AsyncClient(base_url=address, timeout=120) as http:
                load = {"lora_name": "tiny@2", "lora_path": str(folder)}
                assert (await http.post("/v1/load_lora_adapter", json=load)).is_success
                before = [await ids(http, model=name) for name in (POLICY, "tiny@2")]
                waiting = asyncio.create_task(say(http, **ENDLESS))
                streaming = asyncio.create_task(say(http, stream=True, **ENDLESS))
                for _ in range(1200):
                    if (await stats(http))["running"] == 2:
                        break
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(server.kill)
                reply = await waiting
                assert reply.status_code == 503
                assert "is away" in reply.json()["error"]["message"]
                # the head was sent already, so the error is an event of the stream
                *_, last, done = (await streaming).text.strip().split("\n\n")
                assert "is away" in orjson.loads(last.removeprefix("data: "))["error"]["message"]
                assert done == "data: [DONE]"
                assert (await say(http)).status_code == 503
                assert (await http.get("/health")).status_code == 503
                assert "is away" in (await stats(http))["server"]["trouble"]
                assert (await http.get("/v1/models")).is_success  # what it serves is known
                await asyncio.to_thread(server.start)
                for _ in range(600):
                    if (await http.get("/health")).is_success:
                        break
                    await asyncio.sleep(0.1)
                assert [await ids(http, model=name) for name in (POLICY, "tiny@2")] == before
                assert (await stats(http))["server"]["sessions"] == 2
    finally:
        server.stop()


async def test_a_server_that_comes_later_is_waited_for(tiny_model: Path, tmp_path: Path) -> None:
    server = TinkerServer(
        tiny_model, tmp_path, more=["--logprobs", "raw", "--lacks", "prompt_logprobs", "top_logprobs"]
    )
    process = start(server, tmp_path)
    try:
        async with httpx.AsyncClient(base_url=address_of(process), timeout=60) as http:
            for path in ("/health", "/v1/models", "/version"):
                assert (await http.get(path)).status_code == 503
            assert "does not serve yet" in (await say(http)).json()["error"]["message"]
            await asyncio.to_thread(server.start)
            for _ in range(600):
                if (await http.get("/health")).is_success:
                    break
                await asyncio.sleep(0.1)
            # a server with few features: missing ones are refused, and its log-probability mode is unknown
            assert (await http.get("/version")).json()["logprobs_mode"] == "unknown"
            assert await ids(http)
            for refused in ({"top_logprobs": 2}, {"tools": WEATHER, "tool_choice": "required"}):
                assert (await say(http, **refused)).status_code == 400
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        server.stop()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model_name": "Qwen/Qwen3-8B"}, "tokenizer of Qwen/Qwen3-8B cannot be read"),
        (
            {"tinker_model": "Qwen/Qwen3-8B"},
            "--set tinker_model=Qwen/Qwen3-8B: the Tinker server has no such model",
        ),
        ({"tinker_api_key": "sk-1"}, "must begin with tml-"),
    ],
)
def test_a_wrong_setup_ends_the_process_with_a_sentence(
    server: TinkerServer, tmp_path: Path, given: dict[str, str], words: str
) -> None:
    process = start(server, tmp_path, **given)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 2
    assert words in stderr.strip().splitlines()[-1]


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys; import serving.tinker.__main__ as m; m.build_parser().format_help(); "
        "sys.exit('torch' in sys.modules or 'tinker' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, env={**os.environ}, check=False)
    assert done.returncode == 0
