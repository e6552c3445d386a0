"""The command line of the llama.cpp engine: `python -m serving.llamacpp --model FILE.gguf --folder DIR --port N`.

A failed start ends with one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from serving.ports import bind, listen
from store.errors import ConfigError
from store.keys import read_key_file

_OPTION = "--port"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; flags that the built-in engine has too have the same names."""
    parser = argparse.ArgumentParser(
        prog="python -m serving.llamacpp",
        description="Serve a GGUF model and LoRA adapters of it over an OpenAI-compatible HTTP interface.",
    )
    add = parser.add_argument
    add("--model", required=True, type=Path, help="a GGUF file of a causal LM")
    add("--folder", required=True, type=Path,
        help="the Hugging Face folder of the same model: its tokenizer, chat template and configuration")  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free one (default: %(default)s)")
    add("--served-model-name", nargs="+", metavar="NAME", help="names of the base model (default: --model)")
    add("--threads", type=_positive, default=os.cpu_count() or 1, help="CPU threads (default: all cores)")
    add(
        "--gpu-layers", type=int, help="layers on the GPU, where the library was built for one (default: all)"
    )
    add("--max-model-len", type=_positive, help="context in tokens (default: the model's own)")
    add("--max-num-seqs", type=_positive, default=8, help="sequences in one batch (default: %(default)s)")
    add("--max-loras", type=_positive, default=8,
        help="adapters that clients should have loaded at once (default: %(default)s)")  # fmt: skip
    add("--kv-cache-gb", type=float, default=1.0, help="memory for keys and values (default: %(default)s)")
    add("--api-key-file", type=Path,
        help="file that holds the key that clients must send as Bearer (default: none)")  # fmt: skip
    add("--tool-check-file", type=Path,
        help="where results of the check of optional tools are kept (default: nowhere)")  # fmt: skip
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def check_files(model: Path, folder: Path) -> None:
    """Check what needs no library. Raises ConfigError if there is no such file or folder."""
    if not model.is_file():
        raise ConfigError(f"there is no GGUF file {model}")
    with model.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"{model} is not a GGUF file")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0 after a clean end, 2 after a failed start."""
    arguments = build_parser().parse_args(argv)
    try:
        check_files(arguments.model, arguments.folder)
        listener = bind(arguments.host, arguments.port, option=_OPTION)
        serve(arguments, listener)
    except ConfigError as error:
        print(f"serving.llamacpp: {error}", file=sys.stderr)
        return 2
    return 0


def serve(arguments: argparse.Namespace, listener: socket.socket) -> None:
    """Load the model and serve it on a bound socket. Raises ConfigError if either fails."""
    from serving.llamacpp.llamacpp_engine import LlamaCppEngine, LlamaCppOptions
    from serving.llamacpp.model import load_model
    from serving.model_digests import digest_served_model
    from serving.openai_server.app import OpenAIServer
    from serving.openai_server.serve import serve as run
    from serving.openai_server.tool_check import ToolCheck

    model = load_model(
        arguments.model, arguments.folder, threads=arguments.threads, gpu_layers=arguments.gpu_layers
    )
    engine = LlamaCppEngine(
        model,
        LlamaCppOptions(
            threads=arguments.threads,
            max_num_seqs=arguments.max_num_seqs,
            max_model_len=arguments.max_model_len,
            cache_bytes=int(arguments.kv_cache_gb * (1 << 30)),
            adapter_slots=arguments.max_loras,
            model_name=str(arguments.folder),
        ),
    )
    server = OpenAIServer(
        engine,
        served_names=arguments.served_model_name or [str(arguments.model)],
        root=str(arguments.model),
        api_key=read_key_file(arguments.api_key_file),
        tool_check=ToolCheck(
            arguments.tool_check_file, lambda: digest_served_model(str(arguments.folder)).base_model
        ),
    )
    address, port = listen(listener, backlog=512, option=_OPTION)
    size = f"{model.weights.parameters / 1e6:.1f} M parameters, {model.weights.weight_type}"
    print(
        f"serving.llamacpp: {arguments.model} ({size}) on http://{address}:{port}",
        file=sys.stderr,
        flush=True,
    )
    run(server, listener)


if __name__ == "__main__":
    sys.exit(main())
