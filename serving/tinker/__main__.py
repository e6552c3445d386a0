"""Serve the policy from a Tinker server: `python -m serving.tinker --settings PATH --port N`.

It has the same API as the other backends (`serving.openai_server`); the model is remote. Exit codes: 0 stopped, 2 wrong set-up, with one sentence
as the last line on stderr. An unreachable server is not a wrong set-up: the process waits for it, and requests get an error.
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
from store.keys import read_key_file
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
    add(
        "--api-key-file",
        type=Path,
        help="file that holds the key that clients must send as Bearer (default: none)",
    )
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

        from serving.openai_server.app import OpenAIServer
        from serving.openai_server.serve import serve
        from serving.tinker.local_tokenizer import load_local_tokenizer
        from serving.tinker.tinker_engine import TinkerEngine

        config_errors: list[ConfigError] = []

        def on_config_error(error: ConfigError) -> None:
            config_errors.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

        host = TinkerEngine(
            settings, load_local_tokenizer(settings.model_path), on_config_error=on_config_error
        )
        server = OpenAIServer(
            host,
            served_names=[settings.policy],
            root=settings.model_path,
            api_key=read_key_file(arguments.api_key_file),
        )
        name, port = listen(listener, backlog=512, option=_OPTION)
        print(
            f"serving.tinker: {settings.model_name} of {address(settings)} on http://{name}:{port}",
            file=sys.stderr,
            flush=True,
        )
        serve(server, listener)
        if config_errors:
            raise config_errors[0]
    except ConfigError as error:
        print(f"serving.tinker: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
