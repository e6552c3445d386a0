"""`run.py openclaw`: Patina as a model provider of OpenClaw, and the feedback plugin.

What Patina sets is merged into an existing configuration; other keys stay. Context and output limits are those of the served model.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

from cli.live import get_json, key_of
from store.errors import ConfigError
from store.keys import write_secret
from store.settings import Settings
from store.values import Json

PROVIDER = "patina"
PLUGIN = "patina-feedback"
_SOURCE = Path(__file__).parent.parent / "plugins" / PLUGIN
#: Of a backend that does not say its limit; OpenClaw's own prompt is about 27,000 tokens.
_DEFAULT_CONTEXT = 32_768
_POLL_S = 1.0


def openclaw(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print what would change in OpenClaw's configuration, or write it and copy the plugin."""
    path: Path = arguments.config.expanduser()
    running, served = _ask(settings, arguments.url or "", arguments.wait)
    before, text = _read(path)
    plugin = path.parent / "patina" / PLUGIN
    key = key_of(running)
    url = arguments.url or running.gateway_url
    after = merge(before, provider(url, key, served), plugin, url, key, telegram=arguments.telegram_token)
    if after == before:
        print(f"{path} is up to date")
    elif not arguments.write:
        print(difference(before, after, path, [key, *filter(None, [arguments.telegram_token])]), end="")
        print("\nwith --write this is written (the present file stays as a backup)")
        return 0
    if arguments.write:
        _write(path, text, before, after)
        shutil.copytree(_SOURCE, plugin, dirs_exist_ok=True)
        print(f"the plugin is in {plugin}; restart the gateway: openclaw gateway restart")
    return 0


def _write(path: Path, text: str | None, before: Json, after: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if after == before:
        return
    if text is not None:
        backup = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
        write_secret(backup, text)
        print(f"backup: {backup}")
    write_secret(path, json.dumps(after, indent=2, ensure_ascii=False) + "\n")
    print(f"written: {path}")


def _read(path: Path) -> tuple[Json, str | None]:
    """Return the present configuration and its text; an empty one where there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}, None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc
    try:
        found = json.loads(text)
    except json.JSONDecodeError as exc:
        raise ConfigError(
            f"{path} is not plain JSON (line {exc.lineno}: {exc.msg}). Comments and trailing commas, which OpenClaw accepts, would be lost "
            "here: remove them, or add by hand what this command prints with --config NEW.json"
        ) from exc
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return found, text


def _ask(settings: Settings, url: str, wait_s: float) -> tuple[Settings, Json]:
    """Return the settings of the newest start, and the served model as the running proxy describes it."""
    end = time.monotonic() + wait_s
    while True:
        try:
            running = _started(settings)
            return running, _served(running, url)
        except ConfigError:
            if time.monotonic() >= end:
                raise
        time.sleep(_POLL_S)


def _started(settings: Settings) -> Settings:
    try:
        return Settings.load(settings.home / "run" / "settings.json")
    except ConfigError:
        raise ConfigError("Patina was never started on this home: start it first") from None


def _served(running: Settings, url: str) -> Json:
    answer = get_json(running, "/v1/models", url)
    models = answer.get("data") if isinstance(answer, dict) else None
    if not models:
        raise ConfigError(f"{url or running.gateway_url}/v1/models lists no model")
    found: Json = next((one for one in models if one.get("id") == running.policy), models[0])
    return found


def provider(url: str, key: str, served: Json) -> Json:
    """Return the provider's entry; the limits are those of the served model."""
    context = int(served.get("max_model_len") or _DEFAULT_CONTEXT)
    return {
        "baseUrl": f"{url}/v1",
        "apiKey": key,
        "api": "openai-completions",
        "models": [
            {
                "id": served["id"],
                "name": f"Patina ({served['id']})",
                "reasoning": False,
                "input": ["text"],
                "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                "contextWindow": context,
                "maxTokens": min(8192, max(1, context // 4)),
            }
        ],
    }


def merge(
    config: Json, entry: Json, plugin: Path, url: str, key: str, *, telegram: str | None = None
) -> Json:
    """Return the configuration with Patina in it. Other keys stay as they are; a default model that is set stays.

    Raises:
        ConfigError: a key holds something else than an object or a list.
    """
    made: Json = json.loads(json.dumps(config))
    models = _object(made, "models")
    models.setdefault("mode", "merge")
    _object(made, "models", "providers")[PROVIDER] = entry
    name = f"{PROVIDER}/{entry['models'][0]['id']}"
    defaults = _object(made, "agents", "defaults")
    if isinstance(defaults.get("model"), str):
        defaults["model"] = {"primary": defaults["model"]}
    model = _object(made, "agents", "defaults", "model")
    present = model.get("primary")
    if present is None or str(present).startswith(f"{PROVIDER}/"):
        model["primary"] = name
    loaded = _object(made, "plugins", "load").setdefault("paths", [])
    if not isinstance(loaded, list):
        raise ConfigError("plugins.load.paths in OpenClaw's configuration is not a list")
    if str(plugin) not in loaded:
        loaded.append(str(plugin))
    allowed = _object(made, "plugins").get("allow")
    if isinstance(allowed, list) and PLUGIN not in allowed:
        allowed.append(PLUGIN)
    own = _object(made, "plugins", "entries", PLUGIN)
    own["enabled"] = True
    _object(own, "hooks")["allowConversationAccess"] = True
    _object(own, "config").update(patinaUrl=url, apiKey=key)
    if telegram:
        channel = _object(made, "channels", "telegram")
        channel.update(enabled=True, botToken=telegram)
        channel.setdefault("dmPolicy", "pairing")
        channel.setdefault("groups", {"*": {"requireMention": True}})
        channel.setdefault("reactionNotifications", "own")
    return made


def _object(config: Json, *names: str) -> Json:
    """Return a nested object, which is made where it is missing."""
    here: Any = config
    for position, name in enumerate(names):
        here = here.setdefault(name, {})
        if not isinstance(here, dict):
            raise ConfigError(
                f"{'.'.join(names[: position + 1])} in OpenClaw's configuration is not an object"
            )
    found: Json = here
    return found


def difference(before: Json, after: Json, path: Path, secrets: list[str]) -> str:
    """Return a unified difference without the secrets."""
    old, new = (json.dumps(one, indent=2, ensure_ascii=False).splitlines(True) for one in (before, after))
    text = "".join(difflib.unified_diff(old, new, str(path), f"{path} with Patina"))
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    hidden: str = re.sub(r'("(?:\w*[tT]oken|apiKey|password|secret)": ")[^"]+', r"\1***", text)
    return hidden
