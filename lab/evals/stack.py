"""A Patina in a fresh folder, started by `run.py` as a process of its own.

Settings in the environment (database, key, method) do not reach it: every setting is given as a flag.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from lab.evals.client import NO_TRAINING, child_pids, read_status, while_record_is_away
from serving.ports import free_port
from store.errors import ConfigError
from store.settings import Settings, child_environment, has_flag

_POLL_S = 0.1
_STOP_S = 25.0
_LOG_LINES = 5
#: Passed through the child's environment: all users of the machine can read a command line.
_SECRETS: Mapping[str, str] = {
    name: str(extra["env"])
    for name, field in Settings.model_fields.items()
    if isinstance(extra := field.json_schema_extra, dict) and extra["is_secret"] and name != "api_key"
}
#: Set by the stack itself.
_OWN = {
    "home",
    "proxy_host",
    "proxy_port",
    "backend_port",
    "record_dir",
    "database",
    "api_key",
    "wandb_project",
}


class Stack:
    """A Patina that this process starts. Use as a context manager, or `start` and `stop`.

    Args:
        settings: its folders, ports and key are not used.
        home: the folder; default: a temporary one that is removed at the end.
        ready_s: longest start, the first completion included.
    """

    def __init__(self, settings: Settings, *, home: Path | None = None, ready_s: float = 180.0) -> None:
        self.settings = settings
        self._removes_home = home is None
        self.home = home or Path(tempfile.mkdtemp(prefix="patina-"))
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.ready_s = ready_s
        self.port = 0
        self.key = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        """Of `run.py` itself, the supervisor."""
        assert self._process is not None, "the stack is not started"
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.home / "stack.log"

    def start(self) -> None:
        """Start it and wait for its first completion.

        Raises:
            ConfigError: it ended or did not become ready; with the last lines of its logs.
        """
        self.port = free_port()
        self.launch()
        self._wait_until_ready()

    def stop(self) -> None:
        """End the process, and remove a temporary folder."""
        self._end()
        if self._removes_home:
            shutil.rmtree(self.home, ignore_errors=True)

    @while_record_is_away
    def status(self) -> Mapping[str, Any]:
        """Return `/v1/patina/status`; waits for a record that does not answer for a moment.

        Raises:
            RecordUnavailable: it did not answer for a minute.
        """
        return read_status(json.loads(self._ask("/v1/patina/status")), self.base_url)

    def pids(self) -> dict[str, int]:
        """Return process ids of the children by name, from the supervisor's last heartbeat."""
        return child_pids(self.status())

    def arguments(self) -> list[str]:
        """Return the command line."""
        flags = [f"--home={self.home}", "--proxy-host=127.0.0.1", f"--proxy-port={self.port}"]
        flags += ["--set=backend_port=0", "--record-dir=", "--database=", "--wandb-project="]
        if self.settings.canary_share is None:
            flags.append("--set=canary_share=0")  # an evaluation measures what is learned, at once
        for name in type(self.settings).model_fields:
            value = getattr(self.settings, name)
            if name in _OWN or name in _SECRETS or value is None:
                continue
            if name == "learning":
                value = ",".join(f"{key}={one}" for key, one in value.model_dump(exclude_none=True).items())
            flag = name.replace("_", "-")
            if not has_flag(name):
                flags.append(f"--set={name}={value}")
            elif isinstance(value, bool):
                flags.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                flags.append(f"--{flag}={value}")
        return [sys.executable, "-m", "cli", *flags]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self, pid: int) -> None:
        """Kill one of its processes, or the supervisor (`pid`), with -9."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def launch(self) -> None:
        """Start it on the port that it has."""
        secrets = {env: getattr(self.settings, name) for name, env in _SECRETS.items()}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.arguments(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # An empty variable counts as none: this Patina makes its own key.
                env=child_environment(SGLANG_API_KEY="", PATINA_SGLANG_API_KEY="", **secrets),
            )

    def _wait_until_ready(self) -> None:
        give_up = time.monotonic() + self.ready_s
        problem = "no answer"
        while time.monotonic() < give_up:
            self._require_alive()
            try:
                self._ask("/healthz")
                self.key = self.settings_key()
                self._first_chat()
                return
            except (OSError, ValueError, KeyError) as error:  # urllib's errors are OSErrors
                problem = f"{type(error).__name__}: {error}"
            time.sleep(_POLL_S)
        self._require_alive()
        raise ConfigError(
            f"the own Patina was not ready after {self.ready_s:.0f} s ({problem}); {self._last_log_lines()}"
        )

    def settings_key(self) -> str:
        """Return the key that this Patina made."""
        return (self.home / "api_key").read_text(encoding="utf-8").strip()

    def _first_chat(self) -> None:
        model = json.loads(self._ask("/v1/models"))["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
        self._ask("/v1/chat/completions", body, headers=NO_TRAINING, timeout_s=60.0)

    def _ask(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.key or 'none'}",
                "Content-Type": "application/json",
                **(headers or {}),
            },
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            content: bytes = response.read()
        return content

    def _require_alive(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise ConfigError(f"the own Patina ended with code {code}: {self._last_log_lines()}")

    def _last_log_lines(self) -> str:
        """The last lines of its own log and of each process's."""
        lines = list(_tail(self.log))
        for path in sorted((self.home / "logs").glob("*.log")):
            lines += [f"{path.stem}: {line}" for line in _tail(path)]
        return " | ".join(lines) or "its logs are empty"

    def _end(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tail(path: Path) -> Sequence[str]:
    with contextlib.suppress(FileNotFoundError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line.strip() for line in lines if line.strip()][-_LOG_LINES:]
    return []
