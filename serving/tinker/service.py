"""Access to a Tinker server, hosted or self-hosted: address, key, health, and the name of the base model.

Shared by serving and training. The SDK waits 355 s for a server that is down, so every access begins with a probe. `tinker` is imported inside the
functions that need it: the import takes seconds and imports torch.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import urllib.error
import urllib.request
import warnings
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from serving.tinker.model_names import choose_base_model
from store.errors import ConfigError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from store.settings import Settings, default_environment

if TYPE_CHECKING:
    import tinker

log = logging.getLogger("patina.tinker")

#: URL of hosted Tinker (`tinker.lib.base_url.DEFAULT_BASE_URL` of SDK 0.38, which the probe must not import).
HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
#: Self-hosted servers check no key, but the SDK requires one with this prefix.
DUMMY_KEY = "tml-self-hosted"
_PREFIXES = ("tml-", "eyJ")  # a key, or a signed token
_PROBE_TIMEOUT_S = 5.0
_ASK_S, _CLOSE_S = 30.0, 5.0


def base_url(settings: Settings) -> str:
    """Return the server's base URL, without a trailing slash."""
    return settings.tinker_base_url or HOSTED


def api_key(settings: Settings) -> str:
    """Return the API key.

    Raises:
        ConfigError: there is no key and the server is not on this machine, or it is not a Tinker key.
    """
    key = settings.tinker_api_key
    if not key:
        if not settings.tinker_base_url:
            raise ConfigError(
                "--backend tinker needs TINKER_API_KEY (hosted), or TINKER_BASE_URL (a server of your own)"
            )
        if not _is_loopback(settings.tinker_base_url):
            raise ConfigError(
                f"the Tinker server at {address(settings)} is not on this machine: set TINKER_API_KEY "
                f"(for one that checks no key: {DUMMY_KEY})"
            )
        return DUMMY_KEY
    if not key.startswith(_PREFIXES):
        raise ConfigError(f"TINKER_API_KEY is not a Tinker key: it must begin with {_PREFIXES[0]}")
    return key


def address(settings: Settings) -> str:
    """Return the base URL without credentials, for display."""
    parts = urlsplit(base_url(settings))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def probe(settings: Settings, *, timeout_s: float = _PROBE_TIMEOUT_S) -> float:
    """Check the server's health; returns the response time in seconds. Blocks.

    Raises:
        ConfigError: it refuses the key.
        UpstreamUnreachable, UpstreamTimeout: no server responds.
        UpstreamError: it is unhealthy, or not a Tinker server.
    """
    shown = address(settings)
    request = urllib.request.Request(
        f"{base_url(settings)}/api/v1/healthz", headers={"X-API-Key": api_key(settings)}
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            response.read()
    except urllib.error.HTTPError as exc:
        with exc:
            if exc.code in (401, 403):
                raise ConfigError(
                    f"the Tinker server at {shown} refuses TINKER_API_KEY ({exc.code})"
                ) from exc
            if exc.code == 404:
                raise UpstreamError(f"the server at {shown} is not a Tinker server", status=404) from exc
            raise UpstreamError(
                f"the Tinker server at {shown} is unhealthy: {exc.code}", status=exc.code
            ) from exc
    except urllib.error.URLError as exc:
        if isinstance(exc.reason, TimeoutError):
            raise UpstreamTimeout(
                f"the Tinker server at {shown} did not answer in {timeout_s:.3g} s"
            ) from exc
        reason = exc.reason.strerror if isinstance(exc.reason, OSError) else exc.reason
        raise UpstreamUnreachable(f"no Tinker server answers at {shown}: {reason or exc.reason}") from exc
    except TimeoutError as exc:
        raise UpstreamTimeout(f"the Tinker server at {shown} did not answer in {timeout_s:.3g} s") from exc
    except (HTTPException, OSError, ValueError) as exc:
        raise UpstreamError(f"the server at {shown} does not speak HTTP: {type(exc).__name__}") from exc
    return time.monotonic() - began


def connect(settings: Settings, *, timeout_s: float = _PROBE_TIMEOUT_S) -> tinker.ServiceClient:
    """Return a new client of the server, with its own session (created at first use). Blocks; `close` it after use.

    Telemetry is off unless TINKER_TELEMETRY enables it: it would send errors to the server's operator.

    Raises:
        ConfigError, UpstreamError: as `probe`.
    """
    key = api_key(settings)
    probe(settings, timeout_s=timeout_s)
    default_environment(TINKER_TELEMETRY="0")
    import tinker

    return tinker.ServiceClient(base_url=base_url(settings), api_key=key, user_metadata={"client": "patina"})


def close(service: tinker.ServiceClient) -> None:
    """End a client's session and its connections; blocks for a few seconds at most. An unreachable server ends the session itself."""
    import tinker

    try:
        service.close("success").result(timeout=_CLOSE_S)
    except (tinker.TinkerError, TimeoutError, ValueError) as exc:
        log.info("a session at the Tinker server was not closed: %s", exc)


def made(found: Any) -> Any:
    """Return the client itself: since SDK 0.38, functions that create clients return futures. Blocks.

    Raises what the creation raised.
    """
    return found.result() if hasattr(found, "result") else found


def supported_models(settings: Settings) -> tuple[tinker.types.SupportedModel, ...]:
    """Return the models that the server lists; none if it cannot list them. Blocks.

    Raises:
        ConfigError, UpstreamError: as `probe`; also when the list is refused.
    """
    key = api_key(settings)
    probe(settings)
    default_environment(TINKER_TELEMETRY="0")
    import tinker

    service = tinker.ServiceClient(base_url=base_url(settings), api_key=key)
    try:
        with warnings.catch_warnings():
            # Its replacement, `tinker.RestClient()`, never closes its connections.
            warnings.simplefilter("ignore", FutureWarning)
            client = service.create_rest_client()
        return tuple(client.get_server_capabilities().result(timeout=_ASK_S).supported_models)
    except tinker.NotFoundError:
        return ()
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as exc:
        raise ConfigError(f"the Tinker server at {address(settings)} refuses TINKER_API_KEY: {exc}") from exc
    except (tinker.TinkerError, TimeoutError) as exc:
        raise UpstreamError(
            f"the Tinker server at {address(settings)} does not list its models: {exc}"
        ) from exc
    finally:
        close(service)


def base_model(settings: Settings) -> tuple[str, int | None]:
    """Return the server's name of the base model, and the longest context that it reports. Blocks.

    Raises:
        ConfigError: the server has no such model (names a likely one), or cannot train it.
        UpstreamError: as `supported_models`.
    """
    models = {model.model_name: model for model in supported_models(settings) if model.model_name}
    name = choose_base_model(
        tuple(models),
        wanted=settings.tinker_model,
        given=settings.model_name,
        path=settings.model_path,
        is_same=_is_same_folder,
    )
    found = models.get(name)
    if found is not None and (found.trainable is False or found.sampleable is False):
        missing = "trained" if found.trainable is False else "sampled from"
        raise ConfigError(f"the Tinker server's {name} cannot be {missing}")
    return name, None if found is None else found.max_context_length


def _is_same_folder(one: str, other: str) -> bool:
    try:
        return os.path.isdir(one) and os.path.isdir(other) and os.path.samefile(one, other)
    except OSError:
        return False


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return all(
            info[4][0] in ("::1",) or str(info[4][0]).startswith("127.")
            for info in socket.getaddrinfo(host, None)
        )
    except OSError:
        return False
