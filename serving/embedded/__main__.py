"""The command line of the built-in engine: `python -m serving.embedded --model DIR --port N`.

Heavy libraries are imported only after the arguments were checked, so that `--help` and a wrong flag respond at once. A failed start ends with
one sentence on stderr and exit code 2.
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
    """Return the parser; flags that vLLM has too have the same names."""
    parser = argparse.ArgumentParser(
        prog="python -m serving.embedded",
        description="Serve a Hugging Face causal LM and LoRA adapters of it over an OpenAI-compatible HTTP interface.",
    )
    add = parser.add_argument
    add(
        "--model",
        required=True,
        help="a model folder, or the name of a model in the local Hugging Face cache",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free one (default: %(default)s)")
    add("--served-model-name", nargs="+", metavar="NAME", help="names of the base model (default: --model)")
    add("--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto",
        help="auto: float32 below 200 million parameters, else bfloat16")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1 ... (default: a GPU if there is one)")
    add("--threads", type=_positive, help="CPU threads (default: 1 for tiny models, else all cores)")
    add("--max-model-len", type=_positive, help="context in tokens (default: the model's own)")
    add("--max-num-seqs", type=_positive, default=16, help="sequences in one batch (default: %(default)s)")
    add(
        "--max-loras",
        type=_positive,
        default=8,
        help="different adapters in one batch (default: %(default)s)",
    )
    add(
        "--max-lora-rank",
        type=_positive,
        default=64,
        help="highest rank of an adapter (default: %(default)s)",
    )
    add("--kv-cache-gb", type=float, default=4.0, help="memory for keys and values (default: %(default)s)")
    add("--logprobs-mode", choices=["raw_logprobs", "processed_logprobs"], default="raw_logprobs",
        help="report log-probabilities before (raw) or after temperature, penalties and truncation (default: %(default)s)")  # fmt: skip
    add(
        "--api-key-file",
        type=Path,
        help="file that holds the key that clients must send as Bearer (default: none)",
    )
    add(
        "--tool-check-file",
        type=Path,
        help="file that keeps whether a model calls tools that its chat template does not show (default: none)",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def check_folder(name: str) -> None:
    """Check what needs no library. Raises ConfigError if `name` can be neither a model folder nor a hub name."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{name} is not a model folder: it has no config.json")
    elif folder.is_absolute() or name.startswith((".", "~")):
        raise ConfigError(f"there is no model folder {name}")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0 after a clean end, 2 after a failed start."""
    arguments = build_parser().parse_args(argv)
    try:
        check_folder(arguments.model)
        listener = bind(arguments.host, arguments.port, option=_OPTION)
        serve(arguments, listener)
    except ConfigError as error:
        print(f"serving.embedded: {error}", file=sys.stderr)
        return 2
    return 0


def serve(arguments: argparse.Namespace, listener: socket.socket) -> None:
    """Load the model and serve it on a bound socket. Raises ConfigError if either fails."""
    import torch

    from serving.embedded.embedded_engine import EmbeddedEngine, EmbeddedOptions
    from serving.embedded.model import default_threads, load_model
    from serving.model_digests import digest_served_model
    from serving.openai_server.app import OpenAIServer
    from serving.openai_server.serve import serve as run
    from serving.openai_server.tool_check import ToolCheck

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    model = load_model(
        arguments.model,
        dtype=arguments.dtype,
        device=arguments.device,
        max_model_len=arguments.max_model_len,
    )
    if arguments.threads is None:
        torch.set_num_threads(default_threads(model.parameters, os.cpu_count() or 1))
    host = EmbeddedEngine(
        model,
        EmbeddedOptions(
            max_num_seqs=arguments.max_num_seqs,
            max_loras=arguments.max_loras,
            max_lora_rank=arguments.max_lora_rank,
            logprobs_mode=arguments.logprobs_mode,
            cache_bytes=int(arguments.kv_cache_gb * (1 << 30)),
            model_name=arguments.model,
        ),
    )
    server = OpenAIServer(
        host,
        served_names=arguments.served_model_name or [arguments.model],
        root=arguments.model,
        api_key=read_key_file(arguments.api_key_file),
        tool_check=ToolCheck(
            arguments.tool_check_file, lambda: digest_served_model(arguments.model).base_model
        ),
    )
    address, port = listen(listener, backlog=512, option=_OPTION)
    size = f"{model.parameters / 1e6:.1f} M parameters, {str(model.dtype).removeprefix('torch.')}, {model.device}"
    print(
        f"serving.embedded: {arguments.model} ({size}) on http://{address}:{port}",
        file=sys.stderr,
        flush=True,
    )
    run(server, listener)


if __name__ == "__main__":
    sys.exit(main())
