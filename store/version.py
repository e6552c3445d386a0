"""Patina's version, and the name of its command line."""

from pathlib import Path

#: pyproject.toml, `--version` and the built-in engine take it from here.
VERSION = "0.2.0"
#: In messages: a checkout has `run.py`, an installed package has `patina`.
COMMAND = "run.py" if (Path(__file__).parent.parent / "run.py").is_file() else "patina"
