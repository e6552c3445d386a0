"""Digests of the model that a backend serves, for the manifests of its versions (`store.manifest`)."""

from __future__ import annotations

from serving.vllm.model_folder import find_model_folder
from store.errors import ConfigError
from store.manifest import ModelDigests, digest_model


def digest_served_model(model: str) -> ModelDigests:
    """Digest a model folder, or a name in the local Hugging Face cache; no digests where there is none on this machine.

    Raises:
        AdapterError: a file cannot be read.
    """
    try:
        folder = find_model_folder(model)
    except ConfigError:
        return ModelDigests()
    return digest_model(folder)
