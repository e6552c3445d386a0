"""`run.py wishes`: what the model was asked to be, in the person's words; edit or remove one.

The list is the playbook of the live version: ids and numbers from the version's metrics, words from the record. `edit` and `remove` write
to the record, which the trainer reads before every version; they work while Patina runs and while it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Collection, Iterator, Sequence

from rich.markup import escape

from cli.console import table_console
from cli.opened_record import open_record
from cli.policies import chosen_policy
from cli.text import LONG
from store.errors import ConfigError, RecordError
from store.record import Record
from store.settings import Settings
from store.texts import clip
from store.values import BASE_VERSION, AdapterState, AdapterVersion, WishEdit
from store.version import COMMAND
from store.wish_list import ListedWish, read_wishes

_STATES = {
    "active": "active",
    "overruled": "overruled by a later wish",
    "withdrawn": "withdrawn, being unlearnt",
    "unlearnt": "withdrawn and unlearnt",
}
_NOTHING = "nothing was asked of the model yet"


def wishes(settings: Settings, arguments: argparse.Namespace) -> int:
    """List the wishes of the live version, or change one.

    Raises:
        ConfigError: the arguments do not fit the action.
        RecordError: there is no such wish.
    """
    _check(arguments)
    return asyncio.run(_run(settings, arguments))


def _check(arguments: argparse.Namespace) -> None:
    action, number, words = arguments.action, arguments.number, arguments.words
    usage = {"list": "wishes", "edit": 'wishes edit N "OTHER WORDS"', "remove": "wishes remove N"}[action]
    if (number is not None) != (action != "list") or (words is not None) != (action == "edit"):
        raise ConfigError(f"it is `{COMMAND} {usage}`")
    if action == "edit" and not words.strip():
        raise ConfigError(f"the words are empty: `{COMMAND} wishes remove N` removes a wish")


async def _run(settings: Settings, arguments: argparse.Namespace) -> int:
    async with open_record(settings, waits=not arguments.no_wait) as record:
        policy = await chosen_policy(record, settings, arguments)
        live = await record.live_version(policy)
        found = await read_wishes(record, policy, live)
        if arguments.action == "list":
            _print_list(policy, live, found, as_json=arguments.json)
            return 0
        wish = next((one for one in found if one.number == arguments.number), None)
        if wish is None:
            numbers = f"there are 1 to {len(found)}" if found else _NOTHING
            raise RecordError(f"{policy}@{live} has no wish {arguments.number}: {numbers}")
        if wish.state in ("withdrawn", "unlearnt"):
            raise RecordError(
                f"wish {wish.number} is {_STATES[wish.state]}: ask for it in a conversation to have it back"
            )
        if not wish.turn_ids:
            raise RecordError(f"the words of wish {wish.number} are not in the record any more")
        if arguments.action == "edit":
            message = await _edit(record, policy, wish, " ".join(arguments.words.split()))
        else:
            option = "" if policy == settings.policy else f" --policy {policy}"
            message = await _remove(record, policy, live, wish, option)
        if arguments.json:
            changed = {one.number: one for one in await read_wishes(record, policy, live)}[wish.number]
            print(json.dumps({"policy": policy, "live": live, "wish": changed.to_json()}, indent=2))
        else:
            table_console(soft_wrap=True).print(escape(message))
        return 0


# ------------------------------------------------------------------------ list


def _print_list(policy: str, live: int, found: Sequence[ListedWish], *, as_json: bool) -> None:
    if as_json:
        listed = {"policy": policy, "live": live, "wishes": [wish.to_json() for wish in found]}
        print(json.dumps(listed, indent=2))
        return
    console = table_console(soft_wrap=True)
    if live == BASE_VERSION:
        console.print(f"{policy} is the base model, without a version: {_NOTHING}, or it was undone")
    elif not found:
        console.print(f"{policy}@{live} has no wish: no reaction of yours changes how the model answers")
    else:
        console.print(f"{policy}@{live} was asked for:")
    for wish in found:
        for line in lines_of(wish):
            console.print(escape(line))


def lines_of(wish: ListedWish) -> Iterator[str]:
    """Yield what is shown of a wish, a line each."""
    title = f"“{clip(wish.text, LONG)}”" if wish.text else "(the words are not in the record any more)"
    yield f"{wish.number:>3}  {title}"
    yield f"     {_state(wish)} · {_shares(wish)}"
    if wish.stated:
        last = wish.stated[-1]
        count = "once" if len(wish.stated) == 1 else f"{len(wish.stated)} times"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(last.created_at))
        yield f"     stated {count}, last {when} (turn {last.turn_id})"
    if wish.others:
        yield "     also: " + " · ".join(f"“{clip(text, 60)}”" for text in wish.others)


def _state(wish: ListedWish) -> str:
    if wish.is_removed:
        return "removed: the next version unlearns it"
    if wish.overruled_by is not None:
        return f"overruled by {wish.overruled_by}"
    return _STATES[wish.state]


def _shares(wish: ListedWish) -> str:
    if wish.now is None:
        return "not measured in this version"
    best = f" (best {wish.best:.0%})" if wish.best is not None else ""
    return f"followed now in {wish.now:.0%} of replies{best}"


# ---------------------------------------------------------------------- change


async def _edit(record: Record, policy: str, wish: ListedWish, text: str) -> str:
    *older, newest = wish.turn_ids
    edits = [WishEdit(turn_id=turn_id, text="") for turn_id in older]
    await record.add_wish_edits(policy, [*edits, WishEdit(turn_id=newest, text=text)])
    others = ", and its other wordings are not used any more" if wish.others else ""
    return (
        f"wish {wish.number} is now “{text}” (before: “{clip(wish.text, LONG)}”){others}: the teacher reads it from the next version "
        "on, which also begins to unlearn the earlier wish if the two are different"
    )


async def _remove(record: Record, policy: str, live: int, wish: ListedWish, option: str) -> str:
    edits = [WishEdit(turn_id=turn_id, text=None) for turn_id in wish.turn_ids]
    await record.add_wish_edits(policy, edits)
    message = f"wish {wish.number} is removed: “{clip(wish.text, LONG)}”. The next version unlearns it"
    message += ", once training is resumed." if await record.is_paused(policy) else "; no new turn is needed."
    version = version_before(await record.adapters(policy), live, wish.turn_ids)
    if version is not None:
        named = f"version {version}" if version != BASE_VERSION else "the base model"
        message += (
            f" `{COMMAND} rollback {version}{option}` goes back to {named}, before it was learnt, at once, "
            "and gives up what was learnt since."
        )
    return message


def version_before(adapters: Sequence[AdapterVersion], live: int, turn_ids: Collection[str]) -> int | None:
    """Return the newest ancestor of the live version that did not have this wish. Pure.

    Returns:
        None where its files are gone, so that it cannot be served again.
    """
    by_version = {adapter.version: adapter for adapter in adapters}
    ids, version = {*turn_ids}, live
    while (adapter := by_version.get(version)) is not None:
        row = next((row for row in adapter.metrics.get("wishes", ()) if ids & {*row["turns"]}), None)
        if row is None:
            return version if adapter.state is AdapterState.PUBLISHED else None
        ids |= {*row["turns"]}
        version = adapter.parent_version
    return version if version == BASE_VERSION else None
