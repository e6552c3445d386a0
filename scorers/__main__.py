"""`python -m scorers --settings PATH [--judge-url URL]`: the scorer process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from scorers.open_webui import poll_ratings
from scorers.record_lines import RecordLines
from scorers.registry import build_scorer_chain
from scorers.worker import ScorerWorker
from store.errors import ConfigError, OurError
from store.record import Record
from store.settings import Settings


async def serve(settings: Settings, judge_url: str, judge_model: str = "") -> None:
    """Score until SIGTERM or SIGINT.

    Raises:
        ConfigError: a setting is wrong.
        RecordError: the record cannot be opened.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    chain = build_scorer_chain(settings, judge_url, judge_model)
    record = await Record.open(settings.database_url)
    try:
        worker = ScorerWorker(record, chain, most_per_hour=settings.most_verdicts_per_hour)
        await worker.announce("starting")  # the judge's library takes seconds to import
        await chain.start()
        beside = [poll_ratings(record, settings)] if settings.open_webui_url else []
        if settings.record_jsonl:
            folder = Path(settings.record_jsonl)
            beside.append(RecordLines(record, settings.home, folder, worker.note_lines).run())
        tasks = [asyncio.create_task(one) for one in beside]
        try:
            await worker.run(stop)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await chain.close()
        await record.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scorers", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="JSON file written by run.py")
    parser.add_argument("--judge-url", default="", help="base URL of the local backend, for --judge self")
    parser.add_argument(
        "--judge-model", default="", help="name of the base model there, where it is not the policy's"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(Settings.load(arguments.settings), arguments.judge_url, arguments.judge_model))
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return 2
    except OurError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
