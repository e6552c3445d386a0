"""Patina's version, and the name of its command line."""

import sys
from pathlib import Path

#: pyproject.toml, `--version` and the built-in engine take it from here.
VERSION = "0.2.0"
_ROOT = Path(__file__).resolve().parent.parent
_IN_VENV = Path(sys.prefix).resolve() == (_ROOT / ".venv").resolve()
_PYTHON = ".venv/bin/python" if _IN_VENV else "python"
#: In messages, as a person types it: a checkout has `run.py`, an installed package has `patina`.
COMMAND = f"{_PYTHON} run.py" if (_ROOT / "run.py").is_file() else "patina"
