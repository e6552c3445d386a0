"""Fetches a model of the Hugging Face hub before any process starts: only the files that are read, resumed after a cut.

The library's own download forgets an unfinished file when its process ends, or after a few seconds without a network. Here it is kept beside
the folder, and the next attempt or start asks for the rest of it. HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE count as for the library.
A model that is whole in the library's cache, or was downloaded before, is used without asking the hub.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from huggingface_hub import (
    HfApi,
    constants,
    get_session,
    get_token,
    hf_hub_url,
    hf_raise_for_status,
    snapshot_download,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential
from tqdm import tqdm

from serving.models.converted import locked
from store.errors import ConfigError

#: What is read of a model. Copies of the weights in other formats lie in folders, or have other names.
_SUFFIXES = (".safetensors", ".json", ".jinja", ".model")
_NAMES = ("merges.txt", "vocab.txt")
_INDEX = "model.safetensors.index.json"
_PIECE = 1 << 20
_TIMEOUT_S = 30.0
#: An outage of about a minute is waited for.
_ATTEMPTS, _PAUSES = 8, wait_exponential(max=15)


def fetch_hub_model(name: str, cache: Path) -> Path:
    """Return the folder of a model, after downloading what is missing.

    Raises:
        ConfigError: it cannot be had, in one sentence.
    """
    with _errors_as_sentences(name):
        own = f"{name.replace('/', '--')}-"
        # The first revision that was downloaded stays: adapters are of its weights.
        found = next((one for one in sorted(cache.glob(f"{own}*")) if is_whole(one)), None) or _in_library(
            name
        )
        if found is not None:
            return found
        commit, files = _list_files(name)
        with locked(cache, own.rstrip("-")):
            folder = cache / f"{own}{commit[:12]}"
            if not folder.is_dir():
                part = folder.with_name(f".{folder.name}.part")
                part.mkdir(exist_ok=True)
                _download(name, commit, files, part)
                part.rename(folder)
    if not is_whole(folder):
        raise ConfigError(f"the model {name} lacks weights that its {_INDEX} names")
    return folder


def is_whole(folder: Path) -> bool:
    """Return whether a model's folder has a configuration and all its weights."""
    index = folder / _INDEX
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        has_weights = all((folder / shard).is_file() for shard in shards)
    else:
        has_weights = any(True for kind in ("*.safetensors", "*.bin") for _ in folder.glob(kind))
    return has_weights and (folder / "config.json").is_file()


def _in_library(name: str) -> Path | None:
    """Return the folder of a model that is whole in the library's cache."""
    try:
        folder = Path(snapshot_download(name, local_files_only=True, allow_patterns="config.json"))
    except LocalEntryNotFoundError:
        return None
    return folder if is_whole(folder) else None


def _list_files(name: str) -> tuple[str, list[RepoFile]]:
    """Return the newest revision, and the files of it that are read."""
    api = HfApi()
    commit = str(api.repo_info(name, revision="main", timeout=_TIMEOUT_S).sha)
    files = [
        one
        for one in api.list_repo_tree(name, recursive=True, revision=commit)
        if isinstance(one, RepoFile)
        and "/" not in one.path
        and (one.path.endswith(_SUFFIXES) or one.path in _NAMES)
        and not one.path.startswith("consolidated")
    ]
    names = [one.path for one in files]
    if "config.json" not in names or not any(one.endswith(".safetensors") for one in names):
        raise ConfigError(
            f"the model {name} has no config.json with .safetensors weights on the hub: give --model-name a model in that format, "
            "or download one of its .gguf files and name the file"
        )
    return commit, files


def _download(name: str, commit: str, files: list[RepoFile], folder: Path) -> None:
    total = sum(one.size for one in files)
    there = sum(path.stat().st_size for path in folder.iterdir())
    if (free := shutil.disk_usage(folder).free) < total - there:
        raise ConfigError(
            f"the disk of {folder.parent} has {free / 1e9:.1f} GB free, and {name} needs {(total - there) / 1e9:.1f} GB: set "
            "PATINA_CACHE to another one"
        )
    print(
        f"Downloading {name} ({total / 1e9:.2f} GB, {len(files)} files) from {constants.ENDPOINT}", flush=True
    )
    retrying = Retrying(
        retry=retry_if_exception(_is_passing),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=_PAUSES,
        before_sleep=_report_pause,
        reraise=True,
    )
    with tqdm(total=total, initial=there, unit="B", unit_scale=True, desc=name) as bar:
        for one in sorted(files, key=lambda one: one.size):
            retrying(_download_file, hf_hub_url(name, one.path, revision=commit), folder / one.path, one, bar)


def _download_file(url: str, path: Path, wanted: RepoFile, bar: tqdm) -> None:
    """Append what a file lacks, then check it."""
    with path.open("ab") as file:
        start = file.tell()
        if start < wanted.size:
            headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-"}
            if token := get_token():
                headers["Authorization"] = f"Bearer {token}"  # not sent on to another host
            with get_session().stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S
            ) as response:
                hf_raise_for_status(response)
                if response.status_code != 206:  # all of it, whatever was asked for
                    bar.update(-start)
                    file.truncate(0)
                for piece in response.iter_bytes(_PIECE):
                    file.write(piece)
                    bar.update(len(piece))
    with path.open("rb") as file:
        is_right = path.stat().st_size == wanted.size and (
            wanted.lfs is None or hashlib.file_digest(file, "sha256").hexdigest() == wanted.lfs.sha256
        )
    if not is_right:
        path.unlink()
        raise ConfigError(
            f"{wanted.path} was downloaded with another content than the hub states: start again"
        )


def _is_passing(error: BaseException) -> bool:
    """Return whether the same download may succeed a moment later."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, httpx.TransportError)


def _report_pause(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    wait = state.next_action.sleep if state.next_action is not None else 0.0
    print(
        f"patina: the download stopped ({type(error).__name__}); it goes on in {wait:.0f} s",
        file=sys.stderr,
        flush=True,
    )


@contextmanager
def _errors_as_sentences(name: str) -> Iterator[None]:
    """Map the library's errors once."""
    try:
        yield
    except (OSError, HFValidationError, httpx.TransportError) as error:
        raise ConfigError(_sentence(name, error)) from error


def _sentence(name: str, error: Exception) -> str:
    hub = constants.ENDPOINT
    if isinstance(error, HFValidationError):
        return f"--model-name: {name} is no folder, and no name of a model on the hub"
    if isinstance(error, GatedRepoError):
        return f"the model {name} is gated: accept its terms on {hub}/{name}, then set HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub {hub} has no model {name}, or it is private and HF_TOKEN is not set: check the name"
    if isinstance(error, HfHubHTTPError):
        return f"the model {name} cannot be downloaded: {hub} answered {error.response.status_code}"
    if isinstance(error, httpx.TransportError | ConnectionError):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{hub} does not answer"
        return (
            f"the model {name} is not on this machine and cannot be downloaded ({why}): repeat with a network (what is there is kept), "
            "or give --model-name a folder, a .gguf file or ollama:NAME"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: make room, or set PATINA_CACHE to another disk; the download of {name} goes on from there"
    return f"the model {name} cannot be downloaded: {error}"
