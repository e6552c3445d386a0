"""Install the pinned dependencies of pyproject.toml (and of the extras named as arguments) into this environment.

The packages that these need in turn have the versions of constraints.txt (`scripts/lock.py`).

Patina itself is not installed: a checkout runs in place by `run.py`, and `pip install .` makes the command `patina` elsewhere. torch goes
first, alone: with it in place no other requirement can pull another build of it.
"""

import subprocess
import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements: list[str] = list(project["dependencies"])
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    torch = [r for r in requirements if r.startswith("torch==")]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    pip += ["--constraint", str(root / "constraints.txt")]
    print(f"Installing {len(requirements)} pinned packages (a few minutes the first time) ...", flush=True)
    subprocess.run([*pip, *torch], check=True)
    subprocess.run([*pip, *requirements], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
