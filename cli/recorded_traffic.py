"""Recorded traffic of a client, taken through the code that the recorder runs.

A file holds one request a line, in arrival order, as a logging proxy in front of any endpoint writes it:

    {"seq": 1, "time": …, "method": "POST", "path": "/v1/chat/completions", "headers": {…}, "body": {…}, "response": {…},
     "label": {"session": "a", "kind": "main", …}}

``response`` is the whole reply (a stream put together), ``label`` is optional and not read (`lab.evals.traffic_score` does). A line that cannot be
read ends the run with one sentence that names it: counting it out would shift what follows onto wrong parents.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from migrations import upgrade
from proxy.auth import authenticate
from proxy.client_names import identify_client
from recorder.turn_recorder import TurnRecorder
from recorder.turns import ClassifiedExchange, classify_exchange
from store.errors import ConfigError, WireError
from store.lifecycle import DropReason
from store.record import Record
from store.values import Feedback, Json, LogprobMode, NewTurn, Relation
from wire.captured_exchange import CapturedExchange
from wire.chat_request import ChatRequest, parse_chat
from wire.classify import WEIGHTS
from wire.headers import parse_request_options
from wire.reply_assembly import Assembler

_CHAT = "/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One line of recorded traffic.

    Attributes:
        chat: None when the request is no chat (lists of models, embeddings, probes).
        label: assigned by hand, or None.
    """

    seq: int
    time: float
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    chat: ChatRequest | None
    response: Json | None
    label: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPrediction:
    """What the recorder makes of one request.

    Attributes:
        kind: "main", "side", or "none" for what is no chat and is never recorded.
        parent_seq: the request one step up the tree; for a retry the parent of the request that is repeated.
        answered_seq: the request whose next state this one is.
    """

    seq: int
    session: str | None
    kind: str
    parent_seq: int | None
    relation: str | None
    link_reason: str
    kind_reason: str
    answered_seq: int | None = None
    client: str = ""
    codes: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return the line that `classify --predictions` writes."""
        return {
            "seq": self.seq,
            "session": self.session,
            "kind": self.kind,
            "parent_seq": self.parent_seq,
            "relation": self.relation,
            "link_reason": self.link_reason,
            "kind_reason": self.kind_reason,
        }


# --------------------------------------------------------------------- reading


def read_traffic(path: Path) -> list[Recorded]:
    """Read a file of recorded traffic.

    Raises:
        ConfigError: it cannot be read; names the line.
    """
    found: list[Recorded] = []
    seen: set[int] = set()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = parse_line(line, f"{path}, line {number}", number)
                if row.seq in seen:
                    raise ConfigError(f"{path}, line {number}: seq {row.seq} was there before")
                seen.add(row.seq)
                found.append(row)
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror or exc}") from exc
    if not found:
        raise ConfigError(f"{path} holds no requests")
    return found


def parse_line(line: bytes, where: str, number: int) -> Recorded:
    """Return one line; ``number`` is its seq where it names none. Raises: ConfigError."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise ConfigError(f"{where}: not JSON ({exc})") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: not a JSON object")
    seq, at = value.get("seq", number), value.get("time", float(number))
    if type(seq) is not int:
        raise ConfigError(f"{where}: seq is a whole number, not {seq!r}")
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise ConfigError(f"{where}: time is seconds since the epoch, not {at!r}")
    path, headers, body = value.get("path", _CHAT), value.get("headers") or {}, value.get("body")
    response, label = value.get("response"), value.get("label")
    if not isinstance(path, str) or not isinstance(headers, dict):
        raise ConfigError(f"{where}: path is a string and headers an object")
    if not (response is None or isinstance(response, dict)) or not (label is None or isinstance(label, dict)):
        raise ConfigError(f"{where}: response and label are objects")
    chat = None
    if path.split("?")[0].rstrip("/").endswith(_CHAT):
        try:
            chat = parse_chat(orjson.dumps(body))
        except WireError as exc:
            raise ConfigError(f"{where}: {exc}") from exc
    fields = tuple(
        (str(name).lower().encode("latin-1", "replace"), str(text).encode("latin-1", "replace"))
        for name, text in headers.items()
    )
    return Recorded(
        seq=seq, time=float(at), path=path, headers=fields, chat=chat, response=response, label=label
    )


# -------------------------------------------------------------------- replaying


def turn_of(seq: int) -> str:
    """Return the turn id under which a request is replayed."""
    return f"turn_{seq:08d}"


