"""The proxy process: ``python -m proxy --settings PATH [--backend-url URL]``.

A wrong set-up ends the process with one sentence on stderr and exit code 2. At SIGTERM the process waits a bounded time for requests in
flight, appends what still waits in memory to the journal, and exits with code 0, or with 1 when something was lost.
"""

from __future__ import annotations

import argparse
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from proxy.app import Proxy
from proxy.backend_quirks import BackendQuirks
from proxy.cors import CorsPolicy
from proxy.heap import map_large_blocks
from proxy.http_protocol import LimitedHttpProtocol
from proxy.prompt_wishes import read_placement
from proxy.relay import BACKEND_WAIT_S
from proxy.version_locks import VersionLocks
from serving.backends import VLLM_BACKEND_WAIT_S, engine_tag, make_backend_client
from serving.http import HttpBackend
from serving.openai_server.quiet_server import QuietServer
from serving.ports import bind, listen
from serving.protocol import BackendClient
from store.calibration import FILE
from store.errors import ConfigError, RecordError
from store.journal import JournalWriter
from store.record import Record
from store.settings import Settings, ensure_api_key, open_keyring
from store.values import gateway_name

#: Time that requests in flight have to finish after SIGTERM.
GRACE_S = 10

#: Longest wait for another process's write; after that the write counts as failed in `status` and is retried.
_BUSY_S = 1.0

#: Longer than clients keep idle connections, so that a client never sends into a connection that is being closed.
_KEEP_ALIVE_S = 75
_OPTION = "--proxy-port"
_OPEN_FILES = 1 << 16


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m proxy", description="The OpenAI-compatible proxy that records every turn."
    )
    parser.add_argument("--settings", type=Path, required=True, help="settings file written by run.py")
    parser.add_argument(
        "--backend-url",
        action="append",
        default=[],
        help="base URL of the backend that learns, repeated for its copies; default: the setting `upstream`",
    )
    parser.add_argument(
        "--dashboard-url", default="", help="base URL of the process of the web page; default: none"
    )
    parser.add_argument(
        "--worker",
        type=int,
        default=1,
        help="number of this gateway, of those that share the port (default: 1)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0 after a clean end, 1 after a crash or a loss, 2 after a failed start."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s proxy %(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings.load(arguments.settings)
        urls: list[str] = arguments.backend_url or [settings.upstream]
        if not urls[0]:
            raise ConfigError("no backend is configured: set --backend-url, or --upstream in the settings")
        is_local = bool(arguments.backend_url)
        backend = make_backend_client(settings, urls, is_local=is_local)
        key, _ = ensure_api_key(settings)
        listener = bind(
            settings.proxy_host, settings.proxy_port, option=_OPTION, is_shared=settings.workers > 1
        )
        listen(listener, backlog=2048, option=_OPTION)
    except (ConfigError, RecordError) as exc:
        print(f"proxy: {exc}", file=sys.stderr)
        return 2
    allow_connections()
    map_large_blocks()
    return serve(
        settings,
        listener,
        backend,
        key,
        is_local=is_local,
        worker=arguments.worker,
        dashboard_url=arguments.dashboard_url,
    )


def allow_connections() -> None:
    """Raise the limit of open files above the usual 1,024: a client takes one, its request to the backend another."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _OPEN_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def serve(
    settings: Settings,
    listener: socket.socket,
    backend: BackendClient,
    key: str,
    *,
    is_local: bool,
    worker: int = 1,
    dashboard_url: str = "",
) -> int:
    """Serve on a bound socket and return the exit code."""
    crashed = False

    def crash() -> None:
        nonlocal crashed
        crashed = True
        server.should_exit = True

    proxy = Proxy(
        backend=backend,
        policy=settings.policy,
        open_record=lambda: Record.open(settings.database_url, busy_timeout_s=_BUSY_S),
        keys=open_keyring(settings, key),
        is_local=is_local,
        backend_wait_s=VLLM_BACKEND_WAIT_S if settings.backend == "vllm" else BACKEND_WAIT_S,
        quirks=BackendQuirks(backend.address, None if is_local else settings.home / "upstreams.json"),
        passes_credentials=settings.upstream_auth == "passthrough",
        native_apis=settings.native_apis,
        origins=CorsPolicy(settings.cors_origins),
        journal=JournalWriter(settings.journal_folder, gateway_name(worker), sync=settings.sync),
        is_on_loopback=settings.is_loopback,
        accepts_any_model={"on": True, "off": False, "auto": None}[settings.accept_any_model],
        name=gateway_name(worker),
        engine_tag=engine_tag(settings) if is_local else "",
        no_jobs="Fine-tuning jobs are not trained on a Tinker server."
        if settings.backend == "tinker"
        else "",
        locks=VersionLocks(settings.version_locks_folder) if settings.workers > 1 else None,
        pages=HttpBackend(dashboard_url, speaks_vllm=False) if dashboard_url else None,
        read_wish_place=(lambda: read_placement(settings.home / FILE)) if settings.wishes_in_prompt else None,
        on_crash=crash,
    )
    config = uvicorn.Config(
        proxy,
        loop="uvloop",
        http=LimitedHttpProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # the API key alone identifies the client
        date_header=False,  # the backend's date is forwarded
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = QuietServer(config)
    logging.getLogger("uvicorn").setLevel(
        logging.CRITICAL
    )  # it logs every stream that a client ends as an error
    # uvicorn re-raises the signal after shutdown for the previous handler. This handler makes a clean end exit code 0 instead of death by
    # signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    host, port = listener.getsockname()[:2]
    print(f"proxy: http://{host}:{port}/v1 for {settings.policy}", file=sys.stderr, flush=True)
    # Turns create no reference cycles and the caches are bounded. With the default thresholds, cycle collection takes 6 % of the CPU time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    server.run(sockets=[listener])
    if proxy.lost:
        print(f"proxy: {proxy.lost} exchanges were lost: {proxy.last_loss}", file=sys.stderr, flush=True)
    return 1 if crashed or proxy.lost else 0


if __name__ == "__main__":
    sys.exit(main())
