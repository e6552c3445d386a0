"""Supervises one vLLM: ``python -m serving.vllm --python PATH --url URL --state FILE [--set NAME=VALUE]... -- FLAGS``.

vLLM consists of several processes, and a dead one may leave the others behind with the port and the memory. It therefore runs in a process group.
When its first process ends, or this process gets a stop signal, the rest of the group is killed. A group that an earlier, killed supervisor left behind
is killed before the next start. A vLLM that answers 503 to `/health` for too long, or listens no more, is killed, and the main supervisor restarts
this process.

Exit codes: 0 stopped, 1 vLLM ended, 2 wrong set-up: vLLM's own last error is the last line on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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

from store.errors import ConfigError
from store.keys import read_key_file
from store.processes import die_with_parent
from store.settings import child_environment

_MODULE = "vllm.entrypoints.openai.api_server"
#: The main supervisor gives a child 10 s to end.
_TERMINATE_TIMEOUT_S = 7.0
_ENGINE_CHECK_S, _LOOK_TIMEOUT_S = 1.0, 5.0
#: Instead of a status: connection refused; no response in time.
_REFUSED, _SILENT = -1, 0
_OUTPUT_TAIL_BYTES = 16_384
#: Marks of an error line in a Python traceback or in vLLM's log.
_ERROR_MARKS = ("Error: ", "error: ", "Exception: ")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serving.vllm", description="Start and supervise vLLM.")
    parser.add_argument("--python", type=Path, required=True, help="python of vLLM's environment")
    parser.add_argument("--url", required=True, help="vLLM's address, for /health")
    parser.add_argument("--state", type=Path, required=True, help="file that stores vLLM's process group")
    parser.add_argument(
        "--run-id",
        default="",
        help="identifies this run of the supervisor; a start that fails after an earlier success in the same run is retried",
    )
    parser.add_argument(
        "--dead-s",
        type=float,
        default=15.0,
        help="kill vLLM when its engine has been dead for this many seconds (%(default)s)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="vLLM's environment")
    parser.add_argument("--api-key-file", type=Path, help="file that holds the key that vLLM is to require")
    parser.add_argument("flags", nargs="*", help="vLLM's own flags, after --")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Start vLLM and wait until it ends or this process gets a stop signal."""
    arguments = build_parser().parse_args(argv)
    command = [str(arguments.python), "-m", _MODULE, *arguments.flags]
    environment = child_environment(**dict(pair.split("=", 1) for pair in arguments.set))
    try:
        if key := read_key_file(arguments.api_key_file):
            environment["VLLM_API_KEY"] = key  # not as --api-key, which every user of this machine could read
    except ConfigError as error:
        print(f"serving.vllm: {error}", file=sys.stderr)
        return 2
    return asyncio.run(
        supervise(
            command, environment, arguments.url, arguments.state, arguments.run_id, dead_s=arguments.dead_s
        )
    )


