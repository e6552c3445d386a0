"""The server as a process of its own, for tests: started, killed, started again on the same port and folder."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file

from serving.ports import free_port
from store.settings import REPOSITORY, child_environment
from tests.tinker.checkpoints import Checkpoints, LoraSpec, Weights
from tests.tinker.training import LORA_ALPHA

_READY_S = 120.0


class TinkerServer:
    """A Tinker server of one model on loopback.

    Args:
        model: its folder, which is also its name unless `name` says another.
        folder: for its checkpoints and its log.
        more: further arguments of its command line.
    """

    def __init__(self, model: Path, folder: Path, *, name: str = "", more: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = name or str(model)
        self._state = folder / "state"
        self._log = folder / "tinker.log"
        self._command = [
            sys.executable, "-m", "tests.tinker.server", "--model", str(model), "--port", str(self.port),
            "--state", str(self._state), "--name", self.name, *more,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> TinkerServer:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                env=child_environment(OMP_NUM_THREADS="1"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + _READY_S
        while time.monotonic() < end:
            assert self.process.poll() is None, f"it ended: {self._log.read_text()[-3000:]}"
            # any answer will do: one that asks for a key is up as well
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{self.url}/api/v1/get_server_capabilities", timeout=5).close()
                return self
            time.sleep(0.1)
        raise AssertionError(f"not ready after {_READY_S:.0f} s: {self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Have it die without a word."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()

    def take_in(self, adapter: Path, name: str) -> str:
        """Put a LoRA folder of peft's among the server's checkpoints, as if it had been trained there; returns its path."""
        return take_in(self._state, self.name, adapter, name)


def take_in(state: Path, base_model: str, adapter: Path, name: str) -> str:
    """See `TinkerServer.take_in`."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    # Tinker's alpha is always the same: another one is put into the weights.
    scale = config["lora_alpha"] / LORA_ALPHA
    tensors = {
        key: value * scale if "lora_B" in key else value
        for key, value in load_file(adapter / "adapter_model.safetensors").items()
    }
    weights = Weights(spec=LoraSpec(rank=config["r"]), tensors=tensors, base_model=base_model)
    return Checkpoints(state).save("taken-in:train:0", "sampler_weights", name, weights, None)
