"""Serve the policy from a Tinker server: `python -m serving.tinker --settings PATH --port N`.

Speaks the dialect of the other backends (`serving.dialect`); the model is elsewhere. Exit codes: 0 told to end, 2 it cannot be set up, with
the reason in one sentence as the last line on stderr. A server that is away is no such reason: it is waited for, and requests are told.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from serving.ports import bind, listen
from serving.tinker.service import address, api_key
from store.errors import ConfigError
from store.settings import Settings, default_environment

_OPTION = "--port"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m serving.tinker",
        description="Serve a model on a Tinker server, and versions of it, over an OpenAI-compatible HTTP interface.",
    )
    add = parser.add_argument
    add("--settings", type=Path, required=True, help="settings file, as the supervisor writes it")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free one (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s tinker %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("patina").setLevel(logging.INFO)
    try:
        settings = Settings.load(arguments.settings)
        api_key(settings)
        listener = bind(arguments.host, arguments.port, option=_OPTION)
        default_environment(TINKER_TELEMETRY="0")

        from serving.dialect.app import Server
        from serving.dialect.serve import serve
        from serving.tinker.host import TinkerHost
        from serving.tinker.vocabulary import load_text_side

        wrong: list[ConfigError] = []

        def fatal(error: ConfigError) -> None:
            wrong.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

        host = TinkerHost(settings, load_text_side(settings.model_path), fatal=fatal)
        server = Server(host, served_names=[settings.policy], root=settings.model_path)
        name, port = listen(listener, backlog=512, option=_OPTION)
        print(
            f"serving.tinker: {settings.model_name} of {address(settings)} on http://{name}:{port}",
            file=sys.stderr,
            flush=True,
        )
        serve(server, listener)
        if wrong:
            raise wrong[0]
    except ConfigError as error:
        print(f"serving.tinker: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
