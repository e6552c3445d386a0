"""The connection to a Tinker server: each problem is reported at once, in one sentence."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.ports import free_port
from serving.tinker.service import DUMMY_KEY, HOSTED, address, api_key, base_model, base_url, probe
from store.errors import ConfigError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from store.settings import Settings, read_settings
from tests.tinker.running import TinkerServer

pytestmark = pytest.mark.slow


def settings_of(url: str = "", key: str = "") -> Settings:
    return read_settings({"tinker_base_url": url, "tinker_api_key": key})


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[str | None]]]:
    """A server that answers everything with one status; yields its URL and the keys that it was shown."""
    keys: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("X-API-Key"))
            self.send_response(status if self.path == "/base/api/v1/healthz" else 500)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/base", keys
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_key_is_needed_but_for_a_server_on_this_machine() -> None:
    assert (
        api_key(settings_of("http://127.0.0.1:8000"))
        == api_key(settings_of("http://localhost:1"))
        == DUMMY_KEY
    )
    assert api_key(settings_of(key="tml-secret")) == "tml-secret"
    with pytest.raises(ConfigError, match="TINKER_API_KEY"):
        api_key(settings_of())
    with pytest.raises(ConfigError, match="not on this machine"):
        api_key(settings_of("http://192.0.2.7:8000"))
    with pytest.raises(ConfigError, match="begin with tml-") as caught:
        api_key(settings_of(key="sk-secret"))
    assert "sk-secret" not in str(caught.value)


def test_hosted_is_where_the_sdk_says() -> None:
    from tinker.lib.base_url import DEFAULT_BASE_URL

    assert HOSTED == DEFAULT_BASE_URL == base_url(settings_of(key="tml-x"))


def test_an_address_is_shown_without_credentials() -> None:
    assert address(settings_of("https://me:pw@host:8/x")) == "https://host:8/x"


def test_a_server_that_is_well_is_shown_our_key() -> None:
    with answering(200) as (url, keys):
        assert probe(settings_of(url, "tml-mine")) >= 0
    assert keys == ["tml-mine"]


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, ConfigError, "refuses TINKER_API_KEY"),
        (404, UpstreamError, "not a Tinker server"),
        (503, UpstreamError, "unhealthy: 503"),
    ],
)
def test_the_error_quotes_the_servers_answer(status: int, kind: type[Exception], words: str) -> None:
    with answering(status) as (url, _), pytest.raises(kind, match=words):
        probe(settings_of(url))


def test_a_server_that_is_down_is_noticed_at_once() -> None:
    with pytest.raises(UpstreamUnreachable, match="Connection refused"):
        probe(settings_of(f"http://127.0.0.1:{free_port()}"))


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(UpstreamTimeout):
            probe(settings_of(f"http://127.0.0.1:{port}"), timeout_s=0.2)


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    folder = tmp_path_factory.mktemp("tinker")
    made = TinkerServer(tiny_model, folder, name="org/Tiny-1B", more=["--api-key", "tml-right"])
    try:
        yield made.start()
    finally:
        made.stop()


def test_the_models_of_a_real_server_are_compared_with_ours(server: TinkerServer, tiny_model: Path) -> None:
    def found(**more: object) -> tuple[str, int | None]:
        given = {"tinker_base_url": server.url, "tinker_api_key": "tml-right", "model_name": str(tiny_model)}
        return base_model(read_settings({**given, **more}))

    assert found(tinker_model="org/Tiny-1B") == found(model_name="org/Tiny-1B") == ("org/Tiny-1B", 2048)
    with pytest.raises(ConfigError, match="give --set tinker_model=org/Tiny-1B"):
        found(model_name="other/tiny-1b")
    with pytest.raises(ConfigError, match="refuses TINKER_API_KEY"):
        found(tinker_api_key="tml-wrong")
