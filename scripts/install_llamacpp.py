"""Build llama.cpp's bindings for `--backend llamacpp` and install them into this environment: `python scripts/install_llamacpp.py [--force]`.

They are compiled for this machine's processor, which takes some minutes once and needs a C++ compiler; CMake and Ninja are taken from the package
index. Options of llama.cpp's build, such as a GPU's, are added by the variable CMAKE_ARGS, e.g. `CMAKE_ARGS=-DGGML_CUDA=on`, with --force.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file, it finds only its own folder

from scripts.install import install_locked
from scripts.lock import BUILD, LLAMACPP, LLAMACPP_FILE, RUN, read_sections

_COMPILERS = ("c++", "g++", "clang++", "cl")
#: llama.cpp's own installation beside the package: headers, and the libraries a second time.
_NOT_IN_WHEEL = "/bin/**;/include/**;/lib/**;/lib64/**"
#: The bindings' own build insists on a library that is not used; this setting leaves it out below them.
_NO_COMMON = "set(LLAMA_BUILD_COMMON OFF)\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--force", action="store_true", help="build it again")
    force = parser.parse_args().force
    name, _, wanted = LLAMACPP.partition("==")
    if installed_version(name) == wanted and not force:
        print(f"{sys.prefix} has {LLAMACPP} already")
        return
    if not any(shutil.which(one) for one in _COMPILERS):
        raise SystemExit(
            "building llama.cpp needs a C++ compiler: sudo apt-get install g++ (Debian, Ubuntu) or xcode-select --install (macOS)"
        )
    print(f"Building {LLAMACPP} (some minutes) ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        pip(sys.executable, "install", "--no-deps", "--force-reinstall", str(wheel))
    print("Done: python run.py --backend llamacpp")


def installed_version(name: str) -> str:
    """Return the version of an installed package; "" if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def build_wheel(folder: Path) -> Path:
    """Build the locked source in an environment of its own. Raises: CalledProcessError: pip failed; it has printed why."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    install_locked(python, LLAMACPP_FILE, [BUILD])
    requirement = folder / "requirement.txt"
    sections = read_sections(LLAMACPP_FILE.read_text(encoding="utf-8"))
    requirement.write_text("".join(sections[RUN]), encoding="utf-8")
    option = folder / "options.cmake"
    option.write_text(_NO_COMMON, encoding="utf-8")
    pip(python, "download", "--no-deps", "--no-build-isolation", "--require-hashes", "--dest", str(folder), "-r", str(requirement))  # fmt: skip
    # pip gives these settings to a file that is named on its command line, not to requirements of a file.
    settings = {
        "cmake.build-type": "Release",
        "cmake.define.LLAVA_BUILD": "OFF",
        "cmake.define.CMAKE_PROJECT_INCLUDE": str(option),
        "wheel.exclude": _NOT_IN_WHEEL,
    }
    # Not from pip's cache: a wheel of another processor, or of other options, would have the same name.
    pip(
        python, "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(folder),
        *(f"--config-settings={name}={value}" for name, value in settings.items()), str(next(folder.glob("*.tar.gz"))),
    )  # fmt: skip
    return next(folder.glob("*.whl"))


def pip(python: str, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    main()
