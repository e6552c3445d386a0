"""The console for tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from store.texts import strip_controls

#: Width where no terminal says how wide it is: every column has room.
FILE_COLUMNS = 160


class PlainConsole(Console):
    """A console that prints no control character of the texts it is given: they come from clients and models."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(_cleaned(one) for one in objects), **options)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return strip_controls(value)
    if isinstance(value, Table):
        for column in value.columns:
            column._cells = [_cleaned(cell) for cell in column._cells]
            column.header = _cleaned(column.header)
    return value


def table_console(*, soft_wrap: bool = False) -> Console:
    """Stdout: a terminal as wide as it is; a file or a pipe at least `FILE_COLUMNS` wide.

    Args:
        soft_wrap: lines of text are not broken in a file or a pipe. Titles of tables are not centred there then.
    """
    console = PlainConsole(highlight=False)
    if console.is_terminal:
        return console
    return PlainConsole(highlight=False, soft_wrap=soft_wrap, width=max(console.width, FILE_COLUMNS))
