"""Several people with a policy each, on a whole Patina with the test model: `python -m lab.bench.people [--people 16] [--rounds 2] [--probes 8]`.

People with wishes that contradict each other complain in two groups, one group after the other. Before and after each group everybody's
replies to fixed questions are taken at temperature 0, with the log-probability of every token. Reported as JSON:

compliance    of each person: share of unseen questions answered as they want, before and after
changed       people whose replies or log-probabilities changed while their version did not: must be empty
cost          seconds of training a version, bytes on disk a person, and what a request costs that has its version loaded first
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sqlite3
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from lab.evals.client import NO_TRAINING
from lab.evals.preferences import held_out_complaint, tasks, violations
from lab.evals.stack import Stack
from lab.models import toy_settings
from store.keys import KeyFile
from store.policies import policy_name
from store.record import Record
from store.settings import read_settings
from store.values import AdapterVersion

#: One wish a person, again from the front where there are more people. Each opposite is what another one complains about.
WISHES = (
    "concise", "spanish", "formal", "no_emoji", "verbose", "english", "casual", "emoji", "concise", "spanish", "no_emoji",
    "formal", "concise", "spanish", "no_emoji", "formal",
)  # fmt: skip
QUESTIONS, PROBES, MAX_TOKENS = 4, 8, 96
_SETTLE_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    name: str
    wish: str
    client: openai.OpenAI


#: Of one reply: its text and the log-probability of each token.
Probe = tuple[str, tuple[float, ...]]


def ask(person: Person, messages: Sequence[Any], *, trains: bool, temperature: float) -> Probe:
    reply = person.client.chat.completions.create(
        model="patina-tiny", messages=list(messages), temperature=temperature, max_tokens=MAX_TOKENS, logprobs=True,
        extra_headers={} if trains else NO_TRAINING,
    )  # fmt: skip
    choice = reply.choices[0]
    content = choice.logprobs.content if choice.logprobs is not None else None
    return choice.message.content or "", tuple(token.logprob for token in content or ())


def react(person: Person, seed: int) -> int:
    """Ask `QUESTIONS` questions, each in a conversation of its own, and complain where the wish is not met; returns how often."""
    rng = random.Random(f"{person.name}/{seed}")
    complaints = 0
    for task in rng.sample(tasks("facts", asked=True), QUESTIONS):
        messages: list[Any] = [{"role": "user", "content": task.text}]
        text, _ = ask(person, messages, trains=True, temperature=1.0)
        violated = violations([person.wish], task, text)
        complaints += bool(violated)
        words = held_out_complaint(violated, rng) if violated else "Thanks!"
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": words}]
        ask(person, messages, trains=True, temperature=1.0)
    return complaints


def probe(person: Person, count: int = PROBES) -> tuple[list[Probe], float]:
    """Return the replies to the fixed questions, one request at a time, and the share that meets the wish."""
    asked = tasks("facts", asked=False)[:count]
    found = [
        ask(person, [{"role": "user", "content": task.text}], trains=False, temperature=0.0) for task in asked
    ]
    met = [not violations([person.wish], task, text) for task, (text, _) in zip(asked, found, strict=True)]
    return found, sum(met) / len(met)


def settle(stack: Stack) -> None:
    """Wait until nothing waits to be scored, and no complaint to be trained; praise alone is no reason for a version."""
    give_up, quiet = time.monotonic() + _SETTLE_S, 0
    url = f"file:{stack.home / 'patina.db'}?mode=ro"
    waiting = """SELECT count(*) FROM trajectories
        WHERE stage IN ('answered', 'claimed') OR (stage = 'scored' AND verdict = -1)"""
    while quiet < 4:
        if time.monotonic() > give_up:
            raise TimeoutError(f"turns still wait: {stack.status()['stages']}")
        with contextlib.closing(sqlite3.connect(url, uri=True)) as record:
            busy = record.execute(waiting).fetchone()[0]
        quiet = 0 if busy else quiet + 1
        time.sleep(0.5)


def run(count: int, rounds: int, probes: int) -> dict[str, Any]:
    settings = toy_settings({"max_wait_s": 120.0})
    with Stack(settings) as stack:
        file = KeyFile(stack.home / "keys.json")
        people = [
            Person(
                name=f"p{number:02d}",
                wish=WISHES[number % len(WISHES)],
                client=openai.OpenAI(
                    base_url=stack.base_url, api_key=file.add(f"p{number:02d}"), timeout=600
                ),
            )
            for number in range(count)
        ]
        before = {person.name: probe(person, probes) for person in people}
        newest, versions, changed = dict(before), dict.fromkeys(before, 0), []
        started = time.monotonic()
        groups = [people[: (count + 1) // 2], people[(count + 1) // 2 :]]
        for number, group in enumerate(group for group in groups if group):
            for one in range(rounds):
                with ThreadPoolExecutor(2) as pool:
                    complaints = list(pool.map(lambda person, seed=one: react(person, seed), group))
                settle(stack)
                print(f"group {number}, round {one}: {sum(complaints)} complaints", flush=True)
            live = live_versions(stack.status())
            for person in people:
                fresh = probe(person, probes)
                version = live.get(policy_name(settings.policy, person.name), 0)
                if version == versions[person.name] and fresh[0] != newest[person.name][0]:
                    changed.append({"person": person.name, "version": version})
                newest[person.name], versions[person.name] = fresh, version
        learned_s = time.monotonic() - started
        adapters = asyncio.run(read_adapters(settings.policy, people, stack))
        return {
            "people": count,
            "compliance": {
                person.name: {
                    "wish": person.wish,
                    "before": before[person.name][1],
                    "after": newest[person.name][1],
                    "version": versions[person.name],
                }
                for person in people
            },
            "changed": changed,
            "cost": {"learned_s": round(learned_s), **costs(adapters), **latencies(people, stack)},
        }


def live_versions(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the versions that the gateway serves, by policy."""
    return {name: one["live"] for name, one in status["proxy"]["backend"]["policies"].items()}


