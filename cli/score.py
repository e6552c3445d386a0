"""`run.py score FILE`: recorded reactions through the configured scorer, so that people see how their words are understood."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cli.console import PlainConsole
from cli.text import write_json_lines
from recorder.turns import read_next_messages
from scorers.combined import read_message
from scorers.reader import turn_of
from scorers.registry import build_scorer_chain
from scorers.rules import last_request
from scorers.scorer_chain import ScorerChain
from store.errors import ConfigError
from store.settings import Settings
from store.texts import counted
from store.values import NO_SOURCE, Json, Relation, Verdict, WishReading

#: Reactions worked on at once; a judge has its own, lower limit.
CONCURRENCY = 16
VERDICTS = (-1, 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReaction:
    """One line of the file.

    Attributes:
        prompt: the request's text or messages; "" when it is not recorded.
        verdict: the label, None where there is none.
    """

    prompt: str | tuple[Json, ...]
    reply: str
    text: str
    verdict: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the scorer makes of one reaction.

    Attributes:
        verdict: -1, 0 (neither, or undecided) or 1; None when there is nothing to read.
        by: what decided: a rule, the classifier, a judge; "none" when nothing did.
    """

    verdict: int | None
    hint: str | None
    wish: WishReading | None
    by: str
    reason: str

    def to_json(self) -> Json:
        return {
            "verdict": self.verdict,
            "hint": self.hint,
            "wish": self.wish.text if self.wish else None,
            "wish_scope": self.wish.scope.value if self.wish else None,
            "by": self.by,
            "reason": self.reason,
        }


def score(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print how a file of reactions is understood, and where it has labels how often that is right.

    Raises:
        ConfigError: a line cannot be read, the predictions cannot be written, or a setting is wrong.
        JudgeUnavailable: the judge that was named does not answer.
    """
    rows = read_reactions(arguments.file)
    if settings.judge == "auto":
        # The policy's base model needs a running backend; nothing of a running Patina is touched here.
        settings = settings.model_copy(update={"judge": "none"})
    predictions = asyncio.run(predict(build_scorer_chain(settings), rows))
    if arguments.predictions is not None:
        write_json_lines(arguments.predictions, (one.to_json() for one in predictions))
    console = PlainConsole(highlight=False, soft_wrap=True)
    print_counts(console, predictions)
    print_comparison(console, rows, predictions)
    return 0


def read_reactions(path: Path) -> list[RecordedReaction]:
    """Read a JSONL file; blank lines are skipped.

    Raises:
        ConfigError: the file or a line of it cannot be read; one sentence with the line's number.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}") from exc
    return [_parse(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _parse(line: str, where: str) -> RecordedReaction:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{where}: not JSON") from exc
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: not an object")
    text = row.get("text")
    if not isinstance(text, str):
        raise ConfigError(f'{where}: "text" is missing or not a string')
    reply = row.get("reply")
    if reply is not None and not isinstance(reply, str):
        raise ConfigError(f'{where}: "reply" is not a string')
    prompt = row.get("prompt")
    if isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt):
        prompt = tuple(prompt)
    elif prompt is not None and not isinstance(prompt, str):
        raise ConfigError(f'{where}: "prompt" is neither a string nor a list of messages')
    verdict = row.get("verdict")
    if verdict is not None and (isinstance(verdict, bool) or verdict not in VERDICTS):
        raise ConfigError(f'{where}: "verdict" is {json.dumps(verdict)[:40]}, not -1, 0, 1 or null')
    return RecordedReaction(
        prompt=prompt or "", reply=reply or "", text=text, verdict=None if verdict is None else int(verdict)
    )


async def predict(chain: ScorerChain, rows: Sequence[RecordedReaction]) -> list[Prediction]:
    """Score reactions, in their order.

    Raises:
        ConfigError: the judge cannot be set up.
        JudgeUnavailable: it does not answer.
    """
    limit = asyncio.Semaphore(CONCURRENCY)

    async def one(number: int, row: RecordedReaction) -> Prediction:
        message = {"role": "user", "content": row.text}
        role, text, relation = read_next_messages([message], row.reply) or ("user", row.text, Relation.NEXT)
        turn = turn_of(
            text,
            reply=row.reply,
            prompt=row.prompt,
            turn_id=f"reaction-{number}",
            role=role,
            relation=relation,
        )
        async with limit:
            verdict, _ = await chain.decide(turn, now=0.0)
        return _prediction(verdict, row)

    await chain.start()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, row)) for number, row in enumerate(rows, 1)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    finally:
        await chain.close()
    return [task.result() for task in tasks]


