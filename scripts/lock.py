"""Write `requirements.lock`: the exact version and the SHA-256 hashes of every package that `make` installs.

Run it after a change of a version in pyproject.toml. It needs the program `uv` and the package index, and keeps the other packages' versions.
`scripts/install.py` installs the sections that it needs. torch is not in the file: its builds (CPU, CUDA, ROCm) have one version and
different hashes. The section `cuda` holds what torch's build for NVIDIA GPUs requires.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE = ROOT / "requirements.lock"
#: The extras that `make` installs, each a section of its own.
EXTRAS = ("postgres", "test")
#: The section of packages without which Patina does not run, and that of torch's CUDA build.
RUN, CUDA = "run", "cuda"
_CUDA_NAME = re.compile(r"(nvidia|cuda)-|triton==")
_HEAD = """\
# Written by scripts/lock.py. scripts/install.py installs torch, then the sections that it needs:
#   pip install torch==<the version of pyproject.toml>
#   pip install --require-hashes -r requirements.lock
"""


def read_sections(text: str) -> dict[str, list[str]]:
    """Return the requirements of each section of the lock file; a requirement is its lines, with the hashes."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines(keepends=True):
        if named := re.fullmatch(r"# \[(\w+)\]\n", line):
            sections[named[1]] = []
        elif line.startswith(" "):
            list(sections.values())[-1][-1] += line
        elif not line.startswith("#"):
            list(sections.values())[-1].append(line)
    return sections


def lock() -> str:
    """Return the file's content. Raises: CalledProcessError, FileNotFoundError: uv found no solution, or is missing."""
    everything = _compile(EXTRAS, "--generate-hashes")
    sections: dict[str, list[str]] = {CUDA: [one for one in everything if _CUDA_NAME.match(one)]}
    left = [one for one in everything if one not in sections[CUDA]]
    for name, extras in ((RUN, ()), *((extra, (extra,)) for extra in EXTRAS)):
        wanted = {_name(one) for one in _compile(extras)}
        sections[name] = [one for one in left if _name(one) in wanted]
        left = [one for one in left if _name(one) not in wanted]
    return _HEAD + "".join(f"# [{name}]\n" + "".join(sections[name]) for name in (RUN, *EXTRAS, CUDA))


def _name(requirement: str) -> str:
    return requirement.partition("==")[0]


def _compile(extras: tuple[str, ...], *flags: str) -> list[str]:
    """Return what pyproject.toml and these extras require, for every platform."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / FILE.name
        if FILE.exists():
            shutil.copy(FILE, output)  # uv keeps the versions of the file that it replaces
        command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--universal"]
        command += ["--python-version", "3.11", "--no-emit-package", "torch", "-o", str(output), *flags]
        command += [word for extra in extras for word in ("--extra", extra)]
        subprocess.run([*command, str(ROOT / "pyproject.toml")], check=True)
        return read_sections("# [all]\n" + output.read_text(encoding="utf-8"))["all"]


if __name__ == "__main__":
    FILE.write_text(lock(), encoding="utf-8")
    print(f"{FILE.name} is written", file=sys.stderr)
