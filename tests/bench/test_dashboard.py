"""`bench.dashboard` asks for every page over a filled record, and each answers."""

import sys

import pytest

from bench import dashboard


@pytest.mark.long_run
def test_every_page_of_the_bench_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["dashboard", "--turns", "3000", "--repeats", "1"])
    dashboard.main()  # a page that answers with an error ends it
    shown = capsys.readouterr().out
    for who in ("owner", dashboard.PERSON, dashboard.BUSY):
        assert f"│ {who} " in shown
