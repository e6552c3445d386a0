"""The proxy's price: `python -m lab.bench.proxy [--seconds 2] [--rounds 3] [--litellm PATH]`.

Every server stands in front of the same scripted backend (`lab.bench.backend`) and is loaded by the same generator (`lab.bench.load`), each
in a process of its own; turns are taken within one run, so that a busy machine is busy for all. Ours has everything on: key,
capture with injection and stripping, a journal entry before the last byte, and a recorder beside it that links, classifies and writes rows
on the same cores. Before another server's turn the recorder finishes what is in the journal; its CPU time is shown apart.

Against: the backend itself; a bare Starlette + aiohttp pass-through (`lab.bench.passthrough`), without and with a log; nginx, if there is one; LiteLLM's proxy, if
``--litellm`` names its program (its `proxy` extra needs an environment of its own: ``pip install 'litellm[proxy]==1.106.2'``).
CPU is user and system time of the server and its children over its requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from migrations import upgrade
from serving.ports import free_port
from store.catch_up import wait_recorded
from store.record import Record
from store.settings import read_settings

KEY = "bench-key"
_TICK = 100  # clock ticks a second on Linux


class Server:
    """A process that serves on a port.

    Args:
        recorder: home of a Patina of which a recorder runs beside it.
    """

    def __init__(
        self, name: str, command: Sequence[str], port: int, folder: Path, recorder: Path | None = None
    ) -> None:
        self.name, self.port = name, port
        self.log = folder / f"{name}.log"
        self._command = command
        self._home = recorder
        self._recorder: subprocess.Popen[bytes] | None = None
        self.start()
        if recorder is not None:
            with open(folder / f"{name}-recorder.log", "ab") as log:
                self._recorder = subprocess.Popen(recorder_command(recorder), stdout=log, stderr=log)

    def settle(self) -> None:
        """Wait until the recorder has recorded all of the journal."""
        if self._home is None or self._recorder is None:
            return
        recorder = self._recorder
        settings = read_settings({"home": self._home})
        url, folder = settings.database_url, settings.journal_folder

        async def wait() -> None:
            record = await Record.open(url)
            try:
                lag = await wait_recorded(record, folder, 600.0)
                while lag.entries and recorder.poll() is None:
                    await asyncio.sleep(0.05)  # it starts
                    lag = await wait_recorded(record, folder, 600.0)
            finally:
                await record.close()
            if lag.entries:
                raise RuntimeError(f"the recorder left {lag.entries} entries; see its log beside {self.log}")

        asyncio.run(wait())

    def recorder_cpu_s(self) -> float:
        """User and system time of the recorder beside it."""
        return 0.0 if self._recorder is None else _cpu_s(self._recorder.pid)

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def restart(self) -> None:
        self.stop()
        self.start()

    def cpu_s(self) -> float:
        """User and system time of the process and its living children."""
        return sum(_cpu_s(pid) for pid in _family(self.process.pid))

    def rss_mb(self) -> float:
        return sum(_rss_mb(pid) for pid in _family(self.process.pid))

    def recorder_rss_mb(self) -> float:
        return 0.0 if self._recorder is None else _rss_mb(self._recorder.pid)

    def stop(self) -> None:
        """End the server, not its recorder: see `stop_recorder`."""
        _end(self.process)

    def stop_recorder(self) -> None:
        if self._recorder is not None:
            _end(self._recorder)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):
            for child in task.read_text().split():
                found += _family(int(child))
    return found


def _rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def wait_for(port: int, server: Server, path: str = "/v1/models", timeout_s: float = 90.0) -> None:
    """Wait until a server answers anything at all."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"{server.name} ended: {server.log.read_text()[-500:]}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{server.name} does not answer")


@contextmanager
def started(
    name: str,
    make: Callable[[int], Sequence[str]],
    folder: Path,
    path: str = "/v1/models",
    recorder: Path | None = None,
) -> Iterator[Server]:
    """Run a server on a free port; ``make`` returns its command for one. ``recorder``: see `Server`."""
    port = free_port()
    server = Server(name, make(port), port, folder, recorder)
    try:
        wait_for(port, server, path)
        yield server
    finally:
        server.stop()
        server.stop_recorder()


def backend(port: int) -> list[str]:
    return [sys.executable, "-m", "lab.bench.backend", "--port", str(port)]


