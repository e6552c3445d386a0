"""Every package that a script installs has one exact version and known hashes."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.install import install_locked, install_torch, make_environment
from scripts.lock import (
    BOTH,
    BUILD,
    CPU,
    CUDA,
    EXTRAS,
    FILE,
    GPU,
    LLAMACPP,
    LLAMACPP_FILE,
    ROOT,
    RUN,
    SKYRL,
    SKYRL_TORCH,
    TINKER_FILE,
    TORCH,
    VLLM,
    VLLM_FILE,
    read_sections,
)

SECTIONS = {
    file: read_sections(file.read_text(encoding="utf-8"))
    for file in (FILE, VLLM_FILE, TINKER_FILE, LLAMACPP_FILE)
}
#: What is installed together.
CHOICES = [
    (FILE, (TORCH, CUDA, RUN, *EXTRAS)),
    (VLLM_FILE, (TORCH, BOTH, CPU)),
    (VLLM_FILE, (BOTH, GPU)),
    (TINKER_FILE, (TORCH, CUDA, RUN)),
    (LLAMACPP_FILE, (RUN, BUILD)),
]
_HASH = r" \\\n    --hash=sha256:[0-9a-f]{64}"


def requirement_of(lines: str) -> Requirement:
    return Requirement(lines.split(" \\\n")[0])


def locked(file: Path, section: str) -> dict[str, Requirement]:
    return {one.name: one for one in map(requirement_of, SECTIONS[file][section])}


@pytest.mark.parametrize(("file", "names"), CHOICES)
def test_every_locked_package_has_one_exact_version_and_hashes(file: Path, names: tuple[str, ...]) -> None:
    everything = [lines for name in names for lines in SECTIONS[file][name]]
    for lines in everything:
        shape = rf"[a-z0-9-]+(\[[a-z,]+\])?==[A-Za-z0-9.!]+( ; [^\\\n]+)?({_HASH})+\n"
        assert re.fullmatch(shape, lines), lines
    unconditional = [one.name for one in map(requirement_of, everything) if one.marker is None]
    assert len(set(unconditional)) == len(unconditional) > (3 if file == LLAMACPP_FILE else 80)


def test_no_other_section_is_in_a_lock_file() -> None:
    for file, sections in SECTIONS.items():
        assert set(sections) == {name for one, names in CHOICES if one == file for name in names}


def test_the_pins_of_the_project_are_those_of_the_lock() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {RUN: project["dependencies"]} | {
        extra: project["optional-dependencies"][extra] for extra in EXTRAS
    }
    for section, pins in named.items():
        for pin in map(Requirement, pins):
            where = TORCH if pin.name == "torch" else section
            assert pin.specifier == locked(FILE, where)[canonicalize_name(pin.name)].specifier


@pytest.mark.parametrize(
    ("file", "section", "pin"),
    [
        (VLLM_FILE, CPU, VLLM[CPU]),
        (VLLM_FILE, GPU, VLLM[GPU]),
        (TINKER_FILE, RUN, SKYRL),
        (TINKER_FILE, TORCH, SKYRL_TORCH),
        (LLAMACPP_FILE, RUN, LLAMACPP),
    ],
)
def test_the_engines_that_the_scripts_name_are_those_of_the_lock(file: Path, section: str, pin: str) -> None:
    wanted = Requirement(pin)
    assert wanted.specifier == locked(file, section)[wanted.name].specifier


def test_vllm_for_gpus_takes_no_build_of_torch_for_cpus() -> None:
    known = {
        section: set(re.findall(r"sha256:[0-9a-f]{64}", one))
        for section in (TORCH, GPU)
        for one in SECTIONS[VLLM_FILE][section]
        if one.startswith("torch==")
    }
    assert known[GPU] < known[TORCH]


def test_what_is_installed_here_is_what_is_locked() -> None:
    found = 0
    for name in SECTIONS[FILE]:
        for one in locked(FILE, name).values():
            try:
                installed = version(one.name).partition("+")[0]
            except PackageNotFoundError:
                continue
            assert f"=={installed}" == str(one.specifier), one.name
            found += 1
    assert found > 80


def wheel(folder: Path, name: str, version: str, content: str) -> str:
    """Make a wheel of one module; return its line of a lock file."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    facts = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", content)
        file.writestr(f"{facts}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{facts}/RECORD", "")
    public = version.partition("+")[0]
    return f"{name}=={public} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder in which pip finds packages; it installs them into the folder `site`."""
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_TARGET": str(tmp_path / "site"),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_a_changed_package_is_not_installed(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = shop / "requirements.lock"
    lock.write_text(f"# [{RUN}]\n" + wheel(shop, "lamp", "1.0", "good = True\n"), encoding="utf-8")
    install_locked(sys.executable, lock, [RUN])
    assert (shop / "site" / "lamp.py").read_text(encoding="utf-8") == "good = True\n"
    wheel(shop, "lamp", "1.0", "good = False\n")
    monkeypatch.setenv("PIP_TARGET", str(shop / "second"))
    with pytest.raises(subprocess.CalledProcessError):
        install_locked(sys.executable, lock, [RUN])
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not (shop / "second" / "lamp.py").exists()


