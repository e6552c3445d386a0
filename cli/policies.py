"""Which policy a command is about: `--policy NAME`, `--key NAME`, or the only one that there is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from store.errors import ConfigError
from store.keys import DEFAULT, KeyFile
from store.policies import SHARED, find_policy, policies_of, policy_name
from store.settings import Settings

if TYPE_CHECKING:  # the record's library takes seconds, and a help page needs none
    from store.record import Record


def add_policy_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--policy` and `--key`; ``default`` says in the help what is meant without them."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--policy", help=f"policy, or the group that uses it; default: {default}")
    which.add_argument("--key", help="the policy of this key")


def given_policy(settings: Settings, arguments: argparse.Namespace) -> str | None:
    """Return the policy that was named; None: none was.

    Raises:
        ConfigError: there is no such key, or it is no name of a policy.
    """
    if arguments.policy is not None:
        return find_policy(settings.policy, arguments.policy)
    if arguments.key is None:
        return None
    if arguments.key == DEFAULT:
        return settings.policy
    groups = [key.adapter for key in KeyFile(settings.keys_file).read() if key.name == arguments.key]
    if not groups:
        raise ConfigError(f"there is no key named {arguments.key}; see: keys list")
    return policy_name(settings.policy, groups[-1])


async def chosen_policy(record: Record, settings: Settings, arguments: argparse.Namespace) -> str:
    """Return the policy that was named; without a name the shared one, or the only other one that ever had a live version.

    Raises:
        ConfigError: see `given_policy`.
    """
    given = given_policy(settings, arguments)
    if given is not None:
        return given
    known = policies_of(settings.policy, await record.aliases())
    return known[0] if len(known) == 1 else policy_name(settings.policy, SHARED)
