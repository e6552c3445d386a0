"""From arguments to the command. Errors of ours end as one sentence and exit code 2, everything else as what it is."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence

from cli.arguments import build_parser, given_settings
from store.errors import ConfigError, PatinaError
from store.settings import Settings, read_settings

#: Commands (None: the start) that do not ask about what was started on this home before.
_OF_NO_HOME = frozenset({None, "demo", "eval", "classify", "score"})
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
        if arguments.command is None:
            from cli.supervisor import serve

            return serve(settings)
        if arguments.command == "demo":
            from cli.demo import run_demo

            return run_demo(settings, arguments)
        if arguments.command == "eval":
            from evals.command import run_eval

            return run_eval(settings, given_settings(arguments), arguments)
        if arguments.command == "classify":
            from cli.classify import classify

            return classify(settings, arguments)
        if arguments.command == "score":
            from cli.score import score

            return score(settings, arguments)
        if arguments.command == "keys":
            from cli.keys import keys

            return keys(settings, arguments)
        if arguments.command == "explain":
            from cli.explain import explain

            return explain(settings, arguments)
        if arguments.command == "open":
            from cli.open_page import open_page

            return open_page(settings, arguments)
        if arguments.command == "wishes":
            from cli.wishes import wishes

            return wishes(settings, arguments)
        from cli.commands import COMMANDS

        return COMMANDS[arguments.command](settings, arguments)
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
