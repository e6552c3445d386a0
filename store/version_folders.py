"""Where the folder of a version lies: the one rule for all that check, remove, sweep or restore one.

    <home>/adapters/<policy>@<version>[.<hash>]               of the shared policy
    <home>/adapters/<policy>/<policy>@<version>[.<hash>]      of every other one

Of a path in the record only the last part counts, and only where it is the version's own name. A record that was changed, or restored from an
archive, can therefore name no folder elsewhere. What lies behind a symbolic link is no version's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from store.values import AdapterState, AdapterVersion, adapter_name

#: Beginning of the names of folders that are still being written. A worker that dies leaves one.
UNFINISHED = ".writing-"
#: States of versions whose files stay.
KEPT = frozenset({AdapterState.PUBLISHED, AdapterState.REJECTED, AdapterState.REFUSED, AdapterState.DAMAGED})
_NAME = re.compile(r"(?P<policy>.+)@(?P<version>\d{1,9})(\..+)?", re.DOTALL)


class VersionFolder(NamedTuple):
    """A folder on the disk that is named like a version; ``policy`` is "" of an unfinished one."""

    path: Path
    policy: str
    version: int


def folder_of(adapters: Path, adapter: AdapterVersion) -> Path:
    """Return the folder of a version, whether it is there or not."""
    return locate(adapters, adapter.policy, adapter.version, adapter.path)


def locate(adapters: Path, policy: str, version: int, path: str) -> Path:
    """Return where the folder of a version lies whose row has this path."""
    own, name = adapter_name(policy, version), PurePath(path).name
    if name != own and not name.startswith(f"{own}."):
        name = own
    shared = adapters / name.replace("/", "_")  # a policy's name has none
    if policy in ("", ".", "..") or "/" in policy or (adapters / policy).is_symlink():
        return shared
    # Which policy is the shared one changes with the model that is served.
    apart = adapters / policy / name
    return apart if _is_folder(apart) or PurePath(path).parent.name == policy != adapters.name else shared


def version_folders(adapters: Path) -> list[VersionFolder]:
    """Return all folders that are versions by their names and places, and those that are being written."""
    found = []
    for path, place in _folders(adapters):
        match = _NAME.fullmatch(path.name)
        if path.name.startswith(UNFINISHED):
            found.append(VersionFolder(path, "", 0))
        elif match is not None and place in ("", match["policy"]):
            found.append(VersionFolder(path, match["policy"], int(match["version"])))
    return found


def leftovers(
    adapters: Path,
    versions: Iterable[AdapterVersion],
    *,
    policies: Iterable[str] | None = None,
    before: float = float("inf"),
) -> list[Path]:
    """Return the folders that no version of the record needs: of versions that were pruned, forgotten or never published, and unfinished ones.

    Args:
        versions: all of the record.
        policies: only of these; unfinished folders count whatever their policy. None: of all.
        before: only what was written before, Unix time: a step that runs has a folder before it has a row.
    """
    kept = {folder_of(adapters, one) for one in versions if one.state in KEPT}
    wanted = None if policies is None else {"", *policies}
    return [
        one.path
        for one in version_folders(adapters)
        if one.path not in kept
        and (wanted is None or one.policy in wanted)
        and _written_at(one.path) < before
    ]


def _folders(adapters: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders of `adapters` and of the policies in it, each with the policy that it lies under."""
    for path in _inside(adapters):
        yield path, ""
        if _NAME.fullmatch(path.name) is None and not path.name.startswith(UNFINISHED):
            yield from ((inner, path.name) for inner in _inside(path))


def _inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if _is_folder(path)]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # removed meanwhile
