"""The tokenizer and the ends of a turn of a model whose weights are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.dialect.vocabulary import Vocabulary
from store.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSide:
    """What is known of the model on this side.

    Attributes:
        end_ids: ids that end a turn.
        context: tokens that it was made for; None: its configuration does not say.
    """

    vocabulary: Vocabulary
    end_ids: frozenset[int]
    context: int | None


def load_text_side(name: str) -> TextSide:
    """Read a model folder, or a name of Hugging Face's: of the local cache, else the few small files are fetched.

    Raises:
        ConfigError: it cannot be had.
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
        except OSError:  # many models have none
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
    ) as exc:  # a dozen libraries read these files, each with its own errors; all of them end the start
        said = str(exc).strip().splitlines()
        raise ConfigError(
            f"the tokenizer of {name} cannot be had: {said[0] if said else type(exc).__name__}; with --backend tinker, "
            "--model-name is a folder or a Hugging Face name of the model that the Tinker server has"
        ) from exc
    text = config.get_text_config()
    size = int(getattr(text, "vocab_size", None) or len(tokenizer))
    context = getattr(text, "max_position_embeddings", None)
    return TextSide(
        vocabulary=Vocabulary(tokenizer, size),
        end_ids=_ends(tokenizer, config, generation),
        context=int(context) if context else None,
    )


def _ends(tokenizer: Any, *configs: Any) -> frozenset[int]:
    """The ids that end a turn: the generation config's, the model config's, the tokenizer's."""
    ends: set[int] = set()
    for value in (tokenizer.eos_token_id, *(getattr(config, "eos_token_id", None) for config in configs)):
        ends.update([value] if isinstance(value, int) else value or ())
    return frozenset(ends)
