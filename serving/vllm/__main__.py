"""Keeps one vLLM: ``python -m serving.vllm --python PATH --url URL --state FILE [--set NAME=VALUE]... -- FLAGS``.

vLLM is several processes, and a dead one may leave the others behind with the port and the memory. So it runs in a process group of
its own: when its first process ends, or we are told to end, what is left of the group ends too; a group that an earlier keeper left
behind (we were killed) is ended before the next one is started. A vLLM that for long answers 503 to `/health`, or listens no more, is
ended, and the supervisor starts us again.

Exit codes: 0 told to end, 1 vLLM ended, 2 it cannot be set up: its own last error is the last line on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from store.settings import child_environment

_MODULE = "vllm.entrypoints.openai.api_server"
_PR_SET_PDEATHSIG = 1
#: The supervisor gives a child 10 s to end.
_GRACE_S = 7.0
_LOOK_S, _LOOK_TIMEOUT_S = 1.0, 5.0
#: Instead of a status: nobody listens; nobody answers in time.
_REFUSED, _SILENT = -1, 0
_TAIL = 16_384
#: Lines of a Python traceback and of vLLM's own log say what is wrong like this.
_BLAME = ("Error: ", "error: ", "Exception: ")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serving.vllm", description="Start vLLM and keep it.")
    parser.add_argument("--python", type=Path, required=True, help="python of vLLM's environment")
    parser.add_argument("--url", required=True, help="where it will listen, for /health")
    parser.add_argument("--state", type=Path, required=True, help="file that remembers its process group")
    parser.add_argument(
        "--house",
        default="",
        help="what marks this life of the house: a start that fails in it is tried again",
    )
    parser.add_argument(
        "--dead-s",
        type=float,
        default=15.0,
        help="end it when its engine has been dead for so long (%(default)s)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="its environment")
    parser.add_argument("flags", nargs="*", help="vLLM's own flags, after --")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Start it and stay until it ends or we are told to."""
    arguments = build_parser().parse_args(argv)
    command = [str(arguments.python), "-m", _MODULE, *arguments.flags]
    environment = child_environment(**dict(pair.split("=", 1) for pair in arguments.set))
    return asyncio.run(
        keep(command, environment, arguments.url, arguments.state, arguments.house, dead_s=arguments.dead_s)
    )


