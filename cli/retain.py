"""`run.py retain`: how long conversations are kept."""

from __future__ import annotations

import argparse
import asyncio
import math

from cli.opened_record import open_record
from store.errors import ConfigError
from store.keys import DEFAULT, KeyFile
from store.settings import Settings


def retain(settings: Settings, arguments: argparse.Namespace) -> int:
    """Set how long conversations are kept, and show it.

    Raises:
        ConfigError: no number of days, or no such key.
        RecordError: the record cannot be changed.
    """
    return asyncio.run(_retain(settings, arguments.days, arguments.key))


async def _retain(settings: Settings, given: str | None, key_name: str) -> int:
    if key_name:
        names = {DEFAULT, *(one.name for one in KeyFile(settings.home / "keys.json").read())}
        if key_name not in names:
            raise ConfigError(f"there is no key {key_name!r}: {', '.join(sorted(names))}")
    async with open_record(settings) as record:
        if given is not None:
            await record.retain(None if given == "always" else _days(given), key_name)
        kept = await record.retention()
    if not kept:
        print("Conversations are kept until you forget them.")
    for key, days in sorted(kept.items()):
        whose = (
            f"under the key {key}" if key else "under every other key" if len(kept) > 1 else "under every key"
        )
        print(
            f"Conversations {whose} are forgotten when their newest turn is {days:g} days old, with the wishes that only they state "
            "and what was learnt from them. A running Patina looks every hour."
        )
    return 0


def _days(given: str) -> float:
    try:
        days = float(given)
    except ValueError:
        days = math.nan
    if not 0 < days < math.inf:
        raise ConfigError(f"{given!r} is no number of days: give one above 0, or `always`")
    return days
