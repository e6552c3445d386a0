"""Training of the classifier's weights: `python -m lab.evals.train_classifier [--traffic FOLDER] [--write]`.

``--traffic`` extracts the rows of its clients and of the modelled ones in `classifier/features.jsonl` anew; ``--write`` writes `wire/weights.json`.
The method is in `lab.evals.weights`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import wire
from cli.recorded_traffic import replay
from lab.evals.client_models import HISTORIES, REQUESTS
from lab.evals.identity import Traffic, modelled, read_folder
from lab.evals.weights import (
    FOLDER,
    LabelledRequest,
    fit,
    groups_of,
    hand_weights,
    read_features,
    read_samples,
)
from wire.classify import LINKED, RELATIONS, SIDE_FROM


async def sample_traffic(traffic: Traffic, weights: Mapping[str, float]) -> list[LabelledRequest]:
    """Return the evidence codes of labelled traffic as the recorder sees them under ``weights``."""
    found = []
    for client, rows in traffic.items():
        for row, replayed in zip(rows, await replay(rows, weights), strict=True):
            label = row.label or {}
            is_certain = label.get("kind") in ("main", "side") and not label.get("ambiguous")
            # Where linking or a relation decides alone, the words of a request say nothing: "and?" from another agent looks like a person's.
            if (
                is_certain
                and row.chat is not None
                and replayed.kind_reason not in (*LINKED, *RELATIONS, "side_tool_results")
            ):
                found.append(
                    LabelledRequest(
                        client=client, codes=groups_of(replayed.codes), is_side=label["kind"] == "side"
                    )
                )
    return found


def write_features(samples: Iterable[LabelledRequest], path: Path) -> None:
    path.write_text(
        "".join(
            json.dumps(
                {"client": s.client, "kind": "side" if s.is_side else "main", "codes": " ".join(s.codes)}
            )
            + "\n"
            for s in samples
        ),
        "utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traffic", type=Path, help="folder of labelled traffic: write features.jsonl anew")
    parser.add_argument("--write", action="store_true", help="write wire/weights.json")
    arguments = parser.parse_args()
    prior = hand_weights()
    if arguments.traffic is not None:
        clients = {**read_folder(arguments.traffic), **modelled((*REQUESTS, *HISTORIES))}
        others = [s for s in read_features() if s.client not in clients]
        write_features(
            [*others, *asyncio.run(sample_traffic(clients, prior))], Path(str(FOLDER / "features.jsonl"))
        )
    samples = read_samples()
    weights = fit(samples, prior)
    wrong = [s for s in samples if (sum(weights.get(c, 0.0) for c in s.codes) > SIDE_FROM) != s.is_side]
    print(f"{len(samples)} samples, {len(weights)} weights, {len(wrong)} of the samples wrong")
    for sample in wrong:
        print(sample.client, "side" if sample.is_side else "main", *sample.codes)
    if arguments.write:
        path = Path(wire.__file__).parent / "weights.json"
        path.write_text(json.dumps({c: w for c, w in weights.items() if w}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
