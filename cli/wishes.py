"""`run.py wishes`: what the model was asked to be, in the person's words; edit or remove one.

The list is the playbook of the live version: ids and numbers from the version's metrics, words from the record. `edit` and `remove` write
to the record, which the trainer reads before every version; they work while Patina runs and while it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape

from cli.opened_record import open_record
from cli.text import LONG, clip
from evals.console import table_console
from store.errors import ConfigError, RecordError
from store.record import Record
from store.settings import Settings
from store.values import BASE_VERSION, AdapterState, AdapterVersion, Json, StatedHint, WishEdit
from store.wishes import CANONICAL

_STATES = {
    "active": "active",
    "overruled": "overruled by a later wish",
    "withdrawn": "withdrawn, being unlearnt",
    "unlearnt": "withdrawn and unlearnt",
}
_NOTHING = "nothing was asked of the model yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedWish:
    """One wish as it is listed.

    Attributes:
        number: names it in `edit` and `remove`, counted from 1.
        turn_ids: the turns of its wordings, the newest last; those whose words are in the record.
        wordings: the words, one a turn, edits included; "" for a wording that an edit leaves out.
        state: "active", "overruled", "withdrawn" or "unlearnt" in the live version.
        is_removed: the owner removed it, and the live version was made before.
        overruled_by: number of the later wish.
        now, before, best: shares of the replies that follow it: of the live version, its parent, the best version; None: not measured.
        stated: turns in which it was stated in one of its wordings, before any edit; the newest last.
    """

    number: int
    turn_ids: tuple[str, ...]
    wordings: tuple[str, ...]
    state: str
    is_removed: bool
    overruled_by: int | None
    now: float | None
    before: float | None
    best: float | None
    stated: tuple[StatedHint, ...]

    @property
    def text(self) -> str:
        """The newest wording; "" when the record has none of its words any more."""
        return next((text for text in reversed(self.wordings) if text), "")

    @property
    def others(self) -> tuple[str, ...]:
        """Other wordings, the newest first."""
        used = [text for text in reversed(self.wordings) if text]
        return tuple(dict.fromkeys(text for text in used if text != self.text))

    def to_json(self) -> Json:
        last = self.stated[-1] if self.stated else None
        return {
            "number": self.number,
            "text": self.text,
            "other_wordings": list(self.others),
            "state": self.state,
            "removed": self.is_removed,
            "overruled_by": self.overruled_by,
            "now": self.now,
            "before": self.before,
            "best": self.best,
            "stated": len(self.stated),
            "last_stated_at": last.created_at if last else None,
            "last_turn_id": last.turn_id if last else None,
            "turn_ids": list(self.turn_ids),
        }


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
        raise ConfigError(f"it is `run.py {usage}`")
    if action == "edit" and not words.strip():
        raise ConfigError("the words are empty: `run.py wishes remove N` removes a wish")


async def _run(settings: Settings, arguments: argparse.Namespace) -> int:
    async with open_record(settings, waits=not arguments.no_wait) as record:
        policy = settings.policy
        move = (await record.aliases()).get(policy)
        live = move.version if move is not None else BASE_VERSION
        found = await _listed(record, policy, live)
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
            message = await _remove(record, policy, live, wish)
        if arguments.json:
            changed = {one.number: one for one in await _listed(record, policy, live)}[wish.number]
            print(json.dumps({"policy": policy, "live": live, "wish": changed.to_json()}, indent=2))
        else:
            table_console(soft_wrap=True).print(escape(message))
        return 0


# ------------------------------------------------------------------------ list


async def _listed(record: Record, policy: str, live: int) -> list[ListedWish]:
    adapter = await record.adapter(policy, live) if live != BASE_VERSION else None
    if adapter is None:
        return []
    rows = adapter.metrics.get("wishes", [])
    hints = {
        number: await record.stated_hints(policy, row["turns"]) for number, row in enumerate(rows, start=1)
    }
    return list_wishes(rows, hints, await record.wish_edits(policy))


def list_wishes(
    rows: Sequence[Json], hints: Mapping[int, Sequence[StatedHint]], edits: Sequence[WishEdit]
) -> list[ListedWish]:
    """Join what a version's metrics have of its wishes with the words. Pure.

    Args:
        rows: see `trainer.wish_training.wish_rows`.
        hints: by number of the row, every turn that stated it in one of its wordings, oldest first.
        edits: those that count; see `Record.wish_edits`.
    """
    replaced = {edit.turn_id: edit.text for edit in edits if edit.text is not None}
    removed = {edit.turn_id for edit in edits if edit.text is None}
    number_of = {
        turn_id: number
        for number, row in enumerate(rows, start=1)
        if not row.get("as_stated")
        for turn_id in row["turns"]
    }
    found = []
    for number, row in enumerate(rows, start=1):
        labels = dict(zip(row["turns"], row.get("labels", ()), strict=False))  # none in versions of before
        words = {
            stated.turn_id: _words(stated, tuple(labels.get(stated.turn_id, ()))) for stated in hints[number]
        }
        turn_ids = tuple(turn_id for turn_id in row["turns"] if turn_id in words)
        is_settled = row["state"] in ("withdrawn", "unlearnt")
        found.append(
            ListedWish(
                number=number,
                turn_ids=turn_ids,
                # A wish that an edit made into another is unlearnt in the words in which it was stated.
                wordings=tuple(
                    words[turn_id] if row.get("as_stated") else replaced.get(turn_id, words[turn_id])
                    for turn_id in turn_ids
                ),
                state=row["state"],
                is_removed=not is_settled and bool(removed & {*turn_ids}),
                overruled_by=number_of.get(row["overruled_by"]),
                now=row["now"],
                before=row["before"],
                best=row["best"],
                stated=tuple(hints[number]),
            )
        )
    return found


def _words(stated: StatedHint, labels: tuple[str, ...]) -> str:
    """The person's words; a canonical wording where the wish is only a part of what they asked for there.

    Args:
        labels: what of `stated.wishes` the wish has; () where it has no name.
    """
    if labels and labels != stated.wishes and all(CANONICAL.get(label) for label in labels):
        return " ".join(CANONICAL[label] for label in labels)
    return stated.hint.strip()


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


async def _remove(record: Record, policy: str, live: int, wish: ListedWish) -> str:
    edits = [WishEdit(turn_id=turn_id, text=None) for turn_id in wish.turn_ids]
    await record.add_wish_edits(policy, edits)
    message = f"wish {wish.number} is removed: “{clip(wish.text, LONG)}”. The next version unlearns it"
    message += ", once training is resumed." if await record.is_paused() else "; no new turn is needed."
    version = version_before(await record.adapters(policy), live, wish.turn_ids)
    if version is not None:
        named = f"version {version}" if version != BASE_VERSION else "the base model"
        message += (
            f" `run.py rollback {version}` goes back to {named}, before it was learnt, at once, "
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
