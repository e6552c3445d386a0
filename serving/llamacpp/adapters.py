"""The adapters that the llama.cpp engine has loaded."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.llamacpp.gguf_adapter import ModelLayout, write_gguf_adapter
from serving.llamacpp.library import LlamaModel
from store.errors import AdapterError


@dataclass(eq=False, kw_only=True)
class LlamaAdapter:
    """A loaded adapter; its name never gets other weights."""

    name: str
    path: str
    pointer: Any
    model: LlamaModel = field(repr=False)

    def free(self) -> None:
        """Free the weights, which no context uses any more."""
        self.model.free_adapter(self.pointer)


def load_adapter(name: str, folder: Path, model: LlamaModel) -> LlamaAdapter:
    """Load a peft folder. Callable from any thread.

    Raises AdapterError if the folder is missing, truncated, of another model, or uses an unsupported feature.
    """
    with tempfile.TemporaryDirectory(prefix="patina-adapter-") as temporary:
        # Not kept: a forgotten version would go on in a cache.
        file = Path(temporary) / "adapter.gguf"
        write_gguf_adapter(folder, file, layout_of(model))
        try:
            pointer = model.load_adapter(file)
        except AdapterError as error:
            raise AdapterError(f"{folder}: {error}") from None
    return LlamaAdapter(name=name, path=str(folder), pointer=pointer, model=model)


def layout_of(model: LlamaModel) -> ModelLayout:
    """Return the layout of a loaded model."""
    return ModelLayout(
        architecture=model.architecture, layers=model.layers, heads=model.heads, kv_heads=model.kv_heads
    )
