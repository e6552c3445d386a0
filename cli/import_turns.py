"""`run.py import FILE.jsonl`: turns of another home's export, or of OpenClaw-RL's `record_*.jsonl`, into the record.

Neither file holds prompt ids, and ids are never made from text: the trainer answers an imported prompt anew and learns from its hint (`opd`,
`combine`, `sdpo`). Rows without a verdict are scored like any others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.opened_record import open_record
from store.errors import ConfigError
from store.hashing import digest, exact_json
from store.lifecycle import DropReason
from store.policies import find_policy
from store.record import Record
from store.settings import Settings
from store.texts import counted
from store.values import (
    Completion,
    Json,
    LogprobMode,
    NewTurn,
    NextState,
    Relation,
    TurnKind,
    Verdict,
)

_BATCH = 200
_CLIENT = "import"


def import_turns(settings: Settings, arguments: argparse.Namespace) -> int:
    """Import a file; returns 1 when it held nothing new.

    Raises:
        ConfigError: it cannot be read, or a line is of neither form.
    """
    policy = find_policy(settings.policy, arguments.policy or settings.policy)
    rows = list(read_rows(arguments.file, policy, arguments.key))
    return asyncio.run(_import(settings, rows))


async def _import(settings: Settings, rows: list[tuple[NewTurn, Verdict | None]]) -> int:
    async with open_record(settings) as record:
        known = await record.known_turns([turn.turn_id for turn, _ in rows])
        new = [row for row in rows if row[0].turn_id not in known]
        for start in range(0, len(new), _BATCH):
            await _write(record, new[start : start + _BATCH])
    scored = sum(verdict is not None for _, verdict in new)
    print(
        f"{counted(len(new), 'turn')} imported, {scored} with a verdict; already there: {len(rows) - len(new)}"
    )
    return 0 if new else 1


async def _write(record: Record, rows: list[tuple[NewTurn, Verdict | None]]) -> None:
    await record.write_turns([turn for turn, _ in rows])
    written = await record.known_turns([turn.turn_id for turn, _ in rows])  # forgotten ones are not
    for turn, verdict in rows:
        if verdict is not None and turn.turn_id in written:
            await record.add_verdict(verdict)


def read_rows(path: Path, policy: str, key_name: str) -> Iterator[tuple[NewTurn, Verdict | None]]:
    """Yield the turns of a file, oldest first as it has them.

    Raises:
        ConfigError: it cannot be read, or a line is of neither form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield _own(row, policy, key_name) if "completion" in row else _openclaw(row, policy, key_name)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise ConfigError(
                f"{path}, line {number}: neither a turn of `trajectories --format jsonl` nor of OpenClaw-RL ({type(exc).__name__}: {exc})"
            ) from None


def _own(row: Json, policy: str, key_name: str) -> tuple[NewTurn, Verdict | None]:
    turn = _turn(
        turn_id=str(row["turn_id"]),
        session_id=str(row["session_id"]),
        index=int(row["turn_index"]),
        messages=row["messages"],
        text=str(row["completion"]),
        tool_calls=row.get("tool_calls") or [],
        next_role=row.get("next_role"),
        next_text=row.get("next_text"),
        has_verdict=row.get("verdict") is not None,
        kind=TurnKind(row["kind"]),
        at=float(row["created_at"]),
        policy=policy,
        key_name=key_name,
    )
    value, hint = row.get("verdict"), row.get("hint")
    if value is None:
        return turn, None
    source = f"import:{row.get('verdict_source') or ''}"
    return turn, Verdict(
        turn_id=turn.turn_id, value=int(value), hint=hint, source=source, created_at=time.time()
    )


def _openclaw(row: Json, policy: str, key_name: str) -> tuple[NewTurn, Verdict | None]:
    session, index = str(row["session_id"]), int(row["turn"])
    following = row.get("next_state")
    if isinstance(following, list):
        following = following[0] if following else None
    after = following if isinstance(following, dict) else {"role": "user", "content": following}
    turn = _turn(
        turn_id=f"openclaw-{digest(session, str(index), exact_json(row['messages']))}",
        session_id=session,
        index=index,
        messages=row["messages"],
        text=str(row["response_text"]),
        tool_calls=row.get("tool_calls") or [],
        next_role=str(after.get("role", "user")) if following else None,
        next_text=_text(after.get("content")) if following else None,
        has_verdict=False,
        kind=TurnKind.MAIN,
        at=time.time(),
        policy=policy,
        key_name=key_name,
    )
    return turn, None


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _turn(
    *,
    turn_id: str,
    session_id: str,
    index: int,
    messages: list[Json],
    text: str,
    tool_calls: list[Json],
    next_role: str | None,
    next_text: str | None,
    has_verdict: bool,
    kind: TurnKind,
    at: float,
    policy: str,
    key_name: str,
) -> NewTurn:
    if not messages or not all(isinstance(one, dict) and "role" in one for one in messages):
        raise ValueError("its messages are no list of chat messages")
    following = None
    if next_text or has_verdict:
        role, text = next_role or "user", next_text or ""
        following = NextState(
            turn_id=turn_id,
            by_turn_id=f"{turn_id[:56]}-after",
            role=role,
            text=text,
            messages=({"role": role, "content": text},),
            relation=Relation.NEXT,
            created_at=at,
        )
    return NewTurn(
        turn_id=turn_id,
        completion_id=None,
        session_id=session_id,
        parent_turn_id=None,
        turn_index=index,
        kind=kind,
        relation=Relation.FIRST,
        link_reason="imported",
        kind_reason="imported",
        link_confidence=1.0,
        policy=policy,
        key_name=key_name,
        adapter_version=0,
        client=_CLIENT,
        user=None,
        created_at=at,
        finished_at=at,
        status_code=200,
        streamed=False,
        messages=tuple(messages),
        request={"model": policy},
        completion=Completion(text=text, tool_calls=tuple(tool_calls), finish_reason="stop"),
        prompt_token_ids=(),
        temperature=1.0,
        logprob_mode=LogprobMode.UNKNOWN,
        usage=None,
        request_key=digest("imported request", turn_id),
        reply_key=None,
        drop_reason=DropReason.SIDE_TURN if kind is TurnKind.SIDE else None,
        # The turn that holds what followed is not imported as such: the text stands for it.
        earlier_next_states=(following,) if following is not None else (),
    )
