"""A GGUF file and the Hugging Face folder that was converted from it: weights from the one, tokenizer, template and limits from the other.

The folder is what the trainer starts from, so both give the same token the same id; that is checked at start. transformers is used without torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from serving.llamacpp.library import LlamaModel, write_float16
from serving.openai_server.values import SamplingDefaults, end_ids
from serving.openai_server.vocabulary import Vocabulary
from serving.vllm.model_folder import read_json
from store.errors import ConfigError, first_line

#: The space of vocabularies that are not byte-level, which a GGUF file may hold as a plain one.
_WORD_START = "\u2581"

#: Quantised models up to this size are served from a float16 copy; above, memory counts more.
_FLOAT16_MAX_PARAMETERS = 300_000_000


@dataclass(frozen=True, kw_only=True)
class GgufModel:
    """The weights, and what the folder says about them.

    Attributes:
        context: tokens that the model reads.
    """

    weights: LlamaModel
    vocabulary: Vocabulary
    end_ids: frozenset[int]
    defaults: SamplingDefaults
    context: int


def load_model(file: Path, folder: Path, *, threads: int, gpu_layers: int | None = None) -> GgufModel:
    """Load both. Raises: ConfigError, one sentence, if one cannot be read or they are of different models."""
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    config = read_json(folder / "config.json")
    stated = folder / "generation_config.json"
    generation = read_json(stated) if stated.is_file() else {}
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"the tokenizer of {folder} cannot be read: {first_line(error)}") from error
    text_config = SimpleNamespace(**config.get("text_config", config))
    weights = _load_weights(file, folder, gpu_layers, threads)
    vocabulary = Vocabulary(tokenizer, weights.size)
    _check_vocabulary(weights, vocabulary, file, folder)
    positions = int(getattr(text_config, "max_position_embeddings", None) or weights.trained_context or 2048)
    return GgufModel(
        weights=weights,
        vocabulary=vocabulary,
        end_ids=end_ids(tokenizer.eos_token_id, config.get("eos_token_id"), generation.get("eos_token_id")),
        defaults=SamplingDefaults.stated_in(generation),
        context=positions,
    )


def _load_weights(file: Path, folder: Path, gpu_layers: int | None, threads: int) -> LlamaModel:
    """Load the file, or for a small quantised model its float16 copy in the folder, which is made once.

    llama.cpp rounds activations to 8 bits where weights are quantised. Of a small model that is most of the error: its log-probabilities are off
    by .07 nats in the mean, of a float16 copy by .003, which is also faster in a batch.
    """
    model = LlamaModel(file, gpu_layers=gpu_layers)
    if not model.is_quantized or model.parameters > _FLOAT16_MAX_PARAMETERS:
        return model
    state = file.stat()
    copy = folder / f"float16-{state.st_size}-{state.st_mtime_ns}.gguf"
    if not copy.is_file():
        temporary = copy.with_suffix(f".{os.getpid()}")
        try:
            write_float16(file, temporary, threads)
            temporary.replace(copy)
        except OSError as error:
            raise ConfigError(f"no float16 copy of {file} can be written in {folder}: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)
    model.close()
    return LlamaModel(copy, gpu_layers=gpu_layers, is_mapped=False)


def _check_vocabulary(weights: LlamaModel, vocabulary: Vocabulary, file: Path, folder: Path) -> None:
    """Compare the token of each id. Ids that only one of them has are padding of the embedding."""
    if vocabulary.size > weights.size:
        raise ConfigError(
            f"{folder} has {vocabulary.size} tokens and {file} {weights.size}: they are of different models"
        )
    for token, token_id in vocabulary.tokenizer.get_vocab().items():
        found = weights.piece(token_id)
        if found not in (token, token.replace(_WORD_START, " ")):
            raise ConfigError(
                f"token {token_id} is {token!r} in {folder} and {found!r} in {file}: they are of different models"
            )
