"""The command line: `python run.py --method combine` starts everything; see `--help` for the commands.

Only argument parsing is imported here; what a command needs is imported when it is given, so that every `--help` comes
up at once.
"""

import sys

from cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
