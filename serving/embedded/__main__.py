"""The command line of the built-in engine: `python -m serving.embedded --model DIR --port N`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence

from serving.openai_server.command_line import engine_parser, positive, run, serve_local
from serving.vllm.model_folder import check_folder


def build_parser() -> argparse.ArgumentParser:
    parser = engine_parser(
        "serving.embedded",
        "Serve a Hugging Face causal LM and LoRA adapters of it over an OpenAI-compatible HTTP interface.",
        model="a model folder, or the name of a model in the local Hugging Face cache",
        max_num_seqs=16,
        kv_cache_gb=4.0,
    )
    add = parser.add_argument
    add("--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto",
        help="auto: float32 below 200 million parameters, else bfloat16")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1 ... (default: a GPU if there is one)")
    add(
        "--max-lora-rank", type=positive, default=64, help="highest rank of an adapter (default: %(default)s)"
    )
    return parser


def serve(arguments: argparse.Namespace, listener: socket.socket) -> None:
    """Load the model and serve it. Raises: ConfigError."""
    import torch

    from serving.embedded.embedded_engine import EmbeddedEngine, EmbeddedOptions
    from serving.embedded.model import default_threads, load_model

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
    engine = EmbeddedEngine(
        model,
        EmbeddedOptions(
            max_num_seqs=arguments.max_num_seqs,
            max_loras=arguments.max_loras,
            max_lora_rank=arguments.max_lora_rank,
            cache_bytes=int(arguments.kv_cache_gb * (1 << 30)),
            model_name=arguments.model,
        ),
    )
    size = f"{model.parameters / 1e6:.1f} M parameters, {str(model.dtype).removeprefix('torch.')}, {model.device}"
    serve_local(engine, arguments, listener, size, arguments.model)


def main(argv: Sequence[str] | None = None) -> int:
    return run(build_parser().parse_args(argv), lambda arguments: check_folder(arguments.model), serve)


if __name__ == "__main__":
    sys.exit(main())
