"""Keys by name: ``keys add NAME``, ``keys list``, ``keys revoke NAME``. A running proxy follows at once."""

from __future__ import annotations

import argparse
import time

from rich.table import Table

from cli.console import PlainConsole
from store.errors import ConfigError
from store.keys import DEFAULT, KeyFile, new_key, write_secret
from store.policies import SHARED, is_group, policy_name
from store.settings import Settings


def keys(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run one of the three; returns the exit code.

    Raises:
        ConfigError: no such key, a name that cannot be, or a file that cannot be written.
    """
    file = KeyFile(settings.keys_file)
    if arguments.action == "list":
        _list(settings, file)
        return 0
    name = arguments.name
    if arguments.group and arguments.adapter == "shared":
        raise ConfigError("--adapter shared and --group exclude each other")
    if name is None:
        raise ConfigError(f"keys {arguments.action} needs a name")
    if arguments.action == "add":
        group = arguments.group or (SHARED if arguments.adapter == "shared" else None)
        wanted = name if group is None else group
        if is_group(wanted):
            policy_name(settings.policy, wanted)  # refuses what is too long behind this model's name
        key = file.add(name, trains=arguments.train, adapter=group, is_owner=arguments.owner)
        print(f"The key of {name}, shown this once (only its hash is kept in {file.path}):\n\n    {key}\n")
        if settings.api_key == "":
            print(
                "No key is required here (--api-key ''): a new key names its caller, but requests without one are accepted too."
            )
    elif name == DEFAULT:
        _renew(settings)
    else:
        file.revoke(name)
        print(f"The key of {name} opens nothing any more.")
    return 0


def _renew(settings: Settings) -> None:
    """The first key has a file of its own that other programs read: it is replaced, not taken away."""
    if settings.api_key is not None:
        raise ConfigError("the first key was given with --api-key: give another one there")
    if not settings.key_file.exists():
        raise ConfigError(f"there is no key in {settings.key_file} yet")
    write_secret(settings.key_file, new_key() + "\n")
    print(f"The first key opens nothing any more; a new one is in {settings.key_file}.")


def _list(settings: Settings, file: KeyFile) -> None:
    table = Table("name", "since", "state", "trains", "policy", "owner", box=None, pad_edge=False)
    shared = ("yes", settings.policy, "yes")
    if settings.api_key is not None:
        table.add_row(
            DEFAULT, "", "given with --api-key" if settings.api_key else "no key is asked for", *shared
        )
    elif settings.key_file.exists():
        table.add_row(DEFAULT, _day(settings.key_file.stat().st_mtime), f"in {settings.key_file}", *shared)
    for key in file.read():
        state = "good" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"
        trains, owner = ("yes" if flag else "no" for flag in (key.trains, key.is_owner))
        table.add_row(
            key.name, _day(key.created_at), state, trains, policy_name(settings.policy, key.adapter), owner
        )
    PlainConsole(highlight=False, soft_wrap=True).print(table)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
