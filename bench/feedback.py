"""From feedback to a new version that serves: `python -m bench.feedback [--rounds 5]`.

Runs an own house on the built-in model. A round: a batch of turns is answered, explicit feedback is given for all of them, and
the clock runs from the last feedback's reply to the first chat that the next version answers. Where the time went is read
from the version's own metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from rich.console import Console
from rich.table import Table

from evals.client import House, live_version
from evals.pools import ASKED
from evals.stack import Stack
from store.record import Record
from store.settings import read_settings

#: A person who asks for the same thing again and again, whatever comes, runs into the gate; so each round asks for another.
WISHES = (
    "Shorter please.",
    "No emoji please.",
    "In Spanish please.",
    "Please be more formal.",
    "No bold type please.",
)


async def measure(stack: Stack, batch: int, rounds: int) -> list[dict[str, float]]:
    """Return for each round the seconds from feedback to serving, and what the step itself says it took."""
    found: list[dict[str, float]] = []
    record = await Record.open(read_settings({"home": stack.home}).database_url)
    try:
        async with House(stack.base_url, stack.key) as house:
            for number in range(rounds):
                before = live_version(await house.status())
                replies = [
                    await house.chat([{"role": "user", "content": ASKED[number * batch + i].text}])
                    for i in range(batch)
                ]
                for reply in replies:
                    await house.feedback(
                        {
                            "turn_id": reply.turn_id,
                            "thumbs": "down",
                            "text": WISHES[number % len(WISHES)],
                        }
                    )
                given = time.monotonic()
                version = await _serving(house, record, before)
                serving = time.monotonic() - given
                adapter = await record.adapter(await house.model(), version)
                metrics = adapter.metrics if adapter is not None else {}
                found.append(
                    {"serving_s": serving, "train_s": metrics["train_s"], "gate_s": metrics["gate_s"]}
                )
    finally:
        await record.close()
    return found


async def _serving(house: House, record: Record, before: int) -> int:
    """Wait until a chat is answered by a version after ``before``; returns it."""
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        if live_version(await house.status()) > before:
            reply = await house.chat([{"role": "user", "content": "Hello"}], trains=False)
            (row,) = [
                r
                for r in await record.trajectories(limit=20, newest_first=True)
                if r["turn_id"] == reply.turn_id
            ]
            if row["adapter_version"] > before:
                return int(row["adapter_version"])
        await asyncio.sleep(0.02)
    raise TimeoutError("no new version served within two minutes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.feedback", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=4)
    arguments = parser.parse_args()
    with Stack(read_settings({"batch_size": arguments.batch_size})) as stack:
        found = asyncio.run(measure(stack, arguments.batch_size, arguments.rounds))
    table = Table("seconds", "median", "min", "max")
    for name in ("serving_s", "train_s", "gate_s"):
        values = [one[name] for one in found]
        table.add_row(name, f"{statistics.median(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
