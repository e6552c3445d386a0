"""The proxy process: ``python -m proxy --settings PATH [--backend-url URL]``.

What cannot start says why in one sentence on stderr and leaves with exit code 2. SIGTERM lets requests in flight finish, for a bounded
time, writes what is still unwritten, and leaves with 0.
"""

from __future__ import annotations

import argparse
import asyncio
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
from proxy.cors import Origins
from proxy.guard import GuardedProtocol
from proxy.journal import Journal
from proxy.learnt import Learnt
from proxy.memory import map_large_blocks
from proxy.relay import PATIENCE_S
from serving.backends import VLLM_PATIENCE_S, make_engine
from serving.ports import bind, listen
from serving.protocol import Engine
from store.errors import ConfigError, RecordCorrupt, RecordError, RecordUnavailable
from store.keys import KeyFile, Keyring
from store.record import Record
from store.settings import Settings, ensure_api_key

#: Requests in flight at SIGTERM may take so long to finish.
GRACE_S = 10

#: So long a write waits for another process's before `status` is told that it cannot be done; it is tried again.
_BUSY_S = 1.0

#: Longer than clients keep idle connections, so that they never send into one that is being closed.
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
        "--record-wait-s",
        type=float,
        default=0.25,
        help="longest time a reply waits for its row in the record (default: %(default)s)",
    )
    return parser


async def check_record(url: str) -> None:
    """See that the record can be used. One that is locked, away or damaged is waited for later, while replies flow.

    Raises:
        RecordError: it is too new, too old, or no record at all.
    """
    try:
        record = await Record.open(url)
    except (RecordUnavailable, RecordCorrupt) as exc:
        print(f"proxy: {exc}; starting without it, turns wait in the journal", file=sys.stderr, flush=True)
        return
    await record.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT: 0 after a clean end, 1 after a crash, 2 when it could not start."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s proxy %(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings.load(arguments.settings)
        urls: list[str] = arguments.backend_url or [settings.upstream]
        if not urls[0]:
            raise ConfigError(
                "there is nothing to serve from: give --backend-url, or --upstream in the settings"
            )
        is_local = bool(arguments.backend_url)
        engine = make_engine(settings, urls, is_local=is_local)
        key, _ = ensure_api_key(settings)
        asyncio.run(check_record(settings.database_url))
        listener = bind(settings.proxy_host, settings.proxy_port, option=_OPTION)
        listen(listener, backlog=2048, option=_OPTION)
    except (ConfigError, RecordError) as exc:
        print(f"proxy: {exc}", file=sys.stderr)
        return 2
    allow_connections()
    map_large_blocks()
    return serve(settings, listener, engine, key, is_local=is_local, wait_s=arguments.record_wait_s)


def allow_connections() -> None:
    """Have more open files than the usual 1,024 where the system lets us: each client is one, each request to the backend another."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _OPEN_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def keyring(settings: Settings, key: str) -> Keyring:
    """Return the keys that open this door: the first one, and the named ones of this home."""
    file = settings.key_file if settings.api_key is None else None
    return Keyring(key, key_file=file, named=KeyFile(settings.keys_file))


def serve(
    settings: Settings, listener: socket.socket, engine: Engine, key: str, *, is_local: bool, wait_s: float
) -> int:
    """Serve on a bound socket; returns the exit code."""
    crashed = False

    def crash() -> None:
        nonlocal crashed
        crashed = True
        server.should_exit = True

    proxy = Proxy(
        engine=engine,
        policy=settings.policy,
        opening=lambda: Record.open(settings.database_url, busy_timeout_s=_BUSY_S),
        keys=keyring(settings, key),
        is_local=is_local,
        wait_s=wait_s,
        patience_s=VLLM_PATIENCE_S if settings.backend == "vllm" else PATIENCE_S,
        learnt=Learnt(engine.address, None if is_local else settings.home / "upstreams.json"),
        passes_credentials=settings.upstream_auth == "passthrough",
        origins=Origins(settings.cors_origins),
        journal=Journal(settings.home / "unwritten.jsonl"),
        on_crash=crash,
    )
    config = uvicorn.Config(
        proxy,
        loop="uvloop",
        http=GuardedProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # who calls is read from the key alone
        date_header=False,  # the backend's own are passed on
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = uvicorn.Server(config)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # it reports every cut stream as an error of ours
    # uvicorn raises the signal again once it has shut down, for the handler that was there before: this one, so that a clean end is
    # exit code 0 and not death by signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    host, port = listener.getsockname()[:2]
    print(f"proxy: http://{host}:{port}/v1 for {settings.policy}", file=sys.stderr, flush=True)
    # Turns make no cycles, and memory is bounded by what is kept of them: looking through all of it for cycles so often is 6 % of the work.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    server.run(sockets=[listener])
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
