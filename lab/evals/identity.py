"""Accuracy of sessions, next states and side turns without headers: `python -m lab.evals.identity FOLDER [--modelled]`.

Tables over a folder of labelled traffic (one file a client, see `cli.recorded_traffic`): the weights as they are; the hand-set weights that training
starts from; *leave one client out*, where the weights are trained without the client that is scored, with all evidence, with structure only
and with words only; and rules of other systems on the same traffic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from cli.console import PlainConsole
from cli.recorded_traffic import KindPrediction, Recorded, parse_line, read_traffic, replay
from lab.evals.client_models import HISTORIES, REQUESTS, lines_of
from lab.evals.traffic_score import Score, score
from lab.evals.weights import (
    hand_weights,
    leave_one_out,
    read_samples,
    restrict,
    without_structure,
    without_words,
)
from wire.classify import MEANINGS, WEIGHTS

Traffic = Mapping[str, Sequence[Recorded]]


# --------------------------------------------------------------------- others


def header_or_unknown(rows: Sequence[Recorded]) -> list[KindPrediction]:
    """OpenClaw-RL's rule: session and kind from headers, else session "unknown" and side; a turn answers the one before."""
    return _in_order(
        rows, lambda row: (_header(row, b"x-session-id") or "unknown", _header(row, b"x-turn-type") or "side")
    )


def one_a_model(rows: Sequence[Recorded]) -> list[KindPrediction]:
    """MetaClaw's rule without its header: one session a model, every request a turn of it."""
    return _in_order(rows, lambda row: (f"tui-{row.chat.model if row.chat else ''}", "main"))


def tools_are_main(rows: Sequence[Recorded]) -> list[KindPrediction]:
    """A request without tools is a side turn; requests that begin with the same user message are one session."""

    def decide(row: Recorded) -> tuple[str, str]:
        assert row.chat is not None
        first = next((m for m in row.chat.messages if m.get("role") == "user"), {})
        return json.dumps(first.get("content")), "main" if row.chat.body.get("tools") else "side"

    return _in_order(rows, decide)


def _header(row: Recorded, name: bytes) -> str | None:
    return next((value.decode("latin-1") for found, value in row.headers if found == name), None)


def _in_order(
    rows: Sequence[Recorded], decide: Callable[[Recorded], tuple[str, str]]
) -> list[KindPrediction]:
    newest: dict[str, int] = {}
    found = []
    for row in rows:
        if row.chat is None:
            found.append(_prediction(row, None, "none", None))
            continue
        session, kind = decide(row)
        found.append(_prediction(row, session, kind, newest.get(session)))
        newest[session] = row.seq
    return found


def _prediction(row: Recorded, session: str | None, kind: str, parent: int | None) -> KindPrediction:
    return KindPrediction(
        seq=row.seq,
        session=session,
        kind=kind,
        parent_seq=parent,
        relation=None,
        link_reason="",
        kind_reason="",
        answered_seq=parent,
    )


BASELINES: dict[str, Callable[[Sequence[Recorded]], list[KindPrediction]]] = {
    "header, else unknown and side (OpenClaw-RL)": header_or_unknown,
    "one session a model (MetaClaw)": one_a_model,
    "no tools = side": tools_are_main,
}


# --------------------------------------------------------------------- tables


def merged(scores: Iterable[Score]) -> Score:
    """Return the score over all files together."""
    scores = list(scores)
    confusion: dict[tuple[str, str], int] = {}
    for one in scores:
        for key, count in one.confusion.items():
            confusion[key] = confusion.get(key, 0) + count
    main, every = scores[0].main, scores[0].all
    for one in scores[1:]:
        main, every = main + one.main, every + one.all
    return Score(
        confusion=confusion,
        main=main,
        all=every,
        paired=sum(one.paired for one in scores),
        pairable=sum(one.pairable for one in scores),
        wrong=(),
        misread=(),
    )


def table_of(title: str, scores: Mapping[str, Score]) -> Table:
    """Return a row for each name and one for all."""
    table = Table(title, "main or side", "sessions (main)", "sessions (all)", "next states", box=None)
    for name, one in [*scores.items(), *([("all", merged(scores.values()))] if len(scores) > 1 else [])]:
        table.add_row(
            name,
            f"{one.accuracy:.3f}",
            f"{one.main.f1:.3f}",
            f"{one.all.f1:.3f}",
            f"{one.paired}/{one.pairable} {one.pairing:.3f}",
        )
    return table


def scored(rows: Sequence[Recorded], predictions: Sequence[KindPrediction]) -> Score:
    found = score(rows, predictions)
    assert found is not None, "the traffic has no labels"
    return found


async def measure(traffic: Traffic, weights: Callable[[str], Mapping[str, float]]) -> dict[str, Score]:
    """Score every client under the weights that ``weights`` names for it."""
    return {client: scored(rows, await replay(rows, weights(client))) for client, rows in traffic.items()}


def read_folder(folder: Path) -> dict[str, list[Recorded]]:
    return {path.stem: read_traffic(path) for path in sorted(folder.glob("*.jsonl"))}


def modelled(names: Sequence[str] = REQUESTS) -> dict[str, list[Recorded]]:
    """Return the traffic of modelled clients (`lab.evals.client_models`)."""
    return {
        name: [parse_line(json.dumps(line).encode(), name, line["seq"]) for line in lines_of(name)]
        for name in names
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--modelled", action="store_true", help="also score the modelled clients")
    arguments = parser.parse_args()
    traffic = read_folder(arguments.folder)
    console = PlainConsole(soft_wrap=True, highlight=False)
    console.print(table_of("as it is", asyncio.run(measure(traffic, lambda _: WEIGHTS))))
    hand, samples = hand_weights(), read_samples()
    variants: dict[str, Callable[[Mapping[str, float]], Mapping[str, float]]] = {
        "structure and words": dict,
        "structure only": without_words,
        "words only": without_structure,
    }
    console.print(table_of("hand-set weights", asyncio.run(measure(traffic, lambda _: hand))))
    for title, select in variants.items():
        prior = select(hand)
        trained = leave_one_out(
            restrict(samples, {**dict.fromkeys(MEANINGS, 0.0), **hand} if select is dict else prior),
            traffic,
            prior,
        )
        left_out = asyncio.run(measure(traffic, trained.__getitem__))
        console.print(table_of(f"trained without the client: {title}", left_out))
    for name, baseline in BASELINES.items():
        scores = {client: scored(rows, baseline(rows)) for client, rows in traffic.items()}
        console.print(table_of(name, {"all files": merged(scores.values())}))
    if arguments.modelled:
        for title, names in (("modelled", REQUESTS), ("altered histories", HISTORIES)):
            console.print(table_of(title, asyncio.run(measure(modelled(names), lambda _: WEIGHTS))))


if __name__ == "__main__":
    main()
