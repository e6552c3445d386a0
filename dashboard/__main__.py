"""The process of the web page: ``python -m dashboard --settings PATH --port PORT --gateway-url URL``.

It listens on loopback only; the gateway forwards `/dashboard` to it. A wrong set-up ends it with one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from dashboard.app import Dashboard, create_app
from dashboard.sign_in import SignIn
from serving.openai_server.quiet_server import QuietServer
from serving.ports import bind, listen
from store.errors import ConfigError
from store.journal import JournalWriter
from store.record import Record
from store.record_handle import RecordHandle
from store.settings import Settings, ensure_api_key, open_keyring

_OPTION = "--port"
_BUSY_S = 2.0
#: Replies come before pages.
_NICE = 5
WRITER = "dashboard"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dashboard", description="The web page of Patina.")
    parser.add_argument("--settings", type=Path, required=True, help="settings file written by run.py")
    parser.add_argument("--port", type=int, required=True, help="loopback port to listen on")
    parser.add_argument("--gateway-url", required=True, help="base URL of the gateway, for the chat panel")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0 after a clean end, 2 after a failed start."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s dashboard %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = Settings.load(arguments.settings)
        key, _ = ensure_api_key(settings)
        listener = bind("127.0.0.1", arguments.port, option=_OPTION)
        listen(listener, backlog=128, option=_OPTION)
        dashboard = Dashboard(
            settings=settings,
            record=RecordHandle(lambda: Record.open(settings.database_url, busy_timeout_s=_BUSY_S)),
            keys=open_keyring(settings, key),
            sign_in=SignIn(settings.sign_in_folder),
            journal=JournalWriter(settings.journal_folder, WRITER, sync=settings.sync),
            gateway_url=arguments.gateway_url,
            first_key=key,
        )
    except ConfigError as exc:
        print(f"dashboard: {exc}", file=sys.stderr)
        return 2
    os.nice(_NICE)
    config = uvicorn.Config(
        create_app(dashboard),
        loop="uvloop",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    QuietServer(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
