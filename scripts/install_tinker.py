"""Make an environment for SkyRL's Tinker server beside ours: `python3 scripts/install_tinker.py [FOLDER]`; default: .venv-tinker.

For tests (`pytest -m tinker`) and for trying `--backend tinker` with a server that is not ours; the hosted Tinker needs nothing of this.
SkyRL pins other versions of our own libraries, so the two never share an environment. 2.2 GB and some minutes, once.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

SERVER = "skyrl[tinker,jax]==0.3.0"
TORCH = "torch==2.13.0"
CONSTRAINTS = Path(__file__).parent / "skyrl_constraints.txt"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent.parent / ".venv-tinker")
    arguments = parser.parse_args()
    done = arguments.folder / ".installed"
    mark = SERVER + CONSTRAINTS.read_text()
    if done.exists() and done.read_text() == mark:
        print(f"{arguments.folder} has {SERVER} already")
        return 0
    print(f"Installing {SERVER} into {arguments.folder} (2.2 GB, some minutes) ...", flush=True)
    venv.create(arguments.folder, with_pip=True)
    pip = [
        str(arguments.folder / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "-q",
        "install",
    ]
    # torch first and alone: with it in place no other requirement can pull another build of it
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, SERVER, "-c", str(CONSTRAINTS)], check=True)
    done.write_text(mark)
    print(f"Done: {arguments.folder / 'bin' / 'python'} -I tests/tinker/skyrl_server.py --help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