def patina(home: Path, backend_url: str, **more: Any) -> Callable[[int], list[str]]:
    """Return how to start our proxy with a record in ``home``, which is migrated here; ``more`` are settings."""
    home.mkdir(parents=True, exist_ok=True)

    def command(port: int) -> list[str]:
        settings = read_settings({"home": home, "proxy_port": port, "api_key": KEY, **more})
        upgrade(settings.database_url)
        path = home / "settings.json"
        settings.dump(path)
        return [sys.executable, "-m", "proxy", "--settings", str(path), "--backend-url", backend_url]

    return command


def gateways(home: Path, backend_url: str, workers: int) -> Callable[[int], list[str]]:
    """Return how to start several gateways on one port, as one process with children."""
    home.mkdir(parents=True, exist_ok=True)

    def command(port: int) -> list[str]:
        settings = read_settings({"home": home, "proxy_port": port, "api_key": KEY, "workers": workers})
        upgrade(settings.database_url)
        path = home / "settings.json"
        settings.dump(path)
        one = [
            sys.executable,
            "-m",
            "proxy",
            "--settings",
            str(path),
            "--backend-url",
            backend_url,
            "--worker",
        ]
        script = "".join(f"{shlex.join([*one, str(number)])} & " for number in range(1, workers + 1))
        return ["bash", "-c", f"trap 'kill $(jobs -p)' TERM; {script} wait; wait"]

    return command


def recorder_command(home: Path) -> list[str]:
    """Return how to start the recorder of a home that `patina` prepared."""
    return [sys.executable, "-m", "recorder", "--settings", str(home / "settings.json")]


@contextmanager
def recording(home: Path, folder: Path) -> Iterator[Server]:
    """Run the recorder of a home that `patina` prepared."""
    server = Server("recorder", recorder_command(home), 0, folder)
    try:
        yield server
    finally:
        server.stop()


def passthrough(backend_url: str, *more: str) -> Callable[[int], list[str]]:
    return lambda port: [
        sys.executable, "-m", "lab.bench.passthrough", "--port", str(port), "--upstream", backend_url, *more,
    ]  # fmt: skip