async def read_adapters(base: str, people: Sequence[Person], stack: Stack) -> dict[str, list[AdapterVersion]]:
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    try:
        return {person.name: await record.adapters(policy_name(base, person.name)) for person in people}
    finally:
        await record.close()


def costs(adapters: Mapping[str, Sequence[AdapterVersion]]) -> dict[str, Any]:
    versions = [one for some in adapters.values() for one in some]
    if not versions:
        return {"versions": 0}
    seconds = [one.metrics["train_s"] + one.metrics["gate_s"] for one in versions]
    sizes = [
        sum(file.stat().st_size for file in Path(one.path).rglob("*") if file.is_file()) for one in versions
    ]
    return {
        "versions": len(versions),
        "rejected": sum(one.state.value == "rejected" for one in versions),
        "version_s": round(statistics.median(seconds), 1),
        "version_mb": round(statistics.median(sizes) / 1e6, 2),
    }


def latencies(people: Sequence[Person], stack: Stack) -> dict[str, Any]:
    """Return medians of a short request: in turn by all people (cold where there are more than slots), and by one person again and again."""
    asked = [{"role": "user", "content": "Hi"}]

    def seconds(person: Person) -> float:
        began = time.monotonic()
        ask(person, asked, trains=False, temperature=0.0)
        return time.monotonic() - began

    loads = stack.status()["proxy"]["backend"]["cold_loads"]
    cold = [seconds(person) for _ in range(2) for person in people]
    after = stack.status()["proxy"]["backend"]
    warm = [seconds(people[-1]) for _ in range(2 * len(people))]
    return {
        "in_turn_ms": round(1e3 * statistics.median(cold)),
        "again_ms": round(1e3 * statistics.median(warm)),
        "cold_loads": after["cold_loads"] - loads,
        "refused": after["refused"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--probes", type=int, default=PROBES, help="questions to each person before and after"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = run(arguments.people, arguments.rounds, arguments.probes)
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 1 if found["changed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
