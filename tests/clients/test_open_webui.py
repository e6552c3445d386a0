"""Open WebUI's server from its package: a chat by its API, and its thumbs, which become feedback on the turn that was rated."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scorers.open_webui import fetch_ratings, take_ratings
from store.settings import child_environment
from tests.clients.backend import ClientBackend
from tests.clients.packages import pip
from tests.proxy.conftest import KEY, Gateway, run_gateway_at, score
from tests.proxy.upstream import free_socket, running
from tests.waiting import stop, until

PACKAGES = ("torch==2.13.0+cpu", "open-webui==0.12.4")
KEY_NAME = "default"

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.long_run, pytest.mark.timeout(1200)]


@contextmanager
def running_open_webui(folder: Path, patina_url: str) -> Iterator[httpx.Client]:
    """Run the server, and yield a client of its first administrator."""
    python = pip(*PACKAGES)
    listener = free_socket()
    port = listener.getsockname()[1]
    listener.close()
    log = folder / "open-webui.log"
    environment = child_environment(
        PYTHONPATH="", HOME=str(folder), DATA_DIR=str(folder / "data"), OFFLINE_MODE="True", HF_HUB_OFFLINE="1",
        ENABLE_OLLAMA_API="False", RAG_EMBEDDING_ENGINE="openai", OPENAI_API_BASE_URL=f"{patina_url}/v1",
        OPENAI_API_KEY=KEY, ENABLE_VERSION_UPDATE_CHECK="False",
    )  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(python), "-c", "from open_webui import app; app()", "serve", "--host", "127.0.0.1", "--port", str(port)],
            env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:

                def is_up() -> bool:
                    assert process.poll() is None, log.read_text()[-4000:]
                    try:
                        return client.get("/health").status_code == 200
                    except httpx.TransportError:
                        return False

                until(is_up, "Open WebUI's start", 400)
                person = {"name": "Ann", "email": "ann@example.org", "password": "Patina-test-1"}
                signed_up = client.post("/api/v1/auths/signup", json=person).raise_for_status().json()
                client.headers["authorization"] = f"Bearer {signed_up['token']}"
                yield client
        finally:
            stop(process)


@pytest.fixture
def gateway(record_file: Path) -> Iterator[Gateway]:
    backend = ClientBackend()
    with running(backend) as url, run_gateway_at(url, backend, record_file) as made:
        yield made


def converse(client: httpx.Client, texts: list[str]) -> dict[str, Any]:
    """Talk by the API, and keep the chat as the page does; returns the stored chat."""
    messages: list[dict[str, Any]] = []
    history: dict[str, Any] = {}
    for text in texts:
        messages.append({"role": "user", "content": text})
        body = {"model": "tiny", "messages": messages, "stream": False}
        reply = client.post("/api/chat/completions", json=body).raise_for_status().json()
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
    for place, message in enumerate(messages):
        parent = f"m{place - 1}" if place else None
        history[f"m{place}"] = {
            **message,
            "id": f"m{place}",
            "parentId": parent,
            "timestamp": int(time.time()),
        }
    chat = {
        "title": "c",
        "models": ["tiny"],
        "history": {"messages": history, "currentId": f"m{len(messages) - 1}"},
    }
    made: dict[str, Any] = client.post("/api/v1/chats/new", json={"chat": chat}).raise_for_status().json()
    return made


def test_thumbs_are_feedback_on_the_rated_turn(gateway: Gateway, tmp_path: Path) -> None:
    with running_open_webui(tmp_path, gateway.url) as client:
        first = converse(client, ["What is the capital of Norway?", "And of Peru?"])
        converse(client, ["Name a colour."])  # newer than what is rated
        rating = {
            "type": "rating",
            "data": {
                "rating": -1,
                "model_id": "tiny",
                "reason": "too_verbose",
                "comment": "Answer shorter, please",
            },
            "meta": {"model_id": "tiny", "message_id": "m1", "chat_id": first["id"]},
            "snapshot": {"chat": client.get(f"/api/v1/chats/{first['id']}").raise_for_status().json()},
        }
        made = client.post("/api/v1/evaluations/feedback", json=rating).raise_for_status().json()
        token = client.headers["authorization"].removeprefix("Bearer ")

        def take() -> int:
            items = fetch_ratings(str(client.base_url), token)
            count: int = gateway.in_record(lambda record: take_ratings(record, items, KEY_NAME))
            return count

        def verdicts() -> dict[str, int | None]:
            gateway.in_record(score)
            return {row["messages"][-1]["content"]: row["verdict"] for row in gateway.rows(3)}

        assert (take(), take()) == (1, 0)
        rows = gateway.rows(3)
        assert [row["relation"] for row in rows] == ["first", "next", "first"]
        assert {row["kind"] for row in rows} == {"main"}
        found = verdicts()
        assert found["What is the capital of Norway?"] == -1
        assert found["Name a colour."] is None
        assert "shorter" in gateway.rows(3)[0]["hint"]
        rating["data"] = {"rating": 1, "model_id": "tiny"}
        client.post(f"/api/v1/evaluations/feedback/{made['id']}", json=rating).raise_for_status()
        assert take() == 1
        assert verdicts()["What is the capital of Norway?"] == 1
        client.delete(f"/api/v1/evaluations/feedback/{made['id']}").raise_for_status()
        assert take() == 1
        assert verdicts()["What is the capital of Norway?"] == 0