async def supervise(
    command: Sequence[str], environment: dict[str, str], url: str, state: Path, run_id: str, *, dead_s: float
) -> int:
    """Run ``command`` in its own process group; returns the exit code (see the module's docstring).

    Args:
        dead_s: a dead engine usually ends by itself within 5 s.
    """
    was_up = _end_leftover_group(state, run_id)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    process = _start(command, environment)
    _write_state(state, process.pid, run_id, is_up=was_up)
    output_tail = bytearray()
    output_thread = threading.Thread(target=_copy_output, args=(process, output_tail), daemon=True)
    output_thread.start()
    watching = asyncio.create_task(_watch(url, process.pid, state, run_id, dead_s))
    stopping = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(asyncio.to_thread(process.wait))
    try:
        await asyncio.wait([stopping, ended], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() and not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait([ended], timeout=_TERMINATE_TIMEOUT_S)
    finally:
        end_group(process.pid)
        watching.cancel()
        stopping.cancel()
        await asyncio.gather(watching, stopping, return_exceptions=True)
    code = await ended
    output_thread.join(1.0)
    state_was_up = _was_up(state, run_id)
    _remove_state(state)
    if stop.is_set():
        return 0
    if state_was_up:
        _write_state(state, 0, run_id, is_up=True)  # the next start is a restart
        print(f"serving.vllm: vLLM ended with code {code}", file=sys.stderr, flush=True)
        return 1
    print(
        f"vLLM says: {find_error_line(output_tail.decode('utf-8', 'replace')) or f'it ended with code {code}'}",
        file=sys.stderr,
        flush=True,
    )
    return 2


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    # Not asyncio's subprocess: its `wait` also waits for the pipe, which the other processes of a dead vLLM keep open.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def find_error_line(text: str) -> str:
    """Return the line of vLLM's last output that states the error; "" if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The first error is the cause; later ones are processes that could not continue without it.
    causes = [
        line for line in lines if any(mark in line for mark in _ERROR_MARKS) and " WARNING " not in line
    ]
    for line in causes:
        if "validation error" in line:  # pydantic states the reason in a later line
            reason = next(
                (one for one in lines[lines.index(line) :] if one.startswith("Value error, ")), line
            )
            return reason.removeprefix("Value error, ").partition(" [type=")[0]
        if "Engine core initialization failed" not in line and "See root cause" not in line:
            # vLLM's log puts process, level, time and place before the message
            return line.rsplit("] ", 1)[-1] if line.startswith("(") or " ERROR " in line else line
    return causes[-1] if causes else (lines[-1] if lines else "")


def _copy_output(process: subprocess.Popen[bytes], output_tail: bytearray) -> None:
    """Copy vLLM's output to stderr and keep its tail. Runs in a thread."""
    assert process.stdout is not None
    while data := os.read(process.stdout.fileno(), 65_536):
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()
        output_tail += data
        del output_tail[:-_OUTPUT_TAIL_BYTES]


async def _watch(url: str, group: int, state: Path, run_id: str, dead_s: float) -> None:
    """Wait until vLLM is up, and kill it when its engine is dead and it does not end."""
    is_up, dead_since = False, 0.0
    while True:
        status = await asyncio.to_thread(_health, url)
        now = time.monotonic()
        if status == 200:
            if not is_up:
                is_up = True
                _write_state(state, group, run_id, is_up=True)
            dead_since = 0.0
        elif status in (503, _REFUSED) and is_up:
            # A vLLM that listens no more ends by itself, but only after its last request was answered. A request to an engine that then died
            # (to wake up, to load an adapter) is never answered, and vLLM would wait for it without limit.
            dead_since = dead_since or now
            if now - dead_since > dead_s:
                print(
                    "serving.vllm: the engine is dead and vLLM does not end; killing it",
                    file=sys.stderr,
                    flush=True,
                )
                end_group(group)
                return
        # A timeout is not a death: an engine that processes a huge prompt may respond late.
        await asyncio.sleep(_ENGINE_CHECK_S)


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
    """Kill the rest of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _write_state(state: Path, group: int, run_id: str, *, is_up: bool) -> None:
    temporary = state.with_suffix(".tmp")
    temporary.write_text(json.dumps({"group": group, "run_id": run_id, "is_up": is_up}), encoding="utf-8")
    temporary.replace(state)


def _remove_state(state: Path) -> None:
    state.unlink(missing_ok=True)


def _read_state(state: Path) -> dict[str, object]:
    try:
        found = json.loads(state.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _was_up(state: Path, run_id: str) -> bool:
    found = _read_state(state)
    return bool(found.get("is_up")) and found.get("run_id") == run_id


def _end_leftover_group(state: Path, run_id: str) -> bool:
    """Kill the group that an earlier supervisor left behind; returns whether vLLM was up during this run of the main supervisor."""
    group = _read_state(state).get("group")
    if isinstance(group, int) and group > 1 and _is_vllm_group(group):
        end_group(group)
        deadline = time.monotonic() + _TERMINATE_TIMEOUT_S
        while _is_vllm_group(group) and time.monotonic() < deadline:
            time.sleep(0.05)
    return _was_up(state, run_id)


def _is_vllm_group(group: int) -> bool:
    """Whether a living process of this group is a vLLM: process ids are reused."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may contain anything; after it: state, parent, group.
            fields = (entry / "stat").read_text().rsplit(")", 1)[-1].split()
            if (
                int(fields[2]) == group
                and fields[0] != "Z"
                and b"vllm" in (entry / "cmdline").read_bytes().lower()
            ):
                return True
        except (OSError, IndexError, ValueError):
            continue  # it ended during the check
    return False


if __name__ == "__main__":
    sys.exit(main())
