"""Removes versions for good, wherever their weights are: for `run.py forget`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from store.errors import AdapterError
from store.settings import Settings
from trainer.checkpoint import remove_version


def remove_folders(folders: Sequence[Path], settings: Settings) -> list[str]:
    """Remove the files of versions, also those that a Tinker server holds; returns what could not be removed, with the reason."""
    problems: list[str] = []
    if settings.backend == "tinker":
        from trainer.tinker.link import TinkerConnection
        from trainer.tinker.version_trainer import remove_with_checkpoints

        link = TinkerConnection(settings)
    for folder in folders:
        try:
            if settings.backend == "tinker":
                problems += remove_with_checkpoints(link, folder)
            else:
                remove_version(folder)
        except AdapterError as exc:
            problems.append(str(exc))
    if settings.backend == "tinker":
        link.drop()
    return problems
