"""Install the pinned dependencies of pyproject.toml (and of the extras named as arguments) into this environment.

Patina runs from its checkout and is not itself installed: `run.py` is the front door. torch goes first, alone: with it in
place no other requirement can pull another build of it.
"""

import subprocess
import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    requirements: list[str] = list(project["dependencies"])
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    torch = [r for r in requirements if r.startswith("torch==")]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    print(f"Installing {len(requirements)} pinned packages (a few minutes the first time) ...", flush=True)
    subprocess.run([*pip, *torch], check=True)
    subprocess.run([*pip, *requirements], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
