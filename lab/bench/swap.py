"""New versions under load: `python -m lab.bench.swap [--backend embedded|vllm|tinker] [--streams 16] [--versions 10] [--every-s 8]`.

A Patina on the test model, with clients that stream all the time. Windows of equal length alternate: in one nothing happens, in the
other versions are published one after the other. For both kinds of window: the gaps between the pieces of a running stream. Then everything is held against
the record (one version a turn, and which), and every stream against what a freshly started engine says that knows no version but this
one: a prefix cache that outlived its version, or a stream of two versions, would show there. Prints JSON; exit code 1 when a stream
failed, was held, or was not of its version.

What is compared is swaps and no swaps, nothing else: one version is live before the first window (an adapter costs an engine time on every
token, and the base model has none), all folders are written before anybody streams, a publication is one transaction, and the order of the
two windows changes from round to round. The delay of this process's own event loop is printed beside the gaps (`own_late_p99_ms`).

`--every-s` is the time between two versions. The built-in trainer takes 5.5 s for the smallest version on an idle machine (step 4.1 s, gate
1.4 s), and longer beside sixteen streams: 8 s is close to the shortest interval that training reaches, 1 s is a stress test.

`--backend tinker` starts the small server of `tests/tinker`. Its streams come as one piece, so there are no gaps: what counts are whole replies
(`whole_p99_ms`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import orjson
import torch

from lab.evals.stack import Stack
from lab.models import TOY, toy_settings
from serving.http import HttpBackend
from serving.ports import free_port
from serving.tinker.version import FILE as TINKER_FILE
from serving.tinker.version import TinkerVersion
from store.record import Record
from store.settings import (
    REPOSITORY,
    Settings,
    child_environment,
    read_settings,
)
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
#: How often the loop of this process is looked at.
_TICK_S = 0.02
_PHASES = ("calm", "swaps")
_DRAWS = 400


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
    whole: tuple[str, int, float] = ("", 0, 0.0)  #: the same, of the whole reply


@dataclass(slots=True)
class RequestLoad:
    """What `load` saw.

    Attributes:
        streams: all of them, in the order in which they began.
        late: how late this process was to look at its clock, by what went on, seconds.
        published: when each version was, by its number.
    """

    streams: list[Stream] = field(default_factory=list)
    late: dict[str, list[float]] = field(default_factory=dict)
    published: dict[int, float] = field(default_factory=dict)


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
    engine: HttpBackend,
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
        made.whole = (*now_is(), time.perf_counter() - made.began)
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
    policy = LocalPolicy(str(TOY), rank=8, learning_rate=1e-4)
    made = []
    for number in range(1, count + 1):
        generator = torch.Generator().manual_seed(number)
        state = policy.snapshot()
        for name, value in state.items():
            if name.startswith("weight/") and "lora_B" in name:
                state[name] = _STRENGTH * torch.randn(value.shape, generator=generator)
        policy.restore(state)
        written = write_version(folder, TOY.name, number, policy.version_files(), metrics={})
        made.append((written.path, written.content_hash))
    return made


async def publish(record: Record, number: int, path: Path, digest: str) -> None:
    """What the trainer does when a version passed the gate."""
    now = time.time()
    adapter = AdapterVersion(
        policy=TOY.name,
        version=number,
        path=str(path),
        content_hash=digest,
        parent_version=number - 1,
        state=AdapterState.PUBLISHED,
        reason="lab.bench.swap",
        method="rl",
        metrics={},
        created_at=now,
    )
    step = StepReport(
        step_id=uuid4().hex,
        policy=TOY.name,
        method="rl",
        started_at=now,
        finished_at=now,
        version=number,
        error=None,
        metrics={},
    )
    await record.publish(adapter, [], step, worker="lab.bench.swap")


async def load(
    stack: Stack,
    versions: Sequence[tuple[Path, str]],
    *,
    streams: int,
    rounds: int,
    tokens: int,
    every_s: float,
) -> RequestLoad:
    """Have clients stream while nothing happens and while versions are published, by turns.

    Args:
        versions: the first is live before anything is measured; the others are spread evenly over the rounds.
    """
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    engine = HttpBackend(stack.base_url)
    found = RequestLoad()
    phase, part, is_over = "warm", 0, False

    async def client(number: int) -> None:
        for turn in itertools.count(number):
            if is_over:
                return
            question = QUESTIONS[turn % len(QUESTIONS)]
            found.streams.append(
                await stream(engine, stack.key, TOY.name, question, tokens, lambda: (phase, part))
            )

    async def watch() -> None:
        while not is_over:
            asked = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            found.late.setdefault(phase, []).append(time.perf_counter() - asked - _TICK_S)

    async def next_version() -> None:
        number = len(found.published) + 1
        found.published[number] = time.perf_counter()
        await publish(record, number, *versions[number - 1])

    async def settle() -> None:
        """Until what was under way has ended, and as many that began on the last version."""
        await _live(stack, len(found.published))
        wanted = len(found.streams) + 2 * streams
        for _ in range(_SETTLE_POLLS):
            if len(found.streams) >= wanted:
                return
            await asyncio.sleep(0.05)

    per_round = (len(versions) - 1) // rounds
    try:
        await next_version()
        await _live(stack, 1)
        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(client(number))
            group.create_task(watch())
            await settle()
            for part in range(1, rounds + 1):
                # by turns first: what drifts would otherwise be counted as the swaps'
                for phase in _PHASES if part % 2 else reversed(_PHASES):
                    for _ in range(per_round):
                        if phase == "swaps":
                            await next_version()
                        await asyncio.sleep(every_s)
                    phase = "settling"
                    await settle()
            is_over = True
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
    engine = HttpBackend(stack.base_url)
    found: dict[tuple[int, str], Stream] = {}
    try:
        for number in range(max(wanted) + 1):
            if number:
                await publish(record, number, *versions[number - 1])
                await _live(stack, number)
            for question in QUESTIONS if number in wanted else ():
                found[number, question] = await stream(engine, stack.key, TOY.name, question, tokens)
    finally:
        await engine.close()
        await record.close()
    return found


def agree(one: Stream, other: Stream) -> bool:
    """Return whether two greedy streams may come from the same weights; after equally likely tokens they may differ."""
    for a, b, p, q in zip(one.ids, other.ids, one.logprobs, other.logprobs, strict=True):
        if abs(p - q) > _SAME:
            return False
        if a != b:
            return True
    return True


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def ratio_of(parts: Mapping[str, Sequence[Sequence[float]]], share: float = 0.99) -> float | None:
    """Return the percentile of the gaps with swaps by that without, rounds taken together; None where nothing was seen."""
    with_swaps, without = (
        percentile([gap for one in parts[phase] for gap in one], share) for phase in ("swaps", "calm")
    )
    return with_swaps / without if with_swaps and without else None


def interval(parts: Mapping[str, Sequence[Sequence[float]]], draws: int = _DRAWS) -> list[float] | None:
    """Return bounds of 95 % of `ratio_of` when whole rounds are drawn with replacement; None for fewer than three rounds, or nothing seen."""
    rounds = len(parts["calm"])
    if rounds < 3:
        return None
    dice = random.Random(0)
    ratios = []
    for _ in range(draws):
        drawn = dice.choices(range(rounds), k=rounds)
        ratio = ratio_of({phase: [parts[phase][i] for i in drawn] for phase in _PHASES})
        if ratio is not None:
            ratios.append(ratio)
    return [round(percentile(ratios, share), 3) for share in (0.025, 0.975)] if ratios else None


async def _versions_of(home: Path, turns: Sequence[str]) -> dict[str, int]:
    record = await Record.open(read_settings({"home": home}).database_url)
    try:
        rows = await record.trajectories(limit=1_000_000)
        wanted = set(turns)
        return {row["turn_id"]: row["adapter_version"] for row in rows if row["turn_id"] in wanted}
    finally:
        await record.close()


@contextlib.contextmanager
def _tinker_server(folder: Path, versions: Sequence[tuple[Path, str]]) -> Iterator[str]:
    """Run the small Tinker server with these adapters among its checkpoints; yields its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.tinker.server",
        "--model",
        str(TOY),
        "--port",
        str(port),
    ]
    command += ["--state", str(folder / "state"), "--take-in", *(str(path) for path, _ in versions)]
    log = folder / "tinker.log"
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=child_environment(OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        for _ in range(int(_READY_S / 0.1)):
            if process.poll() is not None:
                raise RuntimeError(f"the Tinker server ended: {log.read_text()[-2000:]}")
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{url}/api/v1/get_server_capabilities", timeout=5),
            ):
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _on_tinker(folder: Path, versions: Sequence[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Write the folders of versions whose weights the server took in (`tests.tinker.server --take-in`)."""
    made = []
    for number, (path, _) in enumerate(versions, start=1):
        version = TinkerVersion(
            sampler_path=f"tinker://taken-in:train:0/sampler_weights/{path.name}",
            base_model=str(TOY),
        )
        files = {TINKER_FILE: json.dumps(asdict(version)).encode()}
        written = write_version(folder, TOY.name, number, files, metrics={})
        made.append((written.path, written.content_hash))
    return made


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Do all of it; returns what is printed."""
    if given.versions % given.rounds:
        raise ValueError(f"--versions {given.versions} cannot be spread evenly over --rounds {given.rounds}")
    wishes: dict[str, Any] = {"backend": given.backend, "batch_size": 1_000_000, "max_wait_s": 1e9}
    if given.vllm_python:
        wishes["vllm_python"] = given.vllm_python
    with TemporaryDirectory(prefix="patina-swap-") as name, contextlib.ExitStack() as stacked:
        home = Path(name)
        # a folder of its own: the trainer clears its own of what the record does not know
        versions = make_versions(home / "made", 1 + given.versions)
        if given.backend == "tinker":
            wishes["tinker_base_url"] = stacked.enter_context(_tinker_server(home / "tinker", versions))
            versions = _on_tinker(home / "tinker", versions)
        settings: Settings = toy_settings(wishes)
        with Stack(settings, home=home, ready_s=_READY_S) as stack:
            held = stack.status()["proxy"]["backend"]["held"]
            found = asyncio.run(
                load(
                    stack,
                    versions,
                    streams=given.streams,
                    rounds=given.rounds,
                    tokens=given.tokens,
                    every_s=given.every_s,
                )
            )
            held = stack.status()["proxy"]["backend"]["held"] - held
        every = found.streams
        recorded = asyncio.run(_versions_of(home, [one.turn_id for one in every]))
        wrong = None
        if not given.no_check:
            with Stack(settings, ready_s=_READY_S) as fresh:
                alone = asyncio.run(references(fresh, versions, set(recorded.values()), given.tokens))
            wrong = sum(
                not agree(one, alone[recorded[one.turn_id], one.question])
                for one in every
                if one.turn_id in recorded
            )
    return {
        **{
            name: getattr(given, name)
            for name in ("backend", "streams", "versions", "rounds", "every_s", "tokens")
        },
        "finished": len(every),
        "failed": sum(one.status != 200 or not one.is_ended for one in every),
        "held": held,
        "unrecorded": sum(one.turn_id not in recorded for one in every),
        "versions_seen": len(set(recorded.values())),
        "not_of_their_version": wrong,
        "first_reply_after_s": _first_replies(found, recorded),
        **_summary_of("gap", [gap for one in every for gap in one.gaps], given.rounds),
        **_summary_of("whole", [one.whole for one in every], given.rounds),
        "first_p99_ms": round(1e3 * percentile([one.first_s for one in every], 0.99), 1),
        "own_late_p99_ms": {
            phase: round(1e3 * percentile(found.late.get(phase, ()), 0.99), 1) for phase in _PHASES
        },
        "load_average": round(os.getloadavg()[1], 1),
    }


def _summary_of(what: str, timed: Sequence[tuple[str, int, float]], rounds: int) -> dict[str, Any]:
    """Percentiles of (what went on, round, seconds), all rounds together and one by one, and the ratio of swaps to none."""
    parts: dict[str, list[list[float]]] = {phase: [[] for _ in range(rounds)] for phase in _PHASES}
    for phase, number, seconds in timed:
        if phase in parts:
            parts[phase][number - 1].append(seconds)
    whole = {phase: [gap for part in each for gap in part] for phase, each in parts.items()}
    ratio = ratio_of(parts)
    return {
        f"{what}s": {phase: len(values) for phase, values in whole.items()},
        **{
            f"{what}_p{share}_ms": {
                phase: round(1e3 * percentile(values, share / 100), 1) for phase, values in whole.items()
            }
            for share in (50, 99)
        },
        f"{what}_longest_ms": {
            phase: round(1e3 * max(values, default=0.0), 1) for phase, values in whole.items()
        },
        # the times without swaps differ among themselves: what lies within that is not the swaps'
        f"{what}_p99_ms_by_round": {
            phase: [round(1e3 * percentile(part, 0.99), 1) for part in each] for phase, each in parts.items()
        },
        f"{what}_p99_ratio": None if ratio is None else round(ratio, 3),
        f"{what}_p99_ratio_95": interval(parts),
    }


def _first_replies(found: RequestLoad, recorded: Mapping[str, int]) -> dict[str, float]:
    """Seconds from a version's publication to the beginning of the first request that it answered: p50 and the longest."""
    began: dict[int, float] = {}
    for one in found.streams:
        number = recorded.get(one.turn_id, 0)
        if number in found.published:
            began[number] = min(one.began, began.get(number, one.began))
    after = [began[number] - found.published[number] for number in began if number > 1]
    return {"p50": round(percentile(after, 0.5), 3), "longest": round(max(after, default=0.0), 3)}


def shortcomings(found: dict[str, Any]) -> list[str]:
    """Return what may not be; nothing when all is well."""
    names = ("failed", "held", "unrecorded", "not_of_their_version")
    return [f"{found[name]} {name}" for name in names if found[name]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.swap", description=__doc__)
    parser.add_argument("--backend", choices=("embedded", "vllm", "tinker"), default="embedded")
    parser.add_argument("--vllm-python", default="", help="as for run.py")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--versions", type=int, default=10, help="published in all rounds together")
    parser.add_argument("--rounds", type=int, default=5, help="of a window without and one with swaps")
    parser.add_argument("--tokens", type=int, default=48, help="of each stream")
    parser.add_argument("--every-s", type=float, default=8.0, help="seconds from one version to the next")
    parser.add_argument(
        "--no-check", action="store_true", help="leave out the comparison with a fresh engine"
    )
    found = run(parser.parse_args())
    print(json.dumps(found, indent=1))
    for one in (problems := shortcomings(found)):
        print(f"lab.bench.swap: {one}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
