"""Start the processes and keep them running. They communicate through HTTP, the journal and the record only.

Rules: a process that dies is started again, at once where something else killed it, with a growing pause while it keeps ending by itself
(`restart_pause`). Exit code 2 means a wrong set-up: the
process has printed one sentence about it, and everything stops. The processes end with the supervisor, also after kill -9.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.backend import BackendPlan, plan_backend, resolve
from cli.home_files import note_lines_folder, sqlite_path
from cli.readiness import announce_ready
from cli.start_checks import check_start, notes_on_environment
from cli.start_text import start_text
from cli.version_lines import VersionLines
from migrations import upgrade
from serving.models.source import with_model
from serving.ports import bind, free_port
from store.backup import check_whole
from store.change_notice import ChangeNotice
from store.errors import ConfigError, RecordError
from store.heartbeats import LOOK_S, HeartbeatWriter
from store.processes import die_with_parent, hold_home
from store.record import Record
from store.settings import (
    Settings,
    child_environment,
    ensure_api_key,
    make_private,
    provider_variables,
    renew_backend_key,
    without_secrets,
)
from store.values import gateway_name

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
#: Between two looks for conversations that are kept no longer (`run.py retain`).
_AGED_EVERY_S = 3_600.0
#: A process that lived so long is not "dying again" when it ends by itself.
_SETTLED_S = 30.0
#: Signals that come from outside, the kernel's out-of-memory killer included. Others (SIGSEGV, SIGABRT) are a process's own failure.
_KILLS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: A process that is killed sooner is treated like one that ends by itself: whatever kills it, kills it at every start.
_KILLED_AT_START_S = 0.5
#: A signal to the whole group (a terminal, systemd) reaches this process as well: until then nothing is started again.
_GROUP_SIGNAL_S = 0.25
#: Longer than the gateways give requests in flight (`proxy.__main__.GRACE_S`).
_STOP_S = 15.0
_LOG_LIMIT = 10 * 1024 * 1024


@dataclass(slots=True)
class Child:
    """One supervised process."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    started_at: float = 0.0
    log_start: int = 0
    last_exit: int | None = None

    async def start(self) -> None:
        _rotate(self.log)
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                preexec_fn=die_with_parent,
            )
        self.started_at = time.time()

    def last_words(self) -> str:
        """Return the last line it printed since it was started."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"no word of why; see {self.log}"

    async def stop(self) -> None:
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def serve(settings: Settings) -> int:
    """Start everything and run until stopped; returns the exit code.

    Raises:
        ConfigError: port in use, home in use, a process that cannot be set up.
        RecordError: the record cannot be opened or migrated.
    """
    os.umask(0o077)  # for the children too: all they write is the owner's alone
    if settings.database_url.startswith("sqlite"):
        check_whole(settings.home, sqlite_path(settings))
    make_private(settings.home)
    settings.logs_folder.mkdir(exist_ok=True, mode=0o700)
    with hold_home(settings.home):
        # Seen here already, before anything is migrated or announced; the proxy takes the port itself.
        bind(settings.proxy_host, settings.proxy_port, option="--proxy-port").close()
        upgrade(settings.database_url)
        key, is_new = ensure_api_key(settings)
        path = settings.home / "run" / "settings.json"
        settings, why = resolve(settings)
        check_start(settings)
        settings, source = with_model(settings)
        if source is not None:
            print("\n  ".join([f"Model: {source.label} ({source.folder})", *source.notes]), flush=True)
        backend = plan_backend(settings)
        settings = settings.model_copy(update={"colocate": backend.colocate})
        if backend.command:
            renew_backend_key(settings)
        if settings.record_jsonl:
            note_lines_folder(settings.home, Path(settings.record_jsonl))
        settings.dump(path)
        print(start_text(settings, key, is_new=is_new, backend=_explain(backend, why)), flush=True)
        for note in notes_on_environment(settings, child_environment()):
            print(f"patina: {note}", file=sys.stderr, flush=True)
        return asyncio.run(_supervise(settings, plan(settings, path, backend)))


def plan(settings: Settings, path: Path, backend: BackendPlan) -> list[Child]:
    """Return the processes that these settings ask for, in the order in which they start."""

    def child(name: str, command: Sequence[str]) -> Child:
        threads = str(settings.resolved_threads)
        return Child(
            name=name,
            command=list(command),
            environment=without_secrets(
                # A thread that waits for others sleeps: the core may be another process's.
                child_environment(
                    OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, OMP_WAIT_POLICY="passive"
                ),
                _needed_secrets(name, settings),
            ),
            log=settings.logs_folder / f"{name}.log",
        )

    def ours(name: str, module: str, *more: str) -> Child:
        return child(name, [sys.executable, "-m", module, "--settings", str(path), *more])

    judge = [word for url in backend.urls[:1] for word in ("--judge-url", url)]
    if backend.served_model:
        judge += ["--judge-model", backend.served_model]
    children = [child("backend", backend.command)] if backend.command else []
    # Before the gateways, because processes are stopped in reverse: it also records the replies that end last.
    children.append(ours("recorder", "recorder"))
    page_port = free_port()
    page_url = f"http://127.0.0.1:{page_port}"
    backend_urls = [word for url in backend.urls for word in ("--backend-url", url)]
    for worker in range(1, settings.workers + 1):
        children.append(
            ours(
                gateway_name(worker),
                "proxy",
                "--worker",
                str(worker),
                "--dashboard-url",
                page_url,
                *backend_urls,
            )
        )
    children.append(
        ours("dashboard", "dashboard", "--port", str(page_port), "--gateway-url", settings.gateway_url)
    )
    children.append(ours("scorer", "scorers", *judge))
    if settings.trains_locally:
        children.append(ours("trainer", "trainer"))
    return children


def _needed_secrets(name: str, settings: Settings) -> frozenset[str]:
    """Return the variables with secrets that a process needs, because a library of it reads them."""
    if name == "scorer" and (settings.custom_rm_path or settings.resolved_judge not in ("none", "self")):
        return frozenset(provider_variables())
    if name == "trainer" and settings.wandb_project:
        return frozenset({"WANDB_API_KEY"})
    # The tokenizer's few files may have to be downloaded.
    return frozenset({"HF_TOKEN"}) if settings.backend == "tinker" else frozenset()


async def _supervise(settings: Settings, children: list[Child]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    watchers = [asyncio.create_task(_keep_running(child), name=child.name) for child in children]
    forgetting = Forgetting(settings)
    beat = asyncio.create_task(_beat(settings, children, VersionLines(settings, time.time()), forgetting))
    ready = asyncio.create_task(announce_ready(settings))
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopped, *watchers], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task is not stopped:
                await task  # a watcher only ends by raising what is wrong
    finally:
        for task in (*watchers, beat, ready, stopped):
            task.cancel()
        await asyncio.gather(*watchers, beat, ready, stopped, return_exceptions=True)
        await forgetting.stop()
        code = await _stop(children)
    return code


async def _stop(children: Sequence[Child]) -> int:
    """Stop the processes, the last started first. Returns 1, and prints the proxy's last line, when the proxy reports a loss at its end."""
    code = 0
    gateways = [child for child in children if child.name.startswith("proxy")]
    await asyncio.gather(
        *(child.stop() for child in gateways[1:])
    )  # together: each may wait for replies in flight
    for child in reversed(children):
        await child.stop()
        # A Ctrl-C goes to all processes of the terminal: the proxy may have ended already.
        if child.name.startswith("proxy") and child.process is not None and child.process.returncode == 1:
            print(f"patina: {child.last_words().removeprefix('proxy: ')}", file=sys.stderr, flush=True)
            code = 1
    return code


