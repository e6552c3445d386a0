"""Reads a GGUF file, dequantises it and writes a model folder in Hugging Face's format: ``python -m serving.models.convert JOB``.

A process of its own, because it needs torch and the memory of the whole model. It prints progress to stderr, and a failure as one sentence to
stdout, with exit code 2. `transformers` reads the file; it refuses to save what it read so, hence the state moves into a plain model of the
same class.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, Keys
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from serving.embedded.model import FLOAT32_MAX_PARAMETERS
from serving.models.converted import ORIGIN
from store.errors import ConfigError, first_line
from store.manifest import digest_model

#: Entry of generation_config.json -> the file's key for what its makers recommend.
_SAMPLING = {
    "temperature": "general.sampling.temp", "top_p": "general.sampling.top_p", "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p", "repetition_penalty": "general.sampling.penalty_repeat",
}  # fmt: skip
_ENDS = (Keys.Tokenizer.EOS_ID, Keys.Tokenizer.EOT_ID, Keys.Tokenizer.EOM_ID)
_STATED = ("general.name", "general.organization", "general.author", "general.license", "general.url")
#: Pre-tokenizers (`tokenizer.ggml.pre`) that split off each digit before GPT-2's rule; the library reads them as GPT-2's alone, so that a line
#: break before a number becomes other tokens than those the model was trained on.
_DIGITS_FIRST = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
#: Those that are GPT-2's rule.
_AS_GPT2 = frozenset(
    {None, "default", "gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "trillion", "granite-docling"}
)


def convert(job: dict[str, Any]) -> None:
    """Write the folder `job["folder"]` (`serving.models.converted`). Raises: ConfigError: the file cannot be converted."""
    gguf, folder = Path(job["gguf"]), Path(job["folder"])
    reader = _open(gguf)
    _check(gguf, reader)
    is_small = sum(int(tensor.n_elements) for tensor in reader.tensors) < FLOAT32_MAX_PARAMETERS
    tokenizer, network = _load(gguf, torch.float32 if is_small else torch.bfloat16)
    notes = _split_as_trained(tokenizer, reader)
    plain = _plain(network)
    plain.generation_config = _generation_config(job, reader, tokenizer, plain)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    stated = {key.removeprefix("general."): value for key in _STATED if (value := _value(reader, key))}
    origin = {
        **{name: job[name] for name in ("name", "gguf_sha256", "converter", "sampling", "stop")},
        "file": gguf.name,
        "stated_in_file": stated,
        "notes": notes,
        **job["origin"],
        "as_written": asdict(digest_model(folder)),
    }
    (folder / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _open(gguf: Path) -> Any:
    try:
        reader = GGUFReader(gguf)
        end = max((int(one.data_offset + one.n_bytes) for one in reader.tensors), default=0)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, MemoryError) as error:
        raise ConfigError(f"{gguf} is truncated or damaged: {error}") from error
    if not end:
        raise ConfigError(f"{gguf} holds no weights")
    return reader


def _check(gguf: Path, reader: Any) -> None:
    if (_value(reader, "split.count") or 1) > 1:
        raise ConfigError(
            f"{gguf} is one part of a split model: join the parts with llama-gguf-split --merge"
        )
    if not _value(reader, Keys.Tokenizer.CHAT_TEMPLATE):
        raise ConfigError(
            f"{gguf} has no chat template, so chat requests cannot be put before its model: take an instruction-tuned model's file"
        )


def _value(reader: Any, key: str) -> Any:
    found = reader.fields.get(key)
    return None if found is None else found.contents()


def _load(gguf: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        network, info = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=dtype, output_loading_info=True
        )
    except Exception as error:  # the library has no errors of its own for what it cannot read
        raise ConfigError(f"{gguf} cannot be read for training: {first_line(error)}") from error
    # What the file lacks, the library makes up at random.
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if missing:
        raise ConfigError(f"{gguf} lacks weights: {missing[0]} is missing or misshapen")
    return tokenizer, network


def _split_as_trained(tokenizer: Any, reader: Any) -> list[str]:
    """Give a byte-level tokenizer the pre-tokenizer that the file names; returns a note where that is not known."""
    backend, rule = tokenizer.backend_tokenizer, _value(reader, "tokenizer.ggml.pre")
    if not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) or rule in _AS_GPT2:
        return []
    if rule not in _DIGITS_FIRST:
        return [
            f"the file's pre-tokenizer {rule} is not known here: some texts become other tokens than its makers' tokenizer makes"
        ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return []


def _plain(network: Any) -> Any:
    """Return a model of the same class and weights that does not know of the file."""
    values = network.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        values.pop(name, None)
    config = type(network.config).from_dict(values)
    config.dtype = network.dtype
    with torch.device("meta"):
        plain = type(network)(config)
    plain.load_state_dict(network.state_dict(), assign=True)
    plain.tie_weights()
    return plain


def _generation_config(job: dict[str, Any], reader: Any, tokenizer: Any, network: Any) -> Any:
    """Return the sampling defaults and end tokens: the job's before the file's."""
    config = GenerationConfig.from_model_config(network.config)
    vocabulary = tokenizer.get_vocab()
    ends = [_value(reader, key) for key in _ENDS] + [vocabulary.get(text) for text in job["stop"]]
    stated = network.config.eos_token_id
    known = {
        int(one) for one in [*ends, *(stated if isinstance(stated, list) else [stated])] if one is not None
    }
    if not known:
        raise ConfigError(f"{job['gguf']} names no token that ends a reply")
    config.eos_token_id = sorted(known) if len(known) > 1 else known.pop()
    sampling = {name: value for name, key in _SAMPLING.items() if (value := _value(reader, key)) is not None}
    sampling |= job["sampling"]
    if sampling:
        counts = {name: int(value) for name, value in sampling.items() if name in ("top_k", "max_new_tokens")}
        config.update(do_sample=True, **{**sampling, **counts})
    return config


def main(argv: Sequence[str]) -> int:
    transformers_logging.set_verbosity_error()
    try:
        convert(json.loads(argv[0]))
    except ConfigError as error:
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
