"""Make an environment for SkyRL's Tinker server beside ours: `python3 scripts/install_tinker.py [FOLDER]`; default: .venv-tinker.

For tests (`pytest -m tinker`) and for trying `--backend tinker` with a server that is not ours; the hosted Tinker needs nothing of this.
SkyRL pins other versions of our own libraries, so the two never share an environment. 2.2 GB and some minutes, once.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file, it finds only its own folder

from scripts.install import environment_arguments, install_locked, install_torch, make_environment
from scripts.lock import RUN, SKYRL, TINKER_FILE


def main() -> None:
    folder = environment_arguments(__doc__, ".venv-tinker").parse_args().folder
    then = f"{folder / 'bin' / 'python'} -I tests/tinker/skyrl_server.py --help"
    make_environment(folder, SKYRL, TINKER_FILE, install, then)


def install(python: str) -> None:
    install_torch(python, TINKER_FILE)
    install_locked(python, TINKER_FILE, [RUN])


if __name__ == "__main__":
    main()
