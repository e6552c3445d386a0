"""The backends that the contract is held against, each a real process on a real port with the test model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from cli.backend import plan_backend
from serving.backends import make_backend_client
from serving.ports import free_port
from serving.protocol import BackendClient
from serving.tinker.version import TinkerVersion, write_version
from serving.vllm.environment import find_environment
from store.errors import ConfigError
from store.keys import write_secret
from store.settings import REPOSITORY, Settings, child_environment, read_settings
from tests.fixtures import PATINA_TINY
from tests.gguf_model import write_gguf_model
from tests.tinker.running import TinkerServer
from tests.waiting import stop

POLICY = "patina-tiny"
SLOTS = 4
#: The secret that the supervisor would have made.
BACKEND_KEY = "key-of-the-gateway"
_READY_S = 900.0


def missing_vllm() -> str:
    """Return why vLLM cannot be tested here; "" when it can."""
    try:
        find_environment(vllm_python())
    except ConfigError as exc:
        return str(exc)
    return ""


def vllm_python() -> str:
    return os.environ.get("PATINA_VLLM_PYTHON", "")


class Backend:
    """A backend's process, as the supervisor would start it."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind = kind
        (home / "run").mkdir(parents=True, exist_ok=True)
        # what it needs besides itself; a Tinker server of our own, with the checkpoints that a trainer would have left there
        self.tinker = TinkerServer(PATINA_TINY, home).start() if kind == "tinker" else None
        # llama.cpp serves the same model from a file of its own format
        gguf = write_gguf_model(PATINA_TINY, home / "model.gguf") if kind == "llamacpp" else ""
        self.log = home / "backend.log"
        self.settings: Settings = read_settings(
            {
                "backend": kind,
                "home": home,
                "model_folder": str(PATINA_TINY) if gguf else "",
                "model_gguf": str(gguf),
                "vllm_python": vllm_python(),
                "backend_port": free_port(),
                "adapter_slots": SLOTS,
                "threads": 1,
                "tinker_base_url": self.tinker.url if self.tinker else "",
            }
        )
        self.settings.dump(home / "run" / "settings.json")
        write_secret(self.settings.backend_key_file, BACKEND_KEY)
        self._plan = plan_backend(self.settings)
        self.url = self._plan.urls[0]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._plan.command,
                cwd=REPOSITORY,
                env=child_environment(OMP_NUM_THREADS="1"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + _READY_S
        while time.monotonic() < end:
            assert self.process.poll() is None, f"it ended: {self.log.read_text()[-3000:]}"
            health = urllib.request.Request(
                f"{self.url}/health", headers={"Authorization": f"Bearer {BACKEND_KEY}"}
            )
            with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=5):
                return
            time.sleep(0.2)
        raise AssertionError(f"not ready after {_READY_S:.0f} s: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Have the engine itself die, without a word, and wait until all of it is gone."""
        assert self.process is not None
        os.kill(self._engine_pid(), signal.SIGKILL)
        self.process.wait(60)

    def _engine_pid(self) -> int:
        assert self.process is not None
        if self.kind != "vllm":
            return self.process.pid
        # the keeper's child: the process that listens
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            stop(self.process, 30)
        if self.tinker is not None:
            self.tinker.stop()

    def publish(self, adapters: Sequence[Path]) -> None:
        """Bring LoRA folders to where this backend looks for them, as its trainer would have."""
        for folder in adapters:
            if self.tinker is not None:
                path = self.tinker.take_in(folder, f"adapter-{folder.name}")
                write_version(folder, TinkerVersion(sampler_path=path, base_model=self.tinker.name))

    def engine(self) -> BackendClient:
        """Return a client of it; it belongs to the loop that uses it first."""
        return make_backend_client(self.settings, [self.url], is_local=True)
