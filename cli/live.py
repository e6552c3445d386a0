"""The status that the running proxy reports, also while the record cannot be read."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from store.errors import ConfigError
from store.settings import Settings
from store.texts import counted
from store.values import AdapterVersion, Json

_NOT_LEARNING = (
    "not learning: another server serves the model (--upstream). Turns are recorded, scored and exported (trajectories --format preferences). To "
    "learn, Patina needs token ids, log-probabilities and LoRA adapters at runtime: --backend vllm (also with --upstream), tinker or embedded"
)
#: The proxy gives its record two seconds before it answers without it; a crowded machine needs longer. A refused connection is reported at once.
_TIMEOUT_S = 20.0


def ask_proxy(settings: Settings) -> Json | None:
    """Return ``/v1/patina/status`` of the proxy that runs on this home; None when none answers.

    Args:
        settings: of the home; the address and the key are those of the newest start.
    """
    try:
        running = Settings.load(settings.home / "run" / "settings.json")
    except ConfigError:
        return None  # nothing was ever started here
    try:
        found = get_json(running, "/v1/patina/status")
    except ConfigError:
        return None
    # Another program may have taken the port since.
    return found if isinstance(found, dict) and isinstance(found.get("store"), dict) else None


def get_json(running: Settings, path: str, url: str = "") -> Any:
    """Return what the running proxy answers, at its own address or another. Raises: ConfigError: it does not, or with an error, which is repeated."""
    return _exchange(running, path, url or running.gateway_url, None, {}, _TIMEOUT_S)


def post_json(
    running: Settings, path: str, body: Json, headers: Mapping[str, str], *, timeout_s: float
) -> Any:
    """Return what the running proxy answers to ``body``. Raises: ConfigError: as `get_json`."""
    return _exchange(running, path, running.gateway_url, json.dumps(body).encode(), headers, timeout_s)


def _exchange(
    running: Settings, path: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> Any:
    request = urllib.request.Request(f"{url}{path}", body, {"content-type": "application/json", **headers})
    if key := key_of(running):
        request.add_header("x-patina-key", key)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a web proxy
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as exc:
        raise ConfigError(f"{url}{path} answered {exc.code}: {_message_of(exc)}") from exc
    except (OSError, ValueError, http.client.HTTPException) as exc:  # urllib's errors are OSErrors
        raise ConfigError(f"no Patina answers at {url}: start it first ({exc})") from exc


def _message_of(error: urllib.error.HTTPError) -> str:
    """Return the message of an OpenAI error, or the status in words."""
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.reason


def key_of(running: Settings) -> str:
    if running.api_key is not None:
        return running.api_key
    try:
        return running.key_file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def is_in_trouble(store: Json) -> bool:
    """Whether the running Patina cannot write what it is given."""
    return bool(
        store["last_error"]
        or store["journal_error"]
        or store["lost"]
        or store["rejected"]
        or store["state"] == "stopped"
    )


def store_line(store: Json, not_captured: Json | None = None) -> str:
    """Return the state of journal and recorder in one line, e.g. "store: away (database is locked) · 8 waiting turns, the oldest for 3.1 s"."""
    why = store["last_error"] or ("no recorder runs" if store["state"] == "stopped" else "")
    parts = [f"store: {store['state']}" + (f" ({why})" if why else "")]
    if store["lag_turns"]:
        parts.append(f"{counted(store['lag_turns'], 'waiting turn')}, the oldest for {store['lag_s']:.1f} s")
    if store["journal_bytes"]:
        parts.append(f"{counted(store['journal_bytes'], 'byte')} in the journal")
    if store["journal_error"]:
        parts.append(
            f"the journal cannot be written ({store['journal_error']}): {counted(store['in_memory'], 'turn')} in memory only"
        )
    counts = ((store["rejected"], "cannot be recorded"), (store["lost"], "LOST"))
    parts += [f"{count} {what}" for count, what in counts if count]
    parts += [f"the last: {last}" for last in (store["last_loss"], store["last_rejected"]) if last]
    parts += [f"{count} passed on unread: {why}" for why, count in (not_captured or {}).items()]
    return " · ".join(parts)


_API_NAMES = {"chat": "chat", "responses": "Responses", "messages": "Messages", "completions": "completions"}


def traffic_lines(proxy: Json) -> list[str]:
    """Return what `status` says about requests by API: those translated to chat, and those that are not recorded."""
    lines = []
    if proxy.get("is_local") is False:
        lines.append(_NOT_LEARNING)
    apis: Json = proxy.get("recorded_by_api") or {}
    if set(apis) - {"chat"}:
        counts = " · ".join(f"{count} {_API_NAMES.get(name, name)}" for name, count in apis.items())
        lines.append(f"requests: {counts} (Responses and Messages are translated to chat)")
    paths: Json = proxy.get("unrecorded_by_path") or {}
    if paths:
        counts = " · ".join(f"{count} to {path}" for path, count in sorted(paths.items()))
        native = ", native_apis is on" if proxy.get("native_apis") else ""
        lines.append(f"forwarded and not recorded: {counts}{native}")
    backend: Json = proxy.get("backend") or {}
    lines += [f"the backend: {note}" for note in (backend.get("capabilities") or {}).get("notes") or ()]
    activity: Json = backend.get("activity") or {}
    if activity.get("unread_tools"):
        requests = counted(activity["unread_tools"], "request")
        lines.append(f"tools that the model did not see: in {requests}; {activity['tools']}")
    tools: Json = proxy.get("tools_left_out") or {}
    if tools:
        counts = ", ".join(f"{name} in {counted(count, 'request')}" for name, count in sorted(tools.items()))
        lines.append(f"hosted tools that were left out: {counts}")
    return lines


def version_lines(proxy: Json | None, refused: Sequence[AdapterVersion]) -> list[str]:
    """Return what `status` says about versions that an engine does not serve as the trainer made them.

    Args:
        proxy: of the running gateway; None: none runs.
        refused: refused versions, of any policy.
    """
    attested: Json = {} if proxy is None else proxy["backend"].get("attested") or {}
    return [f"{adapter.name} is refused: {adapter.reason}" for adapter in refused] + [
        f"{name} is {outcome}" for name, outcome in sorted(attested.items())
    ]
