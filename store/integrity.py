"""Refuse a version that is not what the trainer made, make the newest intact ancestor live, and admit a repaired version again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from store.errors import AdapterError
from store.manifest import ModelDigests, check_version
from store.record import Record
from store.values import BASE_VERSION, AdapterState, AdapterVersion

#: Who moved the alias, in `alias_moves`.
ACTOR = "integrity"


def check_adapter(adapter: AdapterVersion, model: ModelDigests | None = None) -> bool:
    """Check a version's files against the record; returns whether it has a manifest (`store.manifest.check_version`).

    Raises:
        AdapterMismatch: they are not what was published.
        AdapterError: they are missing or cannot be read.
    """
    return check_version(
        Path(adapter.path), content=adapter.content_hash, manifest=adapter.manifest_hash, model=model
    )


async def refuse_version(record: Record, adapter: AdapterVersion, reason: str) -> int:
    """Mark a version as refused and, where it is live, move the alias to its newest intact ancestor.

    Returns:
        The version that is live now.

    Raises:
        RecordError: the record is unavailable.
    """
    known = {found.version: found for found in await record.adapters(adapter.policy)}
    version, seen = adapter.parent_version, {adapter.version}
    while version != BASE_VERSION and version not in seen:
        seen.add(version)
        ancestor = known.get(version)
        if ancestor is None:
            version = BASE_VERSION
        elif ancestor.state is AdapterState.PUBLISHED and await asyncio.to_thread(_is_intact, ancestor):
            break
        else:
            version = ancestor.parent_version
    else:
        version = BASE_VERSION
    return await record.refuse(adapter.policy, adapter.version, reason=reason, ancestor=version, actor=ACTOR)


async def readmit_version(record: Record, adapter: AdapterVersion) -> None:
    """Let a refused version serve again whose files are what was published. Whatever loads it checks it, and attests it, again.

    Raises:
        AdapterError: they still are not, or are missing.
        RecordError: the record is unavailable.
    """
    await asyncio.to_thread(check_adapter, adapter)
    await record.readmit(
        adapter.policy, adapter.version, reason=f"admitted again; it was refused: {adapter.reason}"
    )


def _is_intact(adapter: AdapterVersion) -> bool:
    try:
        check_adapter(adapter)
    except AdapterError:
        return False  # the next ancestor is tried; `verify` reports this one
    return True
