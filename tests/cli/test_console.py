"""The console prints no control character of what clients and models wrote."""

from __future__ import annotations

import pytest
from rich.table import Table

from cli.console import PlainConsole, table_console

HOSTILE = "\x1b]0;owned\x07\x1b[2Jred\u202egnp.exe\x9b31m"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_hostile_texts_are_inert_in_lines_and_tables(
    capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    console = PlainConsole(highlight=False, width=160, force_terminal=is_terminal, no_color=True)
    table = Table("turn", HOSTILE)
    table.add_row("one", HOSTILE)
    console.print(table)
    console.print(HOSTILE)
    shown = capsys.readouterr().out.replace("\x1b[1m", "").replace("\x1b[0m", "")  # rich's own: bold
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(shown)
    assert shown.count("redgnp.exe") == 3


def test_the_tables_of_the_commands_use_it() -> None:
    assert isinstance(table_console(), PlainConsole)
