"""`run.py compare V W ...`: versions by fixed prompts, and what drifts from the first to the last."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from rich.table import Table

from cli.console import table_console
from cli.opened_record import open_record
from store.errors import ConfigError
from store.policies import find_policy
from store.settings import Settings
from store.values import BASE_VERSION, AdapterState, Json


def compare(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the matrix of versions and probes.

    Raises:
        ConfigError: fewer than two versions, or one whose files are not there.
    """
    from trainer.version_matrix import measure_versions, to_json  # here: other commands need no torch

    versions: list[int] = arguments.versions
    if len(set(versions)) < 2:
        raise ConfigError("compare needs two versions or more; 0 is the base model")
    policy = find_policy(settings.policy, arguments.policy or settings.policy)
    folders = asyncio.run(_folders(settings, policy, versions))
    found = to_json(versions, measure_versions(settings, folders))
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        _print(policy, found)
    return 0


async def _folders(settings: Settings, policy: str, versions: list[int]) -> list[Path | None]:
    folders: list[Path | None] = []
    async with open_record(settings, waits=False) as record:
        for version in versions:
            if version == BASE_VERSION:
                folders.append(None)
                continue
            adapter = await record.adapter(policy, version)
            if adapter is None:
                raise ConfigError(f"{policy} has no version {version}")
            if adapter.state in (AdapterState.PRUNED, AdapterState.FORGOTTEN):
                raise ConfigError(f"the files of {adapter.name} were removed: it is {adapter.state.value}")
            folders.append(Path(adapter.path))
    return folders


def _print(policy: str, found: Json) -> None:
    console = table_console(soft_wrap=True)
    table = Table("probe", "prompts", *(f"{policy}@{version}" for version in found["versions"]))
    for probe, count in found["prompts"].items():
        cells = [f"{found['means'][0][probe]:.2f}"]
        for mean, difference in zip(found["means"][1:], found["differences"], strict=True):
            one = difference[probe]
            cells.append(f"{mean[probe]:.2f} ({one['mean']:+.2f}: {one['low']:+.2f} to {one['high']:+.2f})")
        table.add_row(probe, str(count), *cells)
    console.print(table)
    console.print("in brackets: difference to the first version, 95 % bootstrap interval over prompts")
    for drift in found["drifts"]:
        how = "slowly: no version differs from the one before it" if drift["is_slow"] else "at a version"
        total = drift["total"]
        console.print(
            f"{drift['probe']} drifts {how} ({total['mean']:+.2f}: {total['low']:+.2f} to {total['high']:+.2f})",
            markup=False,
        )
