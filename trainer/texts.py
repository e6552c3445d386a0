"""Text and ids of one model: its tokenizer, its chat template, what ends a turn. Knows no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoTokenizer

from serving.openai_server.chat_template import apply_template
from serving.vllm.model_folder import check_folder
from store.errors import AlignmentError, ConfigError, first_line


class Texts:
    """A model's tokenizer and template.

    Args:
        model: folder, or name of a model in the local Hugging Face cache. Nothing is downloaded.
        tokenizer: of that model, where it is at hand.

    Raises:
        ConfigError: there is no such model here, or it is no chat model.
    """

    def __init__(self, model: str, tokenizer: Any = None) -> None:
        self.tokenizer = load_tokenizer(model) if tokenizer is None else _chatty(model, tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template: Any,
    ) -> list[int]:
        """Prompt ids [P] of a request under the model's chat template.

        Args:
            template: options and arguments of the template (`template_options`); without them the generation header is included.

        Raises:
            AlignmentError: the template refuses these messages.
        """
        try:
            text = apply_template(
                self.tokenizer, messages, tools, **{"add_generation_prompt": True, **template}
            )
        except Exception as error:  # a template is a program by the model's author, and raises what it likes
            raise AlignmentError(f"the chat template refuses the messages: {first_line(error)}") from error
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        """Text to ids, markup recognised, nothing added."""
        return [int(i) for i in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int], *, markup: bool = False) -> str:
        """Ids to text, by default without markup."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=not markup))


def load_tokenizer(name: str) -> Any:
    """Raises: ConfigError, see `Texts`."""
    check_folder(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (
        Exception
    ) as error:  # several libraries read these files, each with its own errors; all end the start
        raise ConfigError(f"the tokenizer of {name} cannot be loaded: {first_line(error)}") from error
    return _chatty(name, tokenizer)


def _chatty(name: str, tokenizer: Any) -> Any:
    if not tokenizer.chat_template:
        raise ConfigError(f"{name} has no chat template: it is not a chat model")
    return tokenizer
