"""What `status` says about requests by API and path, and about versions; what a command says of a gateway that answers with an error."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from cli.live import get_json, traffic_lines, version_lines
from serving.ports import free_port
from store.errors import ConfigError
from store.settings import read_settings
from store.values import AdapterState, AdapterVersion
from tests.proxy.upstream import free_socket, running


def test_only_chat_needs_no_line() -> None:
    assert traffic_lines({"recorded_by_api": {"chat": 3}, "unrecorded_by_path": {}}) == []


def test_an_endpoint_of_others_is_named_with_what_learning_needs() -> None:
    (line,) = traffic_lines({"is_local": False})
    assert line.startswith("not learning: another server serves the model (--upstream)")
    assert "--backend vllm" in line


def test_translated_and_forwarded_requests_are_counted() -> None:
    proxy = {
        "recorded_by_api": {"chat": 3, "responses": 2, "messages": 1},
        "unrecorded_by_path": {"/v1/embeddings": 4, "/v1/audio/speech": 1},
        "tools_left_out": {"web_search": 2},
        "backend": {
            "capabilities": {"notes": ["the model's chat template shows no tools"]},
            "activity": {"unread_tools": 1, "tools": "its chat template shows none"},
        },
        "native_apis": True,
    }
    assert traffic_lines(proxy) == [
        "requests: 3 chat · 2 Responses · 1 Messages (Responses and Messages are translated to chat)",
        "forwarded and not recorded: 1 to /v1/audio/speech · 4 to /v1/embeddings, native_apis is on",
        "the backend: the model's chat template shows no tools",
        "tools that the model did not see: in 1 request; its chat template shows none",
        "hosted tools that were left out: web_search in 2 requests",
    ]


def test_a_refused_version_and_the_outcome_of_attestation_are_shown() -> None:
    refused = AdapterVersion(
        policy="mine", version=4, path="", content_hash="", parent_version=3, state=AdapterState.REFUSED,
        reason="the backend serves the base model", method="combine", metrics={}, created_at=0.0,
    )  # fmt: skip
    proxy = {"backend": {"attested": {"mine@3": "attested: log-probabilities differ by 0.0001 at most"}}}
    assert version_lines(proxy, [refused]) == [
        "mine@4 is refused: the backend serves the base model",
        "mine@3 is attested: log-probabilities differ by 0.0001 at most",
    ]
    assert version_lines(None, []) == version_lines({"backend": {}}, []) == []


def test_an_error_of_the_running_gateway_is_repeated(tmp_path: Path) -> None:
    port = free_port()
    settings = read_settings({"home": tmp_path, "proxy_port": port, "api_key": "k"})
    with pytest.raises(ConfigError, match=r"no Patina answers at .*: start it first"):
        get_json(settings, "/v1/models")
    body = {"error": {"message": "cannot connect to http://127.0.0.1:9"}}

    async def gateway(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 502, "headers": []})
        found = orjson.dumps(body) if scope["path"] == "/v1/models" else b"down"
        await send({"type": "http.response.body", "body": found})

    with running(gateway, free_socket(port)):
        with pytest.raises(
            ConfigError, match=r"/v1/models answered 502: cannot connect to http://127\.0\.0\.1:9$"
        ):
            get_json(settings, "/v1/models")
        with pytest.raises(ConfigError, match=r"/v1/x answered 502: "):
            get_json(settings, "/v1/x")