def _prediction(verdict: Verdict, row: RecordedReaction) -> Prediction:
    if not row.text.strip():
        return Prediction(verdict=None, hint=None, wish=None, by="none", reason="there is nothing to read")
    decided = verdict.source != NO_SOURCE
    opinion: Json = next((o for o in verdict.detail.get("opinions", []) if o["source"] == verdict.source), {})
    detail = opinion.get("detail", {})
    if "reason" in detail:
        reason = detail["reason"]
    elif "votes" in detail:
        reason = f"votes {', '.join(f'{vote:+d}' if vote else '0' for vote in detail['votes'])}"
    elif decided:
        reason = f"confidence {verdict.confidence:.2f}"
    else:
        turn = turn_of(row.text, reply=row.reply, prompt=row.prompt)
        reason = read_message(row.text, reply=row.reply, prompt=last_request(turn)).reason
    if "judge_error" in verdict.detail:
        reason += f"; the judge: {verdict.detail['judge_error']}"
    value = 0 if verdict.value is None else verdict.value  # a program's text: no opinion
    return Prediction(
        verdict=value,
        hint=verdict.hint,
        wish=verdict.wish,
        by=verdict.source if decided else "none",
        reason=reason,
    )


def print_counts(console: Console, predictions: Sequence[Prediction]) -> None:
    """Print how many reactions were understood as what, and by what."""
    values = Counter(p.verdict for p in predictions)
    sources = Counter(p.by for p in predictions)
    console.print(
        f"{counted(len(predictions), 'reaction')}: {values[-1]} complained or wished (-1), {values[1]} accepted (+1), "
        f"{values[0]} neither or undecided (0), {values[None]} empty; {counted(sum(p.hint is not None for p in predictions), 'hint')}, "
        f"{counted(sum(p.wish is not None for p in predictions), 'wish', 'wishes')}"
    )
    if predictions:
        console.print("decided by: " + ", ".join(f"{count} {by}" for by, count in sources.most_common()))


def print_comparison(
    console: Console, rows: Sequence[RecordedReaction], predictions: Sequence[Prediction]
) -> None:
    """Print the confusion table, precision and recall over the rows that have a label."""
    pairs = [
        (row.verdict, p.verdict or 0)
        for row, p in zip(rows, predictions, strict=True)
        if row.verdict is not None
    ]
    if not pairs:
        console.print("no labels: nothing to compare with")
        return
    counts = Counter(pairs)
    table = Table(
        "label",
        *(f"read as {value:+d}" if value else "read as 0" for value in VERDICTS),
        box=None,
        pad_edge=False,
    )
    for label in VERDICTS:
        table.add_row(f"{label:+d}" if label else "0", *(str(counts[label, value]) for value in VERDICTS))
    console.print(table)
    for value in VERDICTS:
        right = counts[value, value]
        read = sum(counts[label, value] for label in VERDICTS)
        labelled = sum(counts[value, other] for other in VERDICTS)
        console.print(
            f"{f'{value:+d}' if value else ' 0'}: precision {_share(right, read)}, recall {_share(right, labelled)}"
        )
    console.print(f"accuracy {_share(sum(counts[value, value] for value in VERDICTS), len(pairs))}")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f} ({part} of {whole})" if whole else "- (0 of 0)"
