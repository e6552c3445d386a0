"""Fetches a model of the Hugging Face hub before any process starts: only the files that are read, resumed after a cut.

The library keeps unfinished files and asks for the rest of them; HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are its own. A model that
is whole in its cache is used without asking the hub.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from store.errors import ConfigError

#: Weights in one format, configuration, tokenizer and template. Copies in other formats lie in folders, or have these names.
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
_UNWANTED = ["*/*", "consolidated*"]
_ATTEMPTS = 6
_PAUSES = wait_exponential(multiplier=1, max=15)


def fetch_hub_model(name: str) -> Path:
    """Return the folder of a model in the local cache, after downloading what it lacks.

    Raises:
        ConfigError: it cannot be had, in one sentence.
    """
    with _errors_as_sentences(name):
        try:
            folder = Path(_snapshot(name, local_files_only=True))
            if is_whole(folder):
                return folder
        except LocalEntryNotFoundError:
            pass
        files = _snapshot(name, dry_run=True)
        missing = [one for one in files if one.will_download]
        size = sum(one.file_size for one in missing)
        _check(name, [one.filename for one in files], size)
        print(
            f"Downloading {name}: {len(missing)} files, {size / 1e9:.2f} GB, from {constants.ENDPOINT} into {constants.HF_HUB_CACHE}",
            flush=True,
        )
        # Only now: without a network, the first question above is answered at once.
        retrying = Retrying(
            retry=retry_if_exception(_is_passing),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=_PAUSES,
            before_sleep=_say,
            reraise=True,
        )
        folder = Path(retrying(_snapshot, name))
    if not is_whole(folder):
        raise ConfigError(f"the model {name} in {folder} is not whole")
    return folder


def is_whole(folder: Path) -> bool:
    """Return whether a model's folder has a configuration and all its weights."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        has_weights = all((folder / shard).is_file() for shard in shards)
    else:
        has_weights = any(True for kind in ("*.safetensors", "*.bin") for _ in folder.glob(kind))
    return has_weights and (folder / "config.json").is_file()


def _snapshot(name: str, **more: Any) -> Any:
    return snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, **more)


def _check(name: str, files: list[str], size: int) -> None:
    if "config.json" not in files or not any(one.endswith(".safetensors") for one in files):
        raise ConfigError(
            f"the model {name} has no config.json with .safetensors weights on the hub: give --model-name a model in that format, "
            "or download one of its .gguf files and name the file"
        )
    place = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(one for one in (place, *place.parents) if one.exists())).free
    if free < size:
        raise ConfigError(
            f"the disk of {place} has {free / 1e9:.1f} GB free, and {name} needs {size / 1e9:.1f} GB: set HF_HOME to another one"
        )


def _is_passing(error: BaseException) -> bool:
    """Return whether the same download may succeed a moment later."""
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
    if isinstance(cause, HfHubHTTPError):
        return cause.response.status_code >= 500
    return isinstance(cause, httpx.TransportError)


def _say(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    wait = state.next_action.sleep if state.next_action is not None else 0.0
    print(
        f"patina: the download stopped ({type(error).__name__}); again in {wait:.0f} s from where it stopped",
        file=sys.stderr,
        flush=True,
    )


@contextmanager
def _errors_as_sentences(name: str) -> Iterator[None]:
    """Map the library's errors once."""
    try:
        yield
    except HFValidationError as error:
        raise ConfigError(f"--model-name: {name} is no folder, and no name of a model on the hub") from error
    except GatedRepoError as error:
        raise ConfigError(
            f"the model {name} is gated: accept its terms on {constants.ENDPOINT}/{name}, then set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"the hub {constants.ENDPOINT} has no model {name}, or it is private and HF_TOKEN is not set: check the name"
        ) from error
    except HfHubHTTPError as error:
        raise ConfigError(
            f"the model {name} cannot be downloaded: {constants.ENDPOINT} answered {error.response.status_code}"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.TransportError) as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
        raise ConfigError(
            f"the model {name} is not in the local cache and cannot be downloaded ({why}): repeat with a network, or give --model-name "
            "a folder, a .gguf file or ollama:NAME"
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(
            f"the disk of {constants.HF_HUB_CACHE} is full: make room, or set HF_HOME to another disk; the download of {name} resumes"
        ) from error
