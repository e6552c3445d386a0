"""Digests of the model that a backend serves, for the manifests of its versions (`store.manifest`)."""

from __future__ import annotations

from dataclasses import asdict

from serving.models.converted import read_origin
from serving.vllm.model_folder import find_model_folder
from store.errors import ConfigError
from store.manifest import ModelDigests, digest_model


def digest_served_model(model: str) -> ModelDigests:
    """Digest a model folder, or a name in the local Hugging Face cache, or a converted GGUF file; no digests where there is none on this machine.

    Raises:
        AdapterError: a file cannot be read.
    """
    try:
        folder = find_model_folder(model)
    except ConfigError:
        return ModelDigests()
    found, origin = digest_model(folder), read_origin(folder)
    if origin.get("as_written") != asdict(found):
        return found
    # Unchanged since its conversion. Another release of a library may write the same model in other bytes, so it is known by its source.
    same = f"gguf:{origin['gguf_sha256']}:{origin['converter']}"
    return ModelDigests(base_model=same, tokenizer=same, chat_template=same)
