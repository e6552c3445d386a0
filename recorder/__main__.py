"""The recorder process: ``python -m recorder --settings PATH``.

A wrong set-up ends it with one sentence on stderr and exit code 2. At SIGTERM it records what is in the journal, for a bounded time, and
exits with code 0: what is left is recorded by the next start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from recorder.telemetry import RecorderTelemetry
from recorder.worker import RecorderWorker
from store.errors import ConfigError, RecordCorrupt, RecordError, RecordUnavailable
from store.record import Record
from store.settings import Settings
from telemetry.otlp import OtlpExporter

#: Longest wait for another process's write; after that the write counts as failed in `status` and is repeated.
_BUSY_S = 1.0
_STOP_S = 5.0
_ONCE_S = 600.0
#: On a busy machine replies come before rows.
_NICE = 5


class JournalAway(Exception):
    """The journal's folder cannot be opened at present."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recorder", description="Reads the journal, links and classifies, writes the record."
    )
    parser.add_argument("--settings", type=Path, required=True, help="settings file written by run.py")
    parser.add_argument(
        "--once", action="store_true", help="record what is in the journal, remove what is recorded, and exit"
    )
    return parser


@contextlib.contextmanager
def _only_recorder(folder: Path) -> Iterator[None]:
    """Hold the lock of a journal folder. Raises: ConfigError: another recorder reads it. JournalAway: it cannot be opened."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (folder / "lock").open("a")
    except OSError as exc:
        raise JournalAway(f"the journal cannot be opened: {exc}") from exc
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another recorder reads the journal {folder}") from None
        yield


async def check_record(url: str) -> None:
    """Check that the record can be opened. If it is locked, unavailable or damaged, the recorder waits for it.

    Raises:
        RecordError: the schema is too new or too old, or the file is not a record.
    """
    try:
        record = await Record.open(url)
    except (RecordUnavailable, RecordCorrupt) as exc:
        print(f"recorder: {exc}; turns stay in the journal until then", file=sys.stderr, flush=True)
        return
    await record.close()


def open_telemetry(settings: Settings) -> RecorderTelemetry:
    """Return what measures, with an exporter where an endpoint is set. Raises: ConfigError."""
    exporter = None
    if settings.otlp_endpoint:
        exporter = OtlpExporter(settings.otlp_endpoint, headers=settings.otlp_headers, service="recorder")
    return RecorderTelemetry(settings.metrics_file, exporter, with_content=settings.otlp_content)


async def _serve(worker: RecorderWorker) -> None:
    """Run until SIGTERM or SIGINT."""
    running = asyncio.create_task(worker.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await worker.stop(_STOP_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Record until SIGTERM or SIGINT. Returns 0 after a clean end, 1 when the journal is away, 2 after a failed start."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s recorder %(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings.load(arguments.settings)
        with _only_recorder(settings.journal_folder):
            asyncio.run(check_record(settings.database_url))
            os.nice(_NICE)
            # Turns create no reference cycles and the caches are bounded.
            gc.freeze()
            gc.set_threshold(50_000, 20, 50)
            worker = RecorderWorker(
                settings.journal_folder,
                lambda: Record.open(settings.database_url, busy_timeout_s=_BUSY_S),
                open_telemetry(settings),
            )
            asyncio.run(worker.stop(_ONCE_S) if arguments.once else _serve(worker))
    except (ConfigError, RecordError) as exc:
        print(f"recorder: {exc}", file=sys.stderr)
        return 2
    except JournalAway as exc:
        print(f"recorder: {exc}", file=sys.stderr)
        return 1  # not a wrong set-up: the supervisor starts it again
    return 0


if __name__ == "__main__":
    sys.exit(main())