def draft_of(row: Recorded, weights: Mapping[str, float] = WEIGHTS) -> ClassifiedExchange | None:
    """Return the exchange as the recorder classifies it, or None when no such request is recorded."""
    if row.chat is None:
        return None
    chat = row.chat
    principal = authenticate(row.headers, "")
    assert principal is not None  # without a key everybody may speak
    parts = row.path.split("/")
    named = parts[2] if len(parts) > 3 and parts[1] == "s" else None
    options = parse_request_options(row.headers, chat.body, named)
    assembler = Assembler(chat.n)
    fault = None
    if row.response is not None and ("choices" in row.response or "error" in row.response):
        assembler.consume(row.response, part="message")
    else:
        fault = (DropReason.UPSTREAM_ERROR, "no reply was recorded")
    captured = CapturedExchange(
        turn_id=turn_of(row.seq),
        created_at=row.time,
        finished_at=row.time,
        key_name=principal.key_name,
        client=identify_client(row.headers, chat.body),
        options=options,
        policy="recorded",
        adapter_version=0,
        status_code=200,
        streamed=chat.stream,
        chat=chat,
        reply=assembler.close(),
        fault=fault,
        temperature=1.0 if chat.temperature is None else chat.temperature,
        logprob_mode=LogprobMode.UNKNOWN,
        size=0,
    )
    return classify_exchange(captured, weights)


class _Noting(Record):
    """The record, which also remembers the turns as the recorder decided them."""

    noted: list[NewTurn]

    async def write_turns(self, turns: Sequence[NewTurn], *more: Any, **named: Any) -> list[Feedback]:
        unmatched = await super().write_turns(turns, *more, **named)
        self.noted += turns
        return unmatched


@cache
def _empty_record() -> bytes:
    """Return the file of a migrated record: migrating takes longer than most replays."""
    with tempfile.TemporaryDirectory(prefix="patina-classify-") as folder:
        path = Path(folder) / "patina.db"
        upgrade(f"sqlite+aiosqlite:///{path}")
        return path.read_bytes()


async def replay(
    rows: Sequence[Recorded], weights: Mapping[str, float] = WEIGHTS, *, restarts: Collection[int] = ()
) -> list[KindPrediction]:
    """Take recorded requests through the recorder's code, one after the other, over a record of their own.

    Args:
        weights: of the evidence, for experiments that leave some out.
        restarts: the recorder restarts before each of these seqs: its memory is lost, the record stays.
    """
    with tempfile.TemporaryDirectory(prefix="patina-classify-") as folder:
        (Path(folder) / "patina.db").write_bytes(await asyncio.to_thread(_empty_record))
        record = await _Noting.open(f"sqlite+aiosqlite:///{folder}/patina.db")
        assert isinstance(record, _Noting)
        record.noted = []
        lives: list[list[Recorded]] = [[]]
        for row in rows:
            if row.seq in restarts:
                lives.append([])
            lives[-1].append(row)
        try:
            for life in lives:
                await _live(record, life, weights)
        finally:
            await record.close()
        return predictions(rows, record.noted)


async def _live(record: Record, rows: Sequence[Recorded], weights: Mapping[str, float]) -> None:
    async def opening() -> Record:
        return record

    recorder = TurnRecorder(opening, weights=weights)
    for row in rows:
        captured = draft_of(row, weights)
        if captured is not None:
            await recorder.write([captured])
        if recorder.last_unwritable is not None:
            raise ConfigError(f"request {row.seq} cannot be replayed: {recorder.last_unwritable}")


def predictions(rows: Iterable[Recorded], turns: Iterable[NewTurn]) -> list[KindPrediction]:
    """Return one prediction a request; ``turns`` are those of `turn_of`'s names, siblings of n > 1 included."""
    turns = list(turns)
    by_id = {turn.turn_id: turn for turn in turns}
    moved = {c.turn_id: c for turn in turns for c in turn.link_corrections}
    # A retry answers the reply that it repeats, once the newer one is continued.
    answered = {
        state.by_turn_id: state.turn_id
        for turn in by_id.values()
        for state in turn.earlier_next_states
        if state.relation is not Relation.TOOL_LOOP
        and not (state.relation is Relation.RETRY and state.turn_id in moved)
    }
    answered |= {
        turn_id: turn.next_state.turn_id for turn_id, turn in by_id.items() if turn.next_state is not None
    }
    final = {c.turn_id: c for turn in turns for c in turn.corrections}
    seqs = {turn_of(row.seq): row.seq for row in rows}

    def seq_of(turn_id: str | None) -> int | None:
        return None if turn_id is None else seqs.get(turn_id.split(".")[0])

    found = []
    for row in rows:
        turn = by_id.get(turn_of(row.seq))
        if turn is None:
            found.append(
                KindPrediction(
                    seq=row.seq,
                    session=None,
                    kind="none",
                    parent_seq=None,
                    relation=None,
                    link_reason="",
                    kind_reason="not_a_chat",
                )
            )
            continue
        last = final.get(turn.turn_id)
        place = moved.get(turn.turn_id) or turn
        found.append(
            KindPrediction(
                seq=row.seq,
                session=place.session_id,
                kind=(last or turn).kind.value,
                parent_seq=seq_of(place.parent_turn_id),
                relation=place.relation.value,
                link_reason=place.link_reason,
                kind_reason=turn.kind_reason if last is None else last.reason,
                codes=tuple(code for code, _ in (last or turn).evidence),
                answered_seq=seq_of(answered.get(turn.turn_id)),
                client=turn.client,
            )
        )
    return found
