"""Write `constraints.txt`: the exact version of every package that `make` installs, taken from this environment.

Run it after a change of a version in pyproject.toml, in an environment that `make test` has just updated. `scripts/install.py` installs nothing
beside these versions. A local build keeps its public version (`torch==2.13.0` also admits `2.13.0+cpu`), so that the file holds for any
index. Builds of torch for a GPU bring packages of their own, which torch itself pins.
"""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FILE = ROOT / "constraints.txt"
#: What `make` installs: the dependencies and these extras.
EXTRAS = ("test", "postgres")


def lock() -> str:
    """Return the file's content for this environment. Raises: PackageNotFoundError for a requirement that is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [
        *project["dependencies"],
        *(one for extra in EXTRAS for one in project["optional-dependencies"][extra]),
    ]
    waiting = [(Requirement(name), True) for name in names]
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, is_direct = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            if is_direct:
                raise
            continue  # needed on another platform, or replaced by a local build
        versions[name] = found.version.partition("+")[0]
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in found.requires or ():
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    waiting.append((inner, False))
    head = "# Written by scripts/lock.py: the exact version of every package that make installs.\n"
    return head + "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


if __name__ == "__main__":
    FILE.write_text(lock(), encoding="utf-8")
    print(f"{FILE.name} is written", file=sys.stderr)
