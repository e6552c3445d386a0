"""Whether the bindings of llama.cpp are installed. Standard library only: the supervisor asks."""

from __future__ import annotations

import importlib.util

PACKAGE = "llama_cpp"
INSTALL = "python scripts/install_llamacpp.py"


def is_installed() -> bool:
    """Return whether the bindings are there; imports nothing of them."""
    return importlib.util.find_spec(PACKAGE) is not None
