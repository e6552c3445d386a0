"""`run.py wishes`: what the model was asked to be, in the person's words; edit or remove one.

`edit` and `remove` write to the record. The gateway follows it, so that they act from the next request on; the trainer reads it before every
version. They work while Patina runs and while it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence

from rich.markup import escape

from cli.console import table_console
from cli.opened_record import open_record
from cli.policies import given_policy
from cli.text import LONG
from store.errors import ConfigError, RecordError
from store.record import Record
from store.settings import Settings
from store.texts import clip
from store.values import Wish, WishState
from store.version import COMMAND
from store.wish_states import describe_state, in_prompt, wish_to_json

_NOTHING = "nothing was asked of the model yet"


def wishes(settings: Settings, arguments: argparse.Namespace) -> int:
    """List the wishes of a policy, or change one.

    Raises:
        ConfigError: the arguments do not fit the action.
        RecordError: there is no such wish.
    """
    action, number, words = arguments.action, arguments.number, arguments.words
    usage = {"list": "wishes", "edit": 'wishes edit N "OTHER WORDS"', "remove": "wishes remove N"}[action]
    if (number is not None) != (action != "list") or (words is not None) != (action == "edit"):
        raise ConfigError(f"it is `{COMMAND} {usage}`")
    if action == "edit" and not words.strip():
        raise ConfigError(f"the words are empty: `{COMMAND} wishes remove N` removes a wish")
    return asyncio.run(_run(settings, arguments))


async def _run(settings: Settings, arguments: argparse.Namespace) -> int:
    async with open_record(settings, waits=not arguments.no_wait) as record:
        found = await record.wishes()
        # The policies of an endpoint are its models, which `given_policy` does not know.
        is_known = arguments.policy in {wish.policy for wish in found}
        policy = arguments.policy if is_known else given_policy(settings, arguments)
        found = tuple(wish for wish in found if policy in (None, wish.policy))
        adds = await record.adds_wishes()
        if arguments.action == "list":
            _print_list(found, adds=adds, as_json=arguments.json)
            return 0
        wish = next((one for one in found if one.wish_id == arguments.number), None)
        if wish is None:
            numbers = ", ".join(str(one.wish_id) for one in found)
            known = f"there are {numbers}" if found else _NOTHING
            raise RecordError(f"there is no wish {arguments.number}: {known}")
        if arguments.action == "edit":
            text = " ".join(arguments.words.split())
            changed = await record.change_wish(wish.wish_id, text=text, state=WishState.PROMPT)
            message = f"wish {wish.wish_id} is now “{text}” (before: “{clip(wish.text, LONG)}”), from the next request on."
        else:
            if wish.state is WishState.WITHDRAWN:
                raise RecordError(f"wish {wish.wish_id} is withdrawn already")
            changed = await record.change_wish(wish.wish_id, state=WishState.WITHDRAWN)
            message = await _removed(record, wish)
        if arguments.json:
            shown = wish_to_json(changed, is_in_prompt=adds and changed.state is WishState.PROMPT)
            print(json.dumps({"wish": shown}, indent=2))
        else:
            table_console(soft_wrap=True).print(escape(message))
        return 0


async def _removed(record: Record, wish: Wish) -> str:
    message = f"wish {wish.wish_id} is removed: “{clip(wish.text, LONG)}”. It is in no prompt from the next request on."
    if "weights" in wish.measures or wish.state is WishState.RETIRED:
        paused = await record.is_paused(wish.policy)
        message += " The next version is made without it" + (", once training is resumed." if paused else ".")
    return message


def _print_list(found: Sequence[Wish], *, adds: bool, as_json: bool) -> None:
    acting = {wish.wish_id for wish in in_prompt(found)} if adds else set[int]()
    if as_json:
        listed = [wish_to_json(wish, is_in_prompt=wish.wish_id in acting) for wish in found]
        print(json.dumps({"wishes": listed}, indent=2))
        return
    console = table_console(soft_wrap=True)
    if not found:
        console.print(f"There is no wish: {_NOTHING}.")
    policy = None
    for wish in sorted(found, key=lambda one: one.policy):
        if wish.policy != policy:
            policy = wish.policy
            console.print(escape(f"{policy} was asked for:"))
        for line in lines_of(wish, is_in_prompt=wish.wish_id in acting):
            console.print(escape(line), highlight=False)
    if found and not adds:
        console.print("The gateway adds no wishes to prompts (--wishes).")


def lines_of(wish: Wish, *, is_in_prompt: bool) -> Iterator[str]:
    """Yield what is shown of a wish, a line each."""
    yield f"{wish.wish_id:>3}  “{clip(wish.text, LONG)}”"
    state = describe_state(wish, is_in_prompt=is_in_prompt)
    yield f"     {state}" + (" · your own wording" if wish.edited else "")
    if wish.statements:
        last = wish.statements[-1]
        count = "once" if len(wish.statements) == 1 else f"{len(wish.statements)} times"
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(last.created_at))
        yield f"     stated {count}, last {day} (turn {last.turn_id})"
    others = dict.fromkeys(one.text for one in wish.statements if one.text != wish.text)
    if others:
        yield "     also: " + " · ".join(f"“{clip(text, 60)}”" for text in others)
