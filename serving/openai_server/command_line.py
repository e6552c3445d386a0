"""What the command lines of the engines share: flags, and the way from checked arguments to a server.

Heavy libraries are imported only after the arguments were checked, so that `--help` and a wrong flag respond at once. A failed start ends with
one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.ports import bind, listen
from store.errors import ConfigError
from store.keys import read_key_file

if TYPE_CHECKING:
    from serving.openai_server.engine import SamplingEngine

_OPTION = "--port"


def server_parser(module: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the flags of every server."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.set_defaults(module=module)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free one (default: %(default)s)")
    add("--api-key-file", type=Path,
        help="file that holds the key that clients must send as Bearer (default: none)")  # fmt: skip
    return parser


def engine_parser(
    module: str, description: str, *, model: str, max_num_seqs: int, kv_cache_gb: float
) -> argparse.ArgumentParser:
    """Return a parser with the flags of every engine that holds the model; those that vLLM has too have the same names.

    Args:
        model: what `--model` is.
    """
    parser = server_parser(module, description)
    add = parser.add_argument
    add("--model", required=True, help=model)
    add("--served-model-name", nargs="+", metavar="NAME", help="names of the base model (default: --model)")
    add(
        "--threads",
        type=positive,
        help="CPU threads (default: all cores; for tiny models of the built-in engine 1)",
    )
    add("--max-model-len", type=positive, help="context in tokens (default: the model's own)")
    add("--max-num-seqs", type=positive, default=max_num_seqs,
        help="sequences in one batch (default: %(default)s)")  # fmt: skip
    add("--max-loras", type=positive, default=8,
        help="adapters that clients should have loaded at once (default: %(default)s)")  # fmt: skip
    add("--kv-cache-gb", type=float, default=kv_cache_gb,
        help="memory for keys and values (default: %(default)s)")  # fmt: skip
    add("--tool-check-file", type=Path,
        help="file that keeps whether a model calls tools that its chat template does not show (default: none)")  # fmt: skip
    return parser


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def run(
    arguments: argparse.Namespace,
    check: Callable[[argparse.Namespace], None],
    load_and_serve: Callable[[argparse.Namespace, socket.socket], None],
) -> int:
    """Check, bind the address, load and serve. Returns 0 after a clean end, 2 after a ConfigError."""
    try:
        check(arguments)
        load_and_serve(arguments, bind(arguments.host, arguments.port, option=_OPTION))
    except ConfigError as error:
        print(f"{arguments.module}: {error}", file=sys.stderr)
        return 2
    return 0


def serve_local(
    engine: SamplingEngine[Any],
    arguments: argparse.Namespace,
    listener: socket.socket,
    size: str,
    folder: str,
) -> None:
    """Serve a model that this process holds, whose Hugging Face folder or name this is. Raises: ConfigError."""
    from serving.model_digests import digest_served_model
    from serving.openai_server.tool_check import ToolCheck

    check = ToolCheck(arguments.tool_check_file, lambda: digest_served_model(folder).base_model)
    names, root = arguments.served_model_name or [arguments.model], arguments.model
    title = f"{root} ({size})"
    serve_engine(engine, arguments, listener, title, served_names=names, root=root, tool_check=check)


def serve_engine(
    engine: SamplingEngine[Any],
    arguments: argparse.Namespace,
    listener: socket.socket,
    title: str,
    **options: Any,
) -> None:
    """Serve until SIGTERM or SIGINT; the options are those of `OpenAIServer`. Raises: ConfigError."""
    from serving.openai_server.app import OpenAIServer
    from serving.openai_server.serve import serve

    server = OpenAIServer(engine, api_key=read_key_file(arguments.api_key_file), **options)
    host, port = listen(listener, backlog=512, option=_OPTION)
    print(f"{arguments.module}: {title} on http://{host}:{port}", file=sys.stderr, flush=True)
    serve(server, listener)
