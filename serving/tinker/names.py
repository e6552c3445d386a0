"""Whose model is meant: what a person calls it, and what the Tinker server calls it. Pure.

Tinker's names are mostly those of Hugging Face, but not always, and a server of one's own may call a model by its folder. Training another
model than the one that is meant must not happen by guessing: only what is certainly the same is taken, anything else is suggested.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence

from store.errors import ConfigError

_MOST_SHOWN = 12


def choose_base_model(
    supported: Sequence[str], *, wanted: str, given: str, path: str, is_same: Callable[[str, str], bool]
) -> str:
    """Return the server's name of the base model.

    Args:
        supported: the names that the server lists; empty: it lists none, and what was given is taken.
        wanted: `--tinker-model`; "": not said.
        given: `--model-name`.
        path: the same as `from_pretrained` is given it: a folder or a name.
        is_same: whether two texts name the same folder.

    Raises:
        ConfigError: it has no such model, with the likely name where there is one.
    """
    if wanted:
        if not supported or wanted in supported:
            return wanted
        raise ConfigError(
            f"--tinker-model {wanted}: the Tinker server has no such model; {_offer(wanted, supported)}"
        )
    if not supported:
        return path
    for name in (given, path):
        if name in supported:
            return name
    for name in supported:
        if is_same(name, path):
            return name
    raise ConfigError(f"the Tinker server has no model named {given}; {_offer(given, supported)}")


def suggest(name: str, supported: Sequence[str]) -> str | None:
    """Return the supported name that is most likely meant; None where none comes near."""
    plain = _plain(name)
    same = [each for each in supported if _plain(each) == plain]
    if same:
        return same[0]
    # a base model and its instruct version, or a size with another suffix: the shortest name that one of them continues
    longer = sorted(
        (each for each in supported if _plain(each).startswith(plain) or plain.startswith(_plain(each))),
        key=len,
    )
    if longer:
        return longer[0]
    by_plain = {_plain(each): each for each in supported}
    close = difflib.get_close_matches(plain, list(by_plain), n=1, cutoff=0.7)
    return by_plain[close[0]] if close else None


def _plain(name: str) -> str:
    """The model's own name without owner, folder, case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.rstrip("/").rpartition("/")[2].lower())


def _offer(name: str, supported: Sequence[str]) -> str:
    found = suggest(name, supported)
    if found is not None:
        return f"it has {found}: if that is the same model, say --tinker-model {found}"
    shown = ", ".join(supported[:_MOST_SHOWN])
    return f"it has {shown}" + (
        f" and {len(supported) - _MOST_SHOWN} more" if len(supported) > _MOST_SHOWN else ""
    )