@pytest.mark.parametrize("build", ["", "+cpu"])
def test_a_known_build_of_torch_is_installed(shop: Path, build: str) -> None:
    known = wheel(shop, "torch", "99.0" + build, "known = True\n")
    (shop / "some.lock").write_text(f"# [{TORCH}]\n{known}# [{CUDA}]\n", encoding="utf-8")
    install_torch(sys.executable, shop / "some.lock", build)
    assert (shop / "site" / "torch.py").read_text(encoding="utf-8") == "known = True\n"


def test_a_build_of_torch_that_the_lock_does_not_know_is_refused_with_the_mend(shop: Path) -> None:
    known = wheel(shop, "torch", "99.0", "known = True\n")
    (shop / "some.lock").write_text(f"# [{TORCH}]\n{known}# [{CUDA}]\n", encoding="utf-8")
    other = wheel(shop, "torch", "99.0+other", "known = False\n")
    digest = other.strip().rpartition(":")[2]
    with pytest.raises(SystemExit) as refused:
        install_torch(sys.executable, shop / "some.lock")
    assert str(refused.value) == (
        f"torch-99.0+other-py3-none-any.whl (SHA-256 {digest}) is not a build of torch that some.lock knows. If it is the one you want, "
        f"install it yourself, then repeat: {sys.executable} -m pip install --no-deps torch==99.0"
    )
    assert not (shop / "site").exists()


def test_a_torch_that_is_there_is_kept_whatever_its_build(shop: Path) -> None:
    here = version("torch").partition("+")[0]
    (shop / "some.lock").write_text(
        f"# [{TORCH}]\ntorch=={here} \\\n    --hash=sha256:{'0' * 64}\n# [{CUDA}]\n", encoding="utf-8"
    )
    install_torch(sys.executable, shop / "some.lock")
    assert not (shop / "site").exists()


def test_an_environment_is_completed_when_its_lock_changes_and_made_anew_for_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lock = tmp_path / "environment", tmp_path / "some.lock"
    filled: list[str] = []
    made: list[bool] = []
    monkeypatch.setattr(venv, "create", lambda folder, **options: made.append(options["clear"]))
    folder.mkdir()

    def make(wanted: str, content: str) -> None:
        lock.write_text(content, encoding="utf-8")
        make_environment(folder, wanted, lock, filled.append, "run it")

    (folder / ".installed").write_text("lamp==1.0")  # the mark of earlier versions of the script
    make("lamp==1.0", "a")
    make("lamp==1.0", "a")
    assert (filled, made) == ([str(folder / "bin" / "python")], [False])
    make("lamp==1.0", "b")
    make("lamp==2.0", "b")
    assert (len(filled), made) == (3, [False, False, True])
