"""OpenClaw's configuration with Patina in it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from cli.openclaw import merge, provider
from store.errors import ConfigError
from store.settings import read_settings
from tests.proxy.conftest import KEY, Gateway, empty_record, gateway, record_file, upstream

__all__ = ["empty_record", "gateway", "record_file", "upstream"]  # fixtures

SERVED = {"id": "tiny", "max_model_len": 2048}
FOREIGN = {
    "gateway": {"port": 18789},
    "models": {"providers": {"other": {"baseUrl": "http://other"}}},
    "agents": {"defaults": {"model": {"primary": "other/large", "fallbacks": ["other/small"]}}, "list": [1]},
    "plugins": {"allow": ["other"], "entries": {"other": {"enabled": False}}},
}


@pytest.fixture
def home(gateway: Gateway, tmp_path: Path) -> Path:
    """A home whose newest start serves at the running gateway."""
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    settings = read_settings({
        "home": home, "proxy_host": host, "proxy_port": port, "served_model_name": "tiny", "api_key": KEY,
    })  # fmt: skip
    settings.dump(home / "run" / "settings.json")
    return home


def run(home: Path, config: Path, *more: str) -> int:
    return main(["openclaw", "--home", str(home), "--config", str(config), *more])


def entry(served: dict[str, Any] = SERVED) -> dict[str, Any]:
    return provider("http://here", KEY, served)


def test_the_limits_are_those_of_the_served_model() -> None:
    (model,) = entry()["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("tiny", 2048, 512)
    (model,) = entry({"id": "tiny", "max_model_len": 131_072})["models"]
    assert (model["contextWindow"], model["maxTokens"]) == (131_072, 8192)


def test_keys_of_others_stay(tmp_path: Path) -> None:
    made = merge(FOREIGN, entry(), tmp_path, "http://here", KEY)
    assert made["gateway"] == FOREIGN["gateway"]
    assert set(made["models"]["providers"]) == {"other", "patina"}
    assert made["agents"] == FOREIGN["agents"]  # the default model that is set stays
    assert made["plugins"]["allow"] == ["other", "patina-feedback"]
    assert made["plugins"]["entries"]["other"] == {"enabled": False}
    assert made["plugins"]["entries"]["patina-feedback"]["config"] == {
        "patinaUrl": "http://here",
        "apiKey": KEY,
    }
    assert merge(made, entry(), tmp_path, "http://here", KEY) == made


def test_a_new_configuration_gets_the_default_model(tmp_path: Path) -> None:
    made = merge({}, entry(), tmp_path, "http://here", KEY, telegram="1:token")
    assert made["agents"]["defaults"]["model"] == {"primary": "patina/tiny"}
    assert made["channels"]["telegram"]["dmPolicy"] == "pairing"


@pytest.mark.parametrize("wrong", [{"models": []}, {"plugins": {"load": {"paths": "x"}}}])
def test_what_cannot_be_merged_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in OpenClaw's configuration is not"):
        merge(wrong, entry(), tmp_path, "http://here", KEY)


def test_without_write_only_the_difference_is_shown(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "openclaw.json"
    config.write_text(json.dumps(FOREIGN))
    assert run(home, config) == 0
    shown = capsys.readouterr().out
    assert '+      "patina": {' in shown
    assert KEY not in shown
    assert json.loads(config.read_text()) == FOREIGN


def test_write_keeps_a_backup_and_hides_the_file(home: Path, tmp_path: Path) -> None:
    config = tmp_path / "openclaw.json"
    config.write_text(json.dumps(FOREIGN))
    assert run(home, config, "--write") == 0
    made = json.loads(config.read_text())
    assert made["models"]["providers"]["patina"]["apiKey"] == KEY
    (backup,) = tmp_path.glob("openclaw.json.*.bak")
    assert json.loads(backup.read_text()) == FOREIGN
    assert {stat.S_IMODE(path.stat().st_mode) for path in (config, backup)} == {0o600}
    (plugin,) = made["plugins"]["load"]["paths"]
    assert json.loads((Path(plugin) / "openclaw.plugin.json").read_text())["id"] == "patina-feedback"
    assert run(home, config, "--write") == 0
    assert len(list(tmp_path.glob("*.bak"))) == 1  # nothing changed


def test_another_address_is_asked_and_written_and_an_empty_token_sets_up_no_telegram(
    home: Path, gateway: Gateway, tmp_path: Path
) -> None:
    elsewhere = gateway.url.replace("127.0.0.1", "localhost")
    config = tmp_path / "openclaw.json"
    assert run(home, config, "--write", "--url", elsewhere, "--telegram-token", "") == 0
    made = json.loads(config.read_text())
    assert made["models"]["providers"]["patina"]["baseUrl"] == f"{elsewhere}/v1"
    assert made["plugins"]["entries"]["patina-feedback"]["config"]["patinaUrl"] == elsewhere
    assert "channels" not in made


def test_it_waits_for_a_patina_that_starts(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, hidden = home / "run" / "settings.json", home / "run" / "not-yet.json"
    settings.rename(hidden)
    assert run(home, tmp_path / "openclaw.json", "--wait", "0.01") == 2
    assert "start it first" in capsys.readouterr().err
    monkeypatch.setattr("cli.openclaw.time.sleep", lambda _: hidden.rename(settings))
    assert run(home, tmp_path / "openclaw.json", "--wait", "60") == 0


def test_comments_are_refused_with_the_line(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "openclaw.json"
    config.write_text('{\n  // mine\n  "a": 1,\n}')
    assert run(home, config, "--write") == 2
    assert "is not plain JSON (line 2" in capsys.readouterr().err
    assert "// mine" in config.read_text()


def test_a_home_that_was_never_started_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none", tmp_path / "openclaw.json") == 2
    assert "never started" in capsys.readouterr().err
