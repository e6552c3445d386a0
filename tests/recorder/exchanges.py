"""Exchanges and a record for tests of the recorder."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import orjson

from recorder.canonical import parse_history
from recorder.turn_recorder import TurnRecorder
from recorder.turns import ClassifiedExchange
from store.errors import RecordError, RecordUnavailable
from store.record import Record
from store.values import Feedback, LogprobMode, NewTurn, TurnKind
from wire.captured_exchange import CapturedExchange
from wire.chat_request import parse_chat
from wire.classify import Classification
from wire.headers import RequestOptions
from wire.reply_assembly import Assembler


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def make_captured(
    name: str,
    messages: Sequence[Mapping[str, Any]],
    answer: str,
    *,
    session: str | None = None,
    is_session_done: bool = False,
    key_name: str = "s",
    **changes: Any,
) -> CapturedExchange:
    """Return a whole exchange ``turn_<name>`` with one choice; ``changes``: further fields."""
    assembler = Assembler()
    choice = {
        "index": 0, "message": {"content": answer}, "finish_reason": "stop", "token_ids": [1],
        "logprobs": {"content": [{"logprob": -0.5}]},
    }  # fmt: skip
    assembler.consume({"id": f"c-{name}", "choices": [choice]}, part="message")
    now = time.time()
    values: dict[str, Any] = {
        "turn_id": f"turn_{name}", "created_at": now, "finished_at": now, "key_name": key_name, "client": "test",
        "options": RequestOptions(
            kind=None, session=session, is_session_done=is_session_done, is_opted_out=False, user=None
        ),
        "policy": "tiny", "adapter_version": 0, "status_code": 200, "streamed": False,
        "chat": parse_chat(orjson.dumps({"messages": messages})), "reply": assembler.close(), "fault": None,
        "temperature": 1.0, "logprob_mode": LogprobMode.RAW, "size": 100,
    }  # fmt: skip
    return CapturedExchange(**{**values, **changes})


def make_exchange(
    name: str, messages: Sequence[Mapping[str, Any]], answer: str, *, root: str | None = None, **more: Any
) -> ClassifiedExchange:
    """Return a main exchange whose body equals no other's.

    Args:
        root: name of the key under which its history is hashed, when that is not its own.
    """
    made = make_captured(name, messages, answer, **more)
    return ClassifiedExchange(
        **{field.name: getattr(made, field.name) for field in fields(CapturedExchange)},
        history=parse_history(made.chat.messages, root or made.key_name),
        kind=Classification(kind=TurnKind.MAIN, reason="conversation"),
        body_key=name,
    )


def make_conversation(length: int) -> list[list[dict[str, Any]]]:
    """Return the messages of each request of a conversation; answer i is ``answer i``."""
    history, requests = [user("How do I read a CSV file?")], []
    for i in range(length):
        requests.append(history)
        history = [*history, assistant(f"answer {i}"), user(f"question {i}")]
    return requests


class FaultyRecord(Record):
    """A record whose writes fail as those of a locked database, or of one turn or feedback that it does not accept."""

    is_locked: bool = False
    rejected_id: str = ""
    attempts: int = 0

    batches: list[int]

    async def write_turns(
        self,
        turns: Sequence[NewTurn],
        done: Sequence[tuple[str, str]] = (),
        *,
        feedback: Sequence[Feedback] = (),
        offsets: Mapping[str, int] | None = None,
    ) -> list[Feedback]:
        self.attempts += 1
        if self.is_locked:
            raise RecordUnavailable("database is locked")
        ids = [turn.turn_id for turn in turns] + [given.feedback_id for given in feedback]
        if any(self.rejected_id and self.rejected_id in one for one in ids):
            raise RecordError("no")
        unmatched = await super().write_turns(turns, done, feedback=feedback, offsets=offsets)
        if turns:
            self.batches.append(len(turns))
        return unmatched


async def open_faulty(record_url: str) -> FaultyRecord:
    record = await FaultyRecord.open(record_url)
    assert isinstance(record, FaultyRecord)
    record.batches = []
    return record


@asynccontextmanager
async def recording(record_url: str) -> AsyncIterator[tuple[TurnRecorder, FaultyRecord]]:
    """Yield a recorder that remembers nothing yet, and its record."""
    record = await open_faulty(record_url)

    async def open_record() -> Record:
        return record

    try:
        yield TurnRecorder(open_record), record
    finally:
        await record.close()


async def parents_of(record: Record) -> dict[str, str | None]:
    """Return turn id -> parent's turn id, oldest first."""
    return {row["turn_id"]: row["parent_turn_id"] for row in await record.trajectories()}
