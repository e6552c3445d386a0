"""The console for tables."""

from __future__ import annotations

from rich.console import Console

#: Width where no terminal says how wide it is: every column has room.
FILE_COLUMNS = 160


def table_console(*, soft_wrap: bool = False) -> Console:
    """Stdout: a terminal as wide as it is; a file or a pipe at least `FILE_COLUMNS` wide.

    Args:
        soft_wrap: lines of text are not broken in a file or a pipe. Titles of tables are not centred there then.
    """
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, soft_wrap=soft_wrap, width=max(console.width, FILE_COLUMNS))
