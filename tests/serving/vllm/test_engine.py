"""vLLM's dialect over HTTP, against a scripted one: what is tried at start, and what counts as ill."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from serving.vllm.engine import VllmBackend
from serving.vllm.model_folder import read_model_facts
from store.errors import AdapterMismatch, UpstreamError
from store.manifest import ADAPTER_CONFIG, MANIFEST, ModelDigests, build_manifest
from store.values import LogprobMode
from tests.fixtures import PATINA_TINY
from tests.proxy.upstream import running

METRICS = b"vllm:num_requests_running 2.0\nprocess_start_time_seconds 1000.0\n"


@dataclass
class FakeVllm:
    """The few paths that matter, with what it lacks."""

    lacks: set[str] = field(default_factory=set)
    health: int = 200
    chats: list[dict[str, Any]] = field(default_factory=list)
    metrics: bytes = METRICS

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        raw = (await receive()).get("body", b"")
        status, body = self.answer(scope["path"], raw)
        head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    def answer(self, path: str, raw: bytes) -> tuple[int, bytes]:
        if path == "/health":
            return self.health, b""
        if path == "/metrics":
            return 200, self.metrics
        if path == "/version":
            return 200, b'{"version": "0.32.0"}'
        if path == "/v1/models":
            return 200, orjson.dumps(
                {"data": [{"id": "tiny", "parent": None}, {"id": "tiny@1", "parent": "tiny"}]}
            )
        if path == "/v1/load_lora_adapter":
            return (404 if "adapters" in self.lacks else 400), b"{}"
        body = orjson.loads(raw)
        self.chats.append(body)
        if ("tools" in body and "tools" in self.lacks) or (
            "response_format" in body and "grammar" in self.lacks
        ):
            return 400, b'{"error": {"message": "\\"auto\\" tool choice requires --enable-auto-tool-choice"}}'
        scale = body.get("temperature", 1.0) if "raw" in self.lacks else 1.0
        top = [
            {"token": t, "bytes": list(t.encode()), "logprob": v}
            for t, v in (("a", -0.02 * scale), ("b", -4.0 / scale), ("c", -6.0 / scale))
        ]
        choice: dict[str, Any] = {"logprobs": {"content": [{**top[0], "top_logprobs": top}]}}
        if "ids" in self.lacks:
            return 200, orjson.dumps({"choices": [choice]})
        prompt = [1, 2] if "tools" in body and "template" not in self.lacks else [1]
        return 200, orjson.dumps({"choices": [{**choice, "token_ids": [7]}], "prompt_token_ids": prompt})


async def test_what_it_can_do_is_tried_once_for_each_of_its_lives() -> None:
    server = FakeVllm()
    with running(server) as url:
        engine = VllmBackend(url, facts=replace(read_model_facts(str(PATINA_TINY)), temperature=0.6), slots=4)
        found = await engine.capabilities()
        assert (found.token_ids, found.logprobs, found.adapters, found.tools, found.constrained) == (
            True,
        ) * 5
        assert (found.logprob_mode, found.default_temperature) == (LogprobMode.RAW, 0.6)
        assert (found.engine, found.adapter_slots, found.notes) == ("vLLM 0.32.0", 4, ())
        count = len(server.chats)
        assert all(chat["max_tokens"] == 1 and chat["model"] == "tiny" for chat in server.chats)
        assert await engine.capabilities() == found
        assert len(server.chats) == count
        server.metrics = METRICS.replace(b"1000.0", b"2000.0")  # another process now
        await engine.capabilities()
        assert len(server.chats) == 2 * count
        assert await engine.activity() == {"running": 2.0}
        await engine.close()


@pytest.mark.parametrize(
    ("lack", "field_name", "note"),
    [
        ("adapters", "adapters", "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        ("tools", "tools", "--enable-auto-tool-choice"),
        ("template", "tools", "shows no tools"),
        ("ids", "token_ids", "return_token_ids"),
        ("grammar", "constrained", ""),
    ],
)
async def test_missing_features_are_declared_with_a_remedy(lack: str, field_name: str, note: str) -> None:
    with running(FakeVllm(lacks={lack})) as url:
        engine = VllmBackend(url)
        found = await engine.capabilities()
        assert getattr(found, field_name) is False
        assert note in " ".join(found.notes)
        assert bool(found.notes) is bool(note)
        await engine.close()


async def test_logprobs_of_an_unknown_kind_are_reported() -> None:
    with running(FakeVllm(lacks={"raw"})) as url:
        engine = VllmBackend(url)
        found = await engine.capabilities()
        assert found.logprob_mode is not LogprobMode.RAW
        await engine.close()


async def test_a_dead_engine_lists_its_models_and_is_ill_all_the_same() -> None:
    server = FakeVllm(health=503)
    with running(server) as url:
        engine = VllmBackend(url)
        with pytest.raises(UpstreamError, match="/health answered 503") as caught:
            await engine.models()
        assert caught.value.status == 503
        assert not await engine.is_healthy()
        server.health = 200
        assert [m.name for m in await engine.models()] == ["tiny", "tiny@1"]
        await engine.close()


async def test_an_adapter_that_is_not_what_its_manifest_says_is_not_handed_to_vllm(tmp_path: Path) -> None:
    files = {ADAPTER_CONFIG: b"{}"}
    manifest = build_manifest(files, name="tiny@2", model=ModelDigests(base_model="0" * 64))
    for name, body in {**files, MANIFEST: manifest}.items():
        (tmp_path / name).write_bytes(body)
    engine = VllmBackend("http://127.0.0.1:9", facts=read_model_facts(str(PATINA_TINY)))  # nothing listens
    with pytest.raises(AdapterMismatch, match="for another base model"):
        await engine.load_adapter("tiny@2", str(tmp_path))
    (tmp_path / ADAPTER_CONFIG).write_bytes(b"{ }")
    with pytest.raises(AdapterMismatch, match=r"adapter_config\.json changed"):
        await engine.load_adapter("tiny@2", str(tmp_path))
    await engine.close()
