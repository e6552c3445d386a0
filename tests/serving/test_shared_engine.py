"""Two homes on one engine: neither sees, overwrites or unloads the other's adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.adapters import AdapterAlias
from serving.backends import engine_tag, make_backend_client
from serving.http import HttpBackend
from store.settings import Settings, read_settings
from tests.fixtures import PATINA_TINY
from tests.proxy.upstream import Upstream, running

NAME = "tiny@1"


def settings_of(home: Path, url: str) -> Settings:
    home.mkdir(exist_ok=True)
    return read_settings({"home": home, "upstream": url, "backend": "vllm", "model_name": str(PATINA_TINY)})


async def names(backend: HttpBackend) -> set[str]:
    return {model.name for model in await backend.models() if model.parent is not None}


async def test_two_homes_load_and_unload_the_same_version_beside_each_other(tmp_path: Path) -> None:
    engine = Upstream()
    with running(engine) as url:
        tags = [engine_tag(settings_of(tmp_path / home, url)) for home in ("a", "b")]
        homes = [HttpBackend(url, tag=tag) for tag in tags]
        old = HttpBackend(url)
        try:
            for number, home in enumerate(homes):
                assert await names(home) == set()
                await home.load_adapter(NAME, str(tmp_path / f"adapter-{number}"))
            await old.load_adapter("tiny@2", str(tmp_path / "old"))
            assert engine.adapters.keys() == {*(NAME + tag for tag in tags), "tiny@2"}
            assert [await names(home) for home in homes] == [{NAME}, {NAME}]
            await homes[0].unload_adapter(NAME)
            assert [await names(home) for home in homes] == [set(), {NAME}]
            assert "tiny@2" in engine.adapters
        finally:
            for home in (*homes, old):
                await home.close()


def test_a_home_keeps_its_tag_and_needs_none_on_its_own_engine(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    tag = engine_tag(settings_of(tmp_path / "a", url))
    assert tag == engine_tag(settings_of(tmp_path / "a", url)) != engine_tag(settings_of(tmp_path / "b", url))
    assert len(tag) == 9
    own = read_settings({"home": tmp_path / "c", "backend": "vllm", "model_name": str(PATINA_TINY)})
    assert engine_tag(own) == ""
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["engine-tag"]


@pytest.mark.parametrize("tag", ["", ".0a1b2c3d"])
def test_requests_name_the_version_as_the_engine_does(tag: str, tmp_path: Path) -> None:
    backend = make_backend_client(
        settings_of(tmp_path / "a", "http://127.0.0.1:9"), ["http://127.0.0.1:9"], is_local=True
    )
    alias = AdapterAlias(backend, "tiny", lambda: None, engine_tag=tag)
    assert alias._lease_of("tiny", 1, "").name == NAME + tag
    assert alias._lease_of("tiny", 0, "").name is None
