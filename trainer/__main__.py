"""`python -m trainer --settings PATH`: the trainer process. Exit code 2 with one sentence when it cannot be set up.

At rest it has no model in memory and starts a second process, `--work`, for the versions (`trainer.watcher`). With the weights on a training
server it is one process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from store.errors import AdapterError, ConfigError, RecordError
from store.record import Record
from store.settings import Settings
from store.training_plan import training_threads
from store.values import Json
from trainer.device import make_device
from trainer.watcher import Watcher
from trainer.weights_thread import WeightsThread, has_gpu_driver

#: For everything but the weights' own threads, which yield all the time of a core (`trainer.weights_thread`): the lease and the heartbeat
#: have to be written in time.
_NICE = 10
#: A worker without complaints or work for so long ends, and gives its memory back.
IDLE_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer", description="Turn verdicts into adapter versions."
    )
    parser.add_argument("--settings", type=Path, required=True, help="settings file written by run.py")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--work",
        type=json.loads,
        metavar="JSON",
        help="be the process with the weights; counters to go on from",
    )
    kind.add_argument("--measure", action="store_true", help="measure what a version costs, and exit")
    arguments = parser.parse_args()
    try:
        settings = Settings.load(arguments.settings)
        if arguments.measure:
            return asyncio.run(_measure(settings))
        if arguments.work is not None:
            return asyncio.run(_run(settings, arguments.work, IDLE_S))
        if settings.backend == "tinker" or settings.train_on != "here":
            return asyncio.run(_run(settings, {}, None))
        return _ended_like(asyncio.run(_watch(settings, arguments.settings)))
    except (ConfigError, AdapterError, RecordError) as exc:
        print(f"patina: {exc}", file=sys.stderr)
        return 2


async def _watch(settings: Settings, path: Path) -> int:
    stop = _stop_event()
    record = await Record.open(settings.database_url)
    try:
        return await Watcher(record, settings, path).run(stop)
    finally:
        await record.close()


def _ended_like(code: int) -> int:
    """End as a worker did: by the same signal, so that the supervisor sees whether something killed it."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


async def _run(settings: Settings, earlier: Json, idle_s: float | None) -> int:
    """Be the process with the weights."""
    _prepare(settings)
    from trainer.worker import TrainerWorker  # here: it takes seconds

    log = _wandb_log(settings) if settings.wandb_project else None
    stop = _stop_event()
    record = await Record.open(settings.database_url)
    try:
        await TrainerWorker(record, settings, log=log, earlier=earlier, idle_s=idle_s).run(stop)
    finally:
        await record.close()
    return 0


async def _measure(settings: Settings) -> int:
    """Write the plan of a version (`store.training_plan`)."""
    _prepare(settings)
    from trainer.worker import make_version_trainer

    record = await Record.open(settings.database_url)
    thread = WeightsThread()
    try:
        device = make_device(settings, record)
        async with device.lease():
            await thread.run(lambda: make_version_trainer(settings, device))
    finally:
        thread.shutdown()
        await record.close()
    return 0


def _prepare(settings: Settings) -> None:
    """Set priority and threads, and import torch. The import takes seconds of CPU time, which an engine that starts at the same time needs more."""
    if is_nice := not has_gpu_driver():
        os.nice(_NICE)
    import torch

    torch.set_num_threads(training_threads(settings.threads))
    if not is_nice and not torch.cuda.is_available():
        os.nice(_NICE)


def _stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


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
