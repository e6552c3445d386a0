"""`python -m cli`: the same as `run.py`, wherever the packages are installed."""

import sys

from cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
