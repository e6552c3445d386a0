"""`python -m trainer --settings PATH`: the trainer process. Exit code 2 with one sentence when it cannot be set up."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from store.errors import AdapterError, ConfigError, RecordError
from store.record import Record
from store.settings import Settings
from store.values import Json


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer", description="Turn verdicts into adapter versions."
    )
    parser.add_argument("--settings", type=Path, required=True, help="settings file written by run.py")
    arguments = parser.parse_args()
    try:
        settings = Settings.load(arguments.settings)
        return asyncio.run(_run(settings))
    except (ConfigError, AdapterError, RecordError) as exc:
        print(f"patina: {exc}", file=sys.stderr)
        return 2


async def _run(settings: Settings) -> int:
    import torch  # here: the settings are checked before seconds are spent on it

    from trainer.worker import Worker

    torch.set_num_threads(settings.resolved_threads)
    log = _wandb_log(settings) if settings.wandb_project else None
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    record = await Record.open(settings.database_url)
    try:
        await Worker(record, settings, log=log).run(stop)
    finally:
        await record.close()
    return 0


def _wandb_log(settings: Settings) -> Callable[[Json], None]:
    try:
        import wandb
    except ModuleNotFoundError:
        raise ConfigError("--wandb-project needs the extra: pip install 'patina[wandb]'") from None
    run = wandb.init(project=settings.wandb_project, name=f"{settings.policy}-{settings.method}")

    def log(metrics: Json) -> None:
        run.log({name: value for name, value in metrics.items() if isinstance(value, int | float)})

    return log


if __name__ == "__main__":
    sys.exit(main())
