"""A row that cannot be read never breaks a page: the others are shown."""

import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.dashboard.conftest import sign_in

#: (statement that damages rows, page, what is still shown there)
DAMAGES = (
    ("UPDATE steps SET metrics = '{' WHERE step_id = 'step2'", "/dashboard/steps", "step1"),
    ("UPDATE steps SET metrics = '{' WHERE step_id = 'step1'", "/dashboard/steps", "this row cannot be read"),
    ("UPDATE steps SET metrics = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE steps SET metrics = '[1]'", "/v1/dashboard", "step1"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/versions", "base model"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/versions/1", "this row cannot be read"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/steps", "step2"),
    ("UPDATE verdicts SET detail = '{'", "/dashboard/steps", "Sample 1/1"),
    ("UPDATE messages SET body = '{'", "/dashboard/conversations", "this row cannot be read"),
    ("UPDATE messages SET body = '{'", "/dashboard/conversations?session=bobs", "bob&#39;s answer"),
    ("UPDATE turns SET tool_calls = '{'", "/dashboard/conversations?session=bobs", "bob&#39;s answer"),
    ("UPDATE verdicts SET wishes = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE verdicts SET wishes = '{'", "/dashboard/versions/1", "1 complaint"),
    ("UPDATE verdicts SET wishes = '{'", "/dashboard/turns/t1", "Verdicts"),
    ("UPDATE verdicts SET detail = '1e300'", "/dashboard/turns/t1", "Verdicts"),
    ("UPDATE verdicts SET created_at = 1e300", "/dashboard", "at no time"),
    ("UPDATE steps SET finished_at = 1e300", "/dashboard/steps", "step2"),
    ("UPDATE turn_states SET drop_reason = 'sale'", "/dashboard/unused", "What was not used"),
    ("INSERT INTO heartbeats VALUES ('proxy', 1, 'running', '{', 9e9)", "/dashboard/live", "<td>proxy</td>"),
)


@pytest.mark.parametrize(("statement", "path", "shown"), DAMAGES)
async def test_a_damaged_row_leaves_the_page_standing(
    page: httpx.AsyncClient, tmp_path: Path, statement: str, path: str, shown: str
) -> None:
    await sign_in(page)
    with closing(sqlite3.connect(tmp_path / "patina.db")) as database:
        assert database.execute(statement).rowcount
        database.commit()
    found = await page.get(path)
    assert found.status_code == 200
    assert shown in found.text


async def test_the_page_of_a_damaged_turn_says_so(page: httpx.AsyncClient, tmp_path: Path) -> None:
    await sign_in(page)
    with closing(sqlite3.connect(tmp_path / "patina.db")) as database:
        database.execute("UPDATE messages SET body = '{'")
        database.commit()
    found = await page.get("/dashboard/turns/b1")
    assert found.status_code == 500
    assert "Something in the record that it shows is damaged." in found.text
    assert (await page.get("/dashboard")).status_code == 200


async def test_whatever_a_damaged_row_raises_is_answered_with_a_page_or_a_sentence(
    page: httpx.AsyncClient, tmp_path: Path
) -> None:
    await sign_in(page)
    with closing(sqlite3.connect(tmp_path / "patina.db")) as database:
        database.execute("UPDATE alias_moves SET moved_at = '{', version = '{'")
        database.execute("UPDATE turns SET created_at = '{'")
        database.commit()
    for path in ("/metrics", "/dashboard/conversations"):
        found = await page.get(path)
        assert (found.status_code, "damaged" in found.text) == (500, True), path
