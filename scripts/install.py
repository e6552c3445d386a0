"""Install the pinned dependencies of pyproject.toml (and of the extras named as arguments) into this environment.

Each package must have a hash of requirements.lock (`scripts/lock.py`). The one exception is torch, whose builds for CPU and GPUs have one
version and different hashes: its version is pinned, and it goes first, alone, so that no other requirement can pull another build of it.

Patina itself is not installed: a checkout runs in place by `run.py`, and `pip install .` makes the command `patina` elsewhere.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file, it finds only its own folder

from scripts.lock import CUDA, FILE, ROOT, RUN, read_sections

#: Prints whether the installed torch requires packages of NVIDIA's.
_NEEDS_CUDA = (
    "from importlib.metadata import requires; print(any('nvidia' in one for one in requires('torch') or ()))"
)


_PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]


def main(extras: list[str]) -> None:
    torch = re.findall(r'"(torch==[^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[0]
    print("Installing torch and the locked packages (a few minutes the first time) ...", flush=True)
    subprocess.run([*_PIP, "--no-deps", torch], check=True)
    needs_cuda = subprocess.check_output([sys.executable, "-c", _NEEDS_CUDA], text=True).strip() == "True"
    install_locked([RUN, *extras, *([CUDA] if needs_cuda else [])])


def install_locked(names: list[str]) -> None:
    """Install these sections of the lock file. Raises: CalledProcessError: pip failed; it has printed why."""
    sections = read_sections(FILE.read_text(encoding="utf-8"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(requirement for name in names for requirement in sections[name])
        file.flush()
        subprocess.run([*_PIP, "--require-hashes", "-r", file.name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