async def _keep_running(child: Child) -> None:
    """Start it, wait for its death, start it again.

    Raises:
        ConfigError: it ended with exit code 2: its last words are the sentence.
    """
    pause = 0.0
    while True:
        await child.start()
        assert child.process is not None
        child.last_exit = await child.process.wait()
        if child.last_exit == 2:
            raise ConfigError(f"the {child.name} cannot start: {child.last_words().removeprefix('patina: ')}")
        lived = time.time() - child.started_at
        pause = restart_pause(pause, exit_code=child.last_exit, lived_s=lived)
        await asyncio.sleep(_GROUP_SIGNAL_S)
        print(
            f"patina: the {child.name} ended with code {child.last_exit} after {lived:.0f} s; "
            f"starting it again {f'in {pause:.2g} s' if pause else 'now'} (log: {child.log})",
            file=sys.stderr,
            flush=True,
        )
        await asyncio.sleep(pause)
        child.restarts += 1


def restart_pause(last_s: float, *, exit_code: int, lived_s: float) -> float:
    """Return the seconds to wait before a process is started again.

    Args:
        last_s: the pause before this start; 0 for the first one.
        exit_code: of the process, negative for a signal.
    """
    if -exit_code in _KILLS and lived_s >= _KILLED_AT_START_S:
        return 0.0
    if lived_s > _SETTLED_S:
        return _FIRST_PAUSE_S
    return min(max(_FIRST_PAUSE_S, 2 * last_s), _LONGEST_PAUSE_S)


