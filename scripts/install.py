"""Install the pinned dependencies of pyproject.toml (and of the extras named as arguments) into this environment.

Each package must have a hash of requirements.lock (`scripts/lock.py`). torch goes first, alone, so that no other requirement can pull
another build of it. The build that pip chooses must be one that the lock file knows; a torch of the pinned version that is there already
is kept, so a person who wants another build installs it first.

Patina itself is not installed: a checkout runs in place by `run.py`, and `pip install .` makes the command `patina` elsewhere.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a file, it finds only its own folder

from scripts.lock import CUDA, FILE, RUN, TORCH, read_sections

#: Prints the version of the installed torch, or an empty line.
_TORCH_VERSION = """
from importlib.metadata import PackageNotFoundError, version
try:
    print(version("torch"))
except PackageNotFoundError:
    print()
"""
#: Prints whether the installed torch requires packages of NVIDIA's.
_NEEDS_CUDA = (
    "from importlib.metadata import requires; print(any('nvidia' in one for one in requires('torch') or ()))"
)


def main(extras: list[str]) -> None:
    print("Installing Patina's packages into this environment, a few minutes the first time", flush=True)
    install_torch(sys.executable, FILE)
    install_locked(sys.executable, FILE, [RUN, *extras])


def install_torch(python: str, file: Path, build: str = "") -> None:
    """Install the torch of a lock file, and what its build requires of NVIDIA, unless it is there; ``build``: only this one (`+cpu`).

    Raises:
        CalledProcessError: pip failed; it has printed why.
        SystemExit: pip chose a build that the lock file does not know.
    """
    pin, hashes = read_sections(file.read_text(encoding="utf-8"))[TORCH][0].split(" ", 1)
    pin += build
    version = pin.partition("==")[2]
    installed = _output(python, _TORCH_VERSION)
    if version not in (installed, installed.partition("+")[0]):
        print(f"Fetching {pin} (200 MB for CPUs, up to 1 GB for NVIDIA GPUs) ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            _pip(python, "download", "--no-deps", "--dest", folder, pin)
            wheel = next(Path(folder).iterdir())
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if f"--hash=sha256:{digest}" not in hashes:
                raise SystemExit(
                    f"{wheel.name} (SHA-256 {digest}) is not a build of torch that {file.name} knows. "
                    f"If it is the one you want, install it yourself, then repeat: {python} -m pip install --no-deps {pin}"
                )
            print(f"Installing {wheel.name} ...", flush=True)
            _pip(python, "install", "--no-deps", str(wheel))
    if _output(python, _NEEDS_CUDA) == "True":
        install_locked(python, file, [CUDA])


def install_locked(python: str, file: Path, names: list[str]) -> None:
    """Install these sections of a lock file. Raises: CalledProcessError: pip failed; it has printed why.

    The file is complete, so pip resolves nothing: its resolver can prefer a version newer than the locked one for `pydantic[email]`.
    """
    sections = read_sections(file.read_text(encoding="utf-8"))
    wanted = [requirement for name in names for requirement in sections[name]]
    print(f"Fetching {len(wanted)} packages ({', '.join(names)}) ...", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.writelines(wanted)
        chosen.flush()
        _pip_counting(python, len(wanted), "install", "--no-deps", "--require-hashes", "-r", chosen.name)


def make_environment(
    folder: Path, wanted: str, file: Path, install: Callable[[str], None], then: str
) -> None:
    """Make a virtual environment with ``wanted``, unless the one in ``folder`` is complete and from this lock file.

    ``install`` receives the environment's python; ``then`` is what a person runs next.
    """
    done = folder / ".installed"
    mark = f"{wanted} {hashlib.sha256(file.read_bytes()).hexdigest()}"
    if done.exists() and done.read_text() == mark:
        print(f"{folder} has {wanted} already")
        return
    print(f"Installing {wanted} into {folder} (several GB, some minutes) ...", flush=True)
    is_another = done.exists() and not done.read_text().startswith(wanted)
    venv.create(folder, with_pip=True, clear=is_another)
    install(str(folder / "bin" / "python"))
    done.write_text(mark)
    print(f"Done: {then}")


def environment_arguments(description: str, default: str) -> argparse.ArgumentParser:
    """Return a parser that knows the environment's folder."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FILE.parent / default)
    return parser


def _pip(python: str, command: str, *arguments: str) -> None:
    """Run pip with its own progress bar."""
    subprocess.run([*_pip_command(python), command, *arguments], check=True)


def _pip_counting(python: str, total: int, *arguments: str) -> None:
    """Run pip with a count of its packages in place of its several lines for each; what goes wrong, it prints itself."""
    is_terminal, count = sys.stdout.isatty(), 0
    command = [*_pip_command(python), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if named := re.match(r"(?:Collecting|Ignoring|Requirement already satisfied:) ([\w.-]+)", line):
                count += 1
                if is_terminal or count % 20 == 0:
                    print(
                        f"  {count} of {total}: {named[1]:<40}", end="\r" if is_terminal else "\n", flush=True
                    )
            elif line.startswith("Installing collected packages"):
                print(f"  {'installing what was fetched ...':<60}", flush=True)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _pip_command(python: str) -> list[str]:
    return [python, "-m", "pip", "--disable-pip-version-check"]


def _output(python: str, script: str) -> str:
    return subprocess.check_output([python, "-c", script], text=True).strip()


if __name__ == "__main__":
    main(sys.argv[1:])
