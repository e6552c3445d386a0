"""Names of policies: one base model, the shared policy of its name, and one policy for each adapter group.

The shared policy has the name of the base model as it is served (``qwen3``); the policy of a group is ``qwen3.<group>``. A group is
the name of an API key, or the name that several keys share. ``<policy>@<version>`` names a version. Pure; the only module that knows
these rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from store.errors import ConfigError

#: The group of the shared policy.
SHARED = ""
#: What `column policy` holds at most, with room for a version's number.
MAX_NAME = 128
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ModelName:
    """What a client's model name asks for.

    Attributes:
        group: the adapter group it names; None: the caller's own.
        version: None: the live one.
    """

    group: str | None
    version: int | None


def is_group(name: str) -> bool:
    """Whether ``name`` can be the name of an adapter group."""
    return _GROUP.fullmatch(name) is not None


def policy_name(base: str, group: str) -> str:
    """Return the policy of a group: ``base`` itself for the shared one.

    Raises:
        ConfigError: the name of the group cannot be, or is too long behind this base name.
    """
    if not group:
        return base
    name = f"{base}.{group}"
    if not is_group(group) or len(name) > MAX_NAME:
        raise ConfigError(
            f"{group!r} cannot name an adapter: letters, digits, '.', '_' and '-', at most "
            f"{min(64, MAX_NAME - len(base) - 1)}"
        )
    return name


def group_of(base: str, policy: str) -> str | None:
    """Return the group of a policy, "" for the shared one; None when it is no policy of this base model."""
    if policy == base:
        return SHARED
    group = policy.removeprefix(f"{base}.")
    return group if group != policy and is_group(group) else None


def policies_of(base: str, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that are policies of this base model, in order of their names; the shared one comes first."""
    return sorted({name for name in names if group_of(base, name) is not None})


def parse_model(base: str, model: str) -> ModelName | None:
    """Read a model name: ``<base>``, ``<base>.<group>`` or ``<base>:<group>``, each with or without ``@<version>``.

    Returns:
        None when it names no policy of this base model.
    """
    name, at, tail = model.rpartition("@")
    version = None
    if not at:
        name = model
    elif tail.isascii() and tail.isdigit() and len(tail) <= _MAX_DIGITS:
        version = int(tail)
    else:
        return None
    if name == base:
        return ModelName(None, version)
    group = name[len(base) + 1 :]
    if name.startswith((f"{base}.", f"{base}:")) and is_group(group):
        return ModelName(group, version)
    return None


def parse_version(base: str, name: str) -> tuple[str, int] | None:
    """Split an adapter's name ``<policy>@<version>``; None when it is no version of a policy of this base model."""
    policy, at, tail = name.rpartition("@")
    if not at or not (tail.isascii() and tail.isdigit()) or group_of(base, policy) is None:
        return None
    return policy, int(tail)


def find_policy(base: str, reference: str) -> str:
    """Return the policy that a person names: its whole name, a model name, or its group alone.

    Raises:
        ConfigError: it names none.
    """
    found = parse_model(base, reference)
    if found is not None and found.version is None:
        return policy_name(base, found.group or SHARED)
    if is_group(reference):
        return policy_name(base, reference)
    raise ConfigError(f"{reference!r} is no policy: {base}, or {base}.NAME of a key's own adapter")
