"""The server as a process of its own, for tests: started, killed, started again on the same port and folder."""

from __future__ import annotations

import contextlib
import json
import os
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

_READY_S, _SKYRL_READY_S = 120.0, 300.0


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
        _until_up(self.process, self.url, self._log, _READY_S)
        return self

    def kill(self) -> None:
        """Have it die without a word."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def log_tail(self) -> str:
        return _tail(self._log)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def take_in(self, adapter: Path, name: str) -> str:
        """Put a LoRA folder of peft's among the server's checkpoints, as if it had been trained there; returns its path."""
        return take_in(self._state, self.name, adapter, name)


class SkyrlServer:
    """SkyRL's Tinker server of one model on loopback, in its own environment.

    Args:
        python: of that environment, see `skyrl_python`.
        slots: adapters at once; each version that is sampled from takes one, each that is trained another.
    """

    def __init__(self, python: Path, model: Path, folder: Path, *, slots: int = 12, rank: int = 16) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = str(model)
        self._log = folder / "skyrl.log"
        # Without the two bounds each size of batch is compiled anew, and a large one takes all memory.
        config = json.dumps(
            {
                "max_lora_adapters": slots,
                "max_lora_rank": rank,
                "sample_max_num_sequences": 8,
                "train_micro_batch_size": 8,
            }
        )
        self._command = [
            str(python), "-I", str(REPOSITORY / "tests" / "tinker" / "skyrl_server.py"), "api", "--backend", "jax",
            "--base-model", str(model), "--port", str(self.port), "--checkpoints-base", str(folder / "checkpoints"),
            "--database-url", f"sqlite:///{folder / 'skyrl.db'}", "--backend-config", config,
        ]  # fmt: skip
        # what is compiled once is kept beside the environment
        self._environment = child_environment(
            JAX_PLATFORMS="cpu",
            HF_HUB_OFFLINE="1",
            JAX_COMPILATION_CACHE_DIR=str(python.parent.parent / "jax-cache"),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.5",
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> SkyrlServer:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            # a group of its own: its engine is a process beside it
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        _until_up(self.process, self.url, self._log, _SKYRL_READY_S)
        return self

    def kill(self) -> None:
        """Have all of it die without a word."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)

    stop = kill

    def log_tail(self) -> str:
        return _tail(self._log)


def skyrl_python() -> Path | None:
    """Return the python that has SkyRL: PATINA_TINKER_PYTHON, else that of .venv-tinker; None where there is none."""
    named = os.environ.get("PATINA_TINKER_PYTHON")
    folder = REPOSITORY / ".venv-tinker"
    if named:
        return Path(named)
    return folder / "bin" / "python" if (folder / ".installed").exists() else None


def missing_skyrl() -> str:
    """Return why SkyRL cannot be tested with here; "" when it can."""
    python = skyrl_python()
    if python is None:
        return "no .venv-tinker; `python3 scripts/install_tinker.py` makes one, or name a python with PATINA_TINKER_PYTHON"
    return "" if python.exists() else f"there is no {python}"


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def _until_up(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"it ended: {_tail(log)}"
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{url}/api/v1/get_server_capabilities", timeout=5),
        ):
            return
        time.sleep(0.1)
    raise AssertionError(f"not ready after {seconds:.0f} s: {_tail(log)}")


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