async def keep(
    command: Sequence[str], environment: dict[str, str], url: str, state: Path, house: str, *, dead_s: float
) -> int:
    """Run ``command`` in a group of its own; returns the exit code (see the head of this file).

    Args:
        dead_s: a dead engine usually ends by itself within 5 s.
    """
    was_up = _end_leftover(state, house)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    process = _start(command, environment)
    _remember(state, process.pid, house, is_up=was_up)
    said = bytearray()
    talking = threading.Thread(target=_pass_on, args=(process, said), daemon=True)
    talking.start()
    watching = asyncio.create_task(_watch(url, process.pid, state, house, dead_s))
    stopping = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(asyncio.to_thread(process.wait))
    try:
        await asyncio.wait([stopping, ended], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() and not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait([ended], timeout=_GRACE_S)
    finally:
        end_group(process.pid)
        watching.cancel()
        stopping.cancel()
        await asyncio.gather(watching, stopping, return_exceptions=True)
    code = await ended
    talking.join(1.0)
    state_was_up = _was_up(state, house)
    _forget(state)
    if stop.is_set():
        return 0
    if state_was_up:
        _remember(state, 0, house, is_up=True)  # the next start is a restart
        print(f"serving.vllm: vLLM ended with code {code}", file=sys.stderr, flush=True)
        return 1
    print(
        f"vLLM says: {blame(said.decode('utf-8', 'replace')) or f'it ended with code {code}'}",
        file=sys.stderr,
        flush=True,
    )
    return 2


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    # Not asyncio's own: its `wait` waits for the pipe as well, and a dead vLLM's other processes keep that open.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


def blame(text: str) -> str:
    """Return the line of vLLM's last words that says what is wrong; "" when none does."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # the first error of the last words is the cause; what follows are those who could not go on without it
    causes = [line for line in lines if any(mark in line for mark in _BLAME) and " WARNING " not in line]
    for line in causes:
        if "validation error" in line:  # pydantic: what is wrong comes behind it
            told = next((one for one in lines[lines.index(line) :] if one.startswith("Value error, ")), line)
            return told.removeprefix("Value error, ").partition(" [type=")[0]
        if "Engine core initialization failed" not in line and "See root cause" not in line:
            # vLLM's log puts process, level, time and place in front of what it says
            return line.rsplit("] ", 1)[-1] if line.startswith("(") or " ERROR " in line else line
    return causes[-1] if causes else (lines[-1] if lines else "")


def _pass_on(process: subprocess.Popen[bytes], said: bytearray) -> None:
    """Its words go where ours go; the last of them are kept. A thread of its own."""
    assert process.stdout is not None
    while data := os.read(process.stdout.fileno(), 65_536):
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()
        said += data
        del said[:-_TAIL]


async def _watch(url: str, group: int, state: Path, house: str, dead_s: float) -> None:
    """See that it comes up, and end it when its engine is dead and it stays."""
    is_up, dead_since = False, 0.0
    while True:
        status = await asyncio.to_thread(_health, url)
        now = time.monotonic()
        if status == 200:
            if not is_up:
                is_up = True
                _remember(state, group, house, is_up=True)
            dead_since = 0.0
        elif status in (503, _REFUSED) and is_up:
            # It listens no more: it ends by itself, but only after the last request was answered. One that asked something of an
            # engine that then died (to wake up, to load an adapter) is never answered, and it would wait for that for ever.
            dead_since = dead_since or now
            if now - dead_since > dead_s:
                print(
                    "serving.vllm: its engine is dead and it does not end; ending it",
                    file=sys.stderr,
                    flush=True,
                )
                end_group(group)
                return
        # silence is no death: an engine at work on a huge prompt may be late to answer
        await asyncio.sleep(_LOOK_S)


def _health(url: str) -> int:
    """Return the status of /health, `_REFUSED` or `_SILENT`."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=_LOOK_TIMEOUT_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as exc:
        return exc.code
    except urllib.error.URLError as exc:
        return _REFUSED if isinstance(exc.reason, ConnectionRefusedError) else _SILENT
    except OSError:
        return _SILENT


def end_group(group: int) -> None:
    """End what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _remember(state: Path, group: int, house: str, *, is_up: bool) -> None:
    temporary = state.with_suffix(".tmp")
    temporary.write_text(json.dumps({"group": group, "house": house, "is_up": is_up}), encoding="utf-8")
    temporary.replace(state)


def _forget(state: Path) -> None:
    state.unlink(missing_ok=True)


def _read(state: Path) -> dict[str, object]:
    try:
        found = json.loads(state.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _was_up(state: Path, house: str) -> bool:
    found = _read(state)
    return bool(found.get("is_up")) and found.get("house") == house


def _end_leftover(state: Path, house: str) -> bool:
    """End the group that an earlier keeper left behind; returns whether vLLM was up in this life of the house."""
    group = _read(state).get("group")
    if isinstance(group, int) and group > 1 and _is_ours(group):
        end_group(group)
        deadline = time.monotonic() + _GRACE_S
        while _is_ours(group) and time.monotonic() < deadline:
            time.sleep(0.05)
    return _was_up(state, house)


def _is_ours(group: int) -> bool:
    """Whether a living process of this group is a vLLM: numbers of processes are used again."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # the name in brackets may hold anything; after it: state, parent, group
            fields = (entry / "stat").read_text().rsplit(")", 1)[-1].split()
            if (
                int(fields[2]) == group
                and fields[0] != "Z"
                and b"vllm" in (entry / "cmdline").read_bytes().lower()
            ):
                return True
        except (OSError, IndexError, ValueError):
            continue  # it ended while we looked
    return False


def _die_with_parent() -> None:
    """Runs in the child: be told when the keeper dies, even by kill -9."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
