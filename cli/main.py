"""From arguments to the command. Errors of ours end as one sentence and exit code 2, everything else as what it is."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from importlib import import_module

from cli.arguments import build_parser, given_settings
from store.errors import ConfigError, PatinaError
from store.settings import Settings, read_settings

#: Commands (None: the start) that do not ask about what was started on this home before.
_OF_NO_HOME = frozenset({None, "demo", "eval", "classify", "score"})
#: Commands with a module of their own, which alone is imported, and its function.
_MODULES = {
    "classify": ("cli.classify", "classify"),
    "demo": ("cli.demo", "run_demo"),
    "explain": ("cli.explain", "explain"),
    "keys": ("cli.keys", "keys"),
    "open": ("cli.open_page", "open_page"),
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
    parser = build_parser(prog)
    parser.check_flags(argv)
    arguments = parser.parse_args(argv)
    try:
        settings = with_served_model(read_settings(given_settings(arguments)), arguments.command)
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
    command = arguments.command
    if command is None:
        from cli.supervisor import serve

        return serve(settings)
    if extension := getattr(arguments, "extension", None):
        return int(extension(settings, given_settings(arguments), arguments))
    if command in _MODULES:
        module, function = _MODULES[command]
        return int(getattr(import_module(module), function)(settings, arguments))
    from cli.commands import COMMANDS
    from serving.models.source import with_known_model

    return COMMANDS[command](with_known_model(settings), arguments)


def with_served_model(settings: Settings, command: str | None) -> Settings:
    """Return the settings with the model that the newest start on this home served, where none was named: its policy is what a command is about."""
    if command in _OF_NO_HOME or settings.model_fields_set & {"model_name", "served_model_name"}:
        return settings
    try:
        last = Settings.load(settings.home / "run" / "settings.json")
    except ConfigError:
        return settings  # nothing was ever started here
    return settings.model_copy(
        update={"model_name": last.model_name, "served_model_name": last.served_model_name}
    )
