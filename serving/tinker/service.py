"""The connection to a Tinker server, hosted or one's own: where it is, whether anybody is there, and what it calls the model.

Shared by serving and training. The SDK waits 355 s for a server that is down, so everything begins with a probe of our own. `tinker` is
imported inside the functions that need it: it takes seconds and brings torch along.
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

from serving.tinker.names import choose_base_model
from store.errors import ConfigError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from store.settings import Settings, default_environment

if TYPE_CHECKING:
    import tinker

log = logging.getLogger("patina.tinker")

#: Where Tinker is hosted (`tinker.lib.base_url.DEFAULT_BASE_URL` of SDK 0.38, which the probe must not import).
HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
#: Servers of one's own check no key, but the SDK sends none that does not begin like this.
DUMMY_KEY = "tml-self-hosted"
_PREFIXES = ("tml-", "eyJ")  # a key, or a signed token
_PROBE_S = 5.0
_ASK_S, _CLOSE_S = 30.0, 5.0


def base_url(settings: Settings) -> str:
    """Return the server's base URL, without a slash at its end."""
    return settings.tinker_base_url or HOSTED


def api_key(settings: Settings) -> str:
    """Return the key to send.

    Raises:
        ConfigError: there is none and the server is not on this machine, or it is none of Tinker's.
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
        raise ConfigError(f"TINKER_API_KEY is not a key of Tinker's: it has to begin with {_PREFIXES[0]}")
    return key


def address(settings: Settings) -> str:
    """Return the base URL without credentials: what may be shown."""
    parts = urlsplit(base_url(settings))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def probe(settings: Settings, *, timeout_s: float = _PROBE_S) -> float:
    """Ask the server whether it is well; returns the seconds that took. Blocks.

    Raises:
        ConfigError: it refuses our key.
        UpstreamUnreachable, UpstreamTimeout: nobody is there.
        UpstreamError: it is not well, or no Tinker server.
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
                raise UpstreamError(f"what answers at {shown} is no Tinker server", status=404) from exc
            raise UpstreamError(
                f"the Tinker server at {shown} is not well: {exc.code}", status=exc.code
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
        raise UpstreamError(f"what answers at {shown} does not speak HTTP: {type(exc).__name__}") from exc
    return time.monotonic() - began


def connect(settings: Settings, *, timeout_s: float = _PROBE_S) -> tinker.ServiceClient:
    """Return a new client of the server, with a session of its own (made at its first use). Blocks; `close` it when done.

    Telemetry is off unless TINKER_TELEMETRY says otherwise: it would post what goes wrong here to whoever is at the other end.

    Raises:
        ConfigError, UpstreamError: as `probe`.
    """
    key = api_key(settings)
    probe(settings, timeout_s=timeout_s)
    default_environment(TINKER_TELEMETRY="0")
    import tinker

    return tinker.ServiceClient(base_url=base_url(settings), api_key=key, user_metadata={"client": "patina"})


def close(service: tinker.ServiceClient) -> None:
    """End a client's session and its connections; blocks for some seconds at most. A server that is away ends it by itself."""
    import tinker

    try:
        service.close("success").result(timeout=_CLOSE_S)
    except (tinker.TinkerError, TimeoutError, ValueError) as exc:
        log.info("a session at the Tinker server was not closed: %s", exc)


def made(found: Any) -> Any:
    """Return the client itself: what creates clients returns futures of them since SDK 0.38, before the clients. Blocks.

    Raises what the creation raised.
    """
    return found.result() if hasattr(found, "result") else found


def supported_models(settings: Settings) -> tuple[tinker.types.SupportedModel, ...]:
    """Return the models that the server lists; none where it cannot list. Blocks.

    Raises:
        ConfigError, UpstreamError: as `probe`; also when it refuses to tell.
    """
    key = api_key(settings)
    probe(settings)
    default_environment(TINKER_TELEMETRY="0")
    import tinker

    service = tinker.ServiceClient(base_url=base_url(settings), api_key=key)
    try:
        with warnings.catch_warnings():
            # `tinker.RestClient()`, which is to take its place, keeps its connections open for ever.
            warnings.simplefilter("ignore", FutureWarning)
            client = service.create_rest_client()
        return tuple(client.get_server_capabilities().result(timeout=_ASK_S).supported_models)
    except tinker.NotFoundError:
        return ()
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as exc:
        raise ConfigError(f"the Tinker server at {address(settings)} refuses TINKER_API_KEY: {exc}") from exc
    except (tinker.TinkerError, TimeoutError) as exc:
        raise UpstreamError(
            f"the Tinker server at {address(settings)} does not tell its models: {exc}"
        ) from exc
    finally:
        close(service)


def base_model(settings: Settings) -> tuple[str, int | None]:
    """Return the server's name of our base model, and the longest context that it says it has. Blocks.

    Raises:
        ConfigError: it has no such model, with the likely name; or it cannot be trained.
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
