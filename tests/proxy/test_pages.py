"""The web page behind the gateway's port: forwarded as it is, redirects and cookies included; where there is none, its paths are 404."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.http import HttpBackend
from serving.ports import free_port
from store.values import Heartbeat, Json
from tests.proxy.conftest import KEY, Gateway, run_gateway_at
from tests.proxy.upstream import Upstream, running


class Pages:
    """Answers as the page's process does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[bytes, bytes], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = (await receive()).get("body", b"") if scope["method"] == "POST" else b""
        path = scope["raw_path"].decode() + (
            f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        )
        self.seen.append((scope["method"], path, dict(scope["headers"]), body))
        status = 303 if scope["method"] == "POST" else 200
        headers = [(b"location", b"/dashboard/versions"), (b"set-cookie", b"a=b"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


def test_pages_get_cookies_and_credentials_and_their_redirects_come_back(
    upstream: Upstream, record_file: Path
) -> None:
    pages = Pages()
    with (
        running(upstream) as url,
        running(pages) as page_url,
        run_gateway_at(url, upstream, record_file, pages=HttpBackend(page_url, speaks_vllm=False)) as gateway,
        httpx.Client(base_url=gateway.url) as browser,
    ):
        headers = {"cookie": "patina_session=x", "authorization": "Bearer y", "x-patina-key": "z"}
        posted = browser.post("/dashboard/rollback", data={"version": "0"}, headers=headers)
        assert (posted.status_code, posted.headers["location"]) == (303, "/dashboard/versions")
        assert posted.headers["set-cookie"] == "a=b"
        for path in (
            "/dashboard", "/dashboard/turns/a%20b?x=1", "/v1/dashboard?page=2", "/metrics",
        ):  # fmt: skip
            assert browser.get(path).text == "ok"
        for base in ("/", "/v1", "/v1/"):
            led = browser.get(base, headers={"accept": "text/html"})
            assert (led.status_code, led.headers["location"]) == (303, "/dashboard")
        assert browser.get("/").json()["name"] == "patina"
        assert browser.get("/v1").status_code == 401
    method, path, sent, body = pages.seen[0]
    assert (method, path, body) == ("POST", "/dashboard/rollback", b"version=0")
    assert (sent[b"cookie"], sent[b"authorization"]) == (b"patina_session=x", b"Bearer y")
    assert sent[b"x-patina-key"] == b"z"  # beside it, the Bearer token may be for the backend
    assert [one[1] for one in pages.seen[1:]] == [
        "/dashboard", "/dashboard/turns/a%20b?x=1", "/v1/dashboard?page=2", "/metrics",
    ]  # fmt: skip


def test_a_page_whose_process_does_not_listen_yet_is_busy(upstream: Upstream, record_file: Path) -> None:
    pages = HttpBackend(f"http://127.0.0.1:{free_port()}", speaks_vllm=False)
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, pages=pages) as gateway,
    ):
        for path in ("/dashboard", "/metrics"):
            reply = httpx.get(gateway.url + path)
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert "web page" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/try"])
def test_without_a_page_its_paths_are_not_found(gateway: Gateway, path: str) -> None:
    key = {"authorization": f"Bearer {KEY}"}
    assert httpx.get(gateway.url + path, headers=key).status_code == 404
    assert httpx.get(gateway.url + "/", headers={"accept": "text/html"}).json()["name"] == "patina"


def test_health_names_what_does_not_work(gateway: Gateway) -> None:
    for path in ("/health", "/v1/health"):
        found = httpx.get(gateway.url + path).json()
        assert found == {"status": "healthy", "worker": {"status": "none", "error": None}}


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({"at": 0.0}, "the recorder does not run"),
        ({"at": 1e12, "last_error": "disk full"}, "the record cannot be written"),
    ],
)
def test_health_names_a_recorder_that_does_not_work(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, state: Json, error: str
) -> None:
    monkeypatch.setattr("proxy.app.read_recorder_state", lambda folder: state)
    runs = Heartbeat(process="supervisor", pid=1, state="running", detail={"recorder": {}}, at=time.time())
    gateway.in_record(lambda record: record.heartbeat(runs))
    found = httpx.get(gateway.url + "/health").json()
    assert found == {"status": "degraded", "worker": {"status": "none", "error": error}}