def nginx(folder: Path, backend_url: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        path = folder / "nginx.conf"
        path.write_text(
            f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream backend {{ server {backend_url.removeprefix("http://")}; keepalive 128; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;
    location / {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
}}
"""
        )
        return ["nginx", "-c", str(path)]

    return command


def litellm(program: Path, folder: Path, backend_url: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        path = folder / "litellm.json"
        served = {
            "model": "openai/patina-tiny",
            "api_base": f"{backend_url}/v1",
            "api_key": "none",
        }
        path.write_text(json.dumps({"model_list": [{"model_name": "patina-tiny", "litellm_params": served}]}))
        return [
            "env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_TELEMETRY=False", "LITELLM_LOG=ERROR",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true",  # without a key it checks none: in its favour
            str(program), "--config", str(path), "--port", str(port), "--host", "127.0.0.1",
        ]  # fmt: skip

    return command


def load(server: Server, mode: str, connections: int, seconds: float) -> dict[str, float]:
    """Load a server; the counts of `lab.bench.load` and the CPU microseconds a request."""
    before, recorded = server.cpu_s(), server.recorder_cpu_s()
    done = subprocess.run(
        [
            sys.executable, "-m", "lab.bench.load", "--port", str(server.port), "--key", KEY, "--mode", mode,
            "--connections", str(connections), "--seconds", str(seconds),
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    found["cpu_us"] = 1e6 * (server.cpu_s() - before) / max(1.0, found["requests"])
    server.settle()
    found["recorder_us"] = 1e6 * (server.recorder_cpu_s() - recorded) / max(1.0, found["requests"])
    return found


Cell = tuple[str, int]


def measure(
    servers: Sequence[Server], cells: Sequence[Cell], seconds: float, rounds: int
) -> dict[Cell, dict[str, dict[str, float]]]:
    """Return the median of the rounds for each cell and server; the servers take turns."""
    runs: dict[tuple[Cell, str], list[dict[str, float]]] = {}
    for server in servers:
        load(server, "plain", 4, 0.5)  # imports, connections, caches
    for _ in range(rounds):
        for cell in cells:
            for server in servers:
                runs.setdefault((cell, server.name), []).append(load(server, *cell, seconds))
    return {
        cell: {
            server.name: {
                key: statistics.median(run[key] for run in runs[cell, server.name])
                for key in runs[cell, server.name][0]
            }
            for server in servers
        }
        for cell in cells
    }


def show(console: Console, found: dict[Cell, dict[str, dict[str, float]]]) -> None:
    table = Table(title="requests a second · CPU µs a request · p50 ms · first event ms")
    table.add_column("")
    names = list(next(iter(found.values())))
    for name in names:
        table.add_column(name, justify="right")
    for (mode, connections), row in found.items():
        table.add_row(
            f"{mode}, {connections}",
            *(
                f"{row[n]['rps']:,.0f} · {row[n]['cpu_us']:,.0f} · {row[n]['p50_ms']:.2f} · {row[n]['ttft_ms']:.2f}"
                + (f" ({row[n]['errors']:.0f} errors)" if row[n]["errors"] else "")
                for n in names
            ),
        )
    console.print(table)
    for (mode, connections), row in found.items():
        ours, bare, direct = row["patina"], row["bare"], row["direct"]
        line = f"{mode}, {connections}: throughput {ours['rps'] / bare['rps']:.2f} of the bare pass-through's"
        line += f", CPU {ours['cpu_us'] / bare['cpu_us']:.2f} times its, the recorder {ours['recorder_us']:,.0f} µs a turn"
        for name in [n for n in row if n.startswith("patina ")]:
            line += f"; {name}: throughput {row[name]['rps'] / bare['rps']:.2f} of it"
        if "litellm" in row:
            line += f", {ours['rps'] / row['litellm']['rps']:.0f} times LiteLLM's throughput"
        line += f"; p50 + {ours['p50_ms'] - direct['p50_ms']:.2f} ms (bare + {bare['p50_ms'] - direct['p50_ms']:.2f})"
        if mode != "plain":
            line += (
                f"; first event + {ours['ttft_ms'] - direct['ttft_ms']:.2f} ms"
                f" (bare + {bare['ttft_ms'] - direct['ttft_ms']:.2f})"
            )
        console.print(line)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.proxy")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--modes", nargs="+", default=["plain", "stream", "paced"])
    parser.add_argument(
        "--litellm", type=Path, help="LiteLLM's program, `litellm`, in an environment of its own"
    )
    parser.add_argument(
        "--synced",
        action="store_true",
        help="also a Patina with --sync group, and the bare pass-through with a log that it writes after each reply",
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="gateways of a second Patina; 1: none (default: 2)"
    )
    arguments = parser.parse_args()
    console = Console(width=180)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct = stack.enter_context(started("direct", backend, folder))
        url = f"http://127.0.0.1:{direct.port}"
        servers = [
            direct,
            stack.enter_context(started("bare", passthrough(url), folder)),
            stack.enter_context(
                started("patina", patina(folder / "home", url), folder, "/healthz", folder / "home")
            ),
        ]
        if arguments.synced:
            home, make = folder / "synced", patina(folder / "synced", url, sync="group")
            servers.append(
                stack.enter_context(started("patina --sync group", make, folder, "/healthz", home))
            )
            make = passthrough(url, "--log", str(folder / "replies.log"))
            servers.append(stack.enter_context(started("logs later", make, folder)))
        if arguments.workers > 1:
            # the gateways of one port are one server: their supervisor is a shell
            home, make = folder / "several", gateways(folder / "several", url, arguments.workers)
            servers.append(
                stack.enter_context(started(f"patina x{arguments.workers}", make, folder, "/healthz", home))
            )
        if shutil.which("nginx"):
            servers.append(stack.enter_context(started("nginx", nginx(folder, url), folder)))
        else:
            console.print("nginx is not installed: left out.")
        if arguments.litellm is not None and arguments.litellm.exists():
            make = litellm(arguments.litellm, folder, url)
            servers.append(stack.enter_context(started("litellm", make, folder)))
        else:
            console.print("LiteLLM's proxy is left out: --litellm names no program.")
        cells = [(mode, connections) for mode in arguments.modes for connections in arguments.connections]
        found = measure(servers, cells, arguments.seconds, arguments.rounds)
    show(console, found)


if __name__ == "__main__":
    main()
