"""The command line: `python run.py --method combine` starts everything; see `--help` for the commands.

Only argument parsing is imported here; what a command needs is imported when it is given, so that every `--help` comes
up at once. This file is also read by older Pythons, to say that they are too old.
"""

import gc
import sys

gc.disable()  # Modules leave no garbage: to look for it takes a fifth of a command's time.
if sys.version_info < (3, 11):  # noqa: UP036 - no installer checked it for a start by hand
    sys.exit(
        f"patina: Python 3.11 or newer is needed, and this is Python {sys.version_info[0]}.{sys.version_info[1]}"
    )

try:
    from cli.main import main
except ModuleNotFoundError as error:
    sys.exit(
        f"patina: the package {error.name} is not installed for {sys.executable}: `make run` installs into .venv, then use "
        ".venv/bin/python run.py"
    )

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
