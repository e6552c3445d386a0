"""Commands that other distributions add to the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from store.settings import IS_CHECKOUT

#: Adds a command: (name, help) -> its parser.
AddCommand = Callable[[str, str], argparse.ArgumentParser]
#: Group of the entry points. Each is called with an `AddCommand` and sets its parser's default ``extension``: what runs the command,
#: called with the settings, those given on the command line by name, and the arguments; it returns the exit code.
GROUP = "patina.commands"


def find_extensions() -> list[Callable[[AddCommand], None]]:
    """Return the installed extensions; in a checkout without any, that of its folder `lab`."""
    from importlib.metadata import entry_points  # few commands look for extensions

    found = [point.load() for point in entry_points(group=GROUP)]
    if not found and IS_CHECKOUT and find_spec("lab"):
        found = [import_module("lab.evals.arguments").add_eval]
    return found
