"""The tokenizer and end-of-turn ids of a model whose weights are remote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.openai_server.values import end_ids
from serving.openai_server.vocabulary import Vocabulary
from store.errors import ConfigError, first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTokenizer:
    """The locally known parts of the model.

    Attributes:
        end_ids: ids that end a turn.
        context: the model's context in tokens; None: not configured.
    """

    vocabulary: Vocabulary
    end_ids: frozenset[int]
    context: int | None


def load_local_tokenizer(name: str) -> LocalTokenizer:
    """Read a model folder, or a Hugging Face name from the local cache; otherwise download the few small files.

    Raises:
        ConfigError: it cannot be read.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    folder = Path(name).expanduser()
    source = str(folder) if folder.is_dir() else name

    def read(**more: Any) -> tuple[Any, Any, Any]:
        config = AutoConfig.from_pretrained(source, **more)
        tokenizer = AutoTokenizer.from_pretrained(source, **more)
        try:
            generation = GenerationConfig.from_pretrained(source, **more)
        except OSError:  # many models have no generation config
            generation = None
        return config, tokenizer, generation

    try:
        try:
            config, tokenizer, generation = read(local_files_only=True)
        except OSError:
            if folder.is_dir():
                raise
            config, tokenizer, generation = read()
    except (
        Exception
    ) as exc:  # many libraries read these files, each with its own errors; all of them end the start
        raise ConfigError(
            f"the tokenizer of {name} cannot be read: {first_line(exc)}; with --backend tinker, "
            "--model-name is a folder or a Hugging Face name of the model that the Tinker server has"
        ) from exc
    text = config.get_text_config()
    size = int(getattr(text, "vocab_size", None) or len(tokenizer))
    context = getattr(text, "max_position_embeddings", None)
    return LocalTokenizer(
        vocabulary=Vocabulary(tokenizer, size),
        end_ids=end_ids(
            tokenizer.eos_token_id, *(getattr(one, "eos_token_id", None) for one in (config, generation))
        ),
        context=int(context) if context else None,
    )
