"""The command line of the llama.cpp engine: `python -m serving.llamacpp --model FILE.gguf --folder DIR --port N`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from serving.openai_server.command_line import engine_parser, run, serve_local
from store.errors import ConfigError


def build_parser() -> argparse.ArgumentParser:
    parser = engine_parser(
        "serving.llamacpp",
        "Serve a GGUF model and LoRA adapters of it over an OpenAI-compatible HTTP interface.",
        model="a GGUF file of a causal LM",
        max_num_seqs=8,
        kv_cache_gb=1.0,
    )
    add = parser.add_argument
    add("--folder", required=True, type=Path,
        help="the Hugging Face folder of the same model: its tokenizer, chat template and configuration")  # fmt: skip
    add(
        "--gpu-layers", type=int, help="layers on the GPU, where the library was built for one (default: all)"
    )
    return parser


def check_files(arguments: argparse.Namespace) -> None:
    """Raises ConfigError if there is no such file or folder."""
    model, folder = Path(arguments.model), arguments.folder
    if not model.is_file():
        raise ConfigError(f"there is no GGUF file {model}")
    with model.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"{model} is not a GGUF file")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")


def serve(arguments: argparse.Namespace, listener: socket.socket) -> None:
    """Load the file and serve it. Raises: ConfigError."""
    from serving.llamacpp.llamacpp_engine import LlamaCppEngine, LlamaCppOptions
    from serving.llamacpp.model import load_model

    threads, folder = arguments.threads or os.cpu_count() or 1, str(arguments.folder)
    model = load_model(
        Path(arguments.model), arguments.folder, threads=threads, gpu_layers=arguments.gpu_layers
    )
    engine = LlamaCppEngine(
        model,
        LlamaCppOptions(
            threads=threads,
            max_num_seqs=arguments.max_num_seqs,
            max_model_len=arguments.max_model_len,
            cache_bytes=int(arguments.kv_cache_gb * (1 << 30)),
            adapter_slots=arguments.max_loras,
            model_name=folder,
        ),
    )
    size = f"{model.weights.parameters / 1e6:.1f} M parameters, {model.weights.weight_type}"
    serve_local(engine, arguments, listener, size, folder)


def main(argv: Sequence[str] | None = None) -> int:
    return run(build_parser().parse_args(argv), check_files, serve)


if __name__ == "__main__":
    sys.exit(main())
