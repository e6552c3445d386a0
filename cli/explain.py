"""`run.py explain TURN`: why a turn is what it is, what it followed, what followed it, and what became of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator

from rich.markup import escape

from cli.console import PlainConsole
from cli.opened_record import open_record
from cli.text import LONG
from recorder.linking import LINK_MEANINGS
from store.errors import RecordError
from store.settings import Settings
from store.texts import clip, last_user_text
from store.values import Json
from store.version import COMMAND
from wire.classify import MEANINGS


def explain(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the story of one turn.

    Raises:
        RecordError: there is no such turn.
    """
    story = asyncio.run(_story(settings, arguments.turn, waits=not arguments.no_wait))
    if arguments.json:
        print(json.dumps(story, ensure_ascii=False, indent=2))
        return 0
    console = PlainConsole(highlight=False, soft_wrap=True)
    for name, text in lines_of(story):
        console.print(f"[bold]{name:>9}[/]  {escape(text)}")
    return 0


async def _story(settings: Settings, reference: str, *, waits: bool) -> Json:
    async with open_record(settings, waits=waits) as record:
        story = await record.story(reference)
        if story is None:
            raise RecordError(f"no turn {reference!r} is recorded: `{COMMAND} trajectories` lists them")
        parent = story["parent_turn_id"]
        story["parent"] = await record.story(parent) if parent is not None else None
        return story


def lines_of(story: Json) -> Iterator[tuple[str, str]]:
    """Yield (name, sentence) for everything that is known of a turn."""
    reason = story["kind_reason"]
    link = LINK_MEANINGS.get(story["link_reason"], story["link_reason"])
    yield "turn", f"{story['turn_id']}, {_when(story['created_at'])}, by {story['client']}"
    if story["unreadable"]:
        yield "damaged", f"cannot be read: {', '.join(story['unreadable'])}"
    yield "session", f"{story['session_id']}, number {story['turn_index']} of its branch"
    yield "asked", clip(last_user_text(story["messages"]), LONG)
    yield "answered", clip(story["completion"] or json.dumps(story["tool_calls"], ensure_ascii=False), LONG)
    if story["wish_text"]:
        lines = story["wish_text"].splitlines()
        yield "wishes", f"{len(lines)} added to its prompt ({story['wish_place']}): " + " · ".join(lines)
    meaning = MEANINGS.get(reason, "")
    yield "kind", f"{story['kind']}, because: {reason}" + (f" ({meaning})" if meaning else "")
    if story["first_kind"] is not None:
        yield "at first", f"{story['first_kind']}, because: {story['first_kind_reason']}"
    yield from (("evidence", line) for line in evidence_table(story["kind_evidence"]))
    yield "relation", f"{story['relation']}, because: {link} (confidence {story['link_confidence']:.2f})"
    parent = story.get("parent")
    if parent is not None:
        yield (
            "parent",
            f"{parent['turn_id']}: “{clip(last_user_text(parent['messages']), 60)}” → “{clip(parent['completion'], 60)}”",
        )
    yield from _after(story)
    fate = story["stage"] + (f" ({story['drop_reason']})" if story["drop_reason"] else "")
    detail = f": {story['drop_detail']}" if story["drop_detail"] else ""
    version = story["trained_in_version"]
    yield "became", fate + detail + (f", in version {version}" if version is not None else "")


def evidence_table(evidence: list[tuple[str, float]]) -> Iterator[str]:
    """Yield a table of the evidence for a turn's kind, with its sum."""
    if not evidence:
        return
    for code, weight in evidence:
        yield f"{weight:+6.2f}  {code:<22} {MEANINGS.get(code, '')}"
    total = sum(weight for _, weight in evidence)
    yield f"{total:+6.2f}  the sum: {'side' if total > 0 else 'main'}"


def _after(story: Json) -> Iterator[tuple[str, str]]:
    for state in story["next_states"]:
        text = "asked again" if state["relation"] == "retry" else f"“{clip(state['text'], LONG)}”"
        yield (
            "followed",
            f"{state['role']}, {state['relation']}, {_when(state['created_at'])}: {text} ({state['by_turn_id']})",
        )
    if not story["next_states"]:
        yield "followed", "by nothing yet"
    for given in story["feedback"]:
        score = "" if given["score"] is None else f"{given['score']:+g} "
        yield "feedback", f"{score}{clip(given['text'], LONG)}".strip()
    for verdict in story["verdicts"]:
        value = (
            "abstained" if verdict["value"] is None else f"{verdict['value']:+d}" if verdict["value"] else "0"
        )
        hint = f", hint: “{clip(verdict['hint'], LONG)}”" if verdict["hint"] else ""
        wish = f", {verdict['wish_scope']} wish: “{clip(verdict['wish'], LONG)}”" if verdict["wish"] else ""
        yield (
            "verdict",
            f"{value} by {verdict['source']} (confidence {verdict['confidence']:.2f}){hint}{wish}",
        )


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
