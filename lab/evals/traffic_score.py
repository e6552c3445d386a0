"""How well recorded traffic was understood: predictions of `cli.recorded_traffic` held against labels that were assigned by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.recorded_traffic import KindPrediction, Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of requests in one session: predicted, labelled, and both."""

    predicted: int
    true: int
    both: int

    @property
    def f1(self) -> float:
        return 2 * self.both / (self.predicted + self.true) if self.predicted + self.true else 1.0

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(
            predicted=self.predicted + other.predicted,
            true=self.true + other.true,
            both=self.both + other.both,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How predictions stand to labels.

    Attributes:
        confusion: (label, prediction) -> count, of all requests with a label that is no matter of definition.
        main: pairs among the person's turns; all: side calls included, where the label gives them a session.
        paired, pairable: main turns with the right predecessor, and all main turns.
        wrong: seqs of main turns with a wrong predecessor.
        misread: seqs of the wrong kind, those that are a matter of definition left out.
    """

    confusion: Mapping[tuple[str, str], int]
    main: Pairs
    all: Pairs
    paired: int
    pairable: int
    wrong: tuple[int, ...]
    misread: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """Share of main and side requests of the right kind."""
        rows = {k: n for k, n in self.confusion.items() if k[0] != "none"}
        total = sum(rows.values())
        return (
            sum(n for (label, predicted), n in rows.items() if label == predicted) / total if total else 1.0
        )

    @property
    def pairing(self) -> float:
        return self.paired / self.pairable if self.pairable else 1.0


def score(rows: Sequence[Recorded], predictions: Sequence[KindPrediction]) -> Score | None:
    """Hold predictions against labels; None when no line has one."""
    labelled = [(row, p) for row, p in zip(rows, predictions, strict=True) if row.label is not None]
    if not labelled:
        return None
    confusion: dict[tuple[str, str], int] = {}
    misread = []
    main, every = [], []
    for row, p in labelled:
        label = row.label or {}
        kind, session = str(label.get("kind")), label.get("session")
        if not label.get("ambiguous"):
            confusion[kind, p.kind] = confusion.get((kind, p.kind), 0) + 1
            if kind != p.kind and kind != "none":
                misread.append(row.seq)
        if session is not None and row.chat is not None:
            every.append((str(session), p.session))
            if kind == "main":
                main.append((str(session), p.session))
    expected = true_predecessors(rows)
    wrong = tuple(p.seq for p in predictions if p.seq in expected and p.answered_seq not in expected[p.seq])
    return Score(
        confusion=confusion,
        main=pairs(main),
        all=pairs(every),
        paired=len(expected) - len(wrong),
        pairable=len(expected),
        wrong=wrong,
        misread=tuple(misread),
    )


def pairs(sessions: Sequence[tuple[str, str | None]]) -> Pairs:
    """Count pairs over (true session, predicted session)."""

    def together(names: Iterable[Any]) -> int:
        counts: dict[Any, int] = {}
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        return sum(n * (n - 1) // 2 for n in counts.values())

    return Pairs(
        predicted=together(predicted for _, predicted in sessions),
        true=together(true for true, _ in sessions),
        both=together(sessions),
    )


def true_predecessors(rows: Sequence[Recorded]) -> dict[int, set[int | None]]:
    """Return for each main turn the turns that it may answer.

    Labels say which session a turn is of, not which turn it answers, so that follows from the session alone, by other means
    than the linker's: the same prompt again answers the one before, if a person asks at their own pace and goes on with it, or nothing
    (with another seed or ``n``, always nothing); else the newest turn of the session whose reply stands in the request; else (a client that keeps no replies) the turn before. A reply that occurs twice in a session matches neither.
    """
    before: dict[str, list[tuple[int, str, list[tuple[str, ...]]]]] = {}
    samplings: dict[int, list[Any]] = {}
    found: dict[int, set[int | None]] = {}
    for row in rows:
        label = row.label or {}
        if label.get("kind") != "main" or row.chat is None or label.get("session") is None:
            continue
        earlier = before.setdefault(str(label["session"]), [])
        asked = json.dumps(row.chat.messages, sort_keys=True)
        text = _bare(json.dumps(row.chat.messages, ensure_ascii=False))
        same = [seq for seq, prompt, _ in earlier if prompt == asked]
        quoted = [(seq, _last_place(reply, text)) for seq, _, replies in earlier for reply in replies]
        best = max((place for _, place in quoted), default=(-1, 0))
        sampling = [row.chat.body.get(name) for name in ("n", "seed")]
        if same:  # another sample of the prompt answers nothing
            found[row.seq] = {None, same[-1]} if sampling == samplings[same[-1]] else {None}
        elif best[0] >= 0:
            found[row.seq] = {seq for seq, place in quoted if place == best}
        elif any(m.get("role") == "assistant" for m in row.chat.messages):
            found[row.seq] = {earlier[-1][0] if earlier else None}
        else:  # starts again in the same session: its first message was edited, or the client keeps no replies
            found[row.seq] = {None, *(seq for seq, _, _ in earlier[-1:])}
        samplings[row.seq] = sampling
        earlier.append((row.seq, asked, _reply_texts(row)))
    return found


def _last_place(parts: Sequence[str], text: str) -> tuple[int, int]:
    """Return (where the last part of a reply ends in ``text``, length of all parts); -1 unless all parts stand there."""
    if not parts or any(part not in text for part in parts):
        return -1, 0
    return text.rfind(parts[-1]) + len(parts[-1]), sum(map(len, parts))


def _reply_texts(row: Recorded) -> list[tuple[str, ...]]:
    """Return the parts of each choice: its text, and what its calls were given."""
    found = []
    for choice in (row.response or {}).get("choices") or []:
        message = choice.get("message")
        if isinstance(message, dict):
            texts = [str(message.get("content") or "").split("</think>")[-1]]
            calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
            texts += [str(function.get("arguments")) for function in calls]
            found.append(tuple(part for part in map(_bare, texts) if part))
    return found


def _bare(text: str) -> str:
    """Letters and digits only: whatever a client did to quotes, escapes and white space."""
    for escape in ("\\\\n", "\\n", "\\\\t", "\\t"):
        text = text.replace(escape, "")
    return "".join(c for c in text if c.isalnum())
