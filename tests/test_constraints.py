"""Every package that `make` installs has one exact version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.lock import EXTRAS, FILE, lock

ROOT = Path(__file__).parent.parent


def constraints() -> dict[str, str]:
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert all(
        re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.!]+", line) for line in lines
    )  # exact, and of no local build
    return dict(line.split("==") for line in lines)


def test_the_pins_of_the_project_are_those_of_the_lock() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [
        *project["dependencies"],
        *(one for extra in EXTRAS for one in project["optional-dependencies"][extra]),
    ]
    locked = constraints()
    for requirement in map(Requirement, named):
        assert str(requirement.specifier) == f"=={locked[canonicalize_name(requirement.name)]}"


def test_what_is_installed_here_is_what_is_locked() -> None:
    found = dict(line.split("==") for line in lock().splitlines() if not line.startswith("#"))
    assert found == {name: version for name, version in constraints().items() if name in found}
    assert len(found) > 80
