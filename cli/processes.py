"""Processes of ours that a command runs to their end."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Sequence

from store.errors import ConfigError
from store.settings import Settings, child_environment


async def run_process(settings: Settings, command: Sequence[str], name: str) -> None:
    """Run a process of ours to its end. Raises: ConfigError: it failed; its last words."""
    file = settings.home / "run" / f"settings-{secrets.token_hex(4)}.json"
    settings.dump(file)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            "--settings",
            str(file),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
        )
        _, errors = await process.communicate()
    finally:
        file.unlink(missing_ok=True)
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise ConfigError(f"the {name} ended with code {process.returncode}: {lines[-1] if lines else ''}")
