"""Serve the policy from a Tinker server: `python -m serving.tinker --settings PATH --port N`.

It has the same API as the other backends (`serving.openai_server`); the model is remote. Exit codes: 0 stopped, 2 wrong set-up, with one sentence
as the last line on stderr. An unreachable server is not a wrong set-up: the process waits for it, and requests get an error.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from serving.openai_server.command_line import run, serve_engine, server_parser
from serving.tinker.service import address, api_key
from store.errors import ConfigError
from store.settings import Settings, default_environment


def build_parser() -> argparse.ArgumentParser:
    parser = server_parser(
        "serving.tinker",
        "Serve a model on a Tinker server, and versions of it, over an OpenAI-compatible HTTP interface.",
    )
    parser.add_argument(
        "--settings", type=Path, required=True, help="settings file, as the supervisor writes it"
    )
    return parser


def check_key(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if there is no key for the server."""
    api_key(Settings.load(arguments.settings))


def serve(arguments: argparse.Namespace, listener: socket.socket) -> None:
    """Raises: ConfigError: the tokenizer cannot be loaded, or the server refuses the settings."""
    default_environment(TINKER_TELEMETRY="0")

    from serving.tinker.local_tokenizer import load_local_tokenizer
    from serving.tinker.tinker_engine import TinkerEngine

    settings, failures = Settings.load(arguments.settings), list[ConfigError]()

    def on_config_error(error: ConfigError) -> None:
        failures.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    tokenizer = load_local_tokenizer(settings.model_path)
    engine = TinkerEngine(settings, tokenizer, on_config_error=on_config_error)
    title = f"{settings.model_name} of {address(settings)}"
    names, root = [settings.policy], settings.model_path
    serve_engine(engine, arguments, listener, title, served_names=names, root=root)
    if failures:
        raise failures[0]


def main(argv: Sequence[str] | None = None) -> int:
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s tinker %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("patina").setLevel(logging.INFO)
    return run(build_parser().parse_args(argv), check_key, serve)


if __name__ == "__main__":
    sys.exit(main())
