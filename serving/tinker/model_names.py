"""Maps the configured model to the Tinker server's name of it. Pure.

Most of Tinker's names are those of Hugging Face, but not all, and a self-hosted server may name a model by its folder. The wrong model must not be
trained because of a guess: only certain matches are used, anything else is suggested in the error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence

from store.errors import ConfigError

_MAX_LISTED_MODELS = 12


def choose_base_model(
    supported: Sequence[str], *, wanted: str, given: str, path: str, is_same: Callable[[str, str], bool]
) -> str:
    """Return the server's name of the base model.

    Args:
        supported: names that the server lists; empty: it lists none, and the given name is used.
        wanted: the setting `tinker_model`; "": not set.
        given: `--model-name`.
        path: the argument of `from_pretrained`: a folder or a name.
        is_same: whether two strings name the same folder.

    Raises:
        ConfigError: the server has no such model; names a likely one, if any.
    """
    if wanted:
        if not supported or wanted in supported:
            return wanted
        raise ConfigError(
            f"--set tinker_model={wanted}: the Tinker server has no such model; {_describe_offer(wanted, supported)}"
        )
    if not supported:
        return path
    for name in (given, path):
        if name in supported:
            return name
    for name in supported:
        if is_same(name, path):
            return name
    raise ConfigError(f"the Tinker server has no model named {given}; {_describe_offer(given, supported)}")


def suggest(name: str, supported: Sequence[str]) -> str | None:
    """Return the supported name that is most likely meant; None if none is similar."""
    at_one = _normalise_name(name)
    same = [each for each in supported if _normalise_name(each) == at_one]
    if same:
        return same[0]
    # A base model and its instruct version, or a size with another suffix: the shortest name that extends the other.
    longer = sorted(
        (
            each
            for each in supported
            if _normalise_name(each).startswith(at_one) or at_one.startswith(_normalise_name(each))
        ),
        key=len,
    )
    if longer:
        return longer[0]
    by_plain = {_normalise_name(each): each for each in supported}
    close = difflib.get_close_matches(at_one, list(by_plain), n=1, cutoff=0.7)
    return by_plain[close[0]] if close else None


def _normalise_name(name: str) -> str:
    """Return the model's own name without owner, folder, case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.rstrip("/").rpartition("/")[2].lower())


def _describe_offer(name: str, supported: Sequence[str]) -> str:
    found = suggest(name, supported)
    if found is not None:
        return f"it has {found}: if that is the same model, give --set tinker_model={found}"
    shown = ", ".join(supported[:_MAX_LISTED_MODELS])
    return f"it has {shown}" + (
        f" and {len(supported) - _MAX_LISTED_MODELS} more" if len(supported) > _MAX_LISTED_MODELS else ""
    )
