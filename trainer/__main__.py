"""`python -m trainer --settings PATH`: the trainer process. Exit code 2 with one sentence when it cannot be set up."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from store.errors import AdapterError, ConfigError, PatinaError, RecordError
from store.record import Record
from store.settings import Settings
from store.values import Json

#: On a machine without a GPU replies and other programs come before training.
_NICE = 10
#: Device files of GPU drivers: NVIDIA's, the one of Windows' subsystem for Linux, AMD's.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer", description="Turn verdicts into adapter versions."
    )
    parser.add_argument("--settings", type=Path, required=True, help="settings file written by run.py")
    parser.add_argument(
        "--replay",
        type=Path,
        help="compute recorded versions again as this file says, and exit; the result replaces the file",
    )
    arguments = parser.parse_args()
    try:
        settings = Settings.load(arguments.settings)
        if arguments.replay is not None:
            asked = json.loads(arguments.replay.read_text(encoding="utf-8"))
            found = asyncio.run(_replay(settings, asked))
            arguments.replay.write_text(json.dumps(found), encoding="utf-8")
            return 0
        return asyncio.run(_run(settings))
    except (ConfigError, AdapterError, RecordError) as exc:
        print(f"patina: {exc}", file=sys.stderr)
        return 2


async def _run(settings: Settings) -> int:
    # The imports take seconds of CPU time, which an engine that starts at the same time needs more.
    if is_nice := not _has_gpu_driver():
        os.nice(_NICE)
    import torch  # here: the settings are checked before seconds are spent on it

    from trainer.worker import TrainerWorker

    torch.set_num_threads(settings.resolved_threads)
    if not is_nice and not torch.cuda.is_available():
        os.nice(_NICE)
    log = _wandb_log(settings) if settings.wandb_project else None
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    record = await Record.open(settings.database_url)
    try:
        await TrainerWorker(record, settings, log=log).run(stop)
    finally:
        await record.close()
    return 0


def _has_gpu_driver() -> bool:
    return any(Path(path).exists() for path in _GPU_DEVICES)


async def _replay(settings: Settings, asked: Json) -> Json:
    """Remove the folders and run the jobs that are asked for; return what became of them."""
    import torch

    from trainer.replay_versions import ReplayJob, VersionReplay, remove_folders

    torch.set_num_threads(settings.resolved_threads)
    found: Json = {"not_removed": remove_folders(asked.get("remove", []), settings), "replays": []}
    record = await Record.open(settings.database_url)
    try:
        for job in asked.get("jobs", []):
            try:
                report = await VersionReplay(record, settings, ReplayJob.from_json(job)).run()
                found["replays"].append(report.to_json())
            except PatinaError as exc:
                found["replays"].append({"policy": job["policy"], "start": job["start"], "error": str(exc)})
    finally:
        await record.close()
    return found


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