class Forgetting:
    """Runs the process that forgets (`cli.forgetting`) while something waits to be forgotten, also what an earlier start left."""

    def __init__(self, settings: Settings) -> None:
        self._child = Child(
            name="forgetting",
            command=[
                sys.executable,
                "-m",
                "cli.forgetting",
                "--settings",
                str(settings.home / "run" / "settings.json"),
            ],
            environment=without_secrets(child_environment(), frozenset()),
            log=settings.logs_folder / "forgetting.log",
        )
        self._is_needed = True
        self._aged_at = -math.inf  # monotonic: when old conversations were looked for

    async def look(self, record: Record, *, has_changed: bool) -> None:
        """Ask for conversations that are too old to be forgotten, and start it where there is something to do. Raises: RecordError."""
        if time.monotonic() - self._aged_at >= _AGED_EVERY_S:
            has_changed |= bool(await record.ask_for_aged())
            self._aged_at = time.monotonic()
        if not has_changed and not self._is_needed:
            return
        self._is_needed = bool(await record.open_forget_jobs())
        process = self._child.process
        if self._is_needed and (process is None or process.returncode is not None):
            await self._child.start()

    async def stop(self) -> None:
        await self._child.stop()


async def _beat(
    settings: Settings, children: list[Child], versions: VersionLines, forgetting: Forgetting
) -> None:
    """Write for `status` which processes run, print what became of versions, and let what was asked for be forgotten. A record that is unavailable for a while is no reason to
    end: recorder and proxy report it.
    """
    record: Record | None = None
    notice = ChangeNotice()
    has_changed = True
    beats = HeartbeatWriter("supervisor")
    try:
        while True:
            try:
                if record is None:
                    record = await Record.open(settings.database_url)
                    notice = record.change_notice(min_interval_s=LOOK_S)
                await beats.write(record, "running", _detail(children))
                if has_changed:
                    for line in await versions.look(record):
                        print(line, flush=True)
                await forgetting.look(record, has_changed=has_changed)
                has_changed = False
            except RecordError as exc:
                print(f"patina: the supervisor cannot use the record: {exc}", file=sys.stderr, flush=True)
            has_changed |= await notice.wait(LOOK_S) or not notice.is_armed or versions.waits_for_plan
    finally:
        notice.close()
        if record is not None:
            await record.close()


def _detail(children: list[Child]) -> dict[str, dict[str, int | float | None]]:
    return {
        child.name: {
            "pid": child.process.pid
            if child.process is not None and child.process.returncode is None
            else None,
            "restarts": child.restarts,
            "last_exit": child.last_exit,
            "started_at": child.started_at,
        }
        for child in children
    }


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))


def _explain(backend: BackendPlan, why: str) -> str:
    """Return what serves, and what was decided for the person."""
    return f"backend {backend.kind} ({why})" + "".join(f"\n  {line}" for line in backend.reasons)
