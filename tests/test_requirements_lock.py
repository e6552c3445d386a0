"""Every package that `make` installs has one exact version and, but for torch, known hashes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import install
from scripts.lock import CUDA, EXTRAS, FILE, ROOT, RUN, read_sections

SECTIONS = read_sections(FILE.read_text(encoding="utf-8"))
_HASH = r" \\\n    --hash=sha256:[0-9a-f]{64}"


def requirement_of(lines: str) -> Requirement:
    return Requirement(lines.split(" \\\n")[0])


def test_every_locked_package_has_one_exact_version_and_hashes() -> None:
    assert list(SECTIONS) == [RUN, *EXTRAS, CUDA]
    everything = [lines for section in SECTIONS.values() for lines in section]
    for lines in everything:
        assert re.fullmatch(rf"[a-z0-9-]+==[A-Za-z0-9.!]+( ; [^\\\n]+)?({_HASH})+\n", lines), lines
    names = [requirement_of(lines).name for lines in everything]
    assert len(set(names)) == len(names)
    assert "torch" not in names


def test_the_pins_of_the_project_are_those_of_the_lock() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {RUN: project["dependencies"]} | {
        extra: project["optional-dependencies"][extra] for extra in EXTRAS
    }
    for section, pins in named.items():
        locked = {one.name: one for lines in SECTIONS[section] for one in [requirement_of(lines)]}
        for pin in map(Requirement, pins):
            if pin.name != "torch":
                assert pin.specifier == locked[canonicalize_name(pin.name)].specifier


def test_what_is_installed_here_is_what_is_locked() -> None:
    found = 0
    for lines in (lines for section in SECTIONS.values() for lines in section):
        locked = requirement_of(lines)
        try:
            installed = version(locked.name).partition("+")[0]
        except PackageNotFoundError:
            continue
        assert f"=={installed}" == str(locked.specifier), locked.name
        found += 1
    assert found > 80


def wheel(path: Path, content: str) -> Path:
    """A wheel of the package `lamp`."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("lamp.py", content)
        file.writestr("lamp-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: lamp\nVersion: 1.0\n")
        file.writestr(
            "lamp-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("lamp-1.0.dist-info/RECORD", "")
    return path


def test_a_changed_package_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sold = wheel(tmp_path / "lamp-1.0-py3-none-any.whl", "good = True\n")
    hashed = subprocess.check_output([sys.executable, "-m", "pip", "hash", str(sold)], text=True)
    (tmp_path / "requirements.lock").write_text(
        f"# [{RUN}]\nlamp==1.0 \\\n    {hashed.splitlines()[1]}\n# [{CUDA}]\n", encoding="utf-8"
    )
    monkeypatch.setattr(install, "FILE", tmp_path / "requirements.lock")
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_TARGET": str(tmp_path / "site"),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    install.install_locked([RUN])
    assert (tmp_path / "site" / "lamp.py").read_text(encoding="utf-8") == "good = True\n"
    wheel(sold, "good = False\n")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "second"))
    with pytest.raises(subprocess.CalledProcessError):
        install.install_locked([RUN])
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not (tmp_path / "second" / "lamp.py").exists()
