"""New versions under load: `python -m bench.swap [--backend embedded|vllm] [--streams 16] [--versions 10] [--rounds 3]`.

An own house on the built-in model. So many clients keep streaming; by turns nothing happens for a while, then that many versions are
published one after the other. For both kinds of time: the gaps between the pieces of a running stream. Then everything is held against
the record (one version a turn, and which), and every stream against what a freshly started engine says that knows no version but this
one: a prefix cache that outlived its version, or a stream of two versions, would show there. Prints JSON; exit code 1 when a stream
failed, was held, or was not of its version.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import orjson
import torch

from evals.stack import Stack
from serving.http import HttpEngine
from store.record import Record
from store.settings import BUILTIN_FOLDER, BUILTIN_MODEL, Settings, read_settings
from store.values import AdapterState, AdapterVersion, StepReport
from trainer.checkpoint import write_version
from trainer.policy import LocalPolicy

QUESTIONS = (
    "What is the capital of France?",
    "Tell me about the sea.",
    "What is 2 plus 3?",
    "Why do cats sleep so long?",
)
#: Of the adapters' random weights: enough to say other things.
_STRENGTH = 0.2
_READY_S = 900.0
_SETTLE_POLLS = 6000
#: Two batches round differently: so far may the log-probabilities of the same weights be apart.
_SAME = 5e-3


@dataclass(slots=True)
class Stream:
    """One request and what came of it."""

    question: str
    turn_id: str = ""
    status: int = 0
    is_ended: bool = False
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    gaps: list[tuple[str, int, float]] = field(
        default_factory=list
    )  #: what went on when it ended, round, seconds
    first_s: float = 0.0
    began: float = 0.0


def body(model: str, question: str, tokens: int) -> bytes:
    return orjson.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "logprobs": True,
            "return_token_ids": True,
        }
    )


def _alone() -> tuple[str, int]:
    return "", 0


async def stream(
    engine: HttpEngine,
    key: str,
    model: str,
    question: str,
    tokens: int,
    now_is: Callable[[], tuple[str, int]] = _alone,
) -> Stream:
    """Send one request and take down when its pieces came, and what went on then."""
    made = Stream(question, began=time.perf_counter())
    headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {key}".encode())]
    reply = await engine.open("POST", "/v1/chat/completions", headers, body(model, question, tokens))
    made.status = reply.status
    made.turn_id = next((v.decode() for n, v in reply.headers if n.lower() == b"x-patina-turn"), "")
    last = 0.0
    try:
        async for event in _events(reply.chunks()):
            if event == b"[DONE]":
                made.is_ended = True
                continue
            now = time.perf_counter()
            for choice in orjson.loads(event).get("choices") or ():
                if not choice.get("token_ids"):
                    continue
                made.ids += choice["token_ids"]
                made.logprobs += [
                    one["logprob"] for one in (choice.get("logprobs") or {}).get("content") or ()
                ]
                if last:
                    made.gaps.append((*now_is(), now - last))
                else:
                    made.first_s = now - made.began
                last = now
    finally:
        reply.close()
    return made


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in pieces:
        rest += piece
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            yield event.removeprefix(b"data: ")


def make_versions(folder: Path, count: int) -> list[tuple[Path, str]]:
    """Write so many different random adapters as versions 1, 2, …; returns (folder, hash) of each."""
    policy = LocalPolicy(str(BUILTIN_FOLDER), rank=8)
    made = []
    for number in range(1, count + 1):
        generator = torch.Generator().manual_seed(number)
        state = policy.snapshot()
        for name, value in state.items():
            if name.startswith("weight/") and "lora_B" in name:
                state[name] = _STRENGTH * torch.randn(value.shape, generator=generator)
        policy.restore(state)
        written = write_version(folder, BUILTIN_MODEL, number, policy.version_files(), state={}, metrics={})
        made.append((written.path, written.content_hash))
    return made


async def publish(record: Record, number: int, path: Path, digest: str) -> None:
    """What the trainer does when a version passed the gate."""
    now = time.time()
    adapter = AdapterVersion(
        policy=BUILTIN_MODEL,
        version=number,
        path=str(path),
        content_hash=digest,
        parent_version=number - 1,
        state=AdapterState.PUBLISHED,
        reason="bench.swap",
        method="rl",
        metrics={},
        created_at=now,
    )
    step = StepReport(
        step_id=uuid4().hex,
        policy=BUILTIN_MODEL,
        method="rl",
        started_at=now,
        finished_at=now,
        version=number,
        error=None,
        metrics={},
    )
    await record.publish(adapter, [], step)


async def load(
    stack: Stack,
    versions: Sequence[tuple[Path, str]],
    *,
    streams: int,
    per_round: int,
    tokens: int,
    calm_s: float,
) -> list[Stream]:
    """Have clients stream while nothing happens and while versions are published, by turns; returns all streams."""
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    engine = HttpEngine(stack.base_url)
    found: list[Stream] = []
    state: dict[str, Any] = {"phase": "warm", "round": 0, "is_over": False}

    async def client(number: int) -> None:
        turn = number
        while not state["is_over"]:
            question = QUESTIONS[turn % len(QUESTIONS)]
            turn += 1
            found.append(
                await stream(
                    engine,
                    stack.key,
                    BUILTIN_MODEL,
                    question,
                    tokens,
                    lambda: (state["phase"], state["round"]),
                )
            )

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(client(number))
            await asyncio.sleep(calm_s)
            number = 0
            while number < len(versions):
                state["phase"] = "calm"
                state["round"] += 1
                await asyncio.sleep(calm_s)
                state["phase"] = "swaps"
                for _ in range(per_round):
                    number += 1
                    await publish(record, number, *versions[number - 1])
                    await asyncio.sleep(calm_s / per_round)
                await _live(stack, number)
                state["phase"] = "settling"
                # until what was under way has ended, and as many that began on the last version
                settled = len(found) + 2 * streams
                for _ in range(_SETTLE_POLLS):
                    if len(found) >= settled:
                        break
                    await asyncio.sleep(0.05)
            state["is_over"] = True
    finally:
        await engine.close()
        await record.close()
    return found


async def _live(stack: Stack, number: int) -> None:
    for _ in range(6000):
        status = await asyncio.to_thread(stack.status)
        if status["proxy"]["backend"]["live"] >= number:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"version {number} was not live within five minutes")


async def references(
    stack: Stack, versions: Sequence[tuple[Path, str]], wanted: set[int], tokens: int
) -> dict[tuple[int, str], Stream]:
    """What each version says on an engine that has nothing else to do, and never had."""
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    engine = HttpEngine(stack.base_url)
    found: dict[tuple[int, str], Stream] = {}
    try:
        for number in range(max(wanted) + 1):
            if number:
                await publish(record, number, *versions[number - 1])
                await _live(stack, number)
            for question in QUESTIONS if number in wanted else ():
                found[number, question] = await stream(engine, stack.key, BUILTIN_MODEL, question, tokens)
    finally:
        await engine.close()
        await record.close()
    return found


def agree(one: Stream, other: Stream) -> bool:
    """Whether two greedy streams are of the same weights; behind a place where two tokens were equally likely nothing can be said."""
    for a, b, p, q in zip(one.ids, other.ids, one.logprobs, other.logprobs, strict=True):
        if abs(p - q) > _SAME:
            return False
        if a != b:
            return True
    return True


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


async def _versions_of(home: Path, turns: Sequence[str]) -> dict[str, int]:
    record = await Record.open(read_settings({"home": home}).database_url)
    try:
        rows = await record.trajectories(limit=1_000_000)
        wanted = set(turns)
        return {row["turn_id"]: row["adapter_version"] for row in rows if row["turn_id"] in wanted}
    finally:
        await record.close()


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Do all of it; returns what is printed."""
    wishes: dict[str, Any] = {"backend": given.backend, "batch_size": 1_000_000, "max_wait_s": 1e9}
    if given.vllm_python:
        wishes["vllm_python"] = given.vllm_python
    settings: Settings = read_settings(wishes)
    with TemporaryDirectory(prefix="patina-swap-") as name:
        home = Path(name)
        # a folder of its own: the trainer clears its own of what the record does not know
        versions = make_versions(home / "made", given.versions * given.rounds)
        with Stack(settings, home=home, ready_s=_READY_S) as stack:
            held = stack.status()["proxy"]["backend"]["held"]
            found = asyncio.run(
                load(
                    stack,
                    versions,
                    streams=given.streams,
                    per_round=given.versions,
                    tokens=given.tokens,
                    calm_s=given.calm_s,
                )
            )
            state = stack.status()["proxy"]["backend"]
            held = state["held"] - held
        every = found
        recorded = asyncio.run(_versions_of(home, [one.turn_id for one in every]))
        wrong = 0
        if not given.no_check:
            with Stack(settings, ready_s=_READY_S) as fresh:
                alone = asyncio.run(references(fresh, versions, set(recorded.values()), given.tokens))
            wrong = sum(
                not agree(one, alone[recorded[one.turn_id], one.question])
                for one in every
                if one.turn_id in recorded
            )
    gaps: dict[str, list[list[float]]] = {
        phase: [[] for _ in range(given.rounds)] for phase in ("calm", "swaps")
    }
    for one in every:
        for phase, number, gap in one.gaps:
            if phase in gaps:
                gaps[phase][number - 1].append(gap)
    whole = {phase: [gap for part in parts for gap in part] for phase, parts in gaps.items()}
    p99 = {phase: percentile(values, 0.99) for phase, values in whole.items()}
    return {
        **{name: getattr(given, name) for name in ("backend", "streams", "versions", "rounds", "tokens")},
        "finished": len(every),
        "failed": sum(one.status != 200 or not one.is_ended for one in every),
        "held": held,
        "unrecorded": sum(one.turn_id not in recorded for one in every),
        "versions_seen": len(set(recorded.values())),
        "not_of_their_version": None if given.no_check else wrong,
        "gaps": {phase: len(values) for phase, values in whole.items()},
        "gap_p50_ms": {phase: round(1e3 * percentile(values, 0.5), 1) for phase, values in whole.items()},
        "gap_p99_ms": {phase: round(1e3 * value, 1) for phase, value in p99.items()},
        # the times without swaps differ among themselves: what lies within that is not the swaps'
        "gap_p99_ms_by_round": {
            phase: [round(1e3 * percentile(part, 0.99), 1) for part in parts] for phase, parts in gaps.items()
        },
        "gap_p99_ratio": round(p99["swaps"] / p99["calm"], 3) if p99["calm"] else None,
        "first_p99_ms": round(1e3 * percentile([one.first_s for one in every], 0.99), 1),
    }


def shortcomings(found: dict[str, Any]) -> list[str]:
    """Return what may not be; nothing when all is well."""
    names = ("failed", "held", "unrecorded", "not_of_their_version")
    return [f"{found[name]} {name}" for name in names if found[name]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.swap", description=__doc__)
    parser.add_argument("--backend", choices=("embedded", "vllm"), default="embedded")
    parser.add_argument("--vllm-python", default="", help="as for run.py")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--versions", type=int, default=10, help="published in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48, help="of each stream")
    parser.add_argument("--calm-s", type=float, default=8.0, help="seconds without and with swaps in a round")
    parser.add_argument(
        "--no-check", action="store_true", help="leave out the comparison with a fresh engine"
    )
    found = run(parser.parse_args())
    print(json.dumps(found, indent=1))
    for one in (problems := shortcomings(found)):
        print(f"bench.swap: {one}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
