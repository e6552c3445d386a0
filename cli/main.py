"""From arguments to the command. Errors of ours end as one sentence and exit code 2, everything else as what it is."""

from __future__ import annotations

import argparse
import errno
import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from cli.arguments import build_parser, given_settings
from store.errors import ConfigError, PatinaError
from store.settings import Settings, read_settings

#: Commands (None: the start) that do not ask about what was started on this home before.
_OF_NO_HOME = frozenset({None, "demo", "eval", "classify", "score"})
#: Commands with a module of their own, which alone is imported, and its function.
_MODULES = {
    "backup": ("cli.backup", "backup"),
    "classify": ("cli.classify", "classify"),
    "compare": ("cli.compare", "compare"),
    "demo": ("cli.demo", "run_demo"),
    "explain": ("cli.explain", "explain"),
    "forget": ("cli.forget", "forget"),
    "import": ("cli.import_turns", "import_turns"),
    "keys": ("cli.keys", "keys"),
    "open": ("cli.open_page", "open_page"),
    "openclaw": ("cli.openclaw", "openclaw"),
    "recover": ("cli.recover", "recover"),
    "restore": ("cli.backup", "restore"),
    "retain": ("cli.retain", "retain"),
    "score": ("cli.score", "score"),
    "wishes": ("cli.wishes", "wishes"),
}
#: Errors of the disk that the user must mend.
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


def patina() -> int:
    """Run the command line of this process: what `pip install` makes the command `patina` of."""
    return main(sys.argv[1:], prog="patina")


def main(argv: Sequence[str], *, prog: str = "run.py") -> int:
    """Run one command; returns the exit code: 0 done, 1 it found something wrong, 2 it could not be done."""
    parser = build_parser(prog, argv)
    parser.check_flags(argv)
    arguments = parser.parse_args(argv)
    try:
        settings = with_last_start(read_settings(given_settings(arguments)), arguments.command)
        return _run(arguments, settings)
    except PatinaError as exc:
        print(f"patina: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `run.py trajectories | head`: the reader has seen enough. Keep Python from complaining at exit as well.
        sys.stderr.close()
        return 0
    except OSError as exc:
        if exc.errno not in _DISK_ERRORS:
            raise
        place = f" ({exc.filename})" if exc.filename else ""
        print(f"patina: the disk cannot be written: {exc.strerror}{place}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    run = _function_of(arguments)
    gc.enable()  # `run.py` disabled it for the imports
    return run(settings, arguments)


def _function_of(arguments: argparse.Namespace) -> Callable[[Settings, argparse.Namespace], int]:
    """Import what runs the command, and nothing else."""
    command = arguments.command
    if command is None:
        from cli.supervisor import serve

        return lambda settings, _: serve(settings)
    if extension := getattr(arguments, "extension", None):
        return lambda settings, given: int(extension(settings, given_settings(given), given))
    if command in _MODULES:
        module, function = _MODULES[command]
        found: Callable[[Settings, argparse.Namespace], int] = getattr(import_module(module), function)
        return found
    from cli.commands import COMMANDS

    return COMMANDS[command]


def with_last_start(settings: Settings, command: str | None) -> Settings:
    """Return the settings with the model that the newest start on this home served, where none was named: its policy is what a command is about.

    The folder that was found for that model comes with it: a command fetches none.
    """
    if command in _OF_NO_HOME:
        return settings
    try:
        last = Settings.load(settings.home / "run" / "settings.json")
    except ConfigError:
        return settings  # nothing was ever started here
    names = ["model_name", "served_model_name"]
    known = {} if settings.model_fields_set & set(names) else {name: getattr(last, name) for name in names}
    if known.get("model_name", settings.model_name) == last.model_name and not settings.model_folder:
        known |= {"model_folder": last.model_folder, "model_gguf": last.model_gguf}
    return settings.model_copy(update=known)
